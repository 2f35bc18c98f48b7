"""Has a program do each job: the handler of `pacchettino work DIR -- CMD`."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from pacchettino._job import Job, current_job
from pacchettino._retry import Fail, Left, Retry
from pacchettino._work import SLICE

AGAIN = 75
"""EX_TEMPFAIL of sysexits.h: the exit status that means "again"."""

TAIL = 2000
"""How many of the last bytes of standard error are looked at for a reason."""

REASON = 950
"""How many characters of them are kept: a reason has a thousand."""

LAST_WORDS = 0.5
"""How long standard error is read after the program ended; a program that it left behind may hold it open."""

TIME_TO_END = 1.0
"""How long a program has between SIGTERM and SIGKILL."""

TOLD = {"PACCHETTINO_ID", "PACCHETTINO_ATTEMPT", "PACCHETTINO_DIR", "PACCHETTINO_NAME"}
"""What a command is told of its job, and of no other, should a worker's command be a worker."""


class Program:
    """A handler that runs a command without a shell: of data jobs and of files."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __call__(self, id: str, *_: object) -> None:
        """Run it for the job at hand, and judge by its exit status."""
        job = current_job()
        command = [str(job.path) if argument == "{}" else argument for argument in self._command]
        has_path = "{}" in self._command
        # The file itself, so that nobody has to feed it, or to hold it in memory.
        with nullcontext(subprocess.DEVNULL) if has_path and job.kind == "file" else _opened(job.path) as file:
            run = _Run(command, file, _environment(job))
            try:
                run.run()
            except BaseException:  # the worker leaves
                run.end()
                raise
        if run.is_ended:
            raise Left("its worker left")  # nobody can tell how far it came: the job is interrupted
        if run.status == 0:
            return
        reason = run.reason()
        if run.status == AGAIN:
            raise Retry(reason=reason)
        raise Fail(reason)


class _Run:
    """A command for a job. Threads start it, wait for it and read what it says: there, no signal comes in between."""

    def __init__(self, command: list[str], file: int, environment: dict[str, str]) -> None:
        self.status: int | None = None
        self._tail = b""
        self._error: BaseException | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.is_ended = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=[command, file, environment], daemon=True)
        # Not the thread's `join`: once that was interrupted, Python 3.11 takes the thread to be over.
        self._is_over = threading.Event()

    def run(self) -> None:
        """Start it, and wait for its end. `OSError` if it could not be started."""
        self._thread.start()
        while not self._is_over.wait(SLICE):
            pass
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End it, and what it started, because the worker leaves."""
        self.is_ended = True
        for number in ("SIGTERM", "SIGKILL"):
            with self._lock:
                if self._process is not None:
                    _kill(self._process, number)
            if self._thread.ident is not None:
                self._is_over.wait(TIME_TO_END)

    def reason(self) -> str:
        """Tell in a few words how it ended: by its exit status, and by the end of what it wrote to standard error."""
        assert self.status is not None
        how = f"exit status {self.status}" if self.status >= 0 else f"killed by {_signal_name(-self.status)}"
        # Of a line that was written again and again, such as a progress bar, the last state.
        said = re.sub(r"[^\n]*\r(?=[^\r\n])", "", self._tail.decode(errors="replace")).replace("\r", "").strip()
        if not said:
            return how
        return f"{how}: {said}" if len(said) <= REASON else f"{how}: ...{said[-REASON:]}"

    def _run(self, command: list[str], file: int, environment: dict[str, str]) -> None:
        try:
            self._start(command, file, environment)
            if self._process is not None:
                self._attend(self._process)
        except BaseException as error:
            self._error = error
        finally:
            self._is_over.set()

    def _start(self, command: list[str], file: int, environment: dict[str, str]) -> None:
        with self._lock:
            if not self.is_ended:
                _guard.start()
                # A session of its own: Ctrl-C in the worker's terminal is not for it, and it waits for nobody there.
                process = subprocess.Popen(
                    command, stdin=file, stderr=subprocess.PIPE, env=environment, start_new_session=True
                )
                self._process = process
                _runs.add(self)
                _guard.watch(process.pid)

    def _attend(self, process: subprocess.Popen[bytes]) -> None:
        reader = threading.Thread(target=self._read, args=[process.stderr], daemon=True)
        reader.start()
        self.status = process.wait()
        _guard.forget(process.pid)
        _runs.discard(self)
        reader.join(LAST_WORDS)

    def _read(self, pipe: IO[bytes]) -> None:
        """Pass on what it writes to standard error, and keep the end."""
        with pipe:
            while said := os.read(pipe.fileno(), 1 << 16):
                self._tail = (self._tail + said)[-TAIL:]
                with suppress(AttributeError, OSError, ValueError):  # there may be nobody to read it
                    to = sys.stderr.fileno()
                    while said:
                        said = said[os.write(to, said) :]


class _Guard:
    """A process that ends this process's commands should it die; see `guard.py`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have it run before the first command does."""
        with self._lock:
            if sys.platform == "win32" or (self._process is not None and self._process.poll() is None):
                return
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(os.getpid())]
            null = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=null, stderr=null, cwd="/", start_new_session=True
            )

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Have it end, with nothing left to do."""
        if self._process is not None:
            self._process.communicate()

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # somebody killed it
                self._process.stdin.write(line.encode())


def _kill(process: subprocess.Popen[bytes], number: str) -> None:
    """Send a signal to a command and to what it started."""
    if sys.platform == "win32":
        process.terminate()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.Signals[number])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a job's file, never through a link."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    try:
        yield file
    finally:
        os.close(file)


def _environment(job: Job) -> dict[str, str]:
    """What a command is told of its job."""
    told = {"PACCHETTINO_ID": job.id, "PACCHETTINO_DIR": str(job._queue.base_dir)}
    if job.name is not None:
        told["PACCHETTINO_NAME"] = job.name
    with suppress(OSError):  # a history that can't be read
        told["PACCHETTINO_ATTEMPT"] = str(job.attempt)
    return {name: value for name, value in os.environ.items() if name not in TOLD} | told


_runs: set[_Run] = set()
_guard = _Guard()


@atexit.register
def end_all() -> None:
    """End what threads wait for, when the process leaves without them."""
    for run in list(_runs):
        run.end()
    _guard.close()
