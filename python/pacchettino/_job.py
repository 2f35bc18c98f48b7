"""A claimed job."""

from __future__ import annotations

import logging
import warnings
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn

from pacchettino import _core
from pacchettino._types import Duration, from_milliseconds, seconds

if TYPE_CHECKING:
    from pacchettino._queue import Pacchettino

logger = logging.getLogger("pacchettino")


class Job:
    """A job that this process has claimed: nobody else gets it.

    It ends by one of `succeed`, `fail`, `retry`, once. As a context manager it succeeds at the end of the block,
    fails on an `Exception` and is interrupted by anything else, all of which go on; a verdict given inside stands.
    Dropped without a verdict it is interrupted, with a `ResourceWarning`. If the process dies, the job is
    interrupted, as soon as another consumer looks.

    In a forked child the parent's job is inert: a verdict raises `RuntimeError`, dropping it does nothing.
    """

    __slots__ = ("__weakref__", "_claim", "_data", "_queue")

    def __init__(self, claim: _core.Claim, queue: Pacchettino) -> None:
        self._claim = claim
        self._queue = queue
        self._data: bytes | None = None
        claim.begin()

    @property
    def id(self) -> str:
        """The job's UUID, as `send_*` returned it."""
        return self._claim.id

    @property
    def entry(self) -> str:
        """The name of its file in the other states: `raw-<uuid>` or `fle-<uuid>-<name>`."""
        return self._claim.entry

    @property
    def kind(self) -> Literal["data", "file"]:
        """`"data"` or `"file"`."""
        return "data" if self._claim.name is None else "file"

    @property
    def name(self) -> str | None:
        """The base name of a file job, `None` for a data job."""
        return self._claim.name

    @property
    def path(self) -> Path:
        """Where the job's file is until the verdict. It must not be moved or deleted."""
        return Path(self._claim.path)

    @property
    def data(self) -> bytes:
        """The job's bytes, read when first asked for; a file's too.

        Raises `OSError` if it can't be read, `RuntimeError` if it is first asked for after the verdict.
        """
        if self._data is None:
            self._data = self._claim.read()
        return self._data

    @property
    def sent_at(self) -> datetime:
        """When it was sent, UTC."""
        sent = _core.sent_at(self.id)
        assert sent is not None
        return from_milliseconds(sent)

    def succeed(self) -> None:
        """The job is done: to `success/`, or deleted where the keep policy says so.

        Raises `RuntimeError` if there is a verdict already, or in a forked child. `OSError` if the disk does not
        take the verdict now: it is kept, and tried again whenever this process looks for jobs; if the process ends
        before that, the job is interrupted. The same holds for `fail` and `retry`. With `durable`, the verdict is on
        the disk when this returns.
        """
        self._claim.succeed()

    def fail(self, reason: str | None = None) -> None:
        """The job can't be done: to `failed/`, or deleted where the keep policy says so. The reason is logged."""
        self._claim.fail()
        if reason is not None:
            logger.warning("job %s failed: %s", self.id, reason, extra={"job_id": self.id})

    def retry(self, delay: Duration | None = None) -> None:
        """Once more, after `delay` (seconds or a `timedelta`; the queue's `retry_delay` if `None`).

        Raises `ValueError` for a delay that no job's name can hold; the job then has no verdict yet.
        """
        self._claim.retry(self._queue._retry_seconds if delay is None else seconds(delay, "delay"))

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._claim.is_settled or not self._claim.is_ours:
            return
        if error is None:
            self.succeed()
            return
        try:
            if isinstance(error, Exception):
                self._claim.fail()
            else:
                self._claim.interrupt()
        except OSError as unsettled:
            # The error of the block is the one to go on.
            logger.error("job %s could not be settled: %s", self.id, unsettled, extra={"job_id": self.id})

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Job can't be copied or pickled: it is this process's claim")

    def __del__(self) -> None:
        claim = getattr(self, "_claim", None)
        if claim is not None and claim.is_ours and not claim.is_settled:
            warnings.warn(
                f"job {claim.id} was dropped without a verdict; it is interrupted",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
            claim.interrupt()

    def __repr__(self) -> str:
        return f"<Job {self.entry!r}>"
