"""Fixtures and helpers for all tests."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest
from helpers import Clock, bind_by_modes
from pacchettino import Pacchettino

pytest.register_assert_rewrite("scenarios", "syscalls")

IS_POSIX = os.name == "posix"


def use_default_signals() -> None:
    """Handle all signals as Python does by default, whatever the parent of this process ignored or blocked.

    A shell's background job ignores SIGINT, for example. What is ignored or blocked here would be so in each process
    that a test starts.
    """
    if IS_POSIX:
        ignored = dict.fromkeys((signal.SIGPIPE, signal.SIGXFSZ), signal.SIG_IGN)
        by_python = {signal.SIGINT: signal.default_int_handler, **ignored}
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(number, by_python.get(number, signal.SIG_DFL))  # type: ignore[call-overload]
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


use_default_signals()

# What a test may need of the system: `@pytest.mark.needs("fork")`.
NEEDS = {
    "fork": hasattr(os, "fork"),
    "signals": IS_POSIX,
    "appends that are whole": IS_POSIX,
    "symlinks": IS_POSIX,  # Windows has them for some users, Wine for none
    "FIFOs and sockets": hasattr(os, "mkfifo"),
    "names of any bytes": IS_POSIX,
    "a limit of descriptors": IS_POSIX,
    "to delete what is open": IS_POSIX,
    "kernel events": sys.platform == "linux",
    "/proc": sys.platform == "linux",
    "Windows": sys.platform == "win32",
}

# Files that can't even be imported where there is none of that.
ONLY_POSIX = {
    "test_check.py": "FIFOs, symlinks, mounts and file modes",
    "test_command.py": "signals, terminals and a shell",
    "test_costs.py": "seccomp",
    "test_crashes.py": "seccomp",
    "test_docs.py": "bash and signals",
    "test_flushes.py": "seccomp",
    "test_fork.py": "fork",
    "test_hostile.py": "seccomp, users and mounts",
    "test_odd_entries.py": "FIFOs, sockets and symlinks",
    "test_power.py": "loop mounts",
    "test_processes.py": "signals, descriptors and /proc",
    "test_program.py": "signals, terminals and a shell",
    "test_soak.py": "fork and signals",
    "test_storage.py": "mounts and file modes",
    "test_time.py": "a clock that is preloaded",
    "test_top.py": "terminals",
    "test_work.py": "signals and flock",
}


class NotTested(pytest.File):
    """A file of tests that this system can't run."""

    def collect(self) -> NoReturn:
        tests = sum(line.startswith("def test_") for line in self.path.read_text(encoding="utf-8").splitlines())
        pytest.skip(f"NOT TESTED: needs {ONLY_POSIX[self.path.name]}: {tests} tests")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> NotTested | None:
    if IS_POSIX or module_path.name not in ONLY_POSIX:
        return None
    return NotTested.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("needs"):
            for need in marker.args:
                if not NEEDS[need]:
                    item.add_marker(pytest.mark.skip(f"NOT TESTED: needs {need}"))


def find(directory: Path) -> list[str]:
    """List the files below a queue, sorted, relative to it, but for lock files, and records of attempts."""
    files = (Path(folder, name) for folder, _, names in os.walk(directory) for name in names)
    found = (file.relative_to(directory).as_posix() for file in files)
    return sorted(name for name in found if not name.startswith(("owners/", "history/")))


def finish_thread(thread: threading.Thread, timeout: float = 30) -> None:
    """Join a thread, and fail instead of hanging where it does not end."""
    thread.join(timeout)
    assert not thread.is_alive(), f"{thread.name} is still running"


def start_python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a Python program that talks through pipes. To be used in a `with`, which waits for it."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    """Where a queue can be made; nothing is there yet."""
    return tmp_path / "queue"


@pytest.fixture
def queue(queue_dir: Path) -> Iterator[Pacchettino]:
    """A queue with the default settings."""
    with Pacchettino(queue_dir) as queue:
        yield queue


def quick_directory() -> Path:
    """Make a directory in memory where there is one: what is done to a disk again and again takes its time."""
    shm = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="pacchettino-test-", dir=shm if os.access(shm, os.W_OK) else None))


@pytest.fixture
def quick_dir() -> Iterator[Path]:
    """Give such a directory."""
    directory = quick_directory()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def other_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A directory on another filesystem than `tmp_path`."""
    here = tmp_path.stat().st_dev
    others = [path for path in map(Path, ("/dev/shm", "/var/tmp")) if path.is_dir() and path.stat().st_dev != here]
    if not others:
        pytest.skip("NOT TESTED: /dev/shm is missing, or on the same filesystem as /var/tmp")
    directory = Path(tempfile.mkdtemp(prefix="pacchettino-test-", dir=others[0]))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one mebibyte."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("NOT TESTED: a full disk needs the right to mount a filesystem")
    yield directory
    # Lazily: a queue that is still referred to holds its directories open.
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def filesystem_in_a_file(home: Path, make: list[str], mount: list[str], what: str) -> Iterator[Path]:
    """Make a small filesystem in a file and mount it; without the programs or the right to do so the test says so."""
    image, directory = home / "image", home / "mounted"
    directory.mkdir()
    with image.open("xb") as file:
        file.truncate(8 << 20)
    if None in map(shutil.which, (make[0], mount[0])) or any(
        subprocess.run(command, capture_output=True, check=False).returncode
        for command in ([*make, str(image)], [*mount, str(image), str(directory)])
    ):
        pytest.skip(f"NOT TESTED: {what} needs {make[0]}, {mount[0]}, and the right to mount one")
    yield directory
    # Lazily: a queue that is still referred to holds its directories open.
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def filesystem_of_seconds(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that stamps its files and directories with whole seconds."""
    make, mount = ["mkfs.ext4", "-q", "-I", "128"], ["mount", "-o", "loop"]
    with filesystem_in_a_file(tmp_path, make, mount, "a filesystem that knows only seconds") as directory:
        yield directory


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    """A clock for peers, which the test can set."""
    clock = Clock(tmp_path / "clock")
    yield clock
    clock.close()


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Sets the umask; it is as before after the test."""
    if not IS_POSIX:
        pytest.skip("NOT TESTED: needs file modes")
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def mode_bound() -> Iterator[None]:
    """File modes bind this thread, root's as well: what root may do beyond them is given up for the test."""
    if not IS_POSIX:
        pytest.skip("NOT TESTED: needs file modes")
    try:
        release = bind_by_modes()
    except PermissionError as error:
        pytest.skip(f"NOT TESTED: {error}")
    yield
    release()


# Tests that do not say how many examples they want draw the same few in each run; `make torture` draws many more, and
# others each time.
hypothesis.settings.register_profile("few", max_examples=200, derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("torture", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile("few")
