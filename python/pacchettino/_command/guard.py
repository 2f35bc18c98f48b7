"""Ends the commands of a worker that is gone: a process of its own, which `commands.py` starts.

The worker writes to a socket what it does. `~INODE` says that it is about to start a command, whose standard error is
the pipe of that number; `+PID INODE`, that the command runs, as the leader of a process group; `!INODE`, that it could
not be started; `-PID`, that it has ended. The socket ends with the worker.

With these lines comes the worker's lock file. Its lock is free when nobody has the file open any more. So a worker that
was killed counts as alive, and its jobs stay its own, until its commands are gone.
"""

import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

TICK = 0.02
"""How often the guard checks whether commands are gone."""


class Guard:
    """What is known of a worker's commands."""

    def __init__(self, session: int) -> None:
        self._session = session
        """Of the worker. Each command gets its own before it is executed."""
        self._groups: set[int] = set()
        self._started: set[str] = set()
        """The pipes of commands that may have been started. Nobody could say under which PID."""

    def read(self, line: socket.socket) -> None:
        """Take what the worker writes, until it is gone."""
        rest = b""
        locks: list[int] = []  # which stay open until the process ends
        while True:
            try:
                data, files, _, _ = socket.recv_fds(line, 1 << 16, 16, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            except OSError:
                return
            if not data:
                return
            locks += files
            *lines, rest = (rest + data).split(b"\n")
            for text in lines:
                self._take(text.decode())

    def _take(self, text: str) -> None:
        what, (number, *pipe) = text[0], text[1:].split()
        if what == "~":
            self._started.add(number)
        elif what == "-":
            self._groups.discard(int(number))
        elif what == "+":
            self._groups.add(int(number))
            self._started.difference_update(pipe)
        else:
            self._started.discard(number)

    def end(self, seconds: float) -> None:
        """End all commands with what they started, by SIGTERM and after so many seconds by SIGKILL."""
        self._find_started()
        for group in self._groups:
            send(group, signal.SIGTERM)
        kill_at = time.monotonic() + seconds
        while True:
            number = 0 if time.monotonic() < kill_at else signal.SIGKILL
            self._groups = {group for group in self._groups if send(group, number)} - zombies(self._groups)
            if not self._groups and not self._started:
                return
            time.sleep(TICK)
            for group in self._find_started():
                send(group, signal.SIGTERM)

    def _find_started(self) -> set[int]:
        """Find the groups of commands that the worker had no time to report."""
        if not self._started:
            return set()
        found, is_beginning = set(), set()
        for pid in pids():
            pipes = pipes_of(pid) & self._started
            with suppress(ProcessLookupError):
                if pipes and os.getsid(pid) == self._session:
                    is_beginning |= pipes  # it was forked, and not executed yet
                elif pipes:
                    found.add(os.getpgid(pid))
        self._started = is_beginning
        self._groups |= found
        return found


def send(group: int, number: int) -> bool:
    """Send a signal to a process group. Returns whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # a command that runs as another user, as `sudo` does
        pass
    return True


def pids() -> Iterator[int]:
    """Give the PID of each process, where the system has a `/proc` that shows them as this process sees them."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def pipes_of(pid: int) -> set[str]:
    """Give the numbers of the pipes that a process can write to."""
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = f"/proc/{pid}/fd/{name}"
                if os.lstat(link).st_mode & stat.S_IWUSR:
                    found.add(os.readlink(link).removeprefix("pipe:[").removesuffix("]"))
    return found


def zombies(groups: set[int]) -> set[int]:
    """Give those groups of which only zombies are left. They stay as long as nobody waits for them."""
    dead: set[int] = set()
    living: set[int] = set()
    for pid in pids() if groups else ():
        with suppress(OSError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                # What follows the name, which may hold anything.
                state, _, group, *_ = file.read().rpartition(b")")[2].split()
            (dead if state in b"ZX" else living).add(int(group))
    return (groups & dead) - living


def close_others(line: int) -> None:
    """Close what the worker inherited or, if this is a fork of it, has open."""
    for number in map(int, os.listdir("/dev/fd")):
        if number not in (0, 1, 2, line):
            with suppress(OSError):  # the listing's own
                os.close(number)


def main(line: int, session: int, seconds: float) -> None:
    """Guard the commands of the worker at the other end of a socket."""
    # Whoever ends the worker may signal all that belongs to it. The guard ends after it.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.chdir("/")
    close_others(line)
    guard = Guard(session)
    with socket.socket(fileno=line) as worker:
        guard.read(worker)
        guard.end(seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
