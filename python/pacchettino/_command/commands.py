"""Runs commands for a worker. On Unix they end with it, however it ends: `guard.py` sees to that."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pacchettino._retry import Left
from pacchettino._work import SLICE

if TYPE_CHECKING:
    from pacchettino import _core

TIME_TO_END = float(os.environ.get("_PACCHETTINO_TIME_TO_END", 1))
"""How long a command has between SIGTERM and SIGKILL. Tests shorten it."""

PATIENCE = 5.0
"""How long a worker that leaves waits for commands that got SIGKILL. Some do not end while a disk does not answer."""

TAIL = 2000
"""How many of the last bytes of standard error are kept."""

MOST_LEFT = 32
"""How many pipes are read on that are held by processes which commands left behind."""

OF_A_JOB = ("PACCHETTINO_ID", "PACCHETTINO_ATTEMPT", "PACCHETTINO_DIR", "PACCHETTINO_NAME")
"""The variables that describe a job. A command gets those of its own job, also where its worker is a command itself."""


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Give the environment of a command, with the variables that describe its job."""
    return {name: value for name, value in os.environ.items() if name not in OF_A_JOB} | variables


def pass_on(data: bytes) -> None:
    """Write what a command wrote to standard error to that of the worker."""
    with suppress(AttributeError, OSError, ValueError):  # it may be closed
        to = sys.stderr.fileno()
        while data:
            data = data[os.write(to, data) :]


if sys.platform == "win32":

    class Commands:
        """The commands of this process."""

        def __init__(self) -> None:
            self.running: set[subprocess.Popen[bytes]] = set()
            self.is_closed = False

        def end_all(self) -> None:
            self.is_closed = True
            for process in list(self.running):
                process.terminate()

        def wait(self) -> None:
            for process in list(self.running):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)

    class Run:
        """A command for one job."""

        def __init__(self, commands: Commands, claim: _core.Claim) -> None:
            self.status: int | None = None
            self.tail = b""
            self._commands = commands
            self._claim = claim
            self._process: subprocess.Popen[bytes] | None = None

        def start(self, command: list[str], file: int, variables: dict[str, str]) -> None:
            if self._commands.is_closed:
                raise Left("its worker left")
            self._process = subprocess.Popen(command, stdin=file, stderr=subprocess.PIPE, env=environment(variables))
            self._claim.begin()
            self._commands.running.add(self._process)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

        def wait(self) -> None:
            assert self._process is not None
            while self.status is None:
                with suppress(subprocess.TimeoutExpired):
                    self.status = self._process.wait(SLICE)
            self._reader.join(SLICE)  # a process that the command left behind may hold the pipe

        def leave(self) -> None:
            if self._process is not None:
                self._process.terminate()
                self._process.wait(PATIENCE)

        def close(self) -> None:
            if self._process is not None:
                self._commands.running.discard(self._process)

        def _read(self) -> None:
            assert self._process is not None
            assert self._process.stderr is not None
            with self._process.stderr as pipe:
                while said := os.read(pipe.fileno(), 1 << 16):
                    self.tail = (self.tail + said)[-TAIL:]
                    pass_on(said)

else:
    import select
    import socket

    from pacchettino._command import guard

    class Commands:
        """The commands of this process, and the guard that ends them. It is started before the first command."""

        def __init__(self) -> None:
            self.is_closed = False
            self.left = LeftBehind()
            self._lock = threading.Lock()
            self._line: socket.socket | None = None
            self._guard = 0
            self._running: set[int] = set()
            self._locks: set[tuple[int, int]] = set()
            """Which lock files the guard has: device and inode."""

        def announce(self, pipe: int, lock: int | None) -> None:
            """Tell the guard that a command is about to be started. `OSError` if there can't be a guard."""
            with self._lock:
                if self.is_closed:
                    raise Left("its worker left")
                try:
                    self._send(f"~{pipe}", lock)
                except ConnectionError:  # somebody killed it
                    self._forget_guard()
                    for pid in self._running:
                        self._send(f"+{pid}", lock)
                    self._send(f"~{pipe}", lock)

        def started(self, pid: int, pipe: int) -> None:
            with self._lock:
                self._running.add(pid)
                self._tell(f"+{pid} {pipe}")

        def not_started(self, pipe: int) -> None:
            with self._lock:
                self._tell(f"!{pipe}")

        def ended(self, pid: int) -> None:
            with self._lock:
                self._running.discard(pid)
                self._tell(f"-{pid}")

        def end_all(self) -> None:
            """Have the guard end all commands. No more are started."""
            with self._lock:
                self.is_closed = True
                if self._line is not None:
                    with suppress(OSError):  # somebody killed it
                        self._line.shutdown(socket.SHUT_WR)

        def wait(self) -> None:
            """Wait until the commands that were told to end are gone."""
            if self._line is not None:
                self._line.settimeout(TIME_TO_END + PATIENCE)
                try:
                    self._line.recv(1)  # nothing comes but the end
                except TimeoutError:
                    return
                except ConnectionError:  # somebody killed the guard
                    pass
                self._forget_guard()

        def _tell(self, text: str) -> None:
            if self._line is not None:
                with suppress(ConnectionError):  # somebody killed it; the next command starts another
                    self._line.sendall(f"{text}\n".encode())

        def _send(self, text: str, lock: int | None) -> None:
            if self._line is None:
                self._line = self._start_guard()
            new = set()
            if lock is not None:
                status = os.fstat(lock)
                new = {(status.st_dev, status.st_ino)} - self._locks
            socket.send_fds(self._line, [f"{text}\n".encode()], [lock] if new and lock is not None else [])
            self._locks |= new

        def _start_guard(self) -> socket.socket:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._guard = _start_guard(theirs)
                except OSError:
                    ours.close()
                    raise
            return ours

        def _forget_guard(self) -> None:
            """The guard has ended."""
            if self._line is not None:
                self._line.close()
                self._line = None
            self._locks.clear()
            with suppress(ChildProcessError):  # SIGCHLD is ignored
                os.waitpid(self._guard, 0)

    def _start_guard(line: socket.socket) -> int:
        """Start a guard. Returns its PID."""
        program, session = Path(guard.__file__), os.getsid(0)
        if sys.executable and not getattr(sys, "frozen", False) and program.is_file():
            line.set_inheritable(True)
            arguments = [str(program), str(line.fileno()), str(session), str(TIME_TO_END)]
            streams = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
            return os.posix_spawn(
                sys.executable, [sys.executable, "-I", "-S", *arguments], os.environ, file_actions=streams
            )
        # A program that was frozen, by PyInstaller for example, would start itself once more.
        pid = os.fork()
        if pid == 0:
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(null, number)
                guard.main(line.fileno(), session, TIME_TO_END)
            finally:
                os._exit(0)
        return pid

    class Run:
        """A command for one job."""

        def __init__(self, commands: Commands, claim: _core.Claim) -> None:
            self.status: int | None = None
            """How the command ended; `None` if nobody knows."""
            self.tail = b""
            self._commands = commands
            self._claim = claim
            self._may_run = False
            self._process: subprocess.Popen[bytes] | None = None
            self._pipe: int | None = None
            self._end: int | None = None
            """A descriptor that is readable once the command has ended, where the system has such."""
            self._poll = select.poll()

        def start(self, command: list[str], file: int, variables: dict[str, str]) -> None:
            """Start the command. Raises `OSError` if it can't be started."""
            os.set_blocking(file, True)
            self._pipe, pipe = os.pipe()
            try:
                number = os.fstat(pipe).st_ino
                self._commands.announce(number, self._claim.lock_descriptor())
                self._may_run = True
                try:
                    # In a session of its own Ctrl-C in the worker's terminal does not reach it, nor does it ask there.
                    process = subprocess.Popen(
                        command, stdin=file, stderr=pipe, env=environment(variables), start_new_session=True
                    )
                except Exception:
                    self._may_run = False
                    self._commands.not_started(number)
                    raise
            finally:
                os.close(pipe)
            self._process = process
            self._commands.started(process.pid, number)
            self._claim.begin()
            os.set_blocking(self._pipe, False)
            self._poll.register(self._pipe, select.POLLIN)
            with suppress(AttributeError, OSError):
                self._end = os.pidfd_open(process.pid)
                self._poll.register(self._end, select.POLLIN)

        def wait(self) -> None:
            """Wait until the command has ended."""
            self._attend(math.inf)
            self._read_rest()

        def leave(self) -> None:
            """The worker leaves: end the command, if it may have been started."""
            if self._may_run:
                self._commands.end_all()
                self._claim.begin()
                self._attend(TIME_TO_END + PATIENCE)
                self._commands.wait()

        def close(self) -> None:
            for descriptor in (self._pipe, self._end):
                if descriptor is not None:
                    os.close(descriptor)

        def _attend(self, longest: float) -> None:
            """Take what the command writes, until it has ended."""
            end = time.monotonic() + longest
            slice = 0.05 if self._end is None else SLICE
            while self._process is not None and (left := end - time.monotonic()) > 0:
                has_ended = self._end is None
                for descriptor, _ in self._poll.poll(min(left, slice) * 1000):
                    if descriptor == self._end:
                        has_ended = True
                    elif self._read() == b"":
                        self._poll.unregister(descriptor)
                if has_ended:
                    self._reap(self._process)

        def _reap(self, process: subprocess.Popen[bytes]) -> None:
            """Learn how the command ended. `Popen` would say 0 where nobody knows."""
            if self._end is not None:
                self._commands.ended(process.pid)  # before the PID can be another's
            try:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid == 0:
                    return
                self.status = os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # somebody else has waited for it
                pass
            if self._end is None:
                self._commands.ended(process.pid)
            process.returncode = self.status or 0
            self._process = None

        def _read(self) -> bytes | None:
            """Take what the command wrote to standard error. `None` if there is nothing, and b"" at its end."""
            assert self._pipe is not None
            try:
                said = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return None
            self.tail = (self.tail + said)[-TAIL:]
            pass_on(said)
            return said

        def _read_rest(self) -> None:
            """Take what is in the pipe: all that the command wrote."""
            assert self._pipe is not None
            for _ in range(16):  # as much as the largest pipe holds
                said = self._read()
                if said == b"":
                    return
                if said is None:
                    break
            # Something that the command left behind has it open, and may write to it later.
            pipe, self._pipe = self._pipe, None
            self._commands.left.add(pipe)

    class LeftBehind:
        """Pipes that processes have open which commands left behind. One thread passes on what they write."""

        def __init__(self) -> None:
            self._new: SimpleQueue[int] = SimpleQueue()
            self._lock = threading.Lock()
            self._waker: int | None = None

        def add(self, pipe: int) -> None:
            try:
                with self._lock:
                    if self._waker is None:
                        self._waker = self._start()
            except (OSError, RuntimeError):  # no descriptor, or no thread to be had
                os.close(pipe)
                return
            self._new.put(pipe)
            os.write(self._waker, b"\0")

        def _start(self) -> int:
            woken, waker = os.pipe()
            try:
                threading.Thread(target=self._run, args=[woken], name="pacchettino-left", daemon=True).start()
            except RuntimeError:
                os.close(woken)
                os.close(waker)
                raise
            return waker

        def _run(self, woken: int) -> None:
            poll = select.poll()
            poll.register(woken, select.POLLIN)
            pipes: list[int] = []

            def drop(pipe: int) -> None:
                pipes.remove(pipe)
                poll.unregister(pipe)
                os.close(pipe)

            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == woken:
                        os.read(woken, 512)
                        with suppress(Empty):
                            while True:
                                pipes.append(self._new.get_nowait())
                                poll.register(pipes[-1], select.POLLIN)
                        continue
                    with suppress(BlockingIOError):
                        said = os.read(descriptor, 1 << 16)
                        pass_on(said)
                        if not said:
                            drop(descriptor)
                for pipe in pipes[:-MOST_LEFT]:
                    drop(pipe)
