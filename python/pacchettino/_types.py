"""The words of the queue: enums, listings, errors, durations."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias

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
    """What a handler says of its job. Returning `None` means `SUCCESS`."""

    SUCCESS = "success"
    FAILED = "failed"
    RETRY = "retry"


class Status(enum.Enum):
    """Where a job is."""

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


class SendError(PacchettinoError, OSError):
    """Something failed after jobs had been published: they exist, and sending them again would run them twice."""

    sent: list[str]
    """The ids of the jobs that exist, in the order of the items sent."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as `Pacchettino.jobs` shows it."""

    id: str
    """The job's UUID."""
    entry: str
    """The name of its file: `raw-<uuid>` or `fle-<uuid>-<name>`."""
    kind: Literal["data", "file"]
    """Whether it carries bytes, or a file with a name."""
    name: str | None
    """The base name of a file job, `None` for a data job."""
    status: Status
    """The state that was listed."""
    path: Path
    """Where its file is in that state. It moves when the job's state changes."""
    sent_at: datetime
    """When it was sent, UTC."""
    due: datetime | None
    """When a scheduled job is due, UTC."""
    owner: str | None
    """Who holds a job that is being processed: a PID, or the name of a lock file in `owners/`."""


def seconds(value: object, what: str) -> float:
    """A duration as seconds. `bool` is a `TypeError`: `receive_one(False)` must not become a timeout of 0."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
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
