"""What processes do and what becomes of them: descriptors that are closed behind the queue's back, signals at each call,
handlers that go wrong, limits, and consumers that are stopped or lose their lock file."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import start_python
from helpers import PATIENCE, STATES, Peer, entries, everything, files, is_locked, sleeps_on_the_watch, until
from pacchettino import Pacchettino, Result, Status

both_detections = pytest.mark.parametrize(
    "detection",
    ["crash_detection=CrashDetection.LOCK_FILE", "crash_detection=CrashDetection.PID"],
    ids=["token", "pid"],
)


def states(base: Path) -> dict[str, list[str]]:
    """Give the states in which there is a file of a job, by its id."""
    found: dict[str, list[str]] = {}
    for path in files(base):
        if match := re.fullmatch(r"(\w+)/(?:\d+-)?(?:raw|fle)-([0-9a-f-]{36}).*", os.fsdecode(path)):
            found.setdefault(match[2], []).append(match[1])
    return found


# Descriptors

WORK = """
    import gc, itertools, time
    from pathlib import Path

    numbers = itertools.count()
    handled = []

    def use_all_ways(queue, source):
        def handle(id, *_):
            handled.append(id)
        queue.on_data_received(handle)
        queue.on_file_received(handle)
        for durable in (False, True):
            queue.durable = durable
            queue.send_data(f"{next(numbers)}")
            queue.send_many([f"{next(numbers)}" for _ in range(3)])
            queue.send_file(source)
            queue.send_data("later", delay=0.001)
            assert queue.receive_one(timeout=60)
            with queue.claim(timeout=60) as job:
                assert job.data
            queue.claim(timeout=60).fail()
            queue.claim(timeout=60).retry()
            while queue.receive_one(timeout=0.01):
                pass
            assert queue.requeue_all() == 1
            assert queue.receive() == 1
        queue.durable = False
        assert queue.count_all() == queue.count_successful() == len(list(queue.jobs(Status.SUCCESS))) > 0
        assert queue.status(handled[-1]) is Status.SUCCESS
        queue.cleanup()

    def open_files():
        found = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
            except FileNotFoundError:
                pass  # that of this listing
        return found

    line = fork.__self__._connection.fileno()
    pass
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "report.txt"
    file.write_bytes(b"content")
    return file


@pytest.fixture
def peer(queue_dir: Path, source: Path) -> Iterator[Peer]:
    """Give a process whose queue has been used in all ways."""
    with Peer() as peer:
        peer(WORK)
        peer("before = open_files()")
        peer.open(queue_dir)
        peer(f"use_all_ways(queue, {os.fspath(source)!r})")
        yield peer


def test_all_descriptors_of_a_queue_are_closed_on_exec_and_none_is_a_standard_stream(peer: Peer) -> None:
    peer("job = queue.send_data('a') and queue.claim(timeout=60)")
    opened = peer("{number: file for number, file in open_files().items() if before.get(number) != file}")
    # Six states, tmp, owners, a lock file, inotify and an eventfd, the claim's directory.
    assert len(opened) == 12
    for number in opened:
        assert number > 2
        (flags,) = re.findall(r"flags:\s*(\d+)", Path(f"/proc/{peer.pid}/fdinfo/{number}").read_text())
        assert int(flags, 8) & os.O_CLOEXEC, opened[number]
    peer("job.succeed()")


STRANGERS = {
    "files": """
        name = f"{home}/{next(numbers)}"
        number = os.open(name, os.O_RDWR | os.O_CREAT)
        os.write(number, b"mine")
        os.lseek(number, 0, os.SEEK_SET)
        made = [number]
    """,
    "directories": """
        name = f"{home}/{next(numbers)}"
        os.mkdir(name)
        made = [os.open(name, os.O_RDONLY)]
    """,
    "pipes": """
        made = os.pipe2(os.O_NONBLOCK)
        os.write(made[1], b"mine")
    """,
}

CLOSE_AND_FILL = """
    def close_all():
        for number in open_files():
            if number > 2 and number != line:
                os.close(number)

    def close_and_fill():
        highest = max(open_files())
        close_all()
        made, strangers = [0], {}
        while min(made) <= highest:
            made = another()
            for number in made:
                status = os.fstat(number)
                strangers[number] = (status.st_dev, status.st_ino)
        return strangers

    def untouched(strangers):
        for number, identity in strangers.items():
            status = os.fstat(number)
            assert (status.st_dev, status.st_ino) == identity, number
        return True

    pass
"""


def fill_with(peer: Peer, kind: str, home: Path) -> None:
    """Have a process ready to close all that is open and fill the numbers with files of its own."""
    home.mkdir()
    peer(f"home = {os.fspath(home)!r}")
    peer(
        "def another():\n" + textwrap.indent(textwrap.dedent(STRANGERS[kind]), "    ") + "    return made\n"
        "import itertools\nnumbers = itertools.count()\npass"
    )
    peer(CLOSE_AND_FILL)


def assert_untouched(peer: Peer, kind: str, home: Path) -> None:
    """See that a process's own files are open, and that nobody read, wrote, moved or locked them."""
    assert peer("untouched(strangers)")
    if kind == "pipes":
        assert set(peer("[os.read(number, 100) for number in sorted(strangers)[::2]]")) == {b"mine"}
    elif kind == "files":
        assert peer("{os.lseek(number, 0, os.SEEK_CUR) for number in strangers}") == {0}
        assert {path.read_bytes() for path in home.iterdir()} == {b"mine"}
        assert not any(is_locked(path) for path in home.iterdir())
    else:
        assert {kind for kind, _ in everything(home).values()} == {"directory"}
        assert all(not entries(path) for path in home.iterdir())


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_queue_whose_descriptors_are_closed_and_become_other_files_goes_on_and_leaves_those_alone(
    peer: Peer, queue_dir: Path, tmp_path: Path, source: Path, kind: str
) -> None:
    home = tmp_path / "home"
    fill_with(peer, kind, home)
    peer("strangers = close_and_fill()")
    # A forked child closes what is its parent's, and not what has its numbers.
    with peer.fork() as child:
        assert child("untouched(strangers)")
    for name in ("queue", f"Pacchettino({os.fspath(queue_dir)!r})"):
        peer(f"use_all_ways({name}, {os.fspath(source)!r})")
    token = peer("job = queue.send_data('a') and queue.claim(); next(queue.jobs(Status.PROCESSING)).owner")
    assert is_locked(queue_dir / "owners" / token)
    peer("job.succeed(); queue.close(); del queue, job; gc.collect()")
    assert_untouched(peer, kind, home)
    assert entries(queue_dir / "processing") == entries(queue_dir / "tmp") == []


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_wait_whose_descriptors_are_closed_and_become_other_files_goes_on_and_leaves_those_alone(
    peer: Peer, queue_dir: Path, tmp_path: Path, kind: str
) -> None:
    home = tmp_path / "home"
    fill_with(peer, kind, home)
    peer("""
        import queue as queues
        taken = queues.SimpleQueue()
        def wait():
            while job := queue.claim(timeout=None):
                job.succeed()
                taken.put(job.id)
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
    """)
    until(lambda: sleeps_on_the_watch(peer))
    peer("strangers = close_and_fill()")
    consumed = peer("time.process_time()")
    for _ in range(3):
        id = Pacchettino(queue_dir).send_data("a")
        assert peer(f"taken.get(timeout={PATIENCE})") == id
    # Long enough for a slow poll; who spun would take all of it.
    assert peer("queue.claim(timeout=1.5, kind='file')") is None
    assert peer("time.process_time()") - consumed < 0.5
    peer("""
        queue.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    """)
    assert_untouched(peer, kind, home)


@pytest.mark.parametrize("looked", [False, True], ids=["nobody looks", "another consumer looks"])
@both_detections
def test_a_handler_that_closes_all_descriptors_costs_at_most_its_own_job_its_verdict(
    queue_dir: Path, tmp_path: Path, detection: str, looked: bool
) -> None:
    with Peer(queue_dir, detection) as peer:
        peer(WORK)
        fill_with(peer, "directories", tmp_path / "home")
        peer("""
            def handle(id, data):
                global strangers
                if data == b"close":
                    strangers = close_and_fill()
                    if pid := fork():
                        os.waitpid(pid, 0)
            queue.on_data_received(handle)
            pass
        """)
        id, *others = peer("ids = [queue.send_data(b'close'), *queue.send_many([b''] * 20)]; ids")
        peer.begin("queue.receive(fifo=True)")
        with peer.adopt() as child:
            assert child("untouched(strangers)")
            if looked:
                assert Pacchettino(queue_dir).claim(kind="file") is None
            # What a lock file says is over with its lock.
            stolen = looked and detection.endswith("LOCK_FILE")
            assert states(queue_dir)[id] == (["interrupted"] if stolen else ["processing"])
            child.kill()
        assert peer.end() == 21
        assert states(queue_dir) == {
            id: ["interrupted" if stolen else "success"],
            **{other: ["success"] for other in others},
        }
        assert_untouched(peer, "directories", tmp_path / "home")
        assert entries(queue_dir / "processing") == []


# Daemons

DAEMON = """
import os, sys, traceback
from pacchettino import Pacchettino, Status

way, report = sys.argv[1:]
before = Pacchettino("queue")
before.send_data("of the starter")
base = before.base_dir


def become_child():
    if os.fork():
        os._exit(0)


def use(queue):
    handled = []
    queue.on_data_received(lambda id, data: handled.append(id))
    sent = [queue.send_data("of the daemon"), queue.send_data("later", delay=0.01)]
    while queue.count_queued() + queue.count_scheduled() > 1:
        assert queue.receive_one(timeout=60)
    queue.claim(timeout=60).succeed()
    return [*sent, queue.send_data("left by the daemon")]


def run():
    if way != "without a fork":
        become_child()
        os.setsid()
        become_child()
    if way != "at once":
        before.send_data("of the daemon before it closed all")
        before.claim(kind="file")
    os.chdir("/")
    os.umask(0)
    os.closerange(3, 4096)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    return [*use(before), *use(Pacchettino(base)), *use(before)]


try:
    result = repr(run())
except BaseException:
    result = traceback.format_exc()
with open(report, "w") as file:
    file.write(result)
os._exit(0)
"""


def read_report(pipe: int) -> str:
    """Read what somebody writes into a named pipe that was opened without waiting."""
    text = b""
    while select.select([pipe], [], [], PATIENCE)[0]:
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return text.decode()
        text += piece
    raise AssertionError("nobody reports")


@pytest.mark.parametrize("way", ["at once", "after some use", "without a fork"])
def test_a_daemon_that_closes_all_descriptors_goes_on_with_a_queue_that_was_opened_before(
    queue_dir: Path, tmp_path: Path, way: str
) -> None:
    report = tmp_path / "report"
    os.mkfifo(report)
    pipe = os.open(report, os.O_RDONLY | os.O_NONBLOCK)
    try:
        subprocess.run([sys.executable, "-W", "error", "-c", DAEMON, way, report], cwd=tmp_path, check=True, timeout=60)
        text = read_report(pipe)
    finally:
        os.close(pipe)
    assert text.startswith("["), text
    sent = re.findall(r"[0-9a-f-]{36}", text)
    assert len(sent) == 9
    assert not Path("/queue").exists()
    found = states(queue_dir)
    assert set(sent) <= set(found)
    assert len(found) == len(sent) + (1 if way == "at once" else 2)
    assert [state for state in found.values() if state not in (["success"], ["queued"])] == []
    assert entries(queue_dir / "processing") == entries(queue_dir / "tmp") == []
    # The daemon's umask is the one that counts.
    assert {(queue_dir / found[id][0] / f"raw-{id}").stat().st_mode & 0o777 for id in sent} == {0o666}


NO_STREAMS = """
import fcntl, os, sys
from pathlib import Path
from pacchettino import Pacchettino, Status

base, report = sys.argv[1:]
queue = Pacchettino(base)
queue.send_data("a")
assert queue.claim(timeout=0.01, kind="file") is None
job = queue.claim()
held = []
for stream in range(3):
    try:
        held.append(os.readlink(f"/proc/self/fd/{stream}"))
    except FileNotFoundError:
        pass
# A library that prints, and then a program that gives itself streams.
for stream in range(3):
    try:
        os.write(stream, b"noise")
    except OSError:
        pass
null = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(null, stream)
info = next(queue.jobs(Status.PROCESSING))
lock = os.open(f"{base}/owners/{info.owner}", os.O_RDONLY)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    locked = False
except BlockingIOError:
    locked = True
assert queue.claim(timeout=0.01) is None
job.succeed()
queue.send_data("b")
contents = sorted(path.read_bytes() for path in Path(base).rglob("*") if path.is_file())
Path(report).write_text(repr((held, locked, contents, queue.count_all())))
"""


def test_a_program_without_standard_streams_has_none_of_the_queues_files_in_their_place(
    queue_dir: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    without = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-W", "error", "-c"]
    subprocess.run([*without, NO_STREAMS, queue_dir, report], check=True, timeout=60)
    links, locked, contents, count = eval(report.read_text())
    assert not any(os.fspath(queue_dir) in link or "anon_inode" in link for link in links)
    assert locked
    assert (contents, count) == ([b"", b"a", b"b"], 2)


# multiprocessing


def take_one(queue: Pacchettino) -> tuple[int, str, str]:
    """Claim a job in another process; give the process, the job, and its owner."""
    with queue.claim(timeout=PATIENCE) as job:  # type: ignore[union-attr]
        owners = {info.id: str(info.owner) for info in queue.jobs(Status.PROCESSING)}
        assert job.data == b"work"
        return os.getpid(), job.id, owners[job.id]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_instance_goes_to_the_processes_of_a_pool_as_an_argument(queue_dir: Path, method: str) -> None:
    queue = Pacchettino(queue_dir, fifo=True)
    own = queue.send_data(b"own")
    ids = queue.send_many([b"work"] * 20)
    with queue.claim() as job:
        assert job is not None
        assert job.id == own
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, context) as pool:
            taken = list(pool.map(take_one, [queue] * len(ids)))
        assert sorted(id for _, id, _ in taken) == ids
        (info,) = queue.jobs(Status.PROCESSING)
        assert info.id == own
        owners = {owner: process for process, _, owner in taken}
        assert all(owners[owner] == process for process, _, owner in taken)
        assert str(info.owner) not in owners
    assert states(queue_dir) == {id: ["success"] for id in [own, *ids]}
    # The processes ended in order.
    assert entries(queue_dir / "owners") == [str(info.owner).encode()]
