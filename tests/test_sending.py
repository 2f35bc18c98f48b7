"""Sending: what arrives, under which name and mode, when, and what an error leaves behind."""

import array
import errno
import filecmp
import itertools
import math
import os
import re
import shutil
import socket
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import find
from helpers import odd_names
from pacchettino import Pacchettino, SendError, Status
from syscalls import Fate, Tell, needs_traps, trap

STATES = {"queued", "scheduled", "processing", "success", "failed", "interrupted", "tmp", "owners"}
SPARSE = 8 << 20
ODD_NAMES = [
    "a",
    "-",
    " ",
    "...",
    ".hidden",
    "raw",
    "raw-",
    "with space and -dashes-",
    "new\nline",
    'tab\t"quotes" \'\\',
    "looks.12345",
    "claimed.abcdefghij",
    "ünïcödé",
    "not utf-8 \udcff\udc80",
    "n" * 200,
    "é" * 100,
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "report.txt"
    file.write_bytes(b"content")
    return file


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in find(directory)}


def send_in_all_ways(queue: Pacchettino, source: Path, **arguments: Any) -> list[Callable[[], object]]:
    return [
        lambda: queue.send_data("a", **arguments),
        lambda: queue.send_many(["a", "b"], **arguments),
        lambda: queue.send_file(source, **arguments),
        lambda: queue.send_file(source, copy=False, **arguments),
    ]


# Data


@pytest.mark.parametrize(
    ("data", "arrives"),
    [
        ("", b""),
        ("grüße", "grüße".encode()),
        ("\0", b"\0"),
        (b"", b""),
        (b"\xff\0\n", b"\xff\0\n"),
        (bytearray(b"array"), b"array"),
        (memoryview(b"view"), b"view"),
        (memoryview(b"view")[::-1], b"weiv"),
        (memoryview(b"abcdef").cast("B", (2, 3)), b"abcdef"),
        (array.array("I", [1, 2]), array.array("I", [1, 2]).tobytes()),
        (memoryview(array.array("H", [1, 2, 3, 4]))[::2], array.array("H", [1, 3]).tobytes()),
    ],
    ids=[
        "empty str",
        "str",
        "NUL",
        "empty bytes",
        "bytes",
        "bytearray",
        "memoryview",
        "reversed",
        "two dimensions",
        "array",
        "every second",
    ],
)
def test_data_arrives_byte_for_byte(queue: Pacchettino, queue_dir: Path, data: Any, arrives: bytes) -> None:
    id = queue.send_data(data)
    assert contents(queue_dir) == {f"queued/raw-{id}": arrives}


def test_a_megabyte_arrives_byte_for_byte(queue: Pacchettino, queue_dir: Path) -> None:
    data = os.urandom(1 << 20)
    id = queue.send_data(data)
    assert contents(queue_dir) == {f"queued/raw-{id}": data}


@pytest.mark.parametrize("data", [None, 1, 1.5, ["a"], {"a": 1}, Path("a")], ids=repr)
def test_what_is_neither_str_nor_bytes_is_a_type_error(queue: Pacchettino, queue_dir: Path, data: Any) -> None:
    with pytest.raises(TypeError):
        queue.send_data(data)
    with pytest.raises(TypeError):
        queue.send_many([b"good", data])
    assert find(queue_dir) == []


def test_a_str_that_has_no_utf8_is_a_value_error(queue: Pacchettino, queue_dir: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        queue.send_data("\udcff")
    with pytest.raises(UnicodeEncodeError):
        queue.send_many(["good", "\udcff"])
    assert find(queue_dir) == []


def test_ids_are_version_7_uuids_that_increase_from_call_to_call(queue: Pacchettino, source: Path) -> None:
    before = int(datetime.now(UTC).timestamp() * 1000)
    ids = [queue.send_data("a"), *queue.send_many(["b"] * 500), queue.send_file(source), queue.send_data("c", delay=9)]
    after = int(datetime.now(UTC).timestamp() * 1000)
    assert ids == sorted(set(ids))
    for id in ids:
        assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", id)
        assert before <= uuid.UUID(id).int >> 80 <= after


# Many


def test_many_are_sent_in_the_order_of_the_items(queue: Pacchettino, queue_dir: Path) -> None:
    items: list[Any] = [
        "a",
        b"b",
        bytearray(b"c"),
        memoryview(b"d"),
        array.array("B", b"e"),
        *[b"%d" % n for n in range(300)],
    ]
    ids = queue.send_many(items)
    assert ids == sorted(set(ids))
    assert [(queue_dir / f"queued/raw-{id}").read_bytes() for id in ids] == [
        item.encode() if isinstance(item, str) else bytes(item) for item in items
    ]


def test_many_takes_a_generator(queue: Pacchettino, queue_dir: Path) -> None:
    ids = queue.send_many(str(number) for number in range(3))
    assert contents(queue_dir) == {f"queued/raw-{id}": b"%d" % number for number, id in enumerate(ids)}


def test_many_of_nothing_sends_nothing(queue: Pacchettino, queue_dir: Path) -> None:
    assert queue.send_many([]) == []
    assert find(queue_dir) == []


@pytest.mark.parametrize(
    "items", ["text", "", b"bytes", b"", bytearray(b"a"), memoryview(b"a"), array.array("B", b"a"), None, 5], ids=type
)
def test_one_item_in_place_of_many_is_a_type_error(queue: Pacchettino, queue_dir: Path, items: Any) -> None:
    with pytest.raises(TypeError):
        queue.send_many(items)
    assert find(queue_dir) == []


@pytest.mark.parametrize("bad", [None, 5, ["a"]], ids=repr)
def test_all_items_are_checked_before_any_is_sent(queue: Pacchettino, queue_dir: Path, bad: Any) -> None:
    seen = []

    def items() -> Iterator[Any]:
        for item in ["first", bad, "last"]:
            seen.append(find(queue_dir))
            yield item

    with pytest.raises(TypeError):
        queue.send_many(items())
    assert seen
    assert all(files == [] for files in seen)
    assert find(queue_dir) == []


def test_an_error_of_the_generator_goes_on_and_nothing_is_sent(queue: Pacchettino, queue_dir: Path) -> None:
    def items() -> Iterator[str]:
        yield "first"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        queue.send_many(items())
    assert find(queue_dir) == []


# Files


@pytest.mark.parametrize("name", odd_names(*ODD_NAMES), ids=lambda name: ascii(name[:30]))
@pytest.mark.parametrize("copy", [True, False], ids=["copied", "moved"])
@pytest.mark.parametrize("renamed", [False, True], ids=["own name", "name="])
def test_a_file_keeps_its_name_byte_for_byte(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, name: str, copy: bool, renamed: bool
) -> None:
    file = tmp_path / ("x" * 255 if renamed else name)
    file.write_bytes(b"content")
    id = queue.send_file(file, copy=copy, name=name if renamed else None)
    assert contents(queue_dir) == {f"queued/fle-{id}-{name}": b"content"}
    assert file.exists() == copy
    job = queue.claim()
    assert job is not None
    with job:
        assert (job.id, job.entry, job.name, job.path.name) == (id, f"fle-{id}-{name}", name, name)
        assert job.path.read_bytes() == b"content"
        assert queue.status(id) is queue.status(job.entry) is Status.PROCESSING
    assert queue.status(id) is queue.status(job.entry) is Status.SUCCESS
    assert queue.requeue(job.entry)
    assert contents(queue_dir) == {f"queued/fle-{id}-{name}": b"content"}


def test_the_path_may_be_a_str_or_any_path_object(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    class Somewhere:
        def __fspath__(self) -> str:
            return str(source)

    ids = [queue.send_file(path) for path in (source, str(source), Somewhere())]
    assert find(queue_dir) == sorted(f"queued/fle-{id}-report.txt" for id in ids)


def test_a_relative_path_is_seen_from_the_working_directory(
    queue: Pacchettino, queue_dir: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    copied = queue.send_file(source.name)
    moved = queue.send_file(source.name, copy=False)
    assert find(queue_dir) == sorted(f"queued/fle-{id}-report.txt" for id in (copied, moved))
    assert not source.exists()


@pytest.mark.parametrize("size", [0, 1, 64 << 20, (64 << 20) + 1])
def test_a_file_of_any_size_is_copied_whole(queue: Pacchettino, queue_dir: Path, source: Path, size: int) -> None:
    with source.open("wb") as file:
        file.truncate(size)
        if size:
            file.seek(size - 1)
            file.write(b"e")
    id = queue.send_file(source)
    assert filecmp.cmp(source, queue_dir / f"queued/fle-{id}-report.txt", shallow=False)


def make_sparse(path: Path, stretches: list[tuple[int, int]], size: int = SPARSE) -> None:
    with path.open("wb") as file:
        for start, length in stretches:
            file.seek(start)
            file.write(os.urandom(length))
        file.truncate(size)


def stored(path: Path) -> int:
    """Give how many bytes of a file are stored."""
    return path.stat().st_blocks * 512


@pytest.fixture
def holes(tmp_path: Path) -> None:
    make_sparse(tmp_path / "holes", [])
    if stored(tmp_path / "holes") >= SPARSE:
        pytest.skip("NOT TESTED: this filesystem has no holes")


HOLES = {
    "nothing else": [],
    "at the end": [(0, 5000)],
    "at the beginning": [(SPARSE - 5000, 5000)],
    "in between": [(0, 1), (SPARSE // 2, 70_000), (SPARSE - 1, 1)],
    "many": [(number << 17, 1) for number in range(SPARSE >> 17)],
}


@pytest.mark.parametrize("stretches", HOLES.values(), ids=HOLES)
@pytest.mark.parametrize("way", ["copied", "durable", "moved across filesystems"])
@pytest.mark.usefixtures("holes")
def test_a_sparse_file_keeps_its_holes(
    queue: Pacchettino, queue_dir: Path, request: pytest.FixtureRequest, way: str, stretches: list[tuple[int, int]]
) -> None:
    moved = way.startswith("moved")
    home: Path = request.getfixturevalue("other_filesystem" if moved else "tmp_path")
    source, before = home / "sparse", home / "before"
    make_sparse(source, stretches)
    shutil.copyfile(source, before)
    queue.durable = way == "durable"
    queue.send_file(source, copy=not moved)
    (sent,) = (queue_dir / "queued").iterdir()
    assert filecmp.cmp(sent, before, shallow=False)
    assert stored(sent) <= len(stretches) * (64 << 10) < SPARSE
    assert source.exists() == (not moved)


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="NOT TESTED: there is no /sys")
def test_a_file_that_is_shorter_than_it_says_gets_no_hole(queue: Pacchettino, queue_dir: Path) -> None:
    source = Path("/sys/kernel/uevent_seqnum")
    assert stored(source) < len(source.read_bytes()) < source.stat().st_size
    queue.send_file(source)
    (sent,) = (queue_dir / "queued").iterdir()
    assert sent.read_bytes() == source.read_bytes()


@needs_traps
@pytest.mark.parametrize("error", ["EINVAL", "EOPNOTSUPP", "ENOSYS", "EIO"])
@pytest.mark.parametrize("which", [1, 2, 6], ids=["data", "hole", "next data"])
@pytest.mark.usefixtures("holes")
def test_a_filesystem_that_does_not_tell_of_holes_has_its_files_copied_whole(
    queue_dir: Path, tmp_path: Path, error: str, which: int
) -> None:
    source = tmp_path / "sparse"
    make_sparse(source, [(0, 5000), (1 << 20, 5000)], 2 << 20)
    sought = itertools.count(1)

    def program(tell: Tell) -> Iterator[None]:
        queue = Pacchettino(queue_dir)
        yield
        try:
            queue.send_file(source)
        except OSError as raised:
            tell(raised.errno)
        yield

    def decide(number: int, call: str) -> Fate | None:
        return Fate(getattr(errno, error)) if call == "lseek" and next(sought) == which else None

    raised: list[int] = []
    assert "lseek" in trap(program, decide, raised.append)
    sent = list((queue_dir / "queued").iterdir())
    if error == "EIO":
        assert (raised, sent, list((queue_dir / "tmp").iterdir())) == ([errno.EIO], [], [])
    else:
        assert raised == []
        assert which == 6 or stored(sent[0]) >= 2 << 20
        assert filecmp.cmp(*sent, source, shallow=False)


@pytest.mark.skipif(not Path("/proc/version").is_file(), reason="NOT TESTED: there is no /proc")
def test_a_file_that_does_not_tell_its_length_is_copied_whole(queue: Pacchettino, queue_dir: Path) -> None:
    source = Path("/proc/version")
    assert source.stat().st_size == 0
    id = queue.send_file(source)
    assert contents(queue_dir) == {f"queued/fle-{id}-version": source.read_bytes()}


def test_a_copy_is_another_file(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    id = queue.send_file(source)
    copy = queue_dir / f"queued/fle-{id}-report.txt"
    assert not copy.samefile(source)
    source.write_bytes(b"changed")
    assert copy.read_bytes() == b"content"


def test_a_moved_file_keeps_its_inode(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    inode = source.stat().st_ino
    id = queue.send_file(source, copy=False)
    assert find(queue_dir) == [f"queued/fle-{id}-report.txt"]
    assert (queue_dir / f"queued/fle-{id}-report.txt").stat().st_ino == inode
    assert not source.exists()


def test_a_file_is_moved_across_filesystems(queue: Pacchettino, queue_dir: Path, other_filesystem: Path) -> None:
    source = other_filesystem / "report.txt"
    source.write_bytes(b"content")
    assert source.stat().st_dev != queue_dir.stat().st_dev
    id = queue.send_file(source, copy=False)
    assert contents(queue_dir) == {f"queued/fle-{id}-report.txt": b"content"}
    assert find(other_filesystem) == []


def test_a_file_is_moved_across_filesystems_under_another_name_and_delayed(
    queue: Pacchettino, queue_dir: Path, other_filesystem: Path
) -> None:
    source = other_filesystem / "report.txt"
    source.write_bytes(b"content")
    id = queue.send_file(source, copy=False, name="other", delay=60)
    (job,) = queue.jobs(Status.SCHEDULED)
    assert (job.entry, job.path.read_bytes()) == (f"fle-{id}-other", b"content")
    assert find(other_filesystem) == []


@pytest.mark.needs("symlinks")
def test_a_copy_follows_a_symlink_and_keeps_its_name(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    link = source.with_name("link")
    link.symlink_to(source.name)
    id = queue.send_file(link)
    copy = queue_dir / f"queued/fle-{id}-link"
    assert (copy.read_bytes(), copy.is_symlink(), link.is_symlink()) == (b"content", False, True)


@pytest.mark.needs("symlinks")
def test_a_symlink_above_the_file_is_followed_when_moving(queue: Pacchettino, queue_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    id = queue.send_file(tmp_path / "link/file", copy=False)
    assert contents(queue_dir) == {f"queued/fle-{id}-file": b"content"}
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("umask_", [0o022, 0o077, 0o002], ids=oct)
def test_the_umask_decides_who_can_read(
    queue_dir: Path, source: Path, umask: Callable[[int], int], umask_: int
) -> None:
    source.chmod(0o604)
    umask(umask_)
    queue = Pacchettino(queue_dir)
    queue.send_data("data")
    queue.send_many(["many"], delay=60)
    queue.send_file(source)
    files = [(queue_dir / name).stat().st_mode for name in find(queue_dir)]
    assert [stat.S_IMODE(mode) for mode in files] == [0o666 & ~umask_] * 3
    directories = {path.name: stat.S_IMODE(path.stat().st_mode) for path in queue_dir.iterdir()}
    assert directories == dict.fromkeys(STATES, 0o777 & ~umask_)
    assert stat.S_IMODE(queue_dir.stat().st_mode) == 0o777 & ~umask_


def test_the_umask_decides_who_can_read_a_file_moved_across_filesystems(
    queue: Pacchettino, queue_dir: Path, other_filesystem: Path, umask: Callable[[int], int]
) -> None:
    source = other_filesystem / "report.txt"
    source.touch()
    umask(0o077)
    queue.send_file(source, copy=False)
    (name,) = find(queue_dir)
    assert stat.S_IMODE((queue_dir / name).stat().st_mode) == 0o600


# Delays


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(60, 60), (0.5, 0.5), (timedelta(minutes=1), 60), (timedelta(milliseconds=1500), 1.5), (200 * 365 * 86400, None)],
    ids=repr,
)
def test_a_delayed_job_is_due_after_its_delay_and_not_before(
    queue: Pacchettino, queue_dir: Path, source: Path, delay: float | timedelta, seconds: float | None
) -> None:
    wait = timedelta(seconds=200 * 365 * 86400 if seconds is None else seconds)
    before = datetime.now(UTC)
    ids = [
        queue.send_data("a", delay=delay),
        *queue.send_many(["b", "c"], delay=delay),
        queue.send_file(source, delay=delay),
        queue.send_file(source, delay=delay, copy=False),
    ]
    after = datetime.now(UTC)
    jobs = list(queue.jobs(Status.SCHEDULED))
    assert [job.id for job in jobs] == ids
    for job in jobs:
        assert job.due is not None
        assert before + wait <= job.due <= after + wait + timedelta(milliseconds=1)  # rounded up
    assert all(re.match(r"scheduled/\d{13}-(raw|fle)-", name) for name in find(queue_dir))
    assert queue.claim() is None


@pytest.mark.parametrize("delay", [0, 0.0, -1, -0.5, -1e300, timedelta(0), timedelta(days=-1)], ids=repr)
def test_no_delay_and_a_negative_one_mean_now(queue: Pacchettino, source: Path, delay: float | timedelta) -> None:
    ids = [
        queue.send_data("a", delay=delay),
        *queue.send_many(["b"], delay=delay),
        queue.send_file(source, delay=delay),
    ]
    assert [queue.status(id) for id in ids] == [Status.QUEUED] * 3


@pytest.mark.parametrize(
    ("delay", "error"),
    [
        (math.nan, ValueError),
        (math.inf, ValueError),
        (-math.inf, ValueError),
        (1e10, ValueError),
        (1e300, ValueError),
        (10**400, ValueError),
        (timedelta.max, ValueError),
        (True, TypeError),
        (False, TypeError),
        (None, TypeError),
        ("1", TypeError),
        (1j, TypeError),
    ],
    ids=ascii,
)
def test_a_delay_that_is_none_is_an_error_and_nothing_is_sent(
    queue: Pacchettino, queue_dir: Path, source: Path, delay: Any, error: type[Exception]
) -> None:
    for send in send_in_all_ways(queue, source, delay=delay):
        with pytest.raises(error):
            send()
    assert find(queue_dir) == []
    assert source.read_bytes() == b"content"


def test_the_last_delay_that_fits_into_13_digits_is_taken(queue: Pacchettino) -> None:
    left = 9_999_999_999.999 - datetime.now(UTC).timestamp()
    id = queue.send_data("a", delay=left - 1)
    assert queue.status(id) is Status.SCHEDULED
    with pytest.raises(ValueError, match="2286"):
        queue.send_data("a", delay=left + 1)


# Errors


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "moved"])
class TestErrorsOfSendFile:
    def check(self, queue: Pacchettino, path: Path | str, copy: bool, error: type[OSError], number: int) -> None:
        with pytest.raises(error) as caught:
            queue.send_file(path, copy=copy)
        assert not isinstance(caught.value, SendError)
        assert (caught.value.errno, caught.value.filename) == (number, str(path))
        assert caught.value.strerror
        assert find(queue.base_dir) == []

    def test_a_missing_file(self, queue: Pacchettino, tmp_path: Path, copy: bool) -> None:
        self.check(queue, tmp_path / "missing", copy, FileNotFoundError, errno.ENOENT)

    def test_a_missing_directory(self, queue: Pacchettino, tmp_path: Path, copy: bool) -> None:
        self.check(queue, tmp_path / "missing/file", copy, FileNotFoundError, errno.ENOENT)

    def test_a_file_in_place_of_a_directory(self, queue: Pacchettino, source: Path, copy: bool) -> None:
        if sys.platform == "win32":
            self.check(queue, source / "file", copy, FileNotFoundError, errno.ENOENT)
        else:
            self.check(queue, source / "file", copy, NotADirectoryError, errno.ENOTDIR)
            self.check(queue, f"{source}/", copy, NotADirectoryError, errno.ENOTDIR)

    @pytest.mark.parametrize("path", ["{}", "{}/", "{}/.", "{}/sub/..", "/", ".", ".."])
    def test_a_directory(self, queue: Pacchettino, tmp_path: Path, path: str, copy: bool) -> None:
        (tmp_path / "folder/sub").mkdir(parents=True)
        self.check(queue, path.format(tmp_path / "folder"), copy, IsADirectoryError, errno.EISDIR)
        assert (tmp_path / "folder/sub").is_dir()

    def test_an_empty_path(self, queue: Pacchettino, copy: bool) -> None:
        self.check(queue, "", copy, FileNotFoundError, errno.ENOENT)

    @pytest.mark.needs("FIFOs and sockets")
    def test_a_fifo(self, queue: Pacchettino, tmp_path: Path, copy: bool) -> None:
        os.mkfifo(tmp_path / "fifo")
        self.check(queue, tmp_path / "fifo", copy, OSError, errno.EINVAL)
        assert (tmp_path / "fifo").is_fifo()

    @pytest.mark.needs("FIFOs and sockets")
    def test_a_socket(self, queue: Pacchettino, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool) -> None:
        monkeypatch.chdir(tmp_path)  # a socket's name must be short
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("socket")
            self.check(queue, tmp_path / "socket", copy, OSError, errno.EINVAL)
        assert (tmp_path / "socket").is_socket()

    @pytest.mark.needs("FIFOs and sockets")
    def test_a_device(self, queue: Pacchettino, copy: bool) -> None:
        self.check(queue, Path("/dev/null"), copy, OSError, errno.EINVAL)
        assert Path("/dev/null").is_char_device()

    def test_a_file_that_may_not_be_reached(
        self, queue: Pacchettino, tmp_path: Path, copy: bool, mode_bound: None
    ) -> None:
        (tmp_path / "closed").mkdir()
        (tmp_path / "closed/file").touch()
        (tmp_path / "closed").chmod(0)
        try:
            self.check(queue, tmp_path / "closed/file", copy, PermissionError, errno.EACCES)
        finally:
            (tmp_path / "closed").chmod(0o700)
        assert find(tmp_path / "closed") == ["file"]


@pytest.mark.needs("symlinks")
def test_moving_a_symlink_is_an_error(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    for target in [source.name, "missing", "."]:
        link = source.with_name("link")
        link.symlink_to(target)
        with pytest.raises(OSError, match="symlink") as caught:
            queue.send_file(link, copy=False)
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(link))
        assert link.is_symlink()
        link.unlink()
    assert find(queue_dir) == []


@pytest.mark.parametrize(("target", "error"), [("missing", FileNotFoundError), (".", IsADirectoryError)])
@pytest.mark.needs("symlinks")
def test_copying_a_symlink_fails_as_its_target_does(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, target: str, error: type[OSError]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(error) as caught:
        queue.send_file(link)
    assert caught.value.filename == str(link)
    assert find(queue_dir) == []


def test_a_file_that_may_not_be_read_can_be_moved_but_not_copied(
    queue: Pacchettino, queue_dir: Path, source: Path, mode_bound: None
) -> None:
    source.chmod(0)
    with pytest.raises(PermissionError) as caught:
        queue.send_file(source)
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(source))
    assert find(queue_dir) == []
    id = queue.send_file(source, copy=False)
    assert find(queue_dir) == [f"queued/fle-{id}-report.txt"]


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "moved"])
@pytest.mark.parametrize(("character", "times"), [("n", 201), ("é", 101), ("\udcff", 201)], ids=ascii)
def test_a_name_over_200_bytes_is_an_error_that_tells_both_lengths(
    queue: Pacchettino, queue_dir: Path, source: Path, character: str, times: int, copy: bool
) -> None:
    name = character * times
    length = len(os.fsencode(name))
    long = source.rename(source.with_name(name))
    for given in (None, name):
        with pytest.raises(ValueError, match=f"{length}.*200|200.*{length}"):
            queue.send_file(long, copy=copy, name=given)
    assert find(queue_dir) == []
    assert long.read_bytes() == b"content"


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "moved"])
@pytest.mark.parametrize(
    "name", ["a/b", "/", "/a", "a/", "../a", "", ".", "..", "a\0b", *odd_names("\ud800")], ids=ascii
)
def test_a_name_that_is_no_base_name_is_a_value_error(
    queue: Pacchettino, queue_dir: Path, source: Path, name: str, copy: bool
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        queue.send_file(source, name=name, copy=copy)
    assert find(queue_dir) == []
    assert source.read_bytes() == b"content"


def test_a_path_with_a_nul_is_a_value_error(queue: Pacchettino, queue_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"(?i)nul"):
        queue.send_file("a\0b")
    assert find(queue_dir) == []


@pytest.mark.parametrize("arguments", [{"path": 1}, {"path": None}, {"name": 1}, {"name": b"a"}], ids=repr)
def test_wrong_types_are_type_errors(
    queue: Pacchettino, queue_dir: Path, source: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        queue.send_file(**{"path": source, **arguments})
    assert find(queue_dir) == []


# The queue's directory


def test_missing_directories_are_made(tmp_path: Path) -> None:
    base = tmp_path / "a/b/c"
    Pacchettino(base).send_data("a")
    assert {path.name for path in base.iterdir()} == STATES


def test_a_relative_base_dir_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    queue = Pacchettino("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    id = queue.send_data("a")
    assert find(tmp_path / "here") == [f"queued/raw-{id}"]
    assert find(tmp_path / "elsewhere") == []
    assert queue.base_dir == tmp_path / "here"


@pytest.mark.parametrize("base", ["{}", "{}/", "{}/queue"])
def test_a_file_in_place_of_the_base_dir_is_an_error(source: Path, base: str) -> None:
    base = base.format(source)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        Pacchettino(base)
    # Windows has other words for a path that goes through a file.
    if sys.platform != "win32" or base == str(source):
        assert (type(caught.value), caught.value.errno) == (NotADirectoryError, errno.ENOTDIR)
    assert Path(caught.value.filename) == Path(base)
    assert source.read_bytes() == b"content"


@pytest.mark.parametrize("state", sorted(STATES))
def test_a_file_in_place_of_a_directory_of_the_queue_is_an_error(queue_dir: Path, state: str) -> None:
    queue_dir.mkdir()
    (queue_dir / state).write_bytes(b"content")
    with pytest.raises(NotADirectoryError) as caught:
        Pacchettino(queue_dir)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTDIR, str(queue_dir / state))
    assert (queue_dir / state).read_bytes() == b"content"


def test_a_base_dir_that_may_not_be_made_is_an_error(tmp_path: Path, mode_bound: None) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError) as caught:
        Pacchettino(tmp_path / "queue")
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(tmp_path / "queue"))
    tmp_path.chmod(0o700)


def test_an_empty_base_dir_is_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        Pacchettino("")


@pytest.mark.parametrize("base", [None, 1, b"bytes", True], ids=repr)
def test_a_base_dir_of_a_wrong_type_is_a_type_error(base: Any) -> None:
    with pytest.raises(TypeError):
        Pacchettino(base)


# Failures of the system


@pytest.mark.parametrize(
    ("way", "closed", "delay"),
    [
        *[(way, "tmp", 0) for way in range(3)],  # a move on one filesystem needs no temporary file
        *[(way, "queued", 0) for way in range(4)],
        *[(way, "scheduled", 60) for way in range(4)],
    ],
)
def test_a_send_into_a_read_only_directory_leaves_nothing(
    queue: Pacchettino, queue_dir: Path, source: Path, way: int, closed: str, delay: float, mode_bound: None
) -> None:
    send = send_in_all_ways(queue, source, delay=delay)[way]
    (queue_dir / closed).chmod(0o500)
    with pytest.raises(PermissionError) as caught:
        send()
    assert not isinstance(caught.value, SendError)
    assert caught.value.errno == errno.EACCES
    assert str(caught.value.filename).startswith((f"{queue_dir}/", str(source)))
    assert find(queue_dir) == []
    assert source.read_bytes() == b"content"
    (queue_dir / closed).chmod(0o700)
    send()
    assert len(find(queue_dir)) == (2 if way == 1 else 1)


def test_a_file_in_a_read_only_directory_is_not_moved(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, mode_bound: None
) -> None:
    file = tmp_path / "closed/file"
    file.parent.mkdir()
    file.write_bytes(b"content")
    file.parent.chmod(0o500)
    with pytest.raises(PermissionError) as caught:
        queue.send_file(file, copy=False)
    file.parent.chmod(0o700)
    assert not isinstance(caught.value, SendError)
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(file))
    assert find(queue_dir) == []
    assert file.read_bytes() == b"content"


def test_a_source_that_can_not_be_removed_is_a_send_error_that_names_the_job(
    queue: Pacchettino, queue_dir: Path, other_filesystem: Path, mode_bound: None
) -> None:
    file = other_filesystem / "closed/file"
    file.parent.mkdir()
    file.write_bytes(b"content")
    file.parent.chmod(0o500)
    with pytest.raises(SendError) as caught:
        queue.send_file(file, copy=False)
    file.parent.chmod(0o700)
    assert isinstance(caught.value, OSError)
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(file))
    (id,) = caught.value.sent
    assert contents(queue_dir) == {f"queued/fle-{id}-file": b"content"}
    assert file.read_bytes() == b"content"


def test_a_full_disk_leaves_nothing_and_the_next_send_that_fits_arrives(small_filesystem: Path, tmp_path: Path) -> None:
    base = small_filesystem / "queue"
    queue = Pacchettino(base)
    source = tmp_path / "large"
    large = bytes(2 << 20)
    source.write_bytes(large)
    sends: list[Callable[[], object]] = [
        lambda: queue.send_data(large),
        lambda: queue.send_data(large, delay=60),
        lambda: queue.send_many(["fits", large, "last"]),
        lambda: queue.send_many(bytes(300 << 10) for _ in range(4)),
        lambda: queue.send_file(source),
        lambda: queue.send_file(source, copy=False),
    ]
    for send in sends:
        with pytest.raises(OSError, match="space") as caught:
            send()
        assert not isinstance(caught.value, SendError)
        assert caught.value.errno == errno.ENOSPC
        assert Path(caught.value.filename).parent == base / "tmp"
        assert find(base) == []
    assert source.read_bytes() == large
    id = queue.send_data("fits")
    assert contents(base) == {f"queued/raw-{id}": b"fits"}


def test_a_durable_queue_sends_the_same(queue_dir: Path, source: Path) -> None:
    queue = Pacchettino(queue_dir, durable=True)
    data, (many,), copied = queue.send_data("data"), queue.send_many(["many"]), queue.send_file(source)
    moved = queue.send_file(source, copy=False, name="moved")
    assert contents(queue_dir) == {
        f"queued/raw-{data}": b"data",
        f"queued/raw-{many}": b"many",
        f"queued/fle-{copied}-report.txt": b"content",
        f"queued/fle-{moved}-moved": b"content",
    }
    assert not source.exists()


@pytest.mark.needs("a limit of descriptors")
def test_a_durable_batch_makes_do_with_the_descriptors_that_are_left(queue_dir: Path) -> None:
    """Many files of it are open at a time, where there can be many."""
    queue = Pacchettino(queue_dir, durable=True)
    queue.send_data("what is opened once is open")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with few_descriptors() as most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            ids = queue.send_many([str(number) for number in range(200)])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [(queue_dir / "queued" / f"raw-{id}").read_text() for id in ids] == [str(number) for number in range(200)]
    assert list((queue_dir / "tmp").iterdir()) == []


@contextmanager
def few_descriptors() -> Iterator[int]:
    """Give a number below which three descriptors are free."""
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    try:
        for descriptor in taken[-3:]:
            os.close(descriptor)
        yield taken[-1] + 1
    finally:
        for descriptor in taken[:-3]:
            os.close(descriptor)
