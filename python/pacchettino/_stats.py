"""A queue in a few figures."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from pacchettino import _core
from pacchettino._types import from_milliseconds


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
