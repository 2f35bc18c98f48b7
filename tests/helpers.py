"""Other processes that the tests talk to, and a look at a queue's directory that does not go through the queue."""

from __future__ import annotations

import ast
import atexit
import copy
import ctypes
import functools
import gc
import importlib
import logging
import mmap
import multiprocessing
import multiprocessing.connection
import os
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

if TYPE_CHECKING:
    from pacchettino import Pacchettino

if sys.platform == "win32":
    import _winapi
    import msvcrt
    from multiprocessing.connection import PipeConnection
else:
    import fcntl
    import pty
    from multiprocessing.reduction import recv_handle, send_handle

STATES = ("queued", "scheduled", "processing", "success", "failed", "interrupted")
DIRECTORIES = (*STATES, "tmp", "owners")

ID = rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TOKEN = rb"[a-z][0-9a-z]{9}"
DUE = rb"[0-9]{13}"

PATIENCE = 60
"""Seconds after which what should have come long ago is taken to hang."""

POLL_CALLS = {"7", "73", "271"}
"""`poll` and `ppoll`, as x86_64 and aarch64 number them."""


def raiser(error: BaseException) -> Callable[[], NoReturn]:
    """Give what raises such an error each time.

    It is a copy: an error among the parameters of a test would keep its traceback, and the queues there, until the last
    test has run.
    """

    def raises() -> NoReturn:
        raise copy.copy(error)

    return raises


def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.002)


# The directory


def new_id(milliseconds: int | None = None) -> str:
    """Make a version-7 UUID by hand."""
    stamp = time.time_ns() // 1_000_000 if milliseconds is None else milliseconds
    low = 0x8000_0000_0000_0000 | random.getrandbits(62)
    text = f"{stamp:012x}7{random.getrandbits(12):03x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def lay_down(base: Path, files: dict[bytes, bytes]) -> None:
    """Make a queue's directories, and files in them by their paths below the queue's directory."""
    for directory in DIRECTORIES:
        (base / directory).mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        file = base / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def odd_names(*names: str | bytes) -> list[Any]:
    """Give names as parameters of a test; those that Windows can't have are not tested there."""
    import pytest  # not above: it takes most of the time in which a peer starts

    return [
        pytest.param(name, marks=pytest.mark.needs("names of any bytes") if _needs_posix(name) else ())
        for name in names
    ]


def _needs_posix(name: str | bytes) -> bool:
    # Decoded as everywhere but on Windows, where that may be another name.
    text = name if isinstance(name, str) else name.decode(errors="surrogateescape")
    return re.search(r'[\0-\x1f"*/:<>?\\|\ud800-\udfff]|[. ]$', text) is not None


def grow_old(base: Path) -> None:
    """Let it be long ago that anything was written in `tmp/`.

    What is young there stays: a lock file may be just being made, a draft's writer live in another container.
    """
    for left in (base / "tmp").iterdir():
        os.utime(left, (0, 0))


def entries(directory: Path) -> list[bytes]:
    """List a directory's names, as bytes."""
    return sorted(os.listdir(os.fsencode(directory)))  # noqa: PTH208


def claims(base: Path) -> list[bytes]:
    """List the directories of claims, without those that wait for the next one."""
    return [name for name in entries(base / "processing") if not name.startswith(b"spare-")]


def everything(base: Path) -> dict[bytes, tuple[str, bytes]]:
    """Describe all that is below a directory: what it is, and what is in it."""
    found = {}
    top = os.fsencode(base)
    separator = os.fsencode(os.sep)
    for folder, folders, names in os.walk(top):
        for name in folders + names:
            entry = folder + separator + name
            path = Path(os.fsdecode(entry))
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                described = ("file", _content(path))
            elif stat.S_ISDIR(mode):
                described = ("directory", b"")
            elif stat.S_ISLNK(mode):
                described = ("link", os.fsencode(path.readlink()))
            else:
                described = ("other", str(stat.S_IFMT(mode)).encode())
            found[entry[len(top) + 1 :].replace(separator, b"/")] = described
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        if sys.platform == "win32" and is_locked(path):
            return b""  # a lock file, which nobody else can open
        raise


def files(base: Path) -> dict[bytes, bytes]:
    """Give the content of each file of a queue, by its path below the queue's directory.

    Lock files and the records of attempts are left out.
    """
    return {
        path: content
        for path, (kind, content) in everything(base).items()
        if kind == "file" and not path.startswith((b"owners/", b"history/"))
    }


def lock_file(path: str | Path) -> BinaryIO:
    """Make a lock file, or take it, and hold its lock for as long as what is returned lives."""
    if sys.platform == "win32":
        handle = _winapi.CreateFile(str(path), _winapi.GENERIC_WRITE, 0, 0, _OPEN_ALWAYS, 0, 0)
        return os.fdopen(msvcrt.open_osfhandle(handle, 0), "wb")
    lock = Path(path).open("wb")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of a file: its `flock`, or on Windows that nobody else can open it."""
    if sys.platform == "win32":
        try:
            path.open("rb").close()
        except PermissionError:
            return True
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def has_ended(pid: int) -> bool:
    """Whether a process is nowhere, not even as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def handle_all(queue: Pacchettino, way: str, jobs: int) -> None:
    """Have that many jobs handled, and no more: by `receive`, `receive_one`, `work`, or `work` in `threads`."""
    match way:
        case "receive":
            assert queue.receive() == jobs
        case "receive_one":
            assert [queue.receive_one() for _ in range(jobs)] == [True] * jobs
        case "work":
            assert queue.work(drain=True) == jobs
        case "threads":
            assert queue.work(threads=2, drain=True) == jobs
        case _:
            raise AssertionError(f"there is no such way: {way}")


def child_of(pid: int) -> int:
    """Give the PID of a process's only child."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def dead_pid() -> int:
    """Give the PID of a process that was, and was waited for."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert sys.platform == "win32" or has_ended(process.pid)
    return process.pid


# A clock that can be set


class Clock:
    """A wall clock for processes that are started with `environment`: it can be stepped while they run.

    They see what a machine's clock that is set does: all see the same time, and files have the times that it showed
    when they were written. The clocks by which waits are measured are left alone, and so is this process.
    """

    _MOST_STEPS = 1 << 16

    def __init__(self, path: Path) -> None:
        """Make a clock that is right, with its state in that file."""
        with path.open("xb") as file:
            file.truncate(8 + 16 * self._MOST_STEPS)
        with path.open("r+b") as file:
            self._state = mmap.mmap(file.fileno(), 0)
        self._steps = 0
        self.offset = 0
        self.environment = {"LD_PRELOAD": str(_clock_library()), "PACCHETTINO_CLOCK": str(path)}

    def step(self, seconds: int) -> None:
        """Set the clock by that much forward, or back."""
        self.offset += seconds
        start = time.time_ns()
        struct.pack_into("=qq", self._state, 8 + 16 * self._steps, start, self.offset)
        self._steps += 1
        struct.pack_into("=Q", self._state, 0, self._steps)
        # Files are stamped by a clock that ticks more coarsely.
        while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) < start:
            os.sched_yield()

    def set(self, seconds: int) -> None:
        """Set the clock to that many seconds since 1970."""
        self.step(seconds - self.now())

    def now(self) -> int:
        """Give the seconds since 1970 that it shows."""
        return int(time.time()) + self.offset

    def close(self) -> None:
        self._state.close()


_CLOCK_REALTIME_COARSE = 5


@functools.cache
def _clock_library() -> Path:
    """Build what a process must preload to have such a clock."""
    directory = Path(tempfile.mkdtemp(prefix="pacchettino-test-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / "clock.so"
    source = Path(__file__).with_name("clock.c")
    build = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
    try:
        subprocess.run(build, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        import pytest

        pytest.skip("NOT TESTED: a clock that can be set needs a C compiler")
    return library


# A record outside the queue


class Ledger:
    """A file to which any number of processes add lines, each by one write that nothing can tear or lose."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def __reduce__(self) -> tuple[type[Ledger], tuple[Path]]:
        return Ledger, (self.path,)

    def add(self, *lines: str) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        assert os.write(self._file, data) == len(data)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def close(self) -> None:
        os.close(self._file)


# The command

COMMAND = [sys.executable, "-m", "pacchettino"]

ODD_NAME = os.fsdecode(b"two\nlines \x1b[31m \xff \xe2\x80\xae.txt")


def environment(**more: str) -> dict[str, str]:
    """Give the environment of a command: this one, in which a warning is an error."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "PYTHONWARNINGS": "error", **more}


def run(*arguments: str | Path, input: bytes | str = b"", status: int = 0, error: str = "", **options: Any) -> str:
    """Run the command as a process, and give what it prints. It must end as is said, and complain of that alone."""
    options.setdefault("env", environment())
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=input.encode() if isinstance(input, str) else input,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        **options,
    )
    return _judged(done.returncode, done.stdout, done.stderr, status, error)


def call(
    *arguments: str | Path,
    input: bytes | str = b"",
    status: int = 0,
    error: str = "",
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """Run the command as `run` does, but in this process, which is as before when it ends: that takes a tenth."""
    return _judged(*call_main(*arguments, input=input, cwd=cwd, env=env), status, error)


def _judged(code: int, printed: bytes, said: bytes, status: int, error: str) -> str:
    text = said.decode(errors="replace")
    assert code == status, text
    assert "Traceback" not in text
    if error:
        assert error in text
    else:
        assert text == ""
    return printed.decode()


def call_main(
    *arguments: str | Path, input: bytes | str = b"", cwd: Path | None = None, env: dict[str, str] | None = None
) -> tuple[int, bytes, bytes]:
    """Run the command in this process. Give its exit status, and what it printed and complained of."""
    from pacchettino._command import main

    with standard_files(input.encode() if isinstance(input, str) else input) as (output, errors), _unchanged(cwd, env):
        try:
            code = main([*map(str, arguments)])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        printed, said = (os.pread(file.fileno(), 1 << 30, 0) for file in (output, errors))
    return code, printed, said


@contextmanager
def standard_files(input: bytes) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Have standard input from a file, output and errors in files: for Python, and for programs that are started."""
    streams, kept = (sys.stdin, sys.stdout, sys.stderr), [os.dup(number) for number in range(3)]
    with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        read.write(input)
        read.seek(0)
        try:
            for number, file in enumerate((read, output, errors)):
                os.dup2(file.fileno(), number)
            with (
                open(0, encoding="utf-8", errors="surrogateescape", closefd=False) as sys.stdin,
                open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
                open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as sys.stderr,
            ):
                yield output, errors
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            for number, before in enumerate(kept):
                os.dup2(before, number)
                os.close(before)


@contextmanager
def _unchanged(cwd: Path | None, env: dict[str, str] | None) -> Iterator[None]:
    """Have another directory and environment, and no log but standard error; undo that, and what a command changes."""
    directory, variables, path, modules = Path.cwd(), dict(os.environ), list(sys.path), set(sys.modules)
    loggers = [logging.getLogger(name) for name in (None, "pacchettino", "pacchettino.work")]
    settings = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers.clear()
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        importlib.invalidate_caches()  # of a directory that the test has just filled
        yield
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, settings, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
        if env is not None:
            os.environ.clear()
            os.environ.update(variables)
        os.chdir(directory)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if cwd is not None and (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{cwd}{os.sep}"):
                del sys.modules[name]


@contextmanager
def terminal(command: list[str], **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str], int]]:
    """Run a command in a terminal of its own, but for what is redirected. Gives it, what it shows, and the keys."""
    ours, theirs = pty.openpty()
    options.setdefault("env", environment(TERM="xterm"))
    redirected = {name: options.pop(name) for name in ("stdin", "stdout") if name in options}

    def begin() -> None:
        kept = [os.dup(number) for number in range(len(("stdin", "stdout")))]
        os.login_tty(theirs)
        for number, name in enumerate(("stdin", "stdout")):
            if name in redirected:
                os.dup2(kept[number], number)
            os.close(kept[number])

    process = subprocess.Popen(command, preexec_fn=begin, **redirected, **options)
    os.close(theirs)
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # EIO: nobody has it open any more
                return
            if not data:
                return
            shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()

    def screen() -> str:
        process.wait(PATIENCE)
        reader.join(PATIENCE)
        assert not reader.is_alive(), "somebody still has the terminal open"
        return b"".join(shown).decode()

    try:
        yield process, screen, ours
    finally:
        process.kill()
        process.wait()
        reader.join(PATIENCE)
        os.close(ours)


# Other processes

# What a process is held by: then its PID is not another's, and its end can be waited for.
if sys.platform == "win32":
    _OPEN_ALWAYS = 4

    def _hold(pid: int) -> int:
        terminate = 0x0001
        return _winapi.OpenProcess(_winapi.SYNCHRONIZE | terminate, False, pid)

    def _ends(process: int, patience: float) -> bool:
        return _winapi.WaitForSingleObject(process, int(1000 * patience)) == _winapi.WAIT_OBJECT_0

    def _kill(process: int) -> None:
        _winapi.TerminateProcess(process, 1)

    _release = _winapi.CloseHandle

    def _inherited(connection: PipeConnection) -> dict[str, Any]:
        """Give what `Popen` needs to hand it to a child."""
        os.set_handle_inheritable(connection.fileno(), True)
        return {"close_fds": False}

    _connected = PipeConnection
else:
    _hold = os.pidfd_open

    def _ends(process: int, patience: float) -> bool:
        return bool(multiprocessing.connection.wait([process], patience))

    def _kill(process: int) -> None:
        signal.pidfd_send_signal(process, signal.SIGKILL)

    _release = os.close

    def _inherited(connection: Connection) -> dict[str, Any]:
        """Give what `Popen` needs to hand it to a child."""
        return {"pass_fds": [connection.fileno()]}

    _connected = Connection


class Process:
    """A process that runs Python code that it is sent and answers with the value of the last expression.

    The code's names stay from one call to the next; a forked child inherits them. `fork()` is one of them.
    """

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self._handle = _hold(pid)

    def __call__(self, code: str) -> Any:
        self.begin(code)
        return self.end()

    def begin(self, code: str) -> None:
        """Send code without waiting for what comes of it."""
        self._connection.send(textwrap.dedent(code))

    def end(self, patience: float = PATIENCE) -> Any:
        """Give the value of the code that was sent before, or raise what it raised."""
        return answer(self._connection, patience)

    def has_answered(self) -> bool:
        """Whether `end` would not wait."""
        return self._connection.poll()

    def fork(self) -> Process:
        """Let it fork; the child is another process to talk to."""
        self.begin("fork()")
        child = self.adopt()
        self.end()
        return child

    def adopt(self) -> Process:
        """Give the child that the code begun is about to fork."""
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            send_handle(self._connection, theirs.fileno(), self.pid)
        return Process(ours, answer(ours))

    def leave(self) -> None:
        """Let `fork()` return in this forked child; the code that called it goes on."""
        self._connection.send(None)

    def finish(self) -> None:
        """Let this process come to its end as programs do, and wait until it has."""
        self._connection.send(None)
        self.wait()

    def kill(self) -> None:
        """Kill it and wait until it is dead; it may be a zombie then."""
        _kill(self._handle)
        self.wait()

    def is_running(self) -> bool:
        return not _ends(self._handle, 0)

    def wait(self) -> None:
        """Wait until it has ended; it may be a zombie then."""
        assert _ends(self._handle, PATIENCE), f"process {self.pid} does not end"

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_running():
            self.kill()
        _release(self._handle)
        self._connection.close()


class Nursery:
    """A process that has imported what peers need, and forks them. That takes a tenth of what it takes to start one.

    A peer is the test's own child for all that: the process between the two ends at once, and the nearest ancestor that
    adopts orphans is the test then.
    """

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            program = [sys.executable, "-W", "error", __file__, str(theirs.fileno()), "nursery"]
            self._process = subprocess.Popen(program, stdin=subprocess.DEVNULL, **_inherited(theirs))
        answer(self._connection)

    @staticmethod
    @functools.cache
    def of(process: int) -> Nursery:
        """Return the nursery of this process, which is given by its PID: a forked child has its own."""
        return Nursery()

    def bear(self, connection: Connection) -> None:
        """Fork a peer that talks through that, with what this process would give to a new program."""
        os.umask(umask := os.umask(0))
        _adopt_orphans(True)
        try:
            self._connection.send((dict(os.environ), Path.cwd(), umask))
            for stream in (connection.fileno(), 1, 2):
                send_handle(self._connection, stream, self._process.pid)
            answer(self._connection)
        finally:
            _adopt_orphans(False)

    @staticmethod
    def serve(connection: Connection) -> Connection | None:
        """Be one. Returns in each peer, with what it talks through, and nothing at the end in the nursery."""
        import asyncio  # noqa: F401

        import pacchettino.aio  # noqa: F401

        gc.freeze()
        connection.send((False, os.getpid()))
        while True:
            try:
                environ, directory, umask = connection.recv()
            except EOFError:
                return None
            handles = [recv_handle(connection) for _ in range(3)]
            if between := os.fork():
                os.waitpid(between, 0)
                for handle in handles:
                    os.close(handle)
                connection.send((False, None))
                continue
            if os.fork():
                os._exit(0)
            connection.close()
            for stream, handle in enumerate(handles[1:], 1):
                os.dup2(handle, stream)
                os.close(handle)
            os.environ.clear()
            os.environ.update(environ)
            os.chdir(directory)
            os.umask(umask)
            # As it would be if it had been started: `exec` starts it anew, and the lowest numbers are free.
            number = fcntl.fcntl(handles[0], fcntl.F_DUPFD, 10)
            os.close(handles[0])
            sys.argv = [__file__, str(number)]
            sys.orig_argv[:] = [sys.executable, "-W", "error", *sys.argv]
            return Connection(number)


def _adopt_orphans(is_adopting: bool) -> None:
    set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(set_child_subreaper, int(is_adopting), 0, 0, 0) == 0


class _Child:
    """A child of this process, of which Python knows nothing. It has what is needed here of a `Popen`."""

    returncode: int | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, patience: float = PATIENCE) -> int:
        if self.returncode is None:
            handle = _hold(self.pid)
            assert _ends(handle, patience), f"process {self.pid} does not end"
            _release(handle)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Peer(Process):
    """A Python of its own, with a queue called `queue` if there is a directory for it."""

    def __init__(
        self,
        base: Path | None = None,
        settings: str = "",
        *,
        under: Iterable[str] = (),
        leaderless: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._process: subprocess.Popen[bytes] | _Child | None = None
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            if sys.platform == "linux" and not (under or leaderless or clock):
                Nursery.of(os.getpid()).bear(theirs)
            else:
                program = [sys.executable, "-W", "error", __file__, str(theirs.fileno())]
                command = [*under, *program, *(["leaderless"] if leaderless else [])]
                environment = {**os.environ, **(clock.environment if clock else {})}
                self._process = subprocess.Popen(command, env=environment, **_inherited(theirs))
        try:
            pid = answer(ours)
            self._process = self._process or _Child(pid)
            super().__init__(ours, child_of(self._process.pid) if under else self._process.pid)
        except BaseException:
            ours.close()
            if self._process is not None:
                self._process.kill()
                self.reap()
            raise
        if base is not None:
            self.open(base, settings)

    def open(self, base: Path, settings: str = "") -> None:
        """Open a queue there: `queue`."""
        self(f"queue = Pacchettino({os.fspath(base)!r}, {settings})")

    def execute(self) -> None:
        """Let it `exec` this program anew, with nothing but its PID left."""
        self.begin("os.execv(sys.executable, sys.orig_argv)")
        assert self.end() == self.pid

    def finish(self) -> None:
        super().finish()
        assert self._process.wait() == 0

    def reap(self) -> None:
        """Wait for it, so that its PID is free."""
        self._process.wait(PATIENCE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self.reap()


def sleeps_on_the_watch(process: Process) -> bool:
    """Whether a thread of it sleeps until the kernel tells of a job: it polls two descriptors."""
    for call in Path(f"/proc/{process.pid}/task").glob("*/syscall"):
        number, *arguments = call.read_text().split()
        if number in POLL_CALLS and arguments[1] == "0x2":
            return True
    return False


def cpu_seconds(pid: int) -> float:
    """Give the CPU time that a process has used, its threads' included, in user and in system mode."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def bind_by_modes() -> Callable[[], None]:
    """Let file modes bind this thread, root's as well, until what is returned is called."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of capget(2), this thread
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, and their upper halves
    if libc.capget(header, capabilities) != 0:
        raise PermissionError("the capabilities of this thread can't be read")
    before = capabilities[0]

    def set_effective(effective: int) -> None:
        capabilities[0] = effective
        assert libc.capset(header, capabilities) == 0

    set_effective(before & ~0b110)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    return lambda: set_effective(before)


def answer(connection: Connection, patience: float = PATIENCE) -> Any:
    """Read an answer from the other side."""
    assert connection.poll(patience), "no answer"
    failed, value = connection.recv()
    if failed:
        raise value
    return value


class _Server:
    """The other side."""

    def __init__(self, connection: Connection) -> None:
        import pacchettino._core

        self._connection = connection
        self._names: dict[str, Any] = {
            **{name: getattr(pacchettino, name) for name in pacchettino.__all__},
            "bind_by_modes": bind_by_modes,
            "fork": self._fork,
            "lock_file": lock_file,
            "os": os,
            "shorten_waits": pacchettino._core.shorten_waits,
            "signal": signal,
            "sys": sys,
            "threading": threading,
        }

    def serve(self) -> None:
        """Answer until told to leave. When nobody is there to be answered any more, this process ends."""
        while True:
            try:
                code = self._connection.recv()
                if code is None:
                    return
                value = self._value(code)
                self._connection.send(value)
            except (EOFError, ConnectionError):
                os._exit(0)

    def greet(self) -> None:
        self._connection.send((False, os.getpid()))

    def _value(self, code: str) -> tuple[bool, Any]:
        try:
            tree = ast.parse(code)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<peer>", "exec"), self._names)
            if last is None:
                return False, None
            return False, eval(compile(ast.Expression(last.value), "<peer>", "eval"), self._names)
        except Exception as error:
            error.add_note(f"in process {os.getpid()}:\n{traceback.format_exc()}")
            return True, error

    def _fork(self) -> int:
        """Fork. The child answers on a line of its own, until told to leave; then this returns 0 there."""
        handle = recv_handle(self._connection)
        pid = os.fork()
        if pid:
            os.close(handle)
            return pid
        self._connection.close()
        self._connection = Connection(handle)
        self.greet()
        self.serve()
        return 0


def _main() -> None:
    _, number, *more = sys.argv
    connection = _connected(int(number))
    if more == ["nursery"]:
        connection = Nursery.serve(connection)
        if connection is None:
            return
    server = _Server(connection)
    if more != ["leaderless"]:
        server.greet()
        server.serve()
        return
    # The first thread ends, the second goes on: the process looks like a zombie then.
    threading.Thread(target=_serve_without_leader, args=(server,)).start()
    ctypes.CDLL(None).pthread_exit(None)


def _serve_without_leader(server: _Server) -> None:
    while "\nState:\tZ" not in Path("/proc/self/status").read_text():
        os.sched_yield()
    server.greet()
    server.serve()
    os._exit(0)


if __name__ == "__main__":
    _main()
