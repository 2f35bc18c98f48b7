"""Hostile directories: whatever is in a queue, and whoever swaps what while it is used, jobs go on and nothing leaks.

What is planted here is drawn by hypothesis; what must come of it is foretold by a look at the directory that shares no
code with the queue. All runs in another process, so that a hang is a failure and not the end of the tests.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers import DIRECTORIES, DUE, ID, PATIENCE, STATES, TOKEN, Peer, entries, everything, lay_down, new_id
from hypothesis import example, given
from hypothesis import strategies as st
from pacchettino import KeepPolicy, Pacchettino

A_YEAR = 365 * 24 * 60 * 60
KEPT = ("success", "failed", "interrupted")
STUCK = {"queued": {"receive", "receive_one", "claim"}} | {state: {"requeue_all", "cleanup"} for state in KEPT}
"""The calls that say so where there is a job that can't be moved."""
LOOSE = ("queued", "scheduled", *KEPT, "tmp", "owners", "processing")


# The world outside


class Outside:
    """What lies beside a queue and must be as it was in the end: content, times, and not even read.

    A mount with `relatime` sets the time of the last read when that is older than the last change, so it is made older.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / "outside"
        (self.path / "folder").mkdir(parents=True)
        for name in ("raw", "report.txt", "folder/raw"):
            (self.path / name).write_bytes(b"a secret")
        self.linked = home / "linked"
        self.linked.write_bytes(b"linked")
        os.mkfifo(self.path / "fifo")
        self._paths = [self.path, *sorted(self.path.rglob("*"))]
        for path in self._paths:
            path.chmod(0o700)
            os.utime(path, (1, 1_000_000))
        self._before = self._look()

    def _look(self) -> list[tuple[Path, os.stat_result]]:
        return [(path, path.lstat()) for path in self._paths]

    def assert_untouched(self) -> None:
        for (path, before), (_, now) in zip(self._before, self._look(), strict=True):
            assert untouched(before) == untouched(now), path
            assert before.st_atime_ns == now.st_atime_ns, f"{path} was read"
        assert [self.path, *sorted(self.path.rglob("*"))] == self._paths
        assert self.linked.read_bytes() == b"linked"


def untouched(found: os.stat_result) -> tuple[int | None, ...]:
    """Give what changes if anybody writes to a file, moves it or changes what it may."""
    # Of a file with several names, each of them can be moved.
    changed = found.st_ctime_ns if not stat.S_ISREG(found.st_mode) or found.st_nlink == 1 else None
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, changed)


# Things to plant

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10


def set_immutable(path: Path, on: bool) -> bool:
    """Set or clear what `chattr +i` sets; says whether that could be done."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(file, FS_IOC_GETFLAGS, bytes(8)))
        fcntl.ioctl(file, FS_IOC_SETFLAGS, struct.pack("l", flags | IMMUTABLE if on else flags & ~IMMUTABLE))
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def make_file(path: Path, mode: int = 0o644, content: bytes = b"payload") -> None:
    path.write_bytes(content)
    path.chmod(mode)


def make_sparse(path: Path) -> None:
    # As a data job's it would be read; that is another test.
    with path.open("wb") as file:
        file.truncate(5 if path.name.startswith("raw") or "raw-" in path.name else 1 << 40)


def make_full(path: Path) -> None:
    path.mkdir()
    (path / "raw").write_bytes(b"somebody's")


def make_nested(path: Path) -> None:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "b" / "raw").write_bytes(b"somebody's")


KINDS: dict[str, Callable[[Path, Outside], object]] = {
    "file": lambda path, outside: make_file(path),
    "empty": lambda path, outside: make_file(path, content=b""),
    "setuid": lambda path, outside: make_file(path, 0o6777),
    "unreadable": lambda path, outside: make_file(path, 0),
    "sparse": lambda path, outside: make_sparse(path),
    "hard link": lambda path, outside: path.hardlink_to(outside.linked),
    "empty directory": lambda path, outside: path.mkdir(),
    "full directory": lambda path, outside: make_full(path),
    "nested directory": lambda path, outside: make_nested(path),
    "link to a file": lambda path, outside: path.symlink_to(outside.path / "raw"),
    "link to a directory": lambda path, outside: path.symlink_to(outside.path / "folder"),
    "link to a FIFO": lambda path, outside: path.symlink_to(outside.path / "fifo"),
    "relative link": lambda path, outside: path.symlink_to("../../outside/report.txt"),
    "link to nothing": lambda path, outside: path.symlink_to(outside.path / "nothing"),
    "link to itself": lambda path, outside: path.symlink_to(path.name),
    "FIFO": lambda path, outside: os.mkfifo(path),
    "socket": lambda path, outside: os.mknod(path, stat.S_IFSOCK | 0o666),
    "device": lambda path, outside: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
}
SPECIAL_FILES = ("held", "immutable")
NEED_PRIVILEGE = ("device", "immutable")

LOCKABLE = (
    "FIFO",
    "socket",
    "device",
    "empty directory",
    "link to a file",
    "link to nothing",
    "held",
    "unreadable",
    "file",
)
TOKENS = [b"gone000000", b"gone000001", b"stay000000"]
OWNERS = [*TOKENS, b"4194303", b"1", b"0", b"01", b"-1", b"2147483647", b"2147483648", b"4294967297", b"9" * 30]
OWNERS += [b"Gone000000", b"gone00000", b"gone0000000", b"0one000000", b"", b" "]
STAMPS = [b"0000000000000", b"0000000000001", b"9999999999999", b"9000000000000", b"000000000001", b"00000000000001"]
HERE = b"<id>"
"""What an id of its own is put in for: no two jobs of a queue have one."""

FILE_NAMES = st.one_of(
    st.sampled_from([b"report.txt", b"a.gone000000", b"a.4194303", b"CON", b"nul.txt", b" ", b"x. ", b".", b".."]),
    st.sampled_from([b"...", b"raw", b"new\nline", b"\xff\xfe", b"n" * 200, b"n" * 201, b"\x01\x7f", b"-rf", b"*"]),
    st.binary(min_size=1, max_size=200),
)
JOBS = st.one_of(st.just(b"raw-" + HERE), FILE_NAMES.map(lambda name: b"fle-" + HERE + b"-" + name))


@st.composite
def nearly(draw: st.DrawFn, names: st.SearchStrategy[bytes]) -> bytes:
    """Draw a name and spoil it."""
    name = draw(names)
    where = draw(st.integers(0, len(name)))
    spoilt = draw(st.sampled_from([b"", b"\0", b" ", b".", b"\n", b"\xff", b"~", b"0", b"A", b"-"]))
    return name[:where] + spoilt + name[where + draw(st.integers(0, 1)) :]


CLAIMS = st.builds(lambda job, owner: job + b"." + owner, JOBS, st.sampled_from(OWNERS))
DRAFTS = st.one_of(
    st.just(HERE),
    st.builds(lambda owner: HERE + b"-" + owner, st.sampled_from(OWNERS)),
    st.builds(lambda owner: b"owner-" + owner, st.sampled_from(OWNERS)),
)
SCHEDULED = st.builds(lambda stamp, job: stamp + b"-" + job, st.sampled_from(STAMPS), JOBS)
USUAL = {"processing": CLAIMS, "tmp": DRAFTS, "owners": st.sampled_from(OWNERS), "scheduled": SCHEDULED}
ANY_NAME = st.one_of(st.binary(min_size=1, max_size=255), st.sampled_from([b"n" * 255, b"\xff" * 255, b"CON", b"."]))


def names_for(directory: str) -> st.SearchStrategy[bytes]:
    usual = USUAL.get(directory, JOBS)
    elsewhere = st.one_of(JOBS, CLAIMS, DRAFTS, SCHEDULED)
    return st.one_of(usual, usual, usual, nearly(usual), elsewhere, ANY_NAME)


@dataclass(frozen=True)
class Thing:
    """Something to plant in a directory of the queue; a claim's directory has things of its own."""

    directory: str
    name: bytes
    kind: str
    is_old: bool
    inside: tuple[tuple[bytes, str], ...] = ()


def kinds() -> st.SearchStrategy[str]:
    return st.one_of(st.just("file"), st.sampled_from([*KINDS, *SPECIAL_FILES]))


@st.composite
def things(draw: st.DrawFn) -> Thing:
    directory = draw(st.sampled_from((*LOOSE, "a claim")))
    is_old = draw(st.booleans())
    if directory != "a claim":
        return Thing(directory, draw(names_for(directory)), draw(kinds()), is_old)
    job = draw(JOBS)
    name = job + b"." + draw(st.sampled_from(OWNERS))
    own = b"raw" if job.startswith(b"raw-") else job[len(b"fle--") + len(HERE) :]
    names = st.one_of(st.just(own), st.just(own), st.sampled_from([b"raw", b"RAW", b"notes.txt", HERE]), ANY_NAME)
    inside = draw(st.lists(st.tuples(names, kinds()), max_size=3))
    return Thing(
        "processing", name, draw(st.sampled_from(["claim", "claim", "claim", "sealed claim"])), is_old, (*inside,)
    )


class Planted:
    """A queue's directory with such things in it, and the world outside."""

    def __init__(self, home: Path, planted: list[Thing]) -> None:
        self.base = home / "queue"
        self.outside = Outside(home)
        self.stuck: set[Path] = set()
        """What nobody can move or delete."""
        self.held: set[Path] = set()
        """What this process holds the lock of."""
        self._files = ExitStack()
        self._ids = 0
        lay_down(self.base, {})
        for thing in planted:
            # Not every name can be had, and none twice.
            with suppress(ValueError, FileExistsError):
                self._plant(thing)

    def _plant(self, thing: Thing) -> None:
        path = self._path(self.base / thing.directory, thing.name)
        if "claim" in thing.kind:
            path.mkdir()
            for name, kind in thing.inside:
                with suppress(ValueError, FileExistsError):
                    self._make(self._path(path, name), kind)
            if thing.kind == "sealed claim":
                path.chmod(0)
        else:
            self._make(path, thing.kind)
        if thing.is_old and path not in self.stuck:
            os.utime(path, (time.time() - A_YEAR, time.time() - A_YEAR), follow_symlinks=False)

    def _path(self, directory: Path, name: bytes) -> Path:
        stamp = [0, time.time_ns() // 1_000_000, (1 << 48) - 1][self._ids % 3]
        self._ids += 1
        low = f"{0x8000_0000_0000_0000 | self._ids:016x}"
        id = f"{stamp:012x}7000{low}"
        text = f"{id[:8]}-{id[8:12]}-{id[12:16]}-{id[16:20]}-{id[20:]}"
        name = name.replace(HERE, text.encode())
        if len(name) > 255 or b"/" in name or b"\0" in name or name in (b".", b".."):
            raise ValueError(name)
        return directory / os.fsdecode(name)

    def _make(self, path: Path, kind: str) -> None:
        if os.path.lexists(path):
            raise FileExistsError(path)
        if kind in NEED_PRIVILEGE and os.getuid() != 0:
            kind = "file"
        if kind not in SPECIAL_FILES:
            KINDS[kind](path, self.outside)
            return
        make_file(path)
        if kind == "immutable" and set_immutable(path, True):
            self.stuck.add(path)
        elif kind == "held":
            file = self._files.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            self.held.add(path)

    def remove(self) -> None:
        for path in self.stuck:
            assert set_immutable(path, False)
        self._files.close()


# What must come of it


def parse_job(entry: bytes) -> tuple[str, str] | None:
    """Give a job's id and the name of its file in a claim."""
    found = re.fullmatch(rb"raw-(%b)|fle-(%b)-(.{1,200})" % (ID, ID), entry, re.DOTALL)
    if found is None or found[3] in (b".", b".."):
        return None
    return (found[1] or found[2]).decode(), os.fsdecode(found[3] or b"raw")


def parse_owner(text: bytes) -> bool:
    is_pid = re.fullmatch(rb"[1-9][0-9]*", text) is not None and int(text) < 1 << 31
    return is_pid or re.fullmatch(TOKEN, text) is not None


@dataclass
class Foretold:
    """What is in a queue's directory, by the layout's rules."""

    entries: dict[str, list[str]] = field(default_factory=lambda: {state: [] for state in (*DIRECTORIES,)})
    """The jobs by their states, as listings show them before anybody acts."""
    ids: dict[str, str] = field(default_factory=dict)
    """The id of each."""
    handled: Counter[str] = field(default_factory=Counter)
    """How often each is to be handled."""
    gone: set[Path] = field(default_factory=set)
    """What is not where it was in the end."""
    aside: set[Path] = field(default_factory=set)
    """Directories of claims that have another name in the end."""
    errors: set[str] = field(default_factory=set)
    """The calls that have to say that they could not move or delete something."""


class Foreteller:
    """Looks at a directory as the layout's description says, with code of its own."""

    def __init__(self, planted: Planted, keep: KeepPolicy, is_bound: bool) -> None:
        self.planted, self.keep, self.is_bound = planted, keep, is_bound
        self.base = planted.base
        self.told = Foretold()

    def is_readable(self, path: Path) -> bool:
        return not self.is_bound or bool(path.lstat().st_mode & 0o400)

    def is_alive(self, owner: bytes) -> bool:
        if re.fullmatch(TOKEN, owner) is None:
            return owner == b"1"
        lock = self.base / "owners" / os.fsdecode(owner)
        if not os.path.lexists(lock):
            return False
        return not is_file(lock) or lock in self.planted.held or not self.is_readable(lock)

    def foretell(self) -> Foretold:
        for state in ("queued", *KEPT):
            for path in sorted((self.base / state).iterdir()):
                job = parse_job(os.fsencode(path.name))
                if job is not None and is_file(path):
                    self.job(state, path, path.name, job[0], is_waiting=state == "queued")
        for path in sorted((self.base / "scheduled").iterdir()):
            stamp, _, entry = os.fsencode(path.name).partition(b"-")
            job = parse_job(entry)
            if re.fullmatch(DUE, stamp) and job is not None and is_file(path):
                if int(stamp) < 2_000_000_000_000:
                    self.job("scheduled", path, os.fsdecode(entry), job[0], is_waiting=True)
                else:
                    self.told.entries["scheduled"].append(os.fsdecode(entry))
                    self.told.ids[os.fsdecode(entry)] = job[0]
        for path in sorted((self.base / "processing").iterdir()):
            self.claim(path)
        for path in (self.base / "owners").iterdir():
            token = os.fsencode(path.name)
            if re.fullmatch(TOKEN, token) and is_file(path) and not self.is_alive(token):
                self.vanishes(path)
        for path in (self.base / "tmp").iterdir():
            self.draft(path, os.fsencode(path.name))
        return self.told

    def vanishes(self, path: Path) -> None:
        if path not in self.planted.stuck:
            self.told.gone.add(path)

    def draft(self, path: Path, name: bytes) -> None:
        writer = re.fullmatch(rb"%b-(%b)" % (ID, TOKEN), name)
        is_unborn = re.fullmatch(rb"owner-%b" % TOKEN, name) is not None
        if not is_file(path):
            return
        if writer is not None and not self.is_alive(writer[1]):
            self.vanishes(path)
        is_old = time.time() - path.lstat().st_mtime > 1000
        if is_unborn and is_old and path not in self.planted.held and self.is_readable(path):
            self.vanishes(path)

    def job(self, state: str, path: Path, entry: str, id: str, *, is_waiting: bool) -> None:
        """Foretell what becomes of a job: handled if it waits, and once more if it is requeued."""
        self.told.entries[state].append(entry)
        self.told.ids[entry] = id
        if path in self.planted.stuck:
            self.told.errors |= STUCK.get(state, set())
            return
        self.told.gone.add(path)
        can_be_handled = not entry.startswith("raw-") or self.is_readable(path)
        if is_waiting:
            self.told.handled[id] += can_be_handled
        is_kept = not is_waiting or (KeepPolicy.SUCCESS if can_be_handled else KeepPolicy.FAILED) in self.keep
        if is_kept and can_be_handled:
            self.told.handled[id] += 1

    def claim(self, path: Path) -> None:
        entry, _, owner = os.fsencode(path.name).rpartition(b".")
        job = parse_job(entry)
        if job is None or not parse_owner(owner) or not stat.S_ISDIR(path.lstat().st_mode):
            return
        id, name = job
        file = path / name
        if self.is_bound and path.lstat().st_mode & 0o777 == 0:
            self.told.entries["processing"].append(os.fsdecode(entry))
            self.told.ids[os.fsdecode(entry)] = id
            return
        if os.path.lexists(file) and is_file(file):
            self.told.entries["processing"].append(os.fsdecode(entry))
            self.told.ids[os.fsdecode(entry)] = id
        if self.is_alive(owner):
            return
        if os.path.lexists(file) and is_file(file) and file not in self.planted.stuck:
            self.told.gone.add(file)
            if KeepPolicy.INTERRUPTED in self.keep:
                can_be_handled = not entry.startswith(b"raw-") or self.is_readable(file)
                self.told.handled[id] += can_be_handled
        if all(child in self.told.gone for child in path.iterdir()):
            self.told.gone.add(path)
        elif not os.path.lexists(file) or not is_file(file) or file in self.told.gone:
            self.told.aside.add(path)


def is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def snapshot(base: Path) -> dict[Path, os.stat_result]:
    return {path: path.lstat() for path in base.rglob("*")}


def take_back(
    aside: set[Path], before: dict[Path, os.stat_result], after: dict[Path, os.stat_result]
) -> dict[Path, os.stat_result]:
    """Give what is there after all by the names before the directories of some claims were set aside."""
    was = {before[path].st_ino: path for path in aside}
    names = {
        path: was[found.st_ino]
        for path, found in after.items()
        if path not in before and re.search(r"\.left-\d+$", path.name) and found.st_ino in was
    }
    assert {*names.values()} == aside
    return {
        next((names[above] / path.relative_to(above) for above in (path, *path.parents) if above in names), path): found
        for path, found in after.items()
    }


# A consumer that does everything

USE = """
import logging
from pathlib import Path

logging.getLogger("pacchettino").addHandler(logging.NullHandler())
logging.getLogger("pacchettino").propagate = False

PRESENT = [status for status in Status if status is not Status.UNKNOWN]
handled, errors = [], []

def attempt(call, **arguments):
    # Told is what can't be moved or deleted; anything else ends the test.
    try:
        return getattr(queue, call)(**arguments)
    except PermissionError as error:
        errors.append((call, os.fspath(error.filename)))

def use(base, keep, fifo, names):
    global queue
    handled.clear(), errors.clear()
    queue = Pacchettino(base, KeepPolicy(keep), fifo=fifo)
    queue.on_data_received(lambda id, data: handled.append(id))
    queue.on_file_received(lambda id, name, path: handled.append(id) if path.lstat().st_size >= 0 else None)
    seen = {
        "jobs": {status.value: sorted(info.entry for info in queue.jobs(status)) for status in PRESENT},
        "count": {name: getattr(queue, f"count_{name}")() for name in ("queued", "scheduled", "processing")},
        "status": {name: queue.status(name).value for name in names},
    }
    for name in names:
        for status in ("queued", "scheduled", "processing"):
            assert getattr(queue, f"is_{status}")(name) == (seen["status"][name] == status), (name, status)
    queue.count_all()
    queue.cleanup(older_than=1_000_000_000)
    for _ in range(2):
        attempt("receive")
    attempt("requeue_all", which=KeepPolicy.ALL)
    for _ in range(2):
        attempt("receive")
    while (attempt("receive_one", timeout=0.001)):
        pass
    job = attempt("claim", timeout=0.001)
    assert job is None, job
    attempt("cleanup")
    calls = set(call for call, _ in errors)
    # The loop goes on.
    good = queue.send_data("good")
    while good not in handled:
        attempt("receive_one", timeout=1)
    attempt("cleanup")
    handled.remove(good)
    queue.close()
    return seen, handled, calls
None
"""

DROP_WHAT_ROOT_MAY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
header, capabilities = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, capabilities) == 0
capabilities[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
assert libc.capset(header, capabilities) == 0
"""


@pytest.fixture(scope="module")
def users() -> Iterator[dict[bool, Peer]]:
    """Give a process that uses queues, and one (under `True`) that file modes bind, root's as well."""
    with Peer() as free, Peer() as bound:
        bound(DROP_WHAT_ROOT_MAY)
        for peer in (free, bound):
            peer(USE)
        yield {False: free, True: bound}


def claims_of(owners: list[bytes]) -> list[Thing]:
    return [Thing("processing", b"raw-" + HERE + b"." + owner, "claim", False, ((b"raw", "file"),)) for owner in owners]


@pytest.mark.timeout(900)
@example(planted=claims_of(OWNERS), keep=KeepPolicy.ALL, is_bound=False, fifo=False)
@example(
    planted=[Thing("owners", b"gone00000%d" % number, kind, True) for number, kind in enumerate(LOCKABLE)]
    + claims_of([b"gone00000%d" % number for number in range(len(LOCKABLE))]),
    keep=KeepPolicy.NONE,
    is_bound=True,
    fifo=True,
)
@given(
    planted=st.lists(things(), max_size=12),
    keep=st.sampled_from(
        [KeepPolicy.ALL, KeepPolicy.NONE, KeepPolicy.SUCCESS, KeepPolicy.FAILED | KeepPolicy.INTERRUPTED]
    ),
    is_bound=st.booleans(),
    fifo=st.booleans(),
)
def test_whatever_is_in_the_directories_jobs_are_done_and_the_rest_stays(
    users: dict[bool, Peer], planted: list[Thing], keep: KeepPolicy, is_bound: bool, fifo: bool
) -> None:
    shm = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="pacchettino-test-", dir=shm if os.access(shm, os.W_OK) else None) as home,
        ExitStack() as at_the_end,
    ):
        queue = Planted(Path(home), planted)
        at_the_end.callback(queue.remove)
        told = Foreteller(queue, keep, is_bound or os.getuid() != 0).foretell()
        before = snapshot(queue.base)
        names = [os.fsdecode(os.fsencode(path.name)) for path in before]
        names += told.ids.values()
        seen, handled, errors = users[is_bound](f"use({os.fspath(queue.base)!r}, {int(keep)}, {fifo}, {names!r})")

        states = ("queued", "scheduled", "processing", *KEPT)
        assert seen["jobs"] == {state: sorted(told.entries[state]) for state in states}
        assert seen["count"] == {state: len(told.entries[state]) for state in ("queued", "scheduled", "processing")}
        where = {name: state for state in states for entry in told.entries[state] for name in (entry, told.ids[entry])}
        assert seen["status"] == {name: where.get(name, "unknown") for name in names}
        assert Counter(handled) == +told.handled
        assert errors == told.errors

        after = take_back(told.aside, before, snapshot(queue.base))
        new = {path.relative_to(queue.base).parts[0] for path in after if path not in before}
        assert new <= {"owners", "history"}
        assert before.keys() - after.keys() == told.gone
        for path in before.keys() & after.keys() - told.aside:
            if not (path.is_dir() and any(gone.parent == path for gone in told.gone)) and path.parent != queue.base:
                assert untouched(before[path]) == untouched(after[path]), path
        queue.outside.assert_untouched()


@pytest.mark.parametrize("call", ["requeue_all", "cleanup"])
def test_one_job_that_can_not_be_moved_keeps_no_other_from_a_call_for_all(quick_dir: Path, call: str) -> None:
    base = quick_dir / "queue"
    lay_down(base, {})
    paths = [base / "failed" / f"raw-{new_id(number)}" for number in range(9)]
    for path in paths:
        path.write_bytes(b"payload")
    stuck = paths[4]
    if not set_immutable(stuck, True):
        pytest.skip(
            "NOT TESTED: a file that can't be moved needs the right to make one, and a filesystem that knows such"
        )
    try:
        with Pacchettino(base) as queue:
            with pytest.raises(PermissionError) as caught:
                getattr(queue, call)()
            assert caught.value.filename == os.fspath(stuck)
            assert entries(base / "failed") == [os.fsencode(stuck.name)]
            assert queue.count_queued() == (8 if call == "requeue_all" else 0)
    finally:
        set_immutable(stuck, False)


# The directories themselves

NO_DIRECTORIES = ["file", "FIFO", "socket", "device", "link to a directory", "link to nothing", "link to itself"]


@pytest.mark.parametrize("kind", NO_DIRECTORIES)
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_queue_is_not_opened_where_one_of_its_directories_is_something_else(
    quick_dir: Path, directory: str, kind: str
) -> None:
    if kind in NEED_PRIVILEGE and os.getuid() != 0:
        pytest.skip("NOT TESTED: to make a device needs the right to")
    base, outside = quick_dir / "queue", Outside(quick_dir)
    lay_down(base, {})
    (base / directory).rmdir()
    KINDS[kind](base / directory, outside)
    before = everything(base)
    with pytest.raises(NotADirectoryError) as caught:
        Pacchettino(base)
    assert caught.value.filename == os.fspath(base / directory)
    assert everything(base) == before
    outside.assert_untouched()


USE_WHATEVER_COMES = """
def use_whatever_comes(id):
    calls = [(f"count_{name}", {}) for name in ("queued", "scheduled", "processing", "failed", "all")]
    calls += [("jobs", {"status": status}) for status in Status if status is not Status.UNKNOWN]
    calls += [("status", {"id": id}), ("receive", {}), ("receive_one", {"timeout": 0.001})]
    calls += [("claim", {"timeout": 0.001})]
    calls += [("send_data", {"data": b"sent meanwhile"}), ("receive", {}), ("requeue", {"id": id}), ("requeue_all", {})]
    calls += [("cleanup", {"older_than": 1000})]
    for call, arguments in calls:
        try:
            result = getattr(queue, call)(**arguments)
            if call == "jobs":
                list(result)
        except OSError as error:
            assert error.errno, error
None
"""


@pytest.mark.parametrize("target", ["folder", "nothing", "fifo"])
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_link_in_place_of_a_directory_of_an_open_queue_is_not_followed(
    quick_dir: Path, users: dict[bool, Peer], directory: str, target: str
) -> None:
    base, outside = quick_dir / "queue", Outside(quick_dir)
    peer = users[False]
    peer(USE_WHATEVER_COMES)
    peer.open(base)
    peer("handled.clear(); queue.on_data_received(lambda id, data: handled.append(id)); None")
    first = peer("queue.send_data('first')")
    assert peer("queue.receive()") == 1
    waiting = peer("queue.send_data('waiting')")
    orphan = new_id()
    claim = base / "processing" / f"raw-{orphan}.gone000000"
    claim.mkdir()
    (claim / "raw").write_bytes(b"orphan")

    path, aside = base / directory, base / "aside"
    path.rename(aside)
    path.symlink_to(outside.path / target)
    peer(f"use_whatever_comes({first!r})")
    assert path.is_symlink()
    path.unlink()
    aside.rename(path)

    peer("queue.receive(); queue.requeue_all(); queue.receive()")
    assert {first, waiting, orphan} <= set(peer("handled"))
    assert max(Counter(peer("handled")).values()) == 1
    assert entries(base / "processing") == entries(base / "queued") == []
    peer("queue.close()")
    outside.assert_untouched()


# All that is reached, as the kernel is asked for it

WHOLE_PROGRAM = """
import os, sys, logging, signal
from datetime import timedelta
from pacchettino import *

base, source, moved, across, settings, dead = sys.argv[1:]
logging.getLogger("pacchettino").addHandler(logging.NullHandler())
logging.getLogger("pacchettino").propagate = False

def use(queue):
    answers = iter([None, Result.FAILED, Result.RETRY] * 100)
    queue.on_data_received(lambda id, data: next(answers))
    queue.on_file_received(lambda id, name, path: next(answers))
    ids = [queue.send_data("data"), *queue.send_many(["many", "more"]), queue.send_data("late", delay=0.001)]
    if os.access(moved, os.F_OK):
        ids += [queue.send_file(source), queue.send_file(moved, copy=False), queue.send_file(across, copy=False)]
    for _ in range(3):
        queue.receive()
    while queue.receive_one(timeout=0.02):
        pass
    queue.send_data("claimed")
    with queue.claim(timeout=1) as job:
        job.data
    for status in Status:
        if status is not Status.UNKNOWN:
            list(queue.jobs(status))
    queue.count_all()
    for id in (*ids, ids[0][:-1] + "0", f"raw-{ids[0]}"):
        queue.status(id)
        queue.is_queued(id)
        queue.requeue(id)
    queue.requeue_all(KeepPolicy.ALL)
    queue.receive()
    queue.cleanup(older_than=1000)
    queue.cleanup()
    queue.close()

os.access("/the watch begins", os.F_OK)
use(eval(f"Pacchettino(base, {settings})"))
os.access("/the watch ends", os.F_OK)
"""

CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += +(-?\d+|\?)")
DECODED = re.compile(r"(?:\d+|AT_FDCWD)<((?:[^<>]|<[^<>]*>)*)>")
PATH = re.compile(r'(?:(?:\d+|AT_FDCWD)<((?:[^<>]|<[^<>]*>)*)>, )?"((?:[^"\\]|\\.)*)"')
WITH_PATHS = "open openat stat lstat newfstatat statx access faccessat faccessat2 mkdir mkdirat rmdir unlink unlinkat"
WITH_PATHS += " rename renameat renameat2 link linkat symlink symlinkat readlink readlinkat chmod fchmodat chown lchown"
WITH_PATHS += " fchownat utimensat truncate inotify_add_watch statfs mknod mknodat getcwd chdir execve"
NOT_ON_DISK = ("anon_inode:", "pipe:", "socket:", "/dev/null", "/dev/pts/")


@dataclass(frozen=True)
class Call:
    """A system call as strace shows it: with the files behind its descriptors, and the paths that it names."""

    line: str
    name: str
    paths: tuple[str, ...]
    descriptors: tuple[str, ...]


def watched_calls(trace: str) -> list[Call]:
    """Read what was called between the two marks."""
    calls, watched = [], False
    # A call that another thread interrupts is shown in two parts.
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        thread = line.split()[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix(" <unfinished ...>")
            continue
        resumed = re.match(r"\d+ +<\.\.\. \w+ resumed>,? ?(.*)", line)
        if resumed:
            line = begun.pop(thread) + resumed[1]
        found = CALL.match(line)
        if found is None:
            continue
        name, arguments, _ = found.groups()
        if "access" in name and "/the watch" in arguments:
            watched = "begins" in arguments
            continue
        if not watched:
            continue
        paths = []
        if name in WITH_PATHS.split():
            for directory, path in PATH.findall(arguments):
                if path or "AT_EMPTY_PATH" not in arguments:
                    paths.append(os.path.normpath(os.path.join(directory, path)))  # noqa: PTH118
        calls.append(Call(line, name, (*paths,), (*DECODED.findall(arguments),)))
    return calls


def may_name(call: Call, path: str, base: Path, given: list[Path], *, is_durable: bool) -> bool:
    """Whether a call may reach that: what is in the queue, or one of the few things that are for a reason."""
    if path == os.fspath(base) or path.startswith(f"{base}/") or Path(path) in given:
        return True
    if call.name == "inotify_add_watch":
        # The directory that is open, whatever its path means by now.
        return path.startswith("/proc/self/fd/")
    if re.match(r"/proc/\d+/(status|task)", path) or re.fullmatch(r"/proc/\d+", path):
        # Whether the owner of a claim lives.
        return call.name in ("openat", "read", "getdents64", "close", "fstat", "newfstatat", "statx", "lseek", "ioctl")
    # A durable queue flushes its own name in the directories above; it reads none of them.
    return is_durable and Path(path) in base.parents and call.name in ("openat", "newfstatat", "fsync", "close")


def plant_links(base: Path, outside: Path) -> None:
    """Put links out of the queue wherever a job, a claim, a draft or a lock file could be."""
    for number, state in enumerate(("queued", *KEPT)):
        (base / state / f"raw-{new_id(number)}").symlink_to(outside / "raw")
        (base / state / f"fle-{new_id(number)}-raw").symlink_to(outside / "raw")
        (base / state / f"fle-{new_id(number)}-folder").symlink_to(outside / "folder")
    (base / "scheduled" / f"0000000000001-raw-{new_id(5)}").symlink_to(outside / "raw")
    (base / "processing" / f"raw-{new_id(6)}.gone000000").symlink_to(outside / "folder")
    for number, owner in enumerate(("gone000000", "4194303", "1", "link000000"), 7):
        claim = base / "processing" / f"raw-{new_id(number)}.{owner}"
        claim.mkdir()
        (claim / "raw").symlink_to(outside / "raw")
    (base / "owners" / "link000000").symlink_to(outside / "raw")
    (base / "tmp" / f"{new_id(1)}-gone000000").symlink_to(outside / "raw")
    (base / "tmp" / "owner-gone000001").symlink_to(outside / "raw")
    (base / "tmp" / f"{new_id(1)}-link000000").write_bytes(b"a draft of who may be alive")


@pytest.mark.parametrize(
    "settings", ["", "durable=True, fifo=True", "KeepPolicy.NONE", "crash_detection=CrashDetection.PID"]
)
def test_nothing_outside_the_queue_is_reached_and_no_link_in_it_is_followed(
    tmp_path: Path, other_filesystem: Path, settings: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT TESTED: to watch the system calls needs strace")
    base, outside = tmp_path / "queue", Outside(tmp_path)
    lay_down(base, {})
    plant_links(base, outside.path)
    for number, owner in enumerate(("gone000000", "4194303"), 20):
        claim = base / "processing" / f"fle-{new_id(number)}-report.txt.{owner}"
        claim.mkdir()
        (claim / "report.txt").write_bytes(b"an orphan")
    given = [tmp_path / "source", tmp_path / "moved", other_filesystem / "across"]
    for path in given:
        path.write_bytes(b"content")
    trace = tmp_path / "trace"
    options = ["-f", "-y", "-s", "4096", "-e", "signal=none", "-o", trace]
    program = [sys.executable, "-c", WHOLE_PROGRAM, base, *given, settings, "4194303"]
    done = subprocess.run(["strace", *options, *program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("NOT TESTED: to watch the system calls needs the right to trace")
    assert (done.returncode, done.stderr) == (0, "")

    calls = watched_calls(trace.read_text())
    assert sum(call.name == "renameat2" for call in calls) > 20
    for call in calls:
        for path in call.paths:
            assert may_name(call, path, base, given, is_durable="durable" in settings), call.line
        for path in call.descriptors:
            path = path.removesuffix("(deleted)")
            # What paths start at that do not start at the root; none that is named does.
            is_where_we_are = path == os.getcwd() and "AT_FDCWD" in call.line  # noqa: PTH109
            is_on_disk = not path.startswith(NOT_ON_DISK)
            may_be_used = may_name(call, path, base, given, is_durable="durable" in settings)
            assert may_be_used or is_where_we_are or not is_on_disk, call.line
        below = [path for path in call.paths if path.startswith(f"{base}/")]
        if call.name in ("open", "openat"):
            assert "O_CLOEXEC" in call.line, call.line
            assert "O_CREAT" not in call.line or "O_EXCL" in call.line, call.line
            # `.` is the directory that is open already.
            assert "O_NOFOLLOW" in call.line or not below or '"."' in call.line, call.line
            assert "O_NONBLOCK" in call.line or "O_DIRECTORY" in call.line or not below, call.line
        if call.name in ("stat", "newfstatat", "statx") and below:
            assert "AT_SYMLINK_NOFOLLOW" in call.line, call.line
        if call.name == "getdents64":
            assert all(path.startswith(f"{base}/") or "/proc/" in path for path in call.descriptors), call.line
        # All changes go through handles, to single names; but for the files that were given.
        if call.name in ("renameat2", "unlinkat", "mkdirat", "unlink", "rename", "mkdir") and below:
            assert call.name.endswith(("at", "at2")), call.line
            names = [name for directory, name in PATH.findall(call.line) if directory.startswith(f"{base}/")]
            assert all("/" not in name for name in names), call.line
    outside.assert_untouched()


# Swaps while a job is on its way


def swap_for_directory(base: Path, outside: Outside, id: str) -> None:
    path = base / "queued" / f"raw-{id}"
    path.unlink()
    path.mkdir()


def take_the_name_in_success(base: Path, outside: Outside, id: str) -> None:
    os.mkfifo(base / "success" / f"raw-{id}")


def swap_claim_for_link(base: Path, outside: Outside, id: str) -> None:
    (claim,) = (base / "processing").glob(f"raw-{id}.*")
    claim.rename(claim.with_name(f"aside-{id}"))
    claim.symlink_to(outside.path / "folder")


MORE_THAN_UNSETTLED = 9


@pytest.mark.parametrize(
    ("before", "inside", "keep"),
    [
        pytest.param(swap_for_directory, None, KeepPolicy.ALL, id="a directory in place of a listed job"),
        pytest.param(
            swap_for_directory,
            None,
            KeepPolicy.NONE,
            id="a directory in place of a listed job, to be deleted",
        ),
        pytest.param(
            None,
            take_the_name_in_success,
            KeepPolicy.ALL,
            id="a name that is taken where the verdict leads",
        ),
        pytest.param(
            None,
            swap_claim_for_link,
            KeepPolicy.ALL,
            id="a link in place of a claim's directory",
        ),
    ],
)
def test_what_is_swapped_for_some_jobs_does_not_keep_a_consumer_from_the_others(
    quick_dir: Path,
    before: Callable[[Path, Outside, str], None] | None,
    inside: Callable[[Path, Outside, str], None] | None,
    keep: KeepPolicy,
) -> None:
    base, outside = quick_dir / "queue", Outside(quick_dir)
    handled: list[str] = []
    with Pacchettino(base, keep, fifo=True) as queue:
        ids = queue.send_many([b""] * (1 + MORE_THAN_UNSETTLED))

        def handle(id: str, data: bytes) -> None:
            handled.append(id)
            if before is not None and id == ids[0]:
                # Listed are all of them by now.
                for other in ids[1:]:
                    before(base, outside, other)
            if inside is not None and id != good:
                inside(base, outside, id)

        queue.on_data_received(handle)
        good = queue.send_data("good")
        queue.receive()
        assert handled.count(good) == 1
    outside.assert_untouched()


def test_a_data_job_larger_than_any_memory_keeps_no_consumer_from_the_others(quick_dir: Path) -> None:
    base = quick_dir / "queue"
    handled: list[str] = []
    with Pacchettino(base, fifo=True) as queue:
        queue.on_data_received(lambda id, data: handled.append(id))
        os.truncate(base / "queued" / f"raw-{queue.send_data('huge')}", 1 << 44)
        good = queue.send_data("good")
        assert queue.receive() == 2
        assert handled == [good]
        assert queue.count_failed() == 1


# Another user who swaps things all the time

NOBODY = 65534
EXCHANGE = """
import ctypes, random
libc = ctypes.CDLL(None, use_errno=True)

def exchange(one, other):
    return libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0  # RENAME_EXCHANGE

def names(directory):
    try:
        return os.listdir(directory)
    except OSError:
        return []

def swap_for_ever(base, secrets, sources, decoys, seed):
    # Each thing is swapped for one that leads out of the queue, and most are swapped back.
    chance = random.Random(seed)
    directories = [os.path.join(base, name) for name in names(base)]
    for number in range(1 << 60):
        kind = chance.choice(["link", "folder", "fifo", "directory"])
        decoy = os.path.join(decoys, str(number % 64))
        try:
            if kind == "link":
                os.symlink(os.path.join(secrets, "raw"), decoy)
            elif kind == "folder":
                os.symlink(secrets, decoy)
            elif kind == "fifo":
                os.mkfifo(decoy)
            else:
                os.mkdir(decoy)
        except FileExistsError:
            pass
        what = chance.random()
        if what < 0.02 and seed == 0:
            # By one only, who always swaps back: two would lose them.
            victims = [chance.choice(directories)]
        elif what < 0.2:
            victims = [os.path.join(sources, name) for name in names(sources)]
        else:
            directory = chance.choice(directories)
            victims = [os.path.join(directory, name) for name in names(directory)]
            if directory.endswith("processing") and victims and chance.random() < 0.5:
                claim = chance.choice(victims)
                victims = [os.path.join(claim, name) for name in names(claim)]
        for victim in victims[:3]:
            if exchange(victim, decoy):
                swaps[0] += 1
                if victim in directories or chance.random() < 0.8:
                    exchange(victim, decoy)
swaps = [0]
None
"""

RUN_WHILE_SWAPPED = """
import random

os.umask(0)
handled = []

def write(path, dir_fd=None):
    # Not through a link either.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=dir_fd)
    try:
        os.write(file, b"sent")
    finally:
        os.close(file)

def run(base, source, rounds, ids):
    chance = random.Random(0)

    def open_queue():
        # Something else may be in place of a directory.
        while True:
            try:
                queue = Pacchettino(base, fifo=True, durable=chance.random() < 0.5)
                queue.on_data_received(lambda id, data: handled.append(data))
                return queue
            except NotADirectoryError:
                pass

    def send_source():
        path = os.path.join(source, f"{chance.getrandbits(60)}")
        write(path)
        queue.send_file(path, copy=False)

    def lay_orphan():
        claim = os.path.join(base, "processing", f"raw-{ids.pop()}.gone000000")
        os.mkdir(claim)
        directory = os.open(claim, os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            write("raw", dir_fd=directory)
        finally:
            os.close(directory)

    def take(**arguments):
        if job := queue.claim(**arguments):
            with job:
                handled.append(job.data)

    calls = [
        lambda: queue.send_many([b"sent"] * 3),
        lambda: queue.send_data(b"sent", delay=0.0001),
        send_source,
        lay_orphan,
        lambda: queue.receive(),
        lambda: queue.receive_one(),
        lambda: take(kind="file"),
        lambda: take(timeout=0.001),
        lambda: queue.requeue_all(KeepPolicy.ALL),
        lambda: queue.cleanup(KeepPolicy.SUCCESS),
        lambda: [list(queue.jobs(status)) for status in PRESENT],
        lambda: queue.count_all(),
        lambda: queue.status(chance.choice(ids)),
    ]
    queue = open_queue()
    for number in range(rounds):
        if number % 50 == 0:
            # What can never be settled must not end the test.
            queue.close()
            queue = open_queue()
        try:
            chance.choice(calls)()
        except OSError as error:
            assert error.errno, error
    queue.close()
None
"""


@pytest.fixture
def far_dir(tmp_path: Path, other_filesystem: Path) -> Iterator[Path]:
    """Give a directory that every user can reach, on another filesystem than `quick_dir`."""
    directory = Path(tempfile.mkdtemp(prefix="pacchettino-test-"))
    if directory.stat().st_dev == other_filesystem.stat().st_dev:
        pytest.skip("NOT TESTED: the directory for temporary files is on the same filesystem as /dev/shm")
    yield directory
    shutil.rmtree(directory)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [1_000, pytest.param(20_000, marks=pytest.mark.torture)])
def test_another_user_who_swaps_what_is_in_the_queue_gets_nothing_out_of_those_who_use_it(
    quick_dir: Path, far_dir: Path, rounds: int
) -> None:
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: to be two users needs the right to be another user")
    base, outside = quick_dir / "queue", Outside(quick_dir)
    lay_down(base, {})
    # A file is moved into the queue from the queue's own filesystem, and from another one.
    sources = (quick_dir / "near", far_dir)
    decoys = [quick_dir / f"decoys of {number}" for number in range(len(sources))]
    for directory in (*decoys, sources[0]):
        directory.mkdir()
    for directory in (quick_dir, base, *base.iterdir(), *decoys, *sources):
        directory.chmod(0o777)
    with ExitStack() as stack:
        user, *swappers = [stack.enter_context(Peer()) for _ in range(3)]
        user(USE)
        user(RUN_WHILE_SWAPPED)
        for seed, swapper in enumerate(swappers):
            swapper(EXCHANGE)
            swapper(f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.umask(0)")
            arguments = (*map(os.fspath, (base, outside.path, sources[seed], decoys[seed])), seed)
            swapper(f"threading.Thread(target=swap_for_ever, args={arguments!r}, daemon=True).start()")
        for source in sources:
            ids = [new_id() for _ in range(rounds)]
            user.begin(f"run({os.fspath(base)!r}, {os.fspath(source)!r}, {rounds // 2}, {ids!r})")
            user.end(4 * PATIENCE)
        assert all(swapper("swaps[0]") > 0 for swapper in swappers)
        handled = user("handled")
    # A lock file that was swapped into a job's place is empty, and a draft may be.
    assert {b"sent"} <= set(handled) <= {b"sent", b""}
    assert len(handled) > rounds / 10
    outside.assert_untouched()


# Several users

GROUP, SENDER, CONSUMER = 60_000, 60_001, 60_002


@pytest.fixture
def shared_dir() -> Iterator[Path]:
    """Give a directory of the users' common group, which all that is made in it belongs to as well."""
    if os.getuid() != 0:
        pytest.skip("NOT TESTED: to be several users needs the right to be another user")
    directory = Path(tempfile.mkdtemp(prefix="pacchettino-test-"))
    os.chown(directory, 0, GROUP)
    directory.chmod(0o2770)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def be() -> Iterator[Callable[[int, int], Peer]]:
    """Start processes of other users, with the umasks that they are to have."""
    with ExitStack() as stack:

        def be(user: int, umask: int) -> Peer:
            peer = stack.enter_context(Peer())
            peer("import logging")
            # As `setpriv --reuid --regid --groups` does.
            peer(f"os.setgroups([{GROUP}]); os.setgid({user}); os.setuid({user}); os.umask({umask})")
            peer("""
                lines, handled = [], []
                handler = logging.Handler()
                handler.emit = lambda record: lines.append(handler.format(record))
                logging.getLogger("pacchettino").addHandler(handler)

                def open_queue(base):
                    global queue
                    queue = Pacchettino(base, fifo=True)
                    queue.on_data_received(lambda id, data: handled.append(data))
                    queue.on_file_received(lambda id, name, path: handled.append(path.read_bytes()))
            """)
            return peer

        yield be


@pytest.mark.parametrize("sender_umask", [0o002, 0o022, 0o077])
@pytest.mark.parametrize("consumer_umask", [0o002, 0o022, 0o077])
def test_in_a_queue_of_a_group_each_user_uses_what_the_others_umask_lets_it_and_nobody_is_blocked(
    shared_dir: Path, be: Callable[[int, int], Peer], sender_umask: int, consumer_umask: int
) -> None:
    base = shared_dir / "queue"
    sender, consumer = be(SENDER, 0o002), be(CONSUMER, consumer_umask)
    sender(f"open_queue({os.fspath(base)!r})")
    sender(f"os.umask({sender_umask})")
    consumer(f"open_queue({os.fspath(base)!r})")

    # What was sent can be read by the consumer, or it fails, and it is told why.
    id = sender("queue.send_data(b'data')")
    assert consumer("queue.receive()") == 1
    is_readable = sender_umask != 0o077
    assert consumer("handled") == ([b"data"] if is_readable else [])
    assert [line for line in consumer("lines") if id in line and "Permission denied" in line] == consumer("lines")
    assert len(consumer("lines")) == (0 if is_readable else 1)
    assert sender(f"queue.status({id!r}).value") == ("success" if is_readable else "failed")
    # Its sender can have it again, though, and clean up.
    assert sender(f"queue.requeue({id!r})")
    assert sender("queue.receive()") == 1
    assert sender("handled") == [b"data"]
    assert sender("queue.cleanup()") == 1

    # A consumer dies. The other user takes its job back where that can be; else it is told of it, once, and goes on.
    id = sender("queue.send_data(b'held')")
    consumer("job = queue.claim(); None")
    assert sender("queue.count_processing()") == 1
    consumer.kill()
    good = sender("queue.send_data(b'good')")
    for _ in range(3):
        sender("queue.receive()")
    assert sender(f"queue.status({good!r}).value") == "success"
    can_be_recovered = consumer_umask == 0o002
    assert sender(f"queue.status({id!r}).value") == ("interrupted" if can_be_recovered else "processing")
    lines = [
        line for line in sender("lines") if "/history" not in line
    ]  # what its umask lets it record is the consumer's
    assert len(lines) == 1
    assert id in lines[0]
    assert ("Permission denied" in lines[0]) != can_be_recovered
    # A process of the user that it was can.
    other = be(CONSUMER, consumer_umask)
    other(f"open_queue({os.fspath(base)!r})")
    assert other("queue.requeue_all()") == 1
    assert other("queue.receive()") == 1
    assert other("handled") == ([b"held"] if is_readable else [])


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_a_queue_can_be_used_by_the_group_if_its_maker_had_a_umask_of_002_and_else_says_that_it_can_not(
    shared_dir: Path, be: Callable[[int, int], Peer], umask: int
) -> None:
    base = shared_dir / "queue"
    sender, consumer = be(SENDER, umask), be(CONSUMER, umask)
    sender(f"open_queue({os.fspath(base)!r})")
    id = sender("queue.send_data(b'data')")
    modes = {path.stat().st_mode & 0o7777 for path in (base, *base.iterdir())}
    assert modes == {0o2777 & ~umask}
    if umask == 0o077:
        with pytest.raises(PermissionError):
            consumer(f"open_queue({os.fspath(base)!r})")
    else:
        consumer(f"open_queue({os.fspath(base)!r})")
        # To look takes no right to write.
        assert consumer(f"queue.status({id!r}).value") == "queued"
        assert consumer("[info.id for info in queue.jobs(Status.QUEUED)]") == [id]
        if umask == 0o002:
            assert consumer("queue.receive()") == 1
            assert consumer("queue.send_data(b'back')")
            assert sender("queue.receive()") == 1
            assert sender("handled") == [b"back"]
            return
        for call in ("receive()", "receive_one()", "claim(timeout=0)", "send_data(b'back')"):
            with pytest.raises(PermissionError):
                consumer(f"queue.{call}")
    # Nothing happened to the job.
    assert sender("queue.receive()") == 1
    assert sender("handled") == [b"data"]


# A million entries

MILLION = 1_000_000
MILLION_CLAIMS = 100_000
"""Each is a directory with a file in it."""


def fill(base: Path, directory: str, what: str) -> int:
    """Make so many entries in a directory, and give their number."""
    name = "raw-01a227f2-b0d6-7000-8000-{:012x}" if what == "jobs" else "stranger {}"
    folder = os.open(base / directory, os.O_DIRECTORY)
    try:
        if (directory, what) == ("processing", "jobs"):
            for number in range(MILLION_CLAIMS):
                # Process 1 lives.
                claim = f"{name.format(number)}.1"
                os.mkdir(claim, dir_fd=folder)
                os.mknod(f"{claim}/raw", dir_fd=folder)
            return MILLION_CLAIMS
        if (directory, what) == ("scheduled", "jobs"):
            name = f"9000000000000-{name}"
        for number in range(MILLION):
            os.mknod(name.format(number), dir_fd=folder)
        return MILLION
    finally:
        os.close(folder)


USE_A_MILLION = """
import logging, time
from pathlib import Path

lines, handled = [], []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record)
logging.getLogger("pacchettino").addHandler(handler)

def most_memory():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

def use_a_million(base):
    global queue
    before = most_memory()
    queue = Pacchettino(base, fifo=True)
    queue.on_data_received(lambda id, data: handled.append(id))
    counts = {status.value: sum(1 for _ in queue.jobs(status)) for status in Status if status is not Status.UNKNOWN}
    counted = {name: getattr(queue, f"count_{name}")() for name in ("queued", "scheduled", "processing", "all")}
    unknown = "01a227f2-b0d6-7000-826e-93b281bc7bc6"
    assert queue.status(unknown) is Status.UNKNOWN
    assert queue.requeue(unknown) is False
    id = queue.send_data("one more")
    while queue.receive_one() and len(handled) < 1000:
        pass
    assert queue.status(id) is not Status.UNKNOWN
    return counts, counted, most_memory() - before

def idle(seconds):
    # Waits where nothing comes, and tells what that took of the processor.
    queue.on_data_received(lambda id, data: handled.append(id))
    begun, used = time.monotonic(), time.process_time()
    queue.claim(timeout=seconds, kind="file")
    return (time.process_time() - used) / (time.monotonic() - begun)
None
"""


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("directory", "what"),
    [
        *((directory, "strangers") for directory in ("queued", "scheduled", "processing", "tmp", "owners", "failed")),
        *((directory, "jobs") for directory in ("queued", "scheduled", "processing", "failed")),
    ],
)
def test_a_million_entries_hinder_nobody(quick_dir: Path, directory: str, what: str) -> None:
    base = quick_dir / "queue"
    lay_down(base, {})
    number = fill(base, directory, what)
    with Peer() as peer:
        peer(USE_A_MILLION)
        peer.begin(f"use_a_million({os.fspath(base)!r})")
        counts, counted, memory = peer.end(8 * PATIENCE)
        jobs = number if what == "jobs" else 0
        assert counts == {state: jobs if state == directory else 0 for state in STATES}
        assert counted == {state: counts[state] for state in ("queued", "scheduled", "processing")} | {"all": jobs}
        # A listing takes a hundred bytes for each, and twice that while it grows.
        assert memory < 256 << 20
        # A thousand are told of, and that there are more.
        assert peer("len(lines)") < 1100
        # What takes long to read is left alone for ten times as long; who spins takes all of the time.
        assert peer("idle(10)") < 0.4
