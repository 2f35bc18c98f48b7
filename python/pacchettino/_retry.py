"""When a job is tried again, when it is given up, and what is said of that."""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pacchettino import _core
from pacchettino._telling import about, called, logger
from pacchettino._types import Duration, Result, finite_seconds, seconds, whole_number

LONGEST_DELAY = 100 * 365.25 * 24 * 3600

RetryDelay: TypeAlias = Duration | Callable[[int], Duration]
"""How long a job waits before it is tried again: always the same, or by the number of the attempt that just ended."""


ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What a handler raises to end its worker. Its job is interrupted; any other exception fails the job, or retries it."""


class Retry(Exception):
    """Raised by a handler: the job is to be tried again, after `delay` (the queue's `retry_delay` if `None`)."""

    def __init__(self, delay: Duration | None = None, reason: str | None = None) -> None:
        super().__init__(delay, reason)
        if delay is not None:
            delay_seconds(delay, "delay")
        self.delay = delay
        self.reason = _text(reason)


class Fail(Exception):
    """Raised by a handler: the job can't be done, and is not tried again."""

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
        try:
            delay = delay_seconds(self.initial, "initial") * float(self.factor) ** (attempt - 1)
        except OverflowError:
            delay = longest
        return min(delay, longest) * random.uniform(1 - self.jitter, 1 + self.jitter)


@dataclass(frozen=True)
class Verdict:
    """What came of a handler, and what is to be said of it."""

    result: Result
    reason: str | None = None
    traceback: str | None = None
    delay: Duration | None = None

    @staticmethod
    def of(error: BaseException, retry_on: tuple[type[BaseException], ...] = ()) -> Verdict:
        """Judge an attempt by what its handler raised."""
        if isinstance(error, Retry | Fail):
            cause = error.__cause__ or error.__context__
            reason = error.reason if error.reason is not None or cause is None else summary(cause)
            told = None if cause is None else told_at_length(cause)
            if isinstance(error, Retry):
                return Verdict(Result.RETRY, reason, told, error.delay)
            return Verdict(Result.FAILED, reason, told)
        result = Result.RETRY if isinstance(error, retry_on) else Result.FAILED
        return Verdict(result, summary(error), told_at_length(error))


@dataclass(frozen=True)
class Attempts:
    """A queue's settings: how often a job is tried, and how long it waits in between."""

    most: int | None
    delay: RetryDelay

    def retry(self, claim: _core.Claim, verdict: Verdict) -> None:
        """Have a job tried again, or fail if it was tried often enough. What was said of that is logged."""
        attempt = self._attempt(claim)
        if self.most is not None and attempt >= self.most:
            times = "one attempt" if attempt == 1 else f"{attempt} attempts"
            _give_up(claim, f"given up after {times}", verdict.reason, verdict.traceback)
            return
        delay = verdict.delay
        if delay is not None:
            delay = seconds(delay, "delay")
        elif callable(self.delay):
            try:
                delay = delay_seconds(self.delay(attempt), "retry_delay")
            except Exception as error:
                _give_up(claim, "retry_delay raised", summary(error), told_at_length(error))
                return
        else:
            delay = delay_seconds(self.delay, "retry_delay")
        claim.retry(delay, verdict.reason, verdict.traceback)
        if verdict.reason is not None:
            text = "job %s is to be tried again in %.3g s: %s"
            logger.warning(text, called(claim), delay, verdict.reason, extra=about(claim))

    def _attempt(self, claim: _core.Claim) -> int:
        """Count the attempts, where it matters. A history that can't be read keeps no job from being tried again."""
        if self.most is None and not callable(self.delay):
            return 1
        try:
            return claim.attempt()
        except OSError as error:
            logger.warning("job %s: its attempts can't be counted: %s", claim.id, error, extra=about(claim))
            return 1


def _give_up(claim: _core.Claim, what: str, reason: str | None, traceback: str | None) -> None:
    told = what if reason is None else f"{what}: {reason}"
    claim.fail(told, traceback)
    logger.error("job %s failed: %s", called(claim), told, extra=about(claim))


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
    """Tell an exception in a few words."""
    if isinstance(error, Left):
        return clean(str(error))
    return clean("".join(traceback.format_exception_only(error)).strip())


def told_at_length(error: BaseException) -> str | None:
    """Tell an exception with its traceback, unless it came from outside, and the traceback would tell nothing."""
    if isinstance(error, Left):
        return None
    return clean("".join(traceback.format_exception(error)))


def clean(text: str) -> str:
    """Have text that can be written down: an exception may quote a file's name that is no text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(reason: object) -> str | None:
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"reason must be str, not {type(reason).__name__}")
    return None if reason is None else clean(reason)
