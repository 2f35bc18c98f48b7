"""Has a command do each job: the handler of `pacchettino work DIR -- CMD`."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pacchettino._command import open_job_file
from pacchettino._command.commands import Commands, Run
from pacchettino._retry import Fail, Left, Retry
from pacchettino._telling import about, called, logger
from pacchettino._text import safe
from pacchettino._work import Outage, is_limit, missing_directory

if TYPE_CHECKING:
    from pacchettino import _core

AGAIN = 75
"""EX_TEMPFAIL of sysexits.h: the exit status that means "retry"."""

REASON = 950
"""How many characters of standard error are kept as a reason, which has a thousand."""


class Program:
    """Does jobs of both kinds with a command, without a shell."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._commands = Commands()
        self._outage = Outage(f"start `{safe(command[0])}`")

    def __reduce__(self) -> tuple[type[Program], tuple[list[str]]]:
        return Program, (self._command,)

    def __call__(self, claim: _core.Claim, directory: Path) -> float | None:
        """Do a job that is not begun yet. The exit status of the command is its result.

        Returns `None`; or, if the command could not be started and the job was released, how long to wait.
        """
        run = Run(self._commands, claim)
        try:
            try:
                with self._opened(claim) as file:
                    # The path only where it is wanted: the directory of a claim whose path is known is not used again.
                    command = [claim.path if argument == "{}" else argument for argument in self._command]
                    run.start(command, file, _variables(claim, directory))
            except OSError as error:
                return self._release(claim, error)
            self._outage.end()
            run.wait()
        except BaseException:
            run.leave()
            raise
        finally:
            run.close()
        if self._commands.is_closed:
            raise Left("its worker left")  # nobody can tell how far the command got: the job is interrupted
        self._judge(claim, run)
        return None

    def end_all(self) -> None:
        """End the commands of all threads, because the worker leaves, and wait for that."""
        self._commands.end_all()
        self._commands.wait()

    @contextmanager
    def _opened(self, claim: _core.Claim) -> Iterator[int]:
        """Open the command's standard input: the job's file, so that nobody has to feed it, or to hold it in memory."""
        is_named = claim.name is not None and "{}" in self._command
        try:
            if is_named:
                file = os.open(os.devnull, os.O_RDONLY)
            elif sys.platform == "win32":
                file = open_job_file(claim.path)
            else:
                file = claim.open()
        except OSError as error:
            if is_limit(error):
                raise
            raise Fail(f"it can't be read: {error}") from None
        try:
            yield file
        finally:
            os.close(file)

    def _release(self, claim: _core.Claim, error: OSError) -> float:
        try:
            claim.put_back()
        except OSError as unsettled:
            logger.error("job %s could not be settled: %s", claim.id, unsettled, extra=about(claim))
        gone = missing_directory() if error.errno == errno.ENOENT else None
        if gone is not None:
            raise SystemExit(f"pacchettino: {gone}")
        return self._outage.meet(error)

    def _judge(self, claim: _core.Claim, run: Run) -> None:
        if run.status is None:
            reason = "the exit status of its command is not known: somebody else has waited for it"
            logger.error("job %s is interrupted: %s", called(claim), reason, extra=about(claim))
            claim.interrupt(reason)
        elif run.status == AGAIN:
            raise Retry(reason=_reason(run.status, run.tail))
        elif run.status != 0:
            raise Fail(_reason(run.status, run.tail))


def _reason(status: int, tail: bytes) -> str:
    """Describe in a few words how a command ended: by its exit status, and by the end of its standard error."""
    how = f"exit status {status}" if status >= 0 else f"killed by {_signal_name(-status)}"
    # Of a line that was written again and again, such as a progress bar, the last state.
    said = re.sub(r"[^\n]*\r(?=[^\r\n])", "", tail.decode(errors="replace")).replace("\r", "").strip()
    if not said:
        return how
    return f"{how}: {said}" if len(said) <= REASON else f"{how}: ...{said[-REASON:]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _variables(claim: _core.Claim, directory: Path) -> dict[str, str]:
    """Give the variables that describe a job to its command."""
    variables = {"PACCHETTINO_ID": claim.id, "PACCHETTINO_DIR": str(directory)}
    if claim.name is not None:
        variables["PACCHETTINO_NAME"] = claim.name
    try:
        variables["PACCHETTINO_ATTEMPT"] = str(claim.attempt())
    except OSError as error:
        if is_limit(error):
            raise
        # A history that can't be read keeps no job from being done.
    return variables
