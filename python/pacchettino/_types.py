"""The words of the queue: enums, listings, errors, durations."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pacchettino import _core

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


class QueueFull(PacchettinoError):
    """There is no room for a job: `max_queued` jobs wait, or the disk has less than `min_free` bytes. None was sent."""


class SendError(PacchettinoError, OSError):
    """Something failed after jobs had been published: they exist, and sending them again would run them twice."""

    sent: list[str]
    """The ids of the jobs that exist, in the order of the items sent."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a job that did not simply succeed, as `Pacchettino.history` shows it."""

    attempt: int
    """Which attempt it was, from 1; 0 for a requeue, after which attempts are counted anew."""
    ended: Literal["retry", "failed", "interrupted", "requeued"]
    """How it ended. `"requeued"` is no attempt: somebody put the job back."""
    at: datetime
    """When, UTC."""
    due: datetime | None
    """When the next attempt was due, UTC; `None` if there was to be none."""
    host: str
    """The machine on which this was recorded."""
    pid: int
    """The process that recorded it; of a consumer that died, the one that noticed."""
    owner: str | None
    """Who held the job: a PID, or the name of a lock file in `owners/`."""
    reason: str | None
    """What was said of it, in a few words: at most a thousand characters."""
    traceback: str | None
    """The traceback of the exception, or its last 16,000 characters."""
    settled: bool
    """Whether the job was moved as this says. If not, its consumer died just then, before that or just after."""

    @staticmethod
    def _of(record: _core.Record) -> Attempt:
        return Attempt(
            record.attempt,
            record.ended,
            from_milliseconds(record.at),
            None if record.due is None else from_milliseconds(record.due),
            record.host,
            record.pid,
            record.owner,
            record.reason,
            record.traceback,
            record.is_settled,
        )


class _Listed:
    """Has a place for what the core tells of a job, apart from the fields."""

    __slots__ = ("_row",)

    _row: _core.Row


@dataclass(frozen=True, slots=True)
class JobInfo(_Listed):
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

    # Of a million jobs listed most are only counted, or looked at by one field: a field gets its value when it is first
    # asked for. To make all of them takes twenty times as long as to list the job.

    @staticmethod
    def _of(row: _core.Row) -> JobInfo:
        job = _new(JobInfo)
        _set_row(job, row)
        return job

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Give a field its value; Python comes here where there is none."""
            make = _MAKE.get(name)
            if make is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            value = make(self._row)
            object.__setattr__(self, name, value)
            return value


_new = object.__new__
_set_row = _Listed.__dict__["_row"].__set__

_MAKE: dict[str, Callable[[_core.Row], Any]] = {
    "id": lambda row: row.id,
    "entry": lambda row: row.entry,
    "kind": lambda row: "data" if row.name is None else "file",
    "name": lambda row: row.name,
    "status": lambda row: Status(row.state),
    "path": lambda row: Path(row.path),
    "sent_at": lambda row: from_milliseconds(row.sent_at),
    "due": lambda row: None if row.due is None else from_milliseconds(row.due),
    "owner": lambda row: row.owner,
}


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
