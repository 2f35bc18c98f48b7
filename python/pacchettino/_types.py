"""The words of the queue: enums, errors, durations. All else imports this, so it imports little."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

Duration: TypeAlias = int | float | timedelta
"""Seconds, or a `timedelta`."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MILLISECOND = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)


class KeepPolicy(enum.IntFlag, boundary=enum.STRICT):
    """Which finished jobs stay on disk. The others are deleted when they are settled or recovered."""

    NONE = 0
    SUCCESS = 1
    FAILED = 2
    INTERRUPTED = 4
    ALL = 7


class Result(enum.Enum):
    """What a handler says of its job. A handler that returns `None` means `SUCCESS`."""

    SUCCESS = "success"
    FAILED = "failed"
    RETRY = "retry"


class Status(enum.StrEnum):
    """Where a job is. Each is also a string: `Status.FAILED == "failed"`."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    PROCESSING = "processing"
    SUCCESS = "success"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SCHEDULED = "scheduled"


class CrashDetection(enum.Enum):
    """How the death of a consumer is noticed.

    `LOCK_FILE`: by a file that it keeps locked (`flock`), which the kernel frees when it ends, however it ends; also
    across containers. `PID`: by its process id, for filesystems that have no locks.
    """

    PID = "pid"
    LOCK_FILE = "lock_file"


class PacchettinoError(Exception):
    """The root of the errors that are the project's own."""


class NotKeptError(PacchettinoError):
    """This queue's keep policy deletes the jobs that were asked for, so there is nothing to count or to find."""


class QueueFull(PacchettinoError):
    """There is no room for a job: `max_queued` jobs wait, or the disk has less than `min_free` bytes. None was sent."""


class SendError(PacchettinoError, OSError):
    """Something failed after jobs had been published: they exist, and sending them again would run them twice."""

    sent: list[str]
    """The ids of the jobs that exist, in the order of the items sent."""


def whole_number(value: object, what: str, least: int) -> int:
    """Check a setting that is a number without a fraction, and no `bool`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{what} must be {least} or more, not {value}")
    return value


def seconds(value: object, what: str) -> float:
    """A duration as seconds. `bool` is a `TypeError`: `receive_one(False)` must not become a timeout of 0."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # a union is made anew each time
        raise TypeError(f"{what} must be seconds (int or float) or a timedelta, not {type(value).__name__}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if math.isnan(value):
        raise ValueError(f"{what} can't be NaN")
    return value


def finite_seconds(value: object, what: str) -> float:
    """A duration as seconds that must end some day."""
    value = seconds(value, what)
    if math.isinf(value):
        raise ValueError(f"{what} can't be infinite")
    return value


def from_milliseconds(value: int) -> datetime:
    """A time on disk as an aware `datetime`; the last there is for one past the year 9999, which names can hold."""
    return EPOCH + timedelta(milliseconds=min(value, LAST_MILLISECOND))
