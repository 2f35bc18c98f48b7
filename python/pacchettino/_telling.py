"""What is told of jobs: to the log, and to the hooks of `on_settled`. What these raise goes no further."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pacchettino import _core
from pacchettino._text import safe, safe_lines

if TYPE_CHECKING:
    from pacchettino._job import Hook, Job

T = TypeVar("T")

LENGTH_OF_ID = 36

Fields: TypeAlias = Mapping[str, object]

Raised: TypeAlias = BaseException | str
"""What a record shows with its traceback: an exception, or the text of one that no handler of records could format."""

NO_FIELDS: Fields = {
    "pacchettino_id": None,
    "pacchettino_attempt": None,
    "pacchettino_duration": None,
    "pacchettino_outcome": None,
}
"""The fields of each record, so that a format can name them. An application may have a `job_id` of its own."""


def tried(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call code of the application. Return what it returned and what it raised.

    What a signal raises meanwhile goes on: `KeyboardInterrupt`, or what the application's handler of the signal raises.
    """
    try:
        return call(), None
    except BaseException as error:
        if is_by_signal(error):
            raise
        return None, error


def is_by_signal(error: BaseException) -> bool:
    """Return whether a signal raised it, and not the code that the signal happened to interrupt."""
    if is_a(error, KeyboardInterrupt):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(traceback_of(error)))


def is_a(error: BaseException, *kinds: type) -> bool:
    """Return whether an exception is of one of these types, as `except` sees it, whatever its `__class__` says."""
    return issubclass(type(error), kinds)


def traceback_of(error: BaseException) -> Any:
    """Return an exception's traceback, also where its class has an attribute of that name."""
    return BaseException.__dict__["__traceback__"].__get__(error)


class Log:
    """A logger that nothing escapes from: filters, handlers, record factories and streams may raise.

    A job that is settled must stay settled, and a worker must go on, whatever happens to a log server.

    Reasons, names and tracebacks may hold what a sender sent. So that none acts in a terminal or passes for a record of
    its own, each value is one line in which control characters are escaped, and the lines of a traceback are indented.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._logger.addFilter(_with_safe_traceback)

    def takes(self, level: int) -> bool:
        """Return whether somebody wants records of that level."""
        return bool(tried(partial(self._logger.isEnabledFor, level))[0])

    def debug(self, text: str, *values: object, extra: Fields = NO_FIELDS) -> None:
        """Log what is of interest to somebody who looks for a fault."""
        self.log(logging.DEBUG, text, *values, extra=extra)

    def info(self, text: str, *values: object, extra: Fields = NO_FIELDS) -> None:
        """Log what went well."""
        self.log(logging.INFO, text, *values, extra=extra)

    def warning(self, text: str, *values: object, extra: Fields = NO_FIELDS) -> None:
        """Log what somebody should know."""
        self.log(logging.WARNING, text, *values, extra=extra)

    def error(self, text: str, *values: object, extra: Fields = NO_FIELDS, exc_info: Raised | None = None) -> None:
        """Log what went wrong."""
        self.log(logging.ERROR, text, *values, extra=extra, exc_info=exc_info)

    def log(
        self, level: int, text: str, *values: object, extra: Fields = NO_FIELDS, exc_info: Raised | None = None
    ) -> None:
        """Log at that level, with what was raised if there is something."""
        if not self.takes(level):
            return
        values = tuple(map(_escaped, values))
        if isinstance(exc_info, str):
            text, values, exc_info = f"{text}\n%s", (*values, _indented(exc_info)), None
        fields = {**NO_FIELDS, **extra}
        log = partial(self._logger.log, exc_info=exc_info, extra=fields, stacklevel=5)
        _, raised = tried(lambda: log(level, text, *values))
        if raised is not None and logging.raiseExceptions and sys.stderr is not None:
            said = safe(summarize(raised))
            tried(lambda: print(f"pacchettino: logging raised {said}; not logged: {text % values}", file=sys.stderr))


def _escaped(value: object) -> object:
    """Return what is logged in place of a value. A number stays one."""
    if value is None or isinstance(value, (int, float)):
        return value
    text, _ = tried(partial(str, value))
    return type(value).__name__ if text is None else safe(text)


def _with_safe_traceback(record: logging.LogRecord) -> bool:
    """Give a record the text of its exception, which a formatter would else make."""
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = _indented(format_traceback(record.exc_info[1])[0])
    return True


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in safe_lines(text))


def summarize(error: BaseException) -> str:
    """Return an exception in a few words, also one whose own code raises when it is formatted."""
    lines, raised = tried(partial(traceback.format_exception_only, error))
    return clean("".join(lines or [_described(error, raised)]).strip())


def format_traceback(error: BaseException) -> tuple[str, Raised]:
    """Return an exception with its traceback, also one whose own code raises, and what the log shows of it."""
    lines, raised = tried(partial(traceback.format_exception, error))
    if lines is not None:
        return clean("".join(lines)), error
    text = clean("".join([*traceback.format_tb(traceback_of(error)), _described(error, raised)]))
    return text, text


def _described(error: BaseException, raised: BaseException | None) -> str:
    """Describe an exception without asking anything that its class may have redefined."""
    text, _ = tried(partial(BaseException.__str__, error))
    return f"{type.__repr__(type(error))}: {text} (formatting it raised {type.__repr__(type(raised))})\n"


def clean(text: str) -> str:
    """Return text that can be written down: an exception may quote a file's name that is no text."""
    return text.encode("utf-8", "backslashreplace").decode()


# All that the library logs goes through these two.
logger = Log("pacchettino")
work_logger = Log("pacchettino.work")


def about(claim: _core.Claim) -> dict[str, object]:
    """Return the fields of a log record on a claimed job."""
    return {
        "pacchettino_id": claim.id,
        "pacchettino_attempt": known_attempt(claim),
        "pacchettino_duration": claim.seconds if claim.has_begun else None,
        "pacchettino_outcome": claim.outcome,
    }


def called(claim: _core.Claim) -> str:
    """Return what a job is called in the log: its id, and of a file the name as well."""
    return claim.id if claim.name is None else f"{claim.id} ({claim.name!r})"


def known_attempt(claim: _core.Claim) -> int | None:
    """Return which attempt this is, as far as it is known: after the verdict only if it was asked for before."""
    try:
        return claim.attempt()
    except (OSError, RuntimeError):
        return None


def tell_taken(claim: _core.Claim) -> None:
    """Log that somebody begins with a job."""
    logger.debug("job %s taken", claim.id, extra=about(claim))


def tell_moved(job: str, what: str, is_done: bool) -> bool:
    """Log what somebody did to a waiting or finished job, named by its id or its entry, if it was done."""
    if is_done:
        id = job if len(job) == LENGTH_OF_ID else job[4 : 4 + LENGTH_OF_ID]  # after `raw-` or `fle-`
        logger.info("job %s %s", id, what, extra={"pacchettino_id": id})
    return is_done


def tell_settled(job: Job, hooks: Iterable[Hook]) -> None:
    """Log how a settled job ended, and call the hooks, unless that is done already. A hook that raises harms nobody."""
    claim = job._claim
    verdict = claim.take_verdict()
    if verdict is None:
        return
    outcome, seconds = verdict
    logger.info("job %s settled: %s, after %.3f s", claim.id, outcome, seconds, extra=about(claim))
    for hook in hooks:
        _, raised = tried(partial(hook, job, outcome, seconds))
        if raised is not None:
            _, shown = format_traceback(raised)
            logger.error("job %s: a hook of on_settled raised", claim.id, extra=about(claim), exc_info=shown)
