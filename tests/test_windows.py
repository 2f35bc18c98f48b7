"""What Windows does otherwise: files that are open, paths that are long, names that are devices, workers."""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import find
from helpers import Peer, entries, files, is_locked, lay_down, new_id, until
from pacchettino import CrashDetection, Pacchettino, Status
from pacchettino._queue import _memory

pytestmark = pytest.mark.needs("Windows")

LONG = "n" * 120
DEVICES = ["nul", "NUL.txt", "con", "Aux.tar.gz", "prn", "com1", "LPT9.log", "com¹", "conin$"]
ENDS = ["end.", "end ", "..."]
SIGNS = ["a:b", "a*", "what?", "a<b", 'a"b', "a|b", "two\nlines"]
SHARING_VIOLATION = 32


def exact(path: Path) -> Path:
    """Give a path that is taken as it is."""
    return Path(rf"\\?\{path}")


# Files that somebody has open


def test_of_many_processes_that_want_the_same_jobs_each_job_goes_to_one(queue: Pacchettino, queue_dir: Path) -> None:
    ids = queue.send_many([str(number) for number in range(150)])
    with Peer(queue_dir, "fifo=True") as one, Peer(queue_dir, "fifo=True") as two, Peer(queue_dir) as three:
        peers = [one, two, three]
        for peer in peers:
            peer("handled = []\nqueue.on_data_received(lambda id, data: handled.append(id))\nNone")
        for peer in peers:
            peer.begin("while queue.receive_one(): pass")
        for peer in peers:
            peer.end()
        handled = Counter(id for peer in peers for id in peer("handled"))
    assert handled == Counter(ids)
    assert queue.count_successful() == len(ids)
    assert entries(queue_dir / "processing") == []


def test_a_job_that_somebody_has_open_waits_and_keeps_nobody_from_the_others(
    queue: Pacchettino, queue_dir: Path
) -> None:
    held, free = queue.send_many(["held", "free"])
    with (queue_dir / f"queued/raw-{held}").open("rb"):
        with queue.claim(fifo=True) as job:
            assert job.id == free
        assert queue.claim() is None
        assert (queue.status(held), entries(queue_dir / "processing")) == (Status.QUEUED, [])
    with queue.claim() as job:
        assert (job.id, job.data) == (held, b"held")


def test_who_has_a_job_open_for_a_moment_hinders_nobody(queue: Pacchettino, queue_dir: Path) -> None:
    """As a virus scanner does: it looks at each file that is new."""
    id = queue.send_data("work")
    with (queue_dir / f"queued/raw-{id}").open("rb") as scanner:
        closing = threading.Timer(0.05, scanner.close)
        closing.start()
        job = queue.claim()
        closing.join()
    assert job is not None
    with job.path.open("rb") as scanner:
        closing = threading.Timer(0.4, scanner.close)
        closing.start()
        job.succeed()
        closing.join()
    assert queue.status(id) is Status.SUCCESS


def test_a_file_that_somebody_has_open_for_a_moment_can_be_moved(queue: Pacchettino, tmp_path: Path) -> None:
    source = tmp_path / "report.txt"
    source.write_bytes(b"content")
    with source.open("rb") as scanner:
        closing = threading.Timer(0.4, scanner.close)
        closing.start()
        id = queue.send_file(source, copy=False)
        closing.join()
    assert find(queue.base_dir) == [f"queued/fle-{id}-report.txt"]
    assert not source.exists()


def test_a_verdict_on_a_file_that_stays_open_is_kept_and_tried_again(queue: Pacchettino) -> None:
    id = queue.send_data("work")
    job = queue.claim()
    assert job is not None
    with job.path.open("rb"):
        with pytest.raises(PermissionError) as caught:
            job.succeed()
        assert caught.value.winerror == SHARING_VIOLATION  # type: ignore[attr-defined]
        assert queue.status(id) is Status.PROCESSING
    assert queue.claim() is None
    assert queue.status(id) is Status.SUCCESS


# Errors


def test_an_error_is_the_one_that_python_would_have_raised(queue: Pacchettino, tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    with pytest.raises(FileNotFoundError) as ours:
        queue.send_file(missing)
    with pytest.raises(FileNotFoundError) as pythons:
        missing.stat()
    told = [(error.value.args, error.value.filename, error.value.winerror) for error in (ours, pythons)]  # type: ignore[attr-defined]
    assert told[0][1:] == (str(missing), 2)
    assert told[0] == told[1]


# Paths and names


@pytest.mark.parametrize("is_exact", [False, True], ids=["a plain path", "a path that is taken as it is"])
def test_a_path_has_the_prefix_only_where_it_is_too_long_without(tmp_path: Path, is_exact: bool) -> None:
    for base, is_long in [(tmp_path / "short", False), (tmp_path / LONG / LONG / "queue", True)]:
        queue = Pacchettino(exact(base) if is_exact else base)
        queue.send_data("work")
        (waiting,) = queue.jobs(Status.QUEUED)
        with queue.claim() as job:
            for path in [waiting.path, job.path]:
                assert str(path).startswith("\\\\?\\") == (len(str(path).removeprefix("\\\\?\\")) >= 260)
            assert str(job.path).startswith("\\\\?\\") == is_long
            assert job.path.read_bytes() == job.data == b"work"
            assert job.path == Path(rf"\\?\{base}" if is_long else base) / job.path.relative_to(job.path.parents[2])


def test_a_file_with_the_longest_name_goes_through_a_deep_queue(tmp_path: Path) -> None:
    source = tmp_path / "report.txt"
    source.write_bytes(b"content")
    queue = Pacchettino(tmp_path / LONG / LONG / "queue", durable=True)
    seen: list[bytes] = []
    queue.on_file_received(lambda id, name, path: seen.append(path.read_bytes()))
    id = queue.send_file(source, name="n" * 200, delay=0.01)
    assert queue.receive_one(timeout=10)
    assert (seen, queue.status(id)) == ([b"content"], Status.SUCCESS)
    assert queue.cleanup() == 1


@pytest.mark.parametrize("name", [*DEVICES, *ENDS, *SIGNS], ids=ascii)
@pytest.mark.parametrize("copy", [True, False])
def test_a_name_that_no_program_could_open_is_not_sent(
    queue: Pacchettino, tmp_path: Path, name: str, copy: bool
) -> None:
    source = tmp_path / "report.txt"
    source.write_bytes(b"content")
    with pytest.raises(ValueError, match="on Windows"):
        queue.send_file(source, copy=copy, name=name)
    assert source.read_bytes() == b"content"
    assert find(queue.base_dir) == []


@pytest.mark.parametrize("name", ["nul", "con.txt", "com1", "end.", "end "])
def test_such_a_name_that_comes_from_elsewhere_is_a_file_like_any_other(queue_dir: Path, name: str) -> None:
    queue = Pacchettino(queue_dir)
    ids = [new_id() for _ in range(2)]
    for id in ids:
        exact(queue_dir / f"queued/fle-{id}-{name}").write_bytes(b"payload")
    seen: list[tuple[str, bytes]] = []
    queue.on_file_received(lambda id, name, path: seen.append((name, path.read_bytes())))
    assert queue.receive_one()
    assert seen == [(name, b"payload")]
    with queue.claim() as job:
        assert (job.name, job.data, job.path.read_bytes()) == (name, b"payload", b"payload")
        assert job.path.parent.name.startswith(job.entry)
    assert [queue.status(id) for id in ids] == [Status.SUCCESS] * 2
    assert queue.requeue_all(queue.KeepPolicy.ALL) == 2
    assert sorted(job.path.name for job in queue.jobs(Status.QUEUED)) == [f"fle-{id}-{name}" for id in sorted(ids)]


def test_the_memory_of_the_machine_is_known() -> None:
    """A job that is larger fails, and one for which there is none at the moment waits on."""
    assert 1 << 28 < _memory() < 1 << 50


# Owners


def test_a_lock_file_can_neither_be_read_nor_deleted_while_its_process_lives(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("queue.send_data('work')")
        (token,) = entries(queue_dir / "owners")
        lock = queue_dir / "owners" / os.fsdecode(token)
        assert is_locked(lock)
        with pytest.raises(PermissionError):
            lock.unlink()
        peer.kill()
        until(lambda: not is_locked(lock))
        assert Pacchettino(queue_dir).requeue_all() == 0
    assert not lock.exists()


@pytest.mark.parametrize("detection", CrashDetection)
@pytest.mark.parametrize("end", ["peer.kill()", "os._exit(3)"], ids=["killed", "ended"])
def test_the_job_of_a_consumer_that_died_is_interrupted_and_not_while_it_lives(
    queue_dir: Path, detection: CrashDetection, end: str
) -> None:
    queue = Pacchettino(queue_dir)
    with Peer(queue_dir, f"crash_detection={detection}") as peer:
        id = queue.send_data("work")
        peer("job = queue.claim()\nassert job is not None")
        assert (queue.claim(), queue.status(id)) == (None, Status.PROCESSING)
        if end == "peer.kill()":
            peer.kill()
        else:
            peer.begin(end)
            peer.wait()
        assert queue.claim() is None
        assert queue.status(id) is Status.INTERRUPTED
    assert files(queue_dir) == {f"interrupted/raw-{id}".encode(): b"work"}
    assert queue.requeue(id)
    with queue.claim() as job:
        assert job.data == b"work"


def test_the_draft_of_a_sender_that_died_goes_and_that_of_the_living_stays(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir)
    with Peer(queue_dir) as peer:
        peer("queue.send_data('work')")
        (token,) = entries(queue_dir / "owners")
        draft = b"tmp/%s-%s" % (new_id().encode(), token)
        lay_down(queue_dir, {draft: b"half of it"})
        queue.requeue_all()
        assert draft in files(queue_dir)
        peer.kill()
        queue.requeue_all()
        assert draft not in files(queue_dir)


# Waiting


WAITS: dict[str, Callable[[Pacchettino], object]] = {
    "claim": lambda queue: queue.claim(timeout=None),
    "receive_one": lambda queue: queue.receive_one(timeout=60),
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(queue: Pacchettino, wait: str) -> None:
    """What the console's thread does when Ctrl-C is pressed."""
    queue.on_data_received(lambda id, data: None)
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        _thread.interrupt_main()

    timer = threading.Timer(0.2, press)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        WAITS[wait](queue)
    assert time.monotonic() - pressed[0] < 1
    timer.join()
    id = queue.send_data("work")
    assert queue.receive() == 1
    assert queue.status(id) is Status.SUCCESS


def test_a_job_of_another_process_ends_a_wait(queue: Pacchettino, queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer.begin("queue.claim(timeout=None).id")
        id = queue.send_data("work")
        assert peer.end() == id


# Workers


WORKER = """
import _thread, sys, time
from threading import Timer
from pacchettino import Pacchettino

queue = Pacchettino(sys.argv[1])

@queue.on_data_received
def handle(id, data):
    if data == b"slow":
        time.sleep(1000)

if __name__ == "__main__":
    if len(sys.argv) > 3:  # what the console's thread does when Ctrl-C is pressed
        Timer(float(sys.argv[3]), _thread.interrupt_main).start()
    print(queue.work(**eval(sys.argv[2])))
"""


def work(queue: Pacchettino, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Let a program call `work`, with these settings, and Ctrl-C after so many seconds."""
    program = home / "worker.py"
    program.write_text(WORKER)
    command = [sys.executable, str(program), str(queue.base_dir), *map(str, arguments)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)


HOW: list[dict[str, object]] = [{}, {"threads": 2}, {"processes": 2}]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_work_does_what_waits_in_threads_and_in_processes(
    queue: Pacchettino, tmp_path: Path, how: dict[str, object]
) -> None:
    queue.send_many(map(str, range(20)))
    done = work(queue, tmp_path, {**how, "drain": True})
    assert (done.returncode, done.stdout) == (0, "20\n"), done.stderr
    assert queue.count_successful() == queue.count_all() == 20


@pytest.mark.parametrize("how", HOW, ids=str)
def test_ctrl_c_ends_an_idle_worker(queue: Pacchettino, tmp_path: Path, how: dict[str, object]) -> None:
    queue.send_data("quick")
    done = work(queue, tmp_path, how, 15)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("how", [{"threads": 2}, {"processes": 2}], ids=str)
def test_jobs_that_are_not_done_a_grace_after_ctrl_c_are_interrupted(
    queue: Pacchettino, tmp_path: Path, how: dict[str, object]
) -> None:
    id = queue.send_data("slow")
    done = work(queue, tmp_path, {**how, "grace": 0.5}, 15)
    assert "KeyboardInterrupt" in done.stderr
    assert queue.claim() is None  # it looks after the dead
    assert queue.status(id) is Status.INTERRUPTED


def test_a_process_whose_job_takes_too_long_is_killed(queue: Pacchettino, tmp_path: Path) -> None:
    id = queue.send_data("slow")
    done = work(queue, tmp_path, {"job_timeout": 2, "drain": True})
    assert done.returncode == 0, done.stderr
    assert queue.status(id) is Status.INTERRUPTED
    (attempt,) = queue.history(id)
    assert attempt.reason == "it took longer than 2.0 s; its process was killed"


def test_the_command_sends_works_and_tells(queue: Pacchettino, tmp_path: Path) -> None:
    def pacchettino(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "pacchettino", *map(str, arguments)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=True
        )
        return done.stdout

    good, bad = (pacchettino("send", queue.base_dir, "--data", text).strip() for text in ("0", "3"))
    program = tmp_path / "program.py"
    program.write_text("import sys; status = sys.stdin.read(); sys.exit(status != '0' and f'it was {status}')")
    pacchettino("work", queue.base_dir, "--drain", "--", sys.executable, program)
    assert pacchettino("ls", queue.base_dir, "success").split()[0] == good
    assert pacchettino("ls", queue.base_dir, "failed").split()[0] == bad
    assert "exit status 1: it was 3" in pacchettino("show", queue.base_dir, bad)
    assert "nothing" in pacchettino("check", queue.base_dir)
    odd = b"two\r\nlines, and\x1amore"
    shown = json.loads(pacchettino("show", queue.base_dir, "--json", queue.send_data(odd)))
    assert b64decode(shown["first_bytes_base64"]) == odd
