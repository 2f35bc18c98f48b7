"""Jobs of consumers that died become interrupted, and nobody takes a job whose consumer lives."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import Peer, Process, dead_pid, entries, files, is_locked, lay_down, new_id
from pacchettino import CrashDetection, KeepPolicy, Pacchettino, Status

BY_TOKEN, BY_PID = "crash_detection=CrashDetection.LOCK_FILE", "crash_detection=CrashDetection.PID"

both_detections = pytest.mark.parametrize("detection", [BY_TOKEN, BY_PID], ids=["token", "pid"])


@pytest.fixture
def consumer(queue_dir: Path) -> Pacchettino:
    """Give a queue in this process whose handlers must not be called: nothing is queued for them."""
    queue = Pacchettino(queue_dir)
    queue.on_data_received(lambda id, data: pytest.fail(f"{id} was handled"))
    queue.on_file_received(lambda id, name, path: pytest.fail(f"{id} was handled"))
    return queue


def claim_one(process: Process) -> str:
    """Have a process send a job and claim it; give the job's id."""
    return process("job = queue.send_data(b'payload') and queue.claim(); job.id")


def assert_interrupted(base: Path, *ids: str) -> None:
    assert files(base) == {b"interrupted/raw-" + id.encode(): b"payload" for id in ids}
    assert entries(base / "processing") == []


def assert_untouched(base: Path, consumer: Pacchettino, *ids: str) -> None:
    """Look for jobs in every way that recovers, and see that the claims stay."""
    before = files(base)
    assert consumer.receive() == 0
    assert not consumer.receive_one()
    assert consumer.claim() is None
    assert files(base) == before
    assert sorted(path[len(b"processing/raw-") :][:36].decode() for path in before) == sorted(ids)
    assert {consumer.status(id) for id in ids} == {Status.PROCESSING}


LOOKS: dict[str, Callable[[Pacchettino], object]] = {
    "receive": lambda queue: queue.receive(),
    "receive_one": lambda queue: queue.receive_one(),
    "claim": lambda queue: queue.claim(),
    "claim_of_the_other_kind": lambda queue: queue.claim(kind="file"),
}


@pytest.mark.parametrize("look", LOOKS)
@both_detections
def test_a_job_of_a_killed_consumer_is_interrupted_at_the_next_look(
    queue_dir: Path, consumer: Pacchettino, detection: str, look: str
) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        assert_untouched(queue_dir, consumer, id)
        peer.kill()
        peer.reap()
        LOOKS[look](consumer)
        assert_interrupted(queue_dir, id)
        assert consumer.status(id) is Status.INTERRUPTED
        assert entries(queue_dir / "owners") == []


@both_detections
@pytest.mark.needs("/proc")
def test_a_job_of_a_zombie_is_interrupted(queue_dir: Path, consumer: Pacchettino, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        peer.kill()
        assert "\nState:\tZ" in Path(f"/proc/{peer.pid}/status").read_text()
        consumer.receive()
        assert_interrupted(queue_dir, id)


@both_detections
@pytest.mark.needs("signals")
def test_a_stopped_consumer_is_alive(queue_dir: Path, consumer: Pacchettino, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        os.kill(peer.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, peer.pid, os.WSTOPPED)
        assert_untouched(queue_dir, consumer, id)
        os.kill(peer.pid, signal.SIGCONT)
        peer("job.succeed()")
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}


@both_detections
@pytest.mark.needs("/proc")
def test_a_zombie_whose_other_threads_go_on_is_alive(queue_dir: Path, consumer: Pacchettino, detection: str) -> None:
    with Peer(queue_dir, detection, leaderless=True) as peer:
        id = claim_one(peer)
        assert "\nState:\tZ" in Path(f"/proc/{peer.pid}/status").read_text()
        assert_untouched(queue_dir, consumer, id)
        with Peer(queue_dir) as other:
            assert other("queue.claim()") is None
        peer("job.succeed()")
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}

        second = claim_one(peer)
        assert consumer.receive() == 0
        assert consumer.status(second) is Status.PROCESSING
        peer.kill()
        consumer.receive()
        assert consumer.status(second) is Status.INTERRUPTED


@both_detections
@pytest.mark.needs("fork")
def test_a_process_finds_its_own_claims_from_before_an_exec_dead(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        peer.execute()
        peer.open(queue_dir, detection)
        assert peer("os.getpid()") == peer.pid
        assert peer("queue.claim()") is None
        assert_interrupted(queue_dir, id)


@pytest.mark.needs("fork")
def test_a_claim_by_pid_from_before_an_exec_is_left_alone_by_others(queue_dir: Path, consumer: Pacchettino) -> None:
    with Peer(queue_dir, BY_PID) as peer:
        id = claim_one(peer)
        peer.execute()
        assert_untouched(queue_dir, consumer, id)


@pytest.mark.needs("fork")
def test_a_lock_does_not_survive_an_exec(queue_dir: Path, consumer: Pacchettino) -> None:
    with Peer(queue_dir) as peer:
        id = claim_one(peer)
        peer.execute()
        consumer.receive()
        assert peer.is_running()
        assert_interrupted(queue_dir, id)


@pytest.mark.needs("/proc")
def test_the_id_of_a_thread_is_no_process(queue_dir: Path, consumer: Pacchettino) -> None:
    with Peer() as peer:
        thread = peer("""
            ids = []
            def tell():
                ids.append(threading.get_native_id())
                told.set()
                stop.wait()
            told, stop = threading.Event(), threading.Event()
            threading.Thread(target=tell, daemon=True).start()
            told.wait()
            ids[0]
        """)
        assert thread != peer.pid
        assert Path(f"/proc/{peer.pid}/task/{thread}").exists()
        dead, alive = new_id(), new_id()
        lay_down(
            queue_dir,
            {
                b"processing/raw-%s.%d/raw" % (dead.encode(), thread): b"payload",
                b"processing/raw-%s.%d/raw" % (alive.encode(), peer.pid): b"payload",
            },
        )
        consumer.receive()
        assert consumer.status(dead) is Status.INTERRUPTED
        assert consumer.status(alive) is Status.PROCESSING


@pytest.mark.needs("/proc")
def test_the_id_of_a_thread_of_this_process_is_no_process(queue_dir: Path, consumer: Pacchettino) -> None:
    stop, told, ids = threading.Event(), threading.Event(), []

    def tell() -> None:
        ids.append(threading.get_native_id())
        told.set()
        stop.wait()

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        assert told.wait(30)
        id = new_id()
        lay_down(queue_dir, {b"processing/raw-%s.%d/raw" % (id.encode(), ids[0]): b"payload"})
        consumer.receive()
        assert_interrupted(queue_dir, id)
    finally:
        stop.set()
        thread.join()


@pytest.fixture(params=CrashDetection, ids=["pid", "token"])
def ours(queue_dir: Path, request: pytest.FixtureRequest) -> Iterator[Pacchettino]:
    """Give a queue with a job that this process works on."""
    queue = Pacchettino(queue_dir, crash_detection=request.param)
    queue.send_data(b"payload")
    with queue.claim() as job:
        yield queue
        assert job.data == b"payload"
    assert queue.is_success(job.id)


def claimed(base: Path) -> str:
    (claim,) = entries(base / "processing")
    return claim[4:40].decode()


def test_a_claim_of_this_process_is_not_recovered_by_the_instance_that_made_it(
    queue_dir: Path, ours: Pacchettino
) -> None:
    ours.on_data_received(lambda id, data: None)
    assert_untouched(queue_dir, ours, claimed(queue_dir))


@both_detections
def test_a_claim_of_this_process_is_not_recovered_by_another_instance(
    queue_dir: Path, ours: Pacchettino, detection: str
) -> None:
    other = Pacchettino(queue_dir, crash_detection=CrashDetection.PID if detection == BY_PID else ours.crash_detection)
    other.on_data_received(lambda id, data: None)
    assert_untouched(queue_dir, other, claimed(queue_dir))


@pytest.mark.parametrize("detection", CrashDetection)
@pytest.mark.needs("symlinks")
def test_a_claim_of_this_process_is_not_recovered_through_a_link_to_the_queue(
    queue_dir: Path, tmp_path: Path, ours: Pacchettino, detection: CrashDetection
) -> None:
    link = tmp_path / "link"
    link.symlink_to(queue_dir)
    other = Pacchettino(link, crash_detection=detection)
    other.on_data_received(lambda id, data: None)
    assert_untouched(queue_dir, other, claimed(queue_dir))


def test_a_claim_of_this_process_is_not_recovered_by_another_thread(queue_dir: Path, ours: Pacchettino) -> None:
    ours.on_data_received(lambda id, data: None)
    handled: list[int] = []
    thread = threading.Thread(target=lambda: handled.append(ours.receive() + Pacchettino(queue_dir).count_processing()))
    thread.start()
    thread.join(30)
    assert handled == [1]


@both_detections
def test_a_claim_of_this_process_is_not_recovered_by_another_process(
    queue_dir: Path, ours: Pacchettino, detection: str
) -> None:
    with Peer(queue_dir, detection) as peer:
        assert peer("queue.claim()") is None
    assert ours.status(claimed(queue_dir)) is Status.PROCESSING


@both_detections
@pytest.mark.needs("fork")
def test_a_claim_of_the_parent_is_not_recovered_by_a_forked_child(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        with peer.fork() as child:
            assert child("queue.claim()") is None
            assert child(f"Pacchettino({os.fspath(queue_dir)!r}, {detection}).claim()") is None
            assert child(f"queue.status({id!r})") is Status.PROCESSING
        peer("job.succeed()")
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}


@pytest.mark.parametrize("verdict", ["succeed()", "fail()", "fail('reason')", "retry()", "retry(60)"])
@both_detections
@pytest.mark.needs("fork")
def test_a_forked_child_can_not_settle_the_job_of_its_parent(queue_dir: Path, detection: str, verdict: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        before = files(queue_dir)
        with peer.fork() as child:
            for _ in range(2):
                with pytest.raises(RuntimeError):
                    child(f"job.{verdict}")
            child.leave()
            child.end()
            child.finish()
            assert files(queue_dir) == before
        peer("job.succeed()")
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}


DROPS = {
    "deleting it": "del job",
    "collecting it": "import gc; job = None; gc.collect()",
    "leaving its block": "job.__exit__(None, None, None)",
    "leaving its block by an error": "job.__exit__(ValueError, ValueError(), None)",
    "leaving its block by an interrupt": "job.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)",
    "closing the queue": "queue.close()",
    "ending": "pass",
}


@pytest.mark.parametrize("drop", DROPS)
@both_detections
@pytest.mark.needs("fork")
def test_a_forked_child_that_lets_go_of_the_job_of_its_parent_does_nothing_to_it(
    queue_dir: Path, consumer: Pacchettino, detection: str, drop: str
) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        with peer.fork() as child:
            child("import warnings; warned = warnings.catch_warnings(record=True).__enter__()")
            child(DROPS[drop])
            assert child("[str(warning.message) for warning in warned]") == []
            child.leave()
            child.end()
            child.finish()
        assert_untouched(queue_dir, consumer, id)
        assert [is_locked(queue_dir / "owners" / os.fsdecode(owner)) for owner in entries(queue_dir / "owners")] == (
            [True] if detection == BY_TOKEN else []
        )
        peer("job.succeed()")
        assert files(queue_dir) == {b"success/raw-" + id.encode(): b"payload"}


@both_detections
@pytest.mark.needs("fork")
def test_a_forked_child_can_read_what_its_parent_knew_of_the_job(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        with peer.fork() as child:
            assert child("(job.id, job.entry, job.kind, job.name)") == (id, f"raw-{id}", "data", None)
            assert child("str(job.path)") == peer("str(job.path)")


@both_detections
@pytest.mark.needs("fork")
def test_a_job_of_a_forked_child_is_recovered_by_its_parent(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, detection) as peer:
        own = claim_one(peer)
        with peer.fork() as child:
            id = claim_one(child)
            assert peer("queue.claim()") is None
            child.kill()
            assert peer("queue.claim()") is None
            assert peer(f"queue.status({id!r})") is Status.INTERRUPTED
            assert peer(f"queue.status({own!r})") is Status.PROCESSING


# Another PID namespace

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def can_unshare() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_namespace = pytest.mark.skipif(not can_unshare(), reason="NOT TESTED: a PID namespace needs unshare(1) and root")


@needs_namespace
def test_a_claim_by_token_in_another_pid_namespace_is_alive_until_its_process_dies(
    queue_dir: Path, consumer: Pacchettino
) -> None:
    with Peer(queue_dir, under=NAMESPACE) as contained:
        assert contained("os.getpid()") == 1 != contained.pid
        id = claim_one(contained)
        assert_untouched(queue_dir, consumer, id)
        contained.kill()
        consumer.receive()
        assert_interrupted(queue_dir, id)


@needs_namespace
def test_a_claim_by_token_out_of_another_pid_namespace_is_alive_until_its_process_dies(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer, Peer(queue_dir, under=NAMESPACE) as contained:
        id = claim_one(peer)
        assert contained("queue.claim()") is None
        assert contained(f"queue.status({id!r})") is Status.PROCESSING
        peer.kill()
        assert contained("queue.claim()") is None
        assert_interrupted(queue_dir, id)


@needs_namespace
def test_two_namespaces_with_equal_pids_leave_each_other_alone(queue_dir: Path) -> None:
    with Peer(queue_dir, under=NAMESPACE) as one, Peer(queue_dir, under=NAMESPACE) as other:
        assert one("os.getpid()") == other("os.getpid()")
        ids = [claim_one(one), claim_one(other)]
        assert one("queue.claim()") is None
        assert other("queue.claim()") is None
        assert [one("job.id"), other("job.id")] == ids
        one.kill()
        assert other("queue.claim()") is None
        assert other(f"[queue.status(id) for id in {ids!r}]") == [Status.INTERRUPTED, Status.PROCESSING]


# What becomes of what is recovered


@pytest.mark.parametrize("policy", [KeepPolicy.NONE, KeepPolicy.SUCCESS | KeepPolicy.FAILED])
@both_detections
def test_a_policy_without_interrupted_deletes_what_it_recovers(
    queue_dir: Path, detection: str, policy: KeepPolicy
) -> None:
    with Peer(queue_dir, detection) as peer:
        id = claim_one(peer)
        peer.kill()
        queue = Pacchettino(queue_dir, policy)
        assert queue.claim() is None
        assert files(queue_dir) == {}
        assert entries(queue_dir / "processing") == []
        assert queue.status(id) is Status.UNKNOWN


@both_detections
def test_the_policy_that_decides_is_that_of_the_instance_that_recovers(queue_dir: Path, detection: str) -> None:
    with Peer(queue_dir, f"KeepPolicy.NONE, {detection}") as peer:
        id = claim_one(peer)
        peer.kill()
        Pacchettino(queue_dir, KeepPolicy.INTERRUPTED).claim()
        assert_interrupted(queue_dir, id)


def test_a_policy_without_interrupted_leaves_what_was_interrupted_before(queue_dir: Path) -> None:
    old, new = new_id().encode(), new_id().encode()
    lay_down(
        queue_dir,
        {b"interrupted/raw-" + old: b"old", b"processing/raw-%s.%d/raw" % (new, dead_pid()): b"new"},
    )
    Pacchettino(queue_dir, KeepPolicy.NONE).claim()
    assert files(queue_dir) == {b"interrupted/raw-" + old: b"old"}


@pytest.mark.parametrize("name", [None, b"report.pdf"])
@pytest.mark.parametrize("owner", ["pid", "token"])
def test_where_an_interrupted_job_of_that_name_is_already_both_are_kept(
    queue_dir: Path, consumer: Pacchettino, caplog: pytest.LogCaptureFixture, owner: str, name: bytes | None
) -> None:
    id = new_id()
    entry = b"raw-" + id.encode() if name is None else b"fle-%s-%s" % (id.encode(), name)
    suffix = b"%d" % dead_pid() if owner == "pid" else b"gone000000"
    claim = b"processing/%s.%s/%s" % (entry, suffix, name or b"raw")
    lay_down(queue_dir, {b"interrupted/" + entry: b"first", claim: b"second"})
    for _ in range(3):
        assert consumer.receive() == 0
        assert files(queue_dir) == {b"interrupted/" + entry: b"first", claim: b"second"}
    assert len([record for record in caplog.records if "both are kept" in record.getMessage()]) == 1

    (queue_dir / "interrupted" / os.fsdecode(entry)).unlink()
    consumer.receive()
    assert files(queue_dir) == {b"interrupted/" + entry: b"second"}
    assert entries(queue_dir / "processing") == []


def test_two_dead_claims_of_one_job_are_both_kept(queue_dir: Path, consumer: Pacchettino) -> None:
    entry = b"raw-" + new_id().encode()
    claims = {b"processing/%s.gone00000%d/raw" % (entry, number): b"%d" % number for number in range(3)}
    lay_down(queue_dir, claims)
    consumer.receive()
    found = files(queue_dir)
    assert sorted(found.values()) == sorted(claims.values())
    assert len([path for path in found if path.startswith(b"processing/")]) == 2
    assert b"interrupted/" + entry in found


def test_all_jobs_of_a_dead_consumer_are_interrupted_and_can_be_requeued(
    queue_dir: Path, consumer: Pacchettino
) -> None:
    with Peer(queue_dir) as peer:
        ids = peer("""
            ids = queue.send_many([b"payload"] * 50)
            jobs = [queue.claim() for _ in ids]
            ids
        """)
        assert len(entries(queue_dir / "processing")) == 50
        peer.kill()
        consumer.receive()
        assert_interrupted(queue_dir, *ids)
    assert consumer.requeue_all() == 50
    assert entries(queue_dir / "queued") == sorted(b"raw-" + id.encode() for id in ids)


@both_detections
def test_who_waits_for_work_recovers_what_a_consumer_leaves_that_dies_meanwhile(
    queue_dir: Path, detection: str
) -> None:
    with Peer(queue_dir, detection) as peer, Peer(queue_dir) as waiting:
        id = claim_one(peer)
        waiting.begin("job = queue.claim(timeout=60); job.id")
        peer.kill()
        # It can be requeued as soon as it is interrupted; that ends the wait.
        queue = Pacchettino(queue_dir)
        patience = threading.Event()
        for _ in range(6_000):
            if queue.requeue(id):
                break
            patience.wait(0.01)
        assert waiting.end() == id


def test_a_consumer_that_ends_in_order_with_a_claim_leaves_the_job_interrupted(
    queue_dir: Path, consumer: Pacchettino
) -> None:
    with Peer(queue_dir) as peer:
        id = claim_one(peer)
        peer("import warnings; warnings.simplefilter('ignore')")
        peer.finish()
        consumer.receive()
        assert_interrupted(queue_dir, id)
        assert entries(queue_dir / "owners") == []
