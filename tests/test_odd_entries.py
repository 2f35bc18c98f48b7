"""Odd entries: what is no job's file, though it is in the queue, hinders nobody, is not followed and not touched."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import DIRECTORIES, PATIENCE, Peer, entries, everything, files, lay_down, new_id, until
from pacchettino import KeepPolicy, Pacchettino, Status

LOOKED_AT_BY_CONSUMERS = ("queued", "scheduled", "processing", "tmp", "owners")
KEPT = ("success", "failed", "interrupted")
PRESENT = [status for status in Status if status is not Status.UNKNOWN]
IN_A_CLAIM = "a claim of the dead"
A_DAY = 24 * 60 * 60


class Watched:
    """What nobody may open, read or change: the kernel tells of whoever does, but not of mere looks (`inotify(7)`)."""

    ALL_EVENTS = 0xFFF

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._events >= 0

    def add(self, path: Path) -> None:
        assert self._libc.inotify_add_watch(self._events, os.fsencode(path), self.ALL_EVENTS) >= 0

    def events(self) -> list[str]:
        try:
            data = os.read(self._events, 65536)
        except BlockingIOError:
            return []
        found = []
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            found.append(f"{mask:#x} {data[16 : 16 + length].rstrip(bytes(1))!r}")
            data = data[16 + length :]
        return found

    def close(self) -> None:
        os.close(self._events)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Give a directory beside the queue, which must be as it was in the end, and not have been opened."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("raw", "report.txt"):
        (outside / name).write_bytes(b"not to be read")
    os.mkfifo(outside / "fifo")
    before = everything(outside)
    watched = Watched()
    for path in (outside, *outside.iterdir()):
        watched.add(path)
    yield outside
    events = watched.events()
    watched.close()
    assert events == []
    assert everything(outside) == before


def make_fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path, outside: Path) -> None:
    # The address of a socket is short; its name may be long.
    with socket.socket(socket.AF_UNIX) as made, tempfile.TemporaryDirectory() as short:
        made.bind(os.path.join(short, "s"))  # noqa: PTH118
        Path(short, "s").rename(path)


def make_device(path: Path, outside: Path) -> None:
    """Make a device of which one can read without an end."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("NOT TESTED: to make a device needs the right to")


def make_directory(path: Path, outside: Path) -> None:
    path.mkdir()


def make_full_directory(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_bytes(b"somebody's")


def link_to(target: str) -> Callable[[Path, Path], None]:
    return lambda path, outside: path.symlink_to(outside / target)


ODD: dict[str, Callable[[Path, Path], None]] = {
    "a FIFO": make_fifo,
    "a socket": make_socket,
    "a device": make_device,
    "an empty directory": make_directory,
    "a full directory": make_full_directory,
    "a link to a file": link_to("raw"),
    "a link to a directory": link_to(""),
    "a link to a FIFO": link_to("fifo"),
    "a link to nothing": link_to("nothing"),
    "a link to itself": lambda path, outside: path.symlink_to(path.name),
}
odd_things = pytest.mark.parametrize("odd", ODD)


def names_in(directory: str, odd: str) -> list[str]:
    """Give the names that files of a directory have, and one that none has. They are below the queue's directory."""
    data, file = f"raw-{new_id(1)}", f"fle-{new_id(2)}-report.txt"
    names = [data, file, "notes.txt"]
    if directory == "scheduled":
        names = [f"0000000000001-{data}", f"9000000000000-{file}", "notes.txt"]
    elif directory == "processing" and "directory" not in odd:
        names = [f"{data}.gone000000", f"{file}.4194303", f"{data}.gone", "notes.txt"]
    elif directory == "processing":
        # A directory would be a claim.
        names = [f"{data}.gone", file, "notes.txt"]
    elif directory == "tmp":
        names = [f"{new_id(1)}-gone000000", new_id(2), "owner-gone000000", "notes.txt"]
    elif directory == "owners":
        names = ["gone000000", "gone000001", "notes.txt"]
    elif directory == IN_A_CLAIM:
        return [f"processing/{data}.gone000000/raw", f"processing/{file}.gone000000/report.txt"]
    return [f"{directory}/{name}" for name in names]


def look_in_every_way(queue: Pacchettino, ids: list[str]) -> None:
    """Do all that lists, finds, moves or deletes jobs, where no job is there for it."""
    for status in PRESENT:
        assert list(queue.jobs(status)) == []
    assert queue.count_all() == 0
    for count in ("successful", "failed", "interrupted", "queued", "scheduled", "processing"):
        assert getattr(queue, f"count_{count}")() == 0
    for id in ids:
        assert queue.status(id) is Status.UNKNOWN
        assert queue.requeue(id) is False
        assert not any(getattr(queue, f"is_{status.value}")(id) for status in PRESENT)
    assert queue.requeue_all(KeepPolicy.ALL) == 0
    assert queue.cleanup() == queue.cleanup(older_than=0.001) == 0
    assert queue.receive() == 0
    for fifo in (True, False):
        assert queue.receive_one(fifo=fifo) is False
        assert queue.claim(fifo=fifo) is None
    assert queue.claim(timeout=0.005) is None


def use_as_always(queue: Pacchettino, source: Path) -> None:
    """Let one job of each kind go through the queue."""
    handled: list[str] = []
    queue.on_data_received = lambda id, data: handled.append(id)
    queue.on_file_received = lambda id, name, path: handled.append(id)
    ids = [queue.send_data("a"), queue.send_file(source), queue.send_data("a", delay=0.001)]
    while len(handled) < 3:
        assert queue.receive_one(timeout=PATIENCE)
    assert sorted(handled) == ids
    assert queue.count_successful() == queue.requeue_all(KeepPolicy.SUCCESS) == 3
    assert queue.receive() == 3
    for id in ids:
        assert queue.requeue(id)
        job = queue.claim(timeout=PATIENCE)
        assert job is not None
        with job:
            assert (job.id, queue.status(id)) == (id, Status.PROCESSING)
    assert queue.cleanup() == 3


def ids_in(paths: list[str]) -> list[str]:
    """Give the ids and the entry names that these paths seem to have."""
    found = []
    for path in paths:
        for start in ("raw-", "fle-"):
            _, prefix, rest = path.partition(start)
            if prefix:
                entry = (prefix + rest).split("/")[0]
                found += [rest[:36], entry, entry.rpartition(".")[0]]
    return found


@odd_things
@pytest.mark.parametrize("directory", [*DIRECTORIES, IN_A_CLAIM])
def test_what_is_no_file_hinders_nobody_is_not_followed_and_stays(
    queue_dir: Path, tmp_path: Path, outside: Path, directory: str, odd: str
) -> None:
    lay_down(queue_dir, {})
    source = tmp_path / "report.txt"
    source.write_bytes(b"content")
    paths = names_in(directory, odd)
    for path in paths:
        (queue_dir / path).parent.mkdir(exist_ok=True)
        ODD[odd](queue_dir / path, outside)
    before = everything(queue_dir)
    with Pacchettino(queue_dir) as queue:
        queue.on_data_received(lambda id, data: pytest.fail("there is no job"))
        queue.on_file_received(lambda id, name, path: pytest.fail("there is no job"))
        for _ in range(2):
            look_in_every_way(queue, ids_in(paths))
            use_as_always(queue, source)
    # What is in the place of a job's file is set aside with its directory.
    left = {path.replace(b".left-1", b".gone000000"): found for path, found in everything(queue_dir).items()}
    assert {path: found for path, found in left.items() if path in before} == before
    assert all(path.startswith(b"owners/") for path in left if path not in before)


@odd_things
def test_what_is_no_file_in_place_of_a_lock_file_keeps_the_claim_of_its_owner_for_alive(
    queue_dir: Path, outside: Path, odd: str
) -> None:
    claim = b"processing/raw-%s.stay000000" % new_id().encode()
    draft = b"tmp/%s-stay000000" % new_id().encode()
    lay_down(queue_dir, {claim + b"/raw": b"payload", draft: b"half of it"})
    ODD[odd](queue_dir / "owners" / "stay000000", outside)
    before = everything(queue_dir)
    with Pacchettino(queue_dir) as queue:
        assert queue.claim() is None
        assert (queue.count_processing(), queue.count_interrupted()) == (1, 0)
    assert everything(queue_dir) == before


@odd_things
def test_what_is_no_file_in_place_of_a_job_that_was_listed_does_not_stop_the_pass(
    queue_dir: Path, outside: Path, odd: str
) -> None:
    with Pacchettino(queue_dir) as queue:
        handled: list[str] = []
        ids = queue.send_many(["a", "b", "c"])

        def handle(id: str, data: bytes) -> None:
            handled.append(id)
            if len(handled) == 1:
                # Listed are all of them by now.
                path = queue_dir / "queued" / f"raw-{ids[1]}"
                path.unlink()
                ODD[odd](path, outside)

        queue.on_data_received(handle)
        queue.receive(fifo=True)
        assert handled == [ids[0], ids[2]]
        assert queue.receive() == 0
        assert (queue.status(ids[0]), queue.status(ids[2])) == (Status.SUCCESS, Status.SUCCESS)
        assert entries(queue_dir / "processing") == []


# Names near a job's


def near_names(directory: str) -> list[str]:
    """Give names of files that nearly are a job's."""
    id = "01a227f2-b0d6-7000-826e-93b281bc7bc6"
    names = [f"raw-{id}~", f"raw-{id}.tmp", f".raw-{id}", f"raw-{id[:-1]}", f"RAW-{id}", f"raw-{id.upper()}"]
    names += [f"raw-{id} ", f"raw-{id}\n", id, f"raw--{id}", f"fle{id}-a", f"fle-{id}", f"fle-{id}-"]
    if directory == "scheduled":
        return [f"0000000000001-{name}" for name in names] + [f"raw-{id}", f"000000000001-raw-{id}", f"-raw-{id}"]
    if directory in ("tmp", "owners"):
        return [f"{id}-gone00000", f"{id}-Gone000000", f"{id}.gone000000", "owner-gone00000", "gone00000"]
    names.append(f"fle-{id}-{'n' * 201}")
    if directory == "processing":
        names += [f"raw-{id}.gone000000", f"raw-{id}.4194303"]  # files
    return names


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_a_file_whose_name_is_nearly_a_jobs_hinders_nobody_and_stays(
    queue_dir: Path, tmp_path: Path, directory: str
) -> None:
    paths = [f"{directory}/{name}" for name in near_names(directory)]
    lay_down(queue_dir, {path.encode(): b"somebody's" for path in paths})
    source = tmp_path / "report.txt"
    source.write_bytes(b"content")
    before = everything(queue_dir)
    with Pacchettino(queue_dir) as queue:
        queue.on_data_received(lambda id, data: pytest.fail("there is no job"))
        look_in_every_way(queue, ids_in(paths))
        use_as_always(queue, source)
        look_in_every_way(queue, ids_in(paths))
    left = everything(queue_dir)
    assert {path: found for path, found in left.items() if path in before} == before


# What the log says


def lines_about(caplog: pytest.LogCaptureFixture, path: Path) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "pacchettino"]
    return [line for line in lines if f"{path}:" in line]


def look_again_and_again(queue: Pacchettino) -> None:
    queue.on_data_received(lambda id, data: None)
    for _ in range(3):
        queue.receive()
        queue.receive_one()
        queue.claim(timeout=0.002)
        for status in PRESENT:
            list(queue.jobs(status))
        queue.count_all()
        queue.requeue_all()
        queue.cleanup(older_than=60)


@odd_things
@pytest.mark.parametrize("directory", LOOKED_AT_BY_CONSUMERS)
def test_what_is_no_file_is_told_of_in_one_line(
    queue_dir: Path, outside: Path, caplog: pytest.LogCaptureFixture, directory: str, odd: str
) -> None:
    lay_down(queue_dir, {})
    paths = [queue_dir / path for path in names_in(directory, odd)]
    for path in paths:
        ODD[odd](path, outside)
    with Pacchettino(queue_dir) as queue, Pacchettino(queue_dir) as other:
        look_again_and_again(queue)
        look_again_and_again(other)
    for path in paths:
        assert len(lines_about(caplog, path)) == 1
    assert len(caplog.records) == len(paths)


@pytest.mark.parametrize("directory", KEPT)
def test_what_is_no_file_among_the_kept_jobs_is_told_of_in_one_line(
    queue_dir: Path, caplog: pytest.LogCaptureFixture, directory: str
) -> None:
    path = queue_dir / directory / f"raw-{new_id()}"
    lay_down(queue_dir, {})
    os.mkfifo(path)
    with Pacchettino(queue_dir) as queue:
        look_again_and_again(queue)
    assert len(lines_about(caplog, path)) == 1


@pytest.mark.parametrize("directory", LOOKED_AT_BY_CONSUMERS)
def test_a_file_whose_name_is_nearly_a_jobs_is_told_of_in_one_line(
    queue_dir: Path, caplog: pytest.LogCaptureFixture, directory: str
) -> None:
    names = [name for name in near_names(directory) if "\n" not in name]
    lay_down(queue_dir, {f"{directory}/{name}".encode(): b"somebody's" for name in names})
    with Pacchettino(queue_dir) as queue:
        look_again_and_again(queue)
    assert len(caplog.records) == len(names)
    for name in names:
        assert any(f"/{directory}/{name}: " in record.getMessage() for record in caplog.records)


def test_a_line_stays_one_line_whatever_is_in_the_name(queue_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    lay_down(queue_dir, {b"queued/two\nlines": b"", b"queued/\xff\x1b[2J": b""})
    with Pacchettino(queue_dir) as queue:
        look_again_and_again(queue)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert [message for message in messages if not message.isprintable()] == []


def test_what_was_told_of_is_not_told_of_again_by_the_next_instance_of_the_process(
    queue_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay_down(queue_dir, {b"queued/notes.txt": b"somebody's"})
    for _ in range(3):
        with Pacchettino(queue_dir) as queue:
            look_again_and_again(queue)
    assert len(caplog.records) == 1


# Jobs that can't be read


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach and write to."""
    directory = Path(tempfile.mkdtemp(prefix="pacchettino-test-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


NOBODY = 65534


@pytest.mark.parametrize("whose", ["its consumer's", "somebody else's"])
@pytest.mark.parametrize("way", ["receive()", "receive_one(timeout=None)"])
def test_a_data_job_that_its_consumer_may_not_read_ends_in_failed_and_the_reason_is_logged(
    open_dir: Path, whose: str, way: str
) -> None:
    if os.getuid() != 0 and whose == "somebody else's":
        pytest.skip("NOT TESTED: a file of another user needs the right to be another user")
    base = open_dir / "queue"
    with Peer() as peer:
        peer("import logging")  # what is imported later, that user may not be able to read
        if os.getuid() == 0:
            peer(f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})")
        peer.open(base)
        peer("""
            lines = []
            handler = logging.Handler()
            handler.emit = lambda record: lines.append(handler.format(record))
            logging.getLogger("pacchettino").addHandler(handler)
            handled = []
            queue.on_data_received(lambda id, data: handled.append(id))
            None
        """)
        unreadable = peer("queue.send_data('secret')")
        path = base / "queued" / f"raw-{unreadable}"
        path.chmod(0)
        if whose == "somebody else's":
            os.chown(path, 0, 0)
        peer(f"queue.{way}")
        readable = peer("queue.send_data('open')")
        peer(f"queue.{way}")
        assert peer("handled") == [readable]
        (line,) = peer("lines")
        assert unreadable in line
        assert "Permission denied" in line
    assert sorted(files(base)) == [f"failed/raw-{unreadable}".encode(), f"success/raw-{readable}".encode()]
    assert entries(base / "processing") == []


# What senders leave behind


def drafts(base: Path) -> list[Path]:
    return [path for path in (base / "tmp").iterdir() if not path.name.startswith("owner-")]


def write_large(path: Path) -> Path:
    """Write a file whose copy takes a while: a gibibyte without holes, which would not be copied."""
    with path.open("wb") as file:
        for _ in range(64):
            file.write(b"x" * (1 << 24))
    return path


@pytest.mark.parametrize("look", ["queue.receive()", "queue.receive_one()", "queue.claim()"])
def test_the_draft_of_a_sender_stays_while_that_lives_and_goes_with_it(
    queue_dir: Path, tmp_path: Path, look: str
) -> None:
    large = write_large(tmp_path / "large")
    with Peer(queue_dir) as sender, Peer(queue_dir) as consumer:
        consumer("queue.on_file_received(print); None")
        sender.begin(f"queue.send_file({os.fspath(large)!r})")
        until(lambda: any(draft.stat().st_size for draft in drafts(queue_dir)))
        os.kill(sender.pid, signal.SIGSTOP)  # it lives, and gets no further
        (draft,) = drafts(queue_dir)
        for _ in range(3):
            consumer(look)
            assert drafts(queue_dir) == [draft]
        sender.kill()
        consumer(look)
        assert drafts(queue_dir) == []
        assert len(entries(queue_dir / "owners")) <= 1
    assert files(queue_dir) == {}


def test_the_draft_of_another_thread_of_the_consumer_stays(queue_dir: Path, tmp_path: Path) -> None:
    large = write_large(tmp_path / "large")
    with Peer(queue_dir) as peer:
        peer("queue.on_file_received(print); None")
        peer(f"threading.Thread(target=queue.send_file, args=({os.fspath(large)!r},), daemon=True).start()")
        until(lambda: any(draft.stat().st_size for draft in drafts(queue_dir)))
        (draft,) = drafts(queue_dir)
        for _ in range(3):
            assert peer("queue.receive()") == 0
            assert peer("Pacchettino(queue.base_dir).claim()") is None
            assert drafts(queue_dir) == [draft]
        peer.kill()
    with Pacchettino(queue_dir) as queue:
        assert queue.claim() is None
    assert drafts(queue_dir) == []


def test_a_draft_without_a_token_stays_and_is_told_of_once_when_it_is_a_day_old(
    queue_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = queue_dir / "tmp" / new_id()
    lay_down(queue_dir, {os.fsencode(path.relative_to(queue_dir)): b"perhaps the only copy"})
    now = time.time()
    with Pacchettino(queue_dir) as queue:
        for age in (0, A_DAY - 600):
            os.utime(path, (now - age, now - age))
            look_again_and_again(queue)
            assert caplog.records == []
        for age in (A_DAY + 1, A_DAY + 600, 30 * A_DAY):
            os.utime(path, (now - age, now - age))
            look_again_and_again(queue)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert os.fspath(path) in record.getMessage()
    assert files(queue_dir) == {os.fsencode(path.relative_to(queue_dir)): b"perhaps the only copy"}
