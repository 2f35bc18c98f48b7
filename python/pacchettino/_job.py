"""A claimed job."""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partial
from logging import WARNING
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from pacchettino import _core
from pacchettino._retry import Fail, Retry, Verdict, settle_and_log, summary, told_at_length
from pacchettino._telling import about, clean, is_a, known_attempt, logger, tell_settled
from pacchettino._types import Duration, Result, from_milliseconds

if TYPE_CHECKING:
    from pacchettino._queue import Pacchettino


Handling: TypeAlias = list[Any]
"""A claim that a handler works on, its queue, and the `Job` once somebody asks. A list, since one is made for each job:
a class costs four times as much."""

current: contextvars.ContextVar[Handling | Job | None] = contextvars.ContextVar("pacchettino", default=None)
"""What is being handled in this thread or task."""


def current_job() -> Job:
    """The job that is being handled in this thread or task: by a handler, or in the block of a `with job:`.

    `RuntimeError` where there is none. A verdict that a handler gives through it stands, whatever it returns.
    """
    handled = current.get()
    if handled is None:
        raise RuntimeError("no job is being handled here")
    if isinstance(handled, Job):
        return handled
    return job_of(handled)


def job_of(handling: Handling) -> Job:
    """The same for each who asks."""
    if len(handling) == 2:
        handling.append(Job(handling[0], handling[1]))  # of two threads that do so at once the first one's is taken
    job: Job = handling[2]
    return job


class Job:
    """A job that this process has claimed: nobody else gets it.

    It ends by one of `succeed`, `fail`, `retry`, once. As a context manager it succeeds at the end of the block,
    fails on an `Exception` (is tried again, if that is one of the queue's `retry_on`) and is interrupted by anything
    else, all of which go on, but for `Retry` and `Fail`, which end the block; a verdict given inside stands.
    Dropped without a verdict it is interrupted, with a `ResourceWarning`. If the process dies, the job is
    interrupted, as soon as another consumer looks.

    In a forked child the parent's job is inert: a verdict raises `RuntimeError`, dropping it does nothing.
    """

    __slots__ = ("__weakref__", "_claim", "_data", "_outer", "_queue")

    def __init__(self, claim: _core.Claim, queue: Pacchettino) -> None:
        self._claim = claim
        self._queue = queue
        self._data: bytes | None = None
        self._outer: Handling | Job | None = None
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
    def attempt(self) -> int:
        """Which attempt at the job this is: 1 for the first since it was sent or requeued.

        Read from the job's history when first asked for; `RuntimeError` if that is after the verdict.
        """
        return self._claim.attempt()

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
        self._settle(self._claim.succeed)

    def fail(self, reason: str | None = None) -> None:
        """The job can't be done: to `failed/`, or deleted where the keep policy says so.

        The reason is logged, and kept in the job's history.
        """
        said = None if reason is None else clean(reason)
        text = None if reason is None else "job %s failed: %s"
        give = partial(self._claim.fail, said)
        self._settle(partial(settle_and_log, self._claim, give, WARNING, text, said))

    def retry(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Have the job tried again after `delay` (seconds or a `timedelta`).

        Without one it waits for the queue's `retry_delay`; if that was not given either, the job goes back at once.

        After the queue's `max_attempts` attempts the job fails instead, which is logged. Raises `ValueError` for a
        delay that no job's name can hold; the job then has no verdict yet.
        """
        said = None if reason is None else clean(reason)
        self._settle(partial(self._queue._attempts.retry, self._claim, Verdict(Result.RETRY, said, delay=delay)))

    def __enter__(self) -> Job:
        self._outer = current.get()
        current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._leave()
        return self._end(error)

    def _leave(self) -> None:
        current.set(self._outer)
        self._outer = None

    def _end(self, error: BaseException | None) -> bool:
        """Settle the job by how its block ended."""
        is_verdict = error is not None and is_a(error, Retry, Fail)
        if self._claim.is_settled or not self._claim.is_ours:
            return is_verdict
        if error is None:
            self.succeed()
            return False
        try:
            self._settle_by(error)
        except (OSError, ValueError) as unsettled:  # a retry in a year that no name can hold is a ValueError
            # The error of the block is the one to go on.
            logger.error("job %s could not be settled: %s", self.id, unsettled, extra=about(self._claim))
        return is_verdict

    def _settle_by(self, error: BaseException) -> None:
        if not is_a(error, Exception):
            self._settle(partial(self._claim.interrupt, summary(error), told_at_length(error)))
            return
        verdict = Verdict.of_error(error, self._queue.retry_on)
        if verdict.result is Result.RETRY:
            self._settle(partial(self._queue._attempts.retry, self._claim, verdict))
        else:
            self._settle(partial(self._claim.fail, verdict.reason, verdict.traceback))

    def _settle(self, give: Callable[[], None]) -> None:
        """Give the verdict, and tell of it; of one that the disk does not take yet as well."""
        if self._queue._is_watched:
            known_attempt(self._claim)  # nobody can look it up after the verdict
        if self._queue._hooks:  # they may take their time
            self._claim.settle_fully()
        try:
            give()
        finally:
            if self._queue._is_watched:
                tell_settled(self, self._queue._hooks)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Job can't be copied or pickled: it is this process's claim")

    def __del__(self) -> None:
        if self._is_unsettled():
            try:
                self._interrupt_dropped()
            finally:
                warn_of_drop(self, self.id)

    def _is_unsettled(self) -> bool:
        claim = getattr(self, "_claim", None)
        return claim is not None and claim.is_ours and not claim.is_settled

    def _interrupt_dropped(self) -> None:
        try:
            self._settle(partial(self._claim.interrupt, "dropped without a verdict"))
        except OSError as error:
            logger.error("job %s could not be settled: %s", self.id, error, extra=about(self._claim))

    def __repr__(self) -> str:
        return f"<Job {self.entry!r}>"


def warn_of_drop(job: object, id: str) -> None:
    """Warn of a job that is deleted without a result, at the place where that happens."""
    message = f"job {id} was dropped without a verdict; it is interrupted"
    warnings.warn(message, ResourceWarning, source=job, stacklevel=3)


Hook: TypeAlias = Callable[[Job, str, float], object]
"""Who is told what came of a job, and after how many seconds."""
