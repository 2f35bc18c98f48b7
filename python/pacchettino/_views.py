"""What a queue shows: its jobs, their attempts, and itself in a few figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pacchettino import _core
from pacchettino._types import Status, from_milliseconds


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


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job in the hands of a consumer."""

    id: str
    """The job's UUID."""
    since: datetime
    """When the consumer took it, UTC."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A living process that holds jobs."""

    owner: str
    """A PID, or the name of a lock file in `owners/`."""
    holds: tuple[HeldJob, ...]
    """What it holds, oldest job first."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A queue in a few figures, as `Pacchettino.stats` shows it.

    They are read one directory after the other: a job that moves meanwhile may be counted twice or not at all.
    """

    queued: int
    """How many jobs wait."""
    scheduled: int
    """How many have a delay that is not over."""
    processing: int
    """How many are claimed, those of dead consumers included, until somebody looks after them."""
    success: int
    """How many succeeded and are kept; so with the next two."""
    failed: int
    interrupted: int
    oldest: timedelta | None
    """How long ago the oldest of the jobs that wait was sent."""
    next_due: datetime | None
    """When the next scheduled job is due, UTC."""
    consumers: tuple[Consumer, ...]
    """Who holds jobs and lives. Consumers that wait for a job are not seen."""

    @staticmethod
    def _of(core: _core.Queue) -> Stats:
        counts, oldest, next_due, held = core.stats()
        consumers: dict[str, list[HeldJob]] = {}
        for owner, id, since in held:
            consumers.setdefault(owner, []).append(HeldJob(id, from_milliseconds(since)))
        return Stats(
            **counts,
            oldest=None if oldest is None else timedelta(milliseconds=max(0, time.time_ns() // 1_000_000 - oldest)),
            next_due=None if next_due is None else from_milliseconds(next_due),
            consumers=tuple(Consumer(owner, tuple(jobs)) for owner, jobs in consumers.items()),
        )
