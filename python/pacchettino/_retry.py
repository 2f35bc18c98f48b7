"""When a job is tried again, when it is given up, and what is logged of that."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from logging import ERROR, WARNING
from typing import Any, Final, TypeAlias

from pacchettino import _core
from pacchettino._telling import Raised, about, called, clean, format_traceback, is_a, logger, summarize, tried
from pacchettino._types import Duration, Result, Status, finite_seconds, seconds, whole_number

LONGEST_DELAY = 100 * 365.25 * 24 * 3600

RetryDelay: TypeAlias = Duration | Callable[[int], Duration]
"""How long a job waits before it is tried again: always the same, or by the number of the attempt that just ended."""


ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What a handler raises to end its worker. Its job is interrupted; any other exception fails the job, or retries it."""


class _NotGiven(int):
    """The type of `NOT_GIVEN`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_GIVEN"

    def __reduce__(self) -> str:
        return "NOT_GIVEN"  # there is one in each process


NOT_GIVEN: Final = _NotGiven()
"""The `retry_delay` of a queue that was given none. It is 0, but after an exception a job waits all the same."""


class Retry(Exception):
    """Raised by a handler to have its job tried again after `delay`.

    Without a delay the job waits as after an exception of `retry_on`: for the queue's `retry_delay` if one was given,
    else for one second after the first attempt, then twice as long after each, up to a minute.
    """

    # A subclass may not call `super().__init__()`.
    delay: Duration | None = None
    reason: str | None = None

    def __init__(self, delay: Duration | None = None, reason: str | None = None) -> None:
        super().__init__(delay, reason)
        if delay is not None:
            delay_seconds(delay, "delay")
        self.delay = delay
        self.reason = _text(reason)


class Fail(Exception):
    """Raised by a handler whose job can't be done, and is not to be tried again."""

    reason: str | None = None

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = _text(reason)


@dataclass(frozen=True)
class Backoff:
    """A `retry_delay` that grows: `initial` after the first attempt, then `factor` times as long after each.

    It grows no longer than `maximum`, and is longer or shorter by chance, by a share of up to `jitter`, so that jobs
    which failed together are not tried together.
    """

    initial: Duration
    factor: float = 2
    maximum: Duration | None = None
    jitter: float = 0.1

    def __post_init__(self) -> None:
        delay_seconds(self.initial, "initial")
        if self.maximum is not None and delay_seconds(self.maximum, "maximum") < delay_seconds(self.initial, "initial"):
            raise ValueError(f"maximum must be at least initial ({self.initial!r}), not {self.maximum!r}")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be 1 or more, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, not {self.jitter!r}")

    def __call__(self, attempt: int) -> float:
        """Tell how long to wait after that attempt; the first is 1."""
        longest = LONGEST_DELAY / 2 if self.maximum is None else delay_seconds(self.maximum, "maximum")
        initial = delay_seconds(self.initial, "initial")
        try:
            delay = initial * float(self.factor) ** (attempt - 1)
        except OverflowError:
            delay = longest if initial else 0
        return min(delay, longest) * random.uniform(1 - self.jitter, 1 + self.jitter)


@dataclass
class Verdict:
    """What came of a handler, and what is recorded and logged of that."""

    result: Result
    reason: str | None = None
    traceback: str | None = None
    delay: Duration | None = None
    is_raised: bool = False
    error: Raised | None = None
    """What is logged with its traceback. It goes then: a cycle would keep the variables of the handler in memory."""

    @staticmethod
    def of_return(handler: object, returned: object) -> Verdict:
        """Judge an attempt by what its handler returned."""
        kind = type(returned)  # an object may raise when it is asked for its `__class__`
        if kind is Result:
            return Verdict(returned)  # type: ignore[arg-type]
        if kind in (bool, Status):
            advice = "return None or a pacchettino.Result"
        elif issubclass(kind, (Awaitable, Generator, AsyncGenerator)):
            advice = "nothing runs that, so the job was not done"
        else:
            return SUCCESS  # handlers are often functions that return something
        shown, _ = tried(partial(repr, returned))
        if issubclass(kind, Coroutine):
            coroutine: Any = returned
            tried(coroutine.close)  # or Python warns that it was never awaited
        return Verdict(Result.FAILED, clean(f"handler {name_of(handler)} returned {shown or kind.__name__}; {advice}"))

    @staticmethod
    def of_error(error: BaseException, retry_on: tuple[type[BaseException], ...] = ()) -> Verdict:
        """Judge an attempt by what its handler raised."""
        if not is_a(error, Retry, Fail):
            text, shown = format_traceback(error)
            if is_a(error, *retry_on):
                return Verdict(Result.RETRY, summary(error), text, is_raised=True)
            return Verdict(Result.FAILED, summary(error), text, is_raised=True, error=shown)
        verdict, raised = tried(partial(_as_it_says, error))
        if raised is None and verdict is not None:
            return verdict
        # A subclass may have anything for its delay and its reason.
        reason = f"{type(error).__name__} can't be understood" + ("" if raised is None else f": {summary(raised)}")
        text, shown = format_traceback(error)
        return Verdict(Result.FAILED, reason, text, is_raised=True, error=shown)


SUCCESS = Verdict(Result.SUCCESS)


def _as_it_says(error: BaseException) -> Verdict:
    assert isinstance(error, Retry | Fail)
    cause = error.__cause__ if error.__suppress_context__ else error.__context__
    reason = _text(error.reason)
    if reason is None and cause is not None:
        reason = summary(cause)
    told = None if cause is None else told_at_length(cause)
    if not isinstance(error, Retry):
        return Verdict(Result.FAILED, reason, told, is_raised=True)
    delay = None if error.delay is None else delay_seconds(error.delay, "delay")
    return Verdict(Result.RETRY, reason, told, delay, is_raised=True)


def ends_work(error: BaseException) -> bool:
    """Return whether what a handler raised ends the worker, and not only the job. A group does if one of it does."""
    if is_a(error, BaseExceptionGroup):
        return any(map(ends_work, BaseExceptionGroup.__dict__["exceptions"].__get__(error)))
    return is_a(error, *ENDS)


@dataclass(frozen=True)
class Attempts:
    """A queue's settings: how often a job is tried, and how long it waits in between."""

    most: int | None
    delay: RetryDelay

    def retry(self, claim: _core.Claim, verdict: Verdict) -> None:
        """Have a job tried again, or fail if it was tried often enough. Then log the reason."""
        delay = self.delay if verdict.delay is None else verdict.delay
        if delay is NOT_GIVEN and verdict.is_raised:
            delay = DELAY_AFTER_ERROR
        attempt = 1 if self.most is None and not callable(delay) else _attempt(claim)
        if self.most is not None and attempt >= self.most:
            times = "one attempt" if attempt == 1 else f"{attempt} attempts"
            _give_up(claim, f"given up after {times}", verdict.reason, verdict.traceback)
            return
        if callable(delay):
            asked = delay
            wait, raised = tried(lambda: delay_seconds(asked(attempt), "retry_delay"))
            if raised is not None and ends_work(raised):
                raise raised
            if wait is None:
                assert raised is not None
                _give_up(claim, "retry_delay raised", summary(raised), told_at_length(raised))
                return
        else:
            wait = seconds(delay, "delay")
        text = None if verdict.reason is None else "job %s is to be tried again in %.3g s: %s"
        give = partial(claim.retry, wait, verdict.reason, verdict.traceback)
        settle_and_log(claim, give, WARNING, text, wait, verdict.reason)


def _attempt(claim: _core.Claim) -> int:
    """Count the attempts. A history that can't be read keeps no job from being tried again."""
    try:
        return claim.attempt()
    except OSError as error:
        logger.warning("job %s: its attempts can't be counted: %s", claim.id, error, extra=about(claim))
        return 1


def _give_up(claim: _core.Claim, what: str, reason: str | None, traceback: str | None) -> None:
    fail(claim, Verdict(Result.FAILED, what if reason is None else f"{what}: {reason}", traceback))


def fail(claim: _core.Claim, verdict: Verdict) -> None:
    """Fail a job, then log why, unless its handler just returned that."""
    error, verdict.error = verdict.error, None
    give = partial(claim.fail, verdict.reason, verdict.traceback)
    if verdict.reason is not None:
        settle_and_log(claim, give, ERROR, "job %s failed: %s", verdict.reason, exc_info=error)
    else:
        settle_and_log(claim, give, ERROR, "job %s failed" if verdict.is_raised else None)


def settle_and_log(
    claim: _core.Claim,
    settle: Callable[[], None],
    level: int,
    text: str | None,
    *values: object,
    exc_info: Raised | None = None,
) -> None:
    """Settle a job, then log that, if there is something to say and it was not settled before.

    It is logged also where the disk does not take the verdict now, which is kept then and tried again.
    """
    was_settled = claim.is_settled
    try:
        settle()
    finally:
        if text is not None and claim.is_settled and not was_settled:
            logger.log(level, text, called(claim), *values, extra=about(claim), exc_info=exc_info)


def checked_delay(value: RetryDelay) -> RetryDelay:
    """Check a `retry_delay`, as far as that can be done before it is asked."""
    if not callable(value):
        delay_seconds(value, "retry_delay")
    return value


def delay_seconds(value: object, what: str) -> float:
    """A delay as seconds. One without end would make a job that never comes."""
    delay = finite_seconds(value, what)
    if delay > LONGEST_DELAY:
        raise ValueError(f"{what} is longer than a hundred years")
    return delay


def count(value: object, what: str, least: int) -> int:
    """Check a number of attempts."""
    return min(whole_number(value, what, least), 2**32 - 1)


class Left(KeyboardInterrupt):
    """Raised in a handler that its worker leaves, with the reason."""


def summary(error: BaseException) -> str:
    """Return what is recorded of an exception, in a few words."""
    return clean(str(error)) if is_a(error, Left) else summarize(error)


def told_at_length(error: BaseException) -> str | None:
    """Return an exception with its traceback, unless it came from outside, and the traceback would tell nothing."""
    return None if is_a(error, Left) else format_traceback(error)[0]


def name_of(function: object) -> str:
    """Return what a handler is called, also one that has no name."""
    name, _ = tried(lambda: str(getattr(function, "__qualname__", function)))
    return name or type(function).__name__


def _text(reason: object) -> str | None:
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"reason must be str, not {type(reason).__name__}")
    return None if reason is None else clean(reason)


DELAY_AFTER_ERROR = Backoff(1, maximum=60)
"""How long a job waits whose handler raised, where no `retry_delay` was given. With no pause it would fill the log."""
