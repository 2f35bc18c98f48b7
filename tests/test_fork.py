"""A forked child starts anew: it shares nothing of its parent's but the directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import Peer, entries, files, is_locked
from pacchettino import CrashDetection, Pacchettino, Status

both_detections = pytest.mark.parametrize(
    "detection",
    ["crash_detection=CrashDetection.LOCK_FILE", "crash_detection=CrashDetection.PID"],
    ids=["token", "pid"],
)

HANDLERS = """
    seen = []
    def see(*what):
        seen.append(what[:2])
    queue.on_data_received(see)
    queue.on_file_received(see)
    pass
"""


def owners(base: Path) -> dict[str, bool]:
    """Tell of each lock file whether it is locked."""
    return {os.fsdecode(name): is_locked(base / "owners" / os.fsdecode(name)) for name in entries(base / "owners")}


@both_detections
def test_an_instance_goes_on_working_in_the_child_and_in_the_parent(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        peer(HANDLERS)
        assert peer("queue.send_data(b'1') and queue.receive()") == 1
        with peer.fork() as child:
            for process in (child, peer, child, peer):
                assert process("queue.send_data(b'2') and queue.receive()") == 1
                assert process("queue.send_data(b'3') and queue.receive_one(timeout=30)") is True
                assert process("queue.send_data(b'4') and queue.claim(timeout=30).succeed()") is None
            assert child("len(seen)") == peer("len(seen)") == 5
            assert child("queue.count_successful()") == peer("queue.count_successful()") == 13
            child.leave()
            child.end()
            child.finish()
        assert peer("queue.send_data(b'5') and queue.receive()") == 1
    assert entries(queue_dir / "processing") == entries(queue_dir / "tmp") == []


def test_a_child_of_a_child_goes_on_working(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer(HANDLERS)
        claims = [peer("job = queue.send_data(b'1') and queue.claim(); job.id")]
        with peer.fork() as child:
            claims.append(child("mine = queue.send_data(b'2') and queue.claim(); mine.id"))
            with child.fork() as grandchild:
                assert grandchild("queue.send_data(b'3') and queue.receive()") == 1
                for name in ("job", "mine"):
                    with pytest.raises(RuntimeError):
                        grandchild(f"{name}.succeed()")
                assert entries(queue_dir / "processing") == sorted(
                    f"raw-{id}.{owner}".encode() for id, owner in zip(claims, owners_of(queue_dir, claims), strict=True)
                )
                child("mine.succeed()")
                peer("job.succeed()")
    assert len(entries(queue_dir / "success")) == 3


def owners_of(base: Path, ids: list[str]) -> list[str]:
    infos = {info.id: info.owner for info in Pacchettino(base).jobs(Status.PROCESSING)}
    found = [infos[id] for id in ids]
    assert all(owner is not None for owner in found)
    return [str(owner) for owner in found]


def test_a_child_makes_other_ids_than_its_parent_and_its_siblings(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("queue.send_data(b'before')")
        with peer.fork() as one, peer.fork() as other:
            made = [process("queue.send_many([b''] * 1000)") for process in (peer, one, other)]
    ids = [id for ids in made for id in ids]
    assert len(set(ids)) == len(ids) == 3000
    # Nor are they equal but for the time and the counter.
    assert len({id[19:] for id in ids}) == len(ids)


def test_a_child_takes_jobs_in_another_random_order_than_its_parent(queue_dir: Path, tmp_path: Path) -> None:
    orders = []
    bases = [queue_dir, tmp_path / "second"]
    ids = None
    with Peer(queue_dir) as peer:
        peer(HANDLERS)
        peer("queue.send_data(b'before') and queue.receive()")
        for base in bases:
            if ids is None:
                ids = Pacchettino(base).send_many([b""] * 200)
            else:
                Pacchettino(base)
                for id in ids:
                    (base / "queued" / f"raw-{id}").write_bytes(b"")
        with peer.fork() as child:
            for process, base in ((peer, bases[0]), (child, bases[1])):
                process.begin(f"queue = Pacchettino({os.fspath(base)!r})")
                process.end()
                process(HANDLERS)
                assert process("queue.receive()") == 200
                orders.append(process("[id for id, _ in seen]"))
    assert sorted(orders[0]) == sorted(orders[1]) == ids
    assert orders[0] != orders[1]


def test_a_child_claims_under_a_token_of_its_own(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        claims = [peer("job = queue.send_data(b'1') and queue.claim(); job.id")]
        with peer.fork() as one, peer.fork() as other:
            claims += [process("job = queue.send_data(b'2') and queue.claim(); job.id") for process in (one, other)]
            tokens = owners_of(queue_dir, claims)
            assert len(set(tokens)) == 3
            assert owners(queue_dir) == dict.fromkeys(tokens, True)
            other.kill()
            assert owners(queue_dir) == {tokens[0]: True, tokens[1]: True, tokens[2]: False}
            assert peer("queue.claim()") is None
            assert owners(queue_dir) == {tokens[0]: True, tokens[1]: True}
            assert [Pacchettino(queue_dir).status(id) for id in claims] == [
                Status.PROCESSING,
                Status.PROCESSING,
                Status.INTERRUPTED,
            ]


def test_a_child_claims_under_its_own_pid(queue_dir: Path) -> None:
    with Peer(queue_dir, "crash_detection=CrashDetection.PID") as peer, peer.fork() as child:
        claims = [process("job = queue.send_data(b'1') and queue.claim(); job.id") for process in (peer, child)]
        assert owners_of(queue_dir, claims) == [str(peer.pid), str(child.pid)]


@pytest.mark.parametrize("end", ["in order", "by os._exit", "by a signal"])
@both_detections
def test_a_child_that_ends_takes_nothing_of_its_parent_with_it(queue_dir: Path, detection: str, end: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = peer("job = queue.send_data(b'1') and queue.claim(); job.id")
        before = owners(queue_dir)
        assert list(before.values()) == ([True] if detection.endswith("LOCK_FILE") else [])
        with peer.fork() as child:
            if end == "in order":
                child.leave()
                child.end()
                child.finish()
            elif end == "by os._exit":
                child.begin("os._exit(0)")
                child.wait()
            else:
                child.kill()
        assert owners(queue_dir) == before
        assert Pacchettino(queue_dir).claim() is None
        peer("job.succeed()")
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"1"}


def test_a_child_that_ends_in_order_takes_its_own_lock_file_with_it(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("queue.send_data(b'1')")
        before = owners(queue_dir)
        with peer.fork() as child:
            child("queue.claim().succeed()")
            assert len(owners(queue_dir)) == 2
            child.leave()
            child.end()
            child.finish()
        assert owners(queue_dir) == before


# A fork in a handler


@both_detections
def test_a_handler_can_fork_and_the_child_can_send(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        peer("""
            def handle(id, data):
                if data == b'first':
                    pid = os.fork()
                    if pid == 0:
                        queue.send_data(b'from the child')
                        os._exit(0)
                    assert os.waitpid(pid, 0)[1] == 0
            queue.on_data_received(handle)
            pass
        """)
        assert peer("queue.send_data(b'first') and queue.receive()") == 1
        assert sorted(files(queue_dir).values()) == [b"first", b"from the child"]
        assert len(entries(queue_dir / "success")) == len(entries(queue_dir / "queued")) == 1
        assert peer("queue.receive()") == 1
        assert len(entries(queue_dir / "success")) == 2


@both_detections
def test_a_child_of_a_handler_leaves_the_job_that_is_being_handled_alone(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        peer("""
            def handle(id, data):
                pid = fork()
                if pid:
                    os.waitpid(pid, 0)
            queue.on_data_received(handle)
            pass
        """)
        id = peer("queue.send_data(b'payload')")
        peer.begin("queue.receive()")
        with peer.adopt() as child:
            claim = files(queue_dir)
            assert [path.split(b"/")[0] for path in claim] == [b"processing"]
            assert child("queue.receive()") == 0
            assert child("queue.claim()") is None
            assert child(f"queue.status({id!r})") is Status.PROCESSING
            assert files(queue_dir) == claim
            child.kill()
        assert peer.end() == 1
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}


@pytest.mark.parametrize("end", ["return None", "return Result.FAILED", "return Result.RETRY", "1 / 0", "sys.exit(3)"])
@both_detections
def test_a_child_that_comes_back_out_of_a_handler_settles_nothing(queue_dir: Path, detection: str, end: str) -> None:
    with Peer(queue_dir, detection) as peer:
        peer(f"""
            import logging
            logging.disable()
            def handle(id, data):
                pid = fork()
                if pid == 0:
                    {end}
                status = os.waitpid(pid, 0)
            queue.on_data_received(handle)
            def receive():
                try:
                    return queue.receive()
                except SystemExit as left:
                    return left.code
        """)
        id = peer("queue.send_data(b'payload')")
        peer.begin("receive()")
        with peer.adopt() as child:
            claim = files(queue_dir)
            child.leave()
            assert child.end() == (3 if "exit" in end else 1)
            assert files(queue_dir) == claim
            assert child(f"queue.status({id!r})") is Status.PROCESSING
            child.finish()
        assert peer.end() == 1
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}


def test_a_child_that_comes_back_out_of_a_handler_shares_the_other_jobs_with_its_parent(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("""
            import logging
            logging.disable()
            seen, child = [], None
            def handle(id, data):
                global child
                seen.append(id)
                if child is None:
                    child = fork()
            queue.on_data_received(handle)
            pass
        """)
        ids = peer("queue.send_many([b'payload'] * 400)")
        peer.begin("queue.receive()")
        with peer.adopt() as child:
            child.leave()
            child.end()
            peer.end()
            first, *by_parent = peer("seen")
            shared, *by_child = child("seen")
    assert shared == first
    assert Counter([first, *by_parent, *by_child]) == Counter(ids)
    assert entries(queue_dir / "success") == sorted(f"raw-{id}".encode() for id in ids)


def test_a_child_does_not_flush_the_verdict_that_its_parent_has_yet_to_flush(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("""
            queue.durable = True
            queue.send_many([b'payload'] * 2)
            waiting = queue._core.start_pass(True, True, True)
            claim = queue._core.claim_next(waiting)
            claim.begin()
            claim.succeed()
            def in_child():
                waiting.end()
                other = queue._core.claim_next(waiting)
                other.begin()
                other.fail()
                return queue.count_successful()
            pass
        """)
        processing = entries(queue_dir / "processing")
        assert len(processing) == 1
        with peer.fork() as child:
            assert child("in_child()") == 1
            assert processing[0] in entries(queue_dir / "processing")
            child("queue.count_failed()")
            child("del waiting")
            assert entries(queue_dir / "processing") == processing
        peer("waiting.end()")
        assert entries(queue_dir / "processing") == []
        assert peer("queue.count_failed(), queue.count_successful()") == (1, 1)


# What outlives a consumer does not keep its lock


@pytest.mark.parametrize("use", ["", "queue.count_all()", "queue.send_data(b'of the child')", HANDLERS])
@both_detections
def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_job_of_the_parent(
    queue_dir: Path, detection: str, use: str
) -> None:
    with Peer(queue_dir, detection) as peer:
        id = peer("job = queue.send_data(b'payload') and queue.claim(); job.id")
        with peer.fork() as child:
            if use:
                child(use)
            peer.kill()
            Pacchettino(queue_dir).claim(kind="file")
            assert files(queue_dir)[b"interrupted/raw-" + id.encode()] == b"payload"
            assert entries(queue_dir / "processing") == []
            assert child.is_running()
            # The child goes on as before.
            assert child("queue.requeue(job.id)") is True
            assert child("queue.claim(fifo=True).id") == id


def test_children_of_any_thread_and_time_do_not_keep_the_lock_of_their_parent(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer, peer.fork() as before:
        id = peer("job = queue.send_data(b'payload') and queue.claim(); job.id")
        with peer.fork() as after, after.fork() as grandchild:
            grandchild("pass")
            peer.kill()
            Pacchettino(queue_dir).claim()
            assert files(queue_dir) == {b"interrupted/raw-" + id.encode(): b"payload"}
            assert entries(queue_dir / "owners") == []
            assert [process.is_running() for process in (before, after, grandchild)] == [True] * 3


STARTS = {
    "subprocess": "import subprocess; pid = subprocess.Popen(['sleep', '600']).pid",
    "subprocess with open files": "import subprocess; pid = subprocess.Popen(['sleep', '600'], close_fds=False).pid",
    "subprocess with preexec_fn": (
        "import subprocess; pid = subprocess.Popen(['sleep', '600'], preexec_fn=os.getpid, close_fds=False).pid"
    ),
    "posix_spawn": "pid = os.posix_spawnp('sleep', ['sleep', '600'], os.environ)",
    "fork and exec": (
        "ends = os.pipe(); pid = os.fork() or os.execvp('sleep', ['sleep', '600']); "
        "os.close(ends[1]); os.read(ends[0], 1)"  # until the exec has closed the other end
    ),
}


@contextmanager
def killed_in_the_end(pid: int) -> Iterator[int]:
    """Hold on to a process, so that it and no other can be killed."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


@pytest.mark.parametrize("start", STARTS)
def test_a_program_that_outlives_its_consumer_does_not_keep_the_lock(queue_dir: Path, start: str) -> None:
    with Peer(queue_dir) as peer:
        id = peer("job = queue.send_data(b'payload') and queue.claim(); job.id")
        with killed_in_the_end(peer(f"{STARTS[start]}\npid")) as handle:
            peer.kill()
            Pacchettino(queue_dir).claim()
            assert files(queue_dir) == {b"interrupted/raw-" + id.encode(): b"payload"}
            signal.pidfd_send_signal(handle, 0)  # it lives


@pytest.mark.parametrize("start", STARTS)
def test_a_program_that_a_handler_starts_does_not_keep_the_lock(queue_dir: Path, start: str) -> None:
    with Peer(queue_dir) as peer:
        peer(f"""
            def handle(id, data):
                global pid
                {STARTS[start]}
                if fork():
                    signal.pause()
            queue.on_data_received(handle)
            pass
        """)
        id = peer("queue.send_data(b'payload')")
        peer.begin("queue.receive()")
        with peer.adopt() as child, killed_in_the_end(child("pid")) as handle:
            peer.kill()
            Pacchettino(queue_dir).claim()
            assert files(queue_dir) == {b"interrupted/raw-" + id.encode(): b"payload"}
            signal.pidfd_send_signal(handle, 0)


# Forks at any moment

PROGRAM = """
import os, random, select, signal, sys, threading
from pacchettino import CrashDetection, Pacchettino

base, detection, forks = sys.argv[1], CrashDetection[sys.argv[2]], int(sys.argv[3])
queue = Pacchettino(base, crash_detection=detection)
other = Pacchettino(base, crash_detection=detection)
stop = threading.Event()
sent = []
few = threading.Semaphore(100)  # a longer queue would only take longer to list

def send():
    while not stop.is_set():
        if few.acquire(timeout=0.1):
            sent.append(queue.send_data(b"parent"))

def claim(queue):
    while not stop.is_set():
        job = queue.claim(timeout=0.01)
        if job is not None:
            job.succeed()
            few.release()

def look():
    while not stop.is_set():
        queue.count_all()
        Pacchettino(base).close()

def child(number):
    report = [other, queue][number % 2].send_data(b"child")
    if number % 3 == 0:
        job = queue.claim()
        if job is not None:
            job.succeed()
    os.write(1, report.encode() + b"\\n")

threads = [threading.Thread(target=send)]
threads += [threading.Thread(target=claim, args=(each,)) for each in (queue, other)]
threads.append(threading.Thread(target=look))
for thread in threads:
    thread.start()
hung = 0
for number in range(forks):
    pid = os.fork()
    if pid == 0:
        try:
            child(number)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    handle = os.pidfd_open(pid)
    if not select.select([handle], [], [], 30)[0]:
        hung += 1
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)
    _, status = os.waitpid(pid, 0)
    assert hung or status == 0, status
    if hung:
        break
stop.set()
for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
os.write(1, "".join(f"{id}\\n" for id in sent).encode())
print("hung", hung)
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("forks", [100, pytest.param(400, marks=pytest.mark.torture)])
@pytest.mark.parametrize("detection", CrashDetection)
def test_a_fork_while_other_threads_send_and_claim_never_hangs_and_loses_nothing(
    quick_dir: Path, detection: CrashDetection, forks: int
) -> None:
    queue_dir = quick_dir / "queue"
    quiet = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    ran = subprocess.run(
        [sys.executable, *quiet, "-c", PROGRAM, queue_dir, detection.name, str(forks)],
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    *ids, last = ran.stdout.splitlines()
    assert last == "hung 0"
    assert len(set(ids)) == len(ids) > forks
    queue = Pacchettino(queue_dir)
    queue.on_data_received(lambda id, data: None)
    queue.receive()
    assert entries(queue_dir / "success") == sorted(f"raw-{id}".encode() for id in ids)
    assert files(queue_dir).keys() == {b"success/raw-" + id.encode() for id in ids}
    assert entries(queue_dir / "processing") == []


def test_a_fork_while_another_thread_makes_lock_files_keeps_none_of_them(tmp_path: Path) -> None:
    line = tmp_path / "line"
    os.mkfifo(line)
    hold = os.open(line, os.O_RDWR)
    try:
        with Peer() as peer:
            peer(f"""
                from pathlib import Path
                queues = [Pacchettino(Path({os.fspath(tmp_path)!r}, f"queue {{number}}")) for number in range(80)]
                def make():
                    for queue in queues:
                        queue.send_data(b"payload")
                sys.setswitchinterval(1e-6)
                ready, children = os.pipe(), 0
                thread = threading.Thread(target=make)
                thread.start()
                while thread.is_alive() or children == 0:
                    children += 1
                    if os.fork() == 0:
                        with open({os.fspath(line)!r}) as line:
                            os.write(ready[1], b"x")
                            line.read()
                        os._exit(0)
                for _ in range(children):
                    os.read(ready[0], 1)
            """)
            locks = list(tmp_path.glob("queue */owners/*"))
            assert len(locks) == 80
            assert all(is_locked(lock) for lock in locks)
            peer.kill()
            assert [lock for lock in locks if is_locked(lock)] == []
    finally:
        os.close(hold)  # the children end


def test_a_fork_in_a_signal_handler_during_a_wait_leaves_a_child_that_can_go_on_and_end(queue_dir: Path) -> None:
    code = """
        import os, signal, sys
        from pacchettino import Pacchettino

        queue = Pacchettino(sys.argv[1])
        children = []
        wait, go = os.pipe()

        def fork(*_):
            children.append(os.fork())

        signal.signal(signal.SIGALRM, fork)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        job = queue.claim(timeout=1)
        assert job is None, job
        if children == [0]:
            os.read(wait, 1)  # or the parent would get it
            queue.send_data("from the child")
            sys.exit(3)  # in order, so that what is to be done at exit is done
        os.write(go, b"!")
        _, status = os.waitpid(children[0], 0)
        assert os.waitstatus_to_exitcode(status) == 3
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), queue_dir]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Pacchettino(queue_dir).count_queued() == 1
