"""Operating a queue: pause and resume, cancel, and its figures."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import find, finish_thread
from helpers import Ledger, Peer, cpu_seconds, dead_pid, entries, lay_down, new_id, sleeps_on_the_watch, until
from pacchettino import Pacchettino, Status

WRITE_DOWN = """
    import time
    from pathlib import Path
    from helpers import Ledger
    ledger = Ledger(Path({!r}))

    @queue.on_data_received
    def handle(id, data):
        ledger.add(str(time.monotonic()))
        time.sleep(0.001)

    def work():
        while queue.receive_one(timeout=None):
            pass
"""


# Pause


def test_of_a_paused_queue_no_job_is_taken_until_it_goes_on(queue: Pacchettino) -> None:
    handled: list[str] = []
    queue.on_data_received(lambda id, data: handled.append(id))
    assert not queue.paused
    id = queue.send_data("a")
    for _ in range(2):  # twice is as good as once
        queue.pause()
        assert queue.paused
    assert queue.claim() is None
    assert queue.claim(timeout=0.1) is None
    assert not queue.receive_one(timeout=0.1)
    assert queue.receive() == 0
    assert queue.is_queued(queue.send_data("b"))
    for _ in range(2):
        queue.resume()
        assert not queue.paused
    assert queue.receive() == 2
    assert id in handled


def test_a_receive_ends_when_the_queue_is_paused_by_a_handler(queue: Pacchettino) -> None:
    queue.on_data_received(lambda id, data: queue.pause())
    queue.send_many(list("abc"))
    assert queue.receive() == 1
    assert (queue.count_successful(), queue.count_queued()) == (1, 2)


def test_a_pause_holds_for_other_instances_and_after_a_restart(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("queue.send_data('a'); queue.pause()")
        peer.finish()
    with Pacchettino(queue_dir) as queue:
        assert queue.paused
        assert queue.claim() is None
    with Peer(queue_dir) as peer:
        assert peer("queue.paused, queue.claim()") == (True, None)
        peer("queue.resume()")
    with Pacchettino(queue_dir) as queue, queue.claim() as job:  # type: ignore[union-attr]
        assert job.data == b"a"


@pytest.mark.needs("kernel events")
def test_all_processes_stop_within_a_second_and_finish_what_they_hold(queue: Pacchettino, tmp_path: Path) -> None:
    jobs = queue.send_many(["a"] * 5_000)
    ledger = Ledger(tmp_path / "ledger")
    with Peer(queue.base_dir) as loops, Peer(queue.base_dir) as receives, Peer(queue.base_dir) as holds:
        holds("job = queue.claim()")
        for peer in (loops, receives):
            peer(WRITE_DOWN.format(os.fspath(ledger.path)))
        loops.begin("work()")
        receives.begin("queue.receive()")
        until(lambda: len(ledger.lines()) > 100)
        queue.pause()
        paused = time.monotonic()
        assert receives.end() > 0
        until(lambda: sleeps_on_the_watch(loops) and queue.count_processing() == 1)
        handled = [float(line) for line in ledger.lines()]
        assert max(handled) < paused + 1.3  # a second, and a handler that has begun
        assert len(handled) < len(jobs) - 1
        assert holds("job.data") == b"a"
        holds("job.succeed()")
        assert queue.count_successful() == len(handled) + 1 == len(ledger.lines()) + 1
        ledger.close()
        loops.kill()


@pytest.mark.needs("kernel events")
def test_who_waits_is_woken_at_once_when_the_queue_goes_on(queue: Pacchettino) -> None:
    rounds = 10
    with Peer(queue.base_dir) as peer:
        peer("queue.on_data_received(lambda id, data: None); None")
        began = time.monotonic()
        for _ in range(rounds):
            peer("queue.pause()")  # another process might take one more
            queue.send_data("a")
            peer.begin("queue.receive_one(timeout=None)")
            until(lambda: sleeps_on_the_watch(peer))
            queue.resume()
            assert peer.end() is True
        # Without a word of the kernel each would take a second.
        assert time.monotonic() - began < rounds / 2


def test_who_waits_in_another_thread_goes_on(queue: Pacchettino) -> None:
    queue.pause()
    queue.send_data("a")
    taken: list[bool] = []
    queue.on_data_received(lambda id, data: None)
    waiting = threading.Thread(target=lambda: taken.append(queue.receive_one(timeout=None)))
    waiting.start()
    queue.resume()
    finish_thread(waiting)
    assert taken == [True]


@pytest.mark.needs("kernel events", "/proc")
def test_who_waits_for_the_end_of_a_pause_takes_next_to_nothing(queue: Pacchettino) -> None:
    queue.pause()
    queue.send_many(["a"] * 100)
    with Peer(queue.base_dir) as peer:
        peer.begin("queue.claim(timeout=2)")
        until(lambda: sleeps_on_the_watch(peer))
        before = cpu_seconds(peer.pid)
        assert peer.end() is None
        assert cpu_seconds(peer.pid) - before < 0.1


def test_time_goes_on_for_a_paused_queue(queue: Pacchettino) -> None:
    queue.pause()
    assert queue.claim() is None
    dead = new_id()
    lay_down(queue.base_dir, {f"processing/raw-{dead}.{'a' * 10}/raw".encode(): b"half"})
    assert queue.claim() is None
    due = queue.send_data("a", delay=0.01)
    assert queue.claim(timeout=0.2) is None
    assert (queue.status(due), queue.status(dead)) == (Status.QUEUED, Status.INTERRUPTED)


def test_programs_that_know_nothing_of_pauses_see_none(queue: Pacchettino) -> None:
    queue.send_data("a")
    before = find(queue.base_dir)
    queue.pause()
    assert set(find(queue.base_dir)) - set(before) == {"paused"}
    queue.resume()
    assert find(queue.base_dir) == before


def test_a_pause_that_can_not_be_made_or_ended_is_an_error(queue: Pacchettino) -> None:
    in_the_way = queue.base_dir / "paused"
    in_the_way.mkdir()
    assert queue.paused  # whatever it is
    with pytest.raises(OSError, match="paused"):
        queue.resume()
    in_the_way.rmdir()
    assert not queue.paused


# Cancel


@pytest.fixture
def send(queue: Pacchettino) -> Callable[[str, float], str]:
    """Sends a job of that kind with that delay."""

    def send(kind: str, delay: float) -> str:
        return queue.send_data("a", delay=delay) if kind == "data" else queue.send_file(__file__, delay=delay)

    return send


Send = Callable[[str, float], str]
kinds = pytest.mark.parametrize("kind", ["data", "file"])


@kinds
@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("by", ["id", "entry"])
def test_a_job_that_waits_is_taken_out(queue: Pacchettino, send: Send, kind: str, delay: float, by: str) -> None:
    others = [send("data", 0), send("file", 60)]
    id = send(kind, delay)
    before = find(queue.base_dir)
    (file,) = [name for name in before if id in name]
    entry = f"raw-{id}" if kind == "data" else f"fle-{id}-{Path(__file__).name}"
    assert queue.cancel(id if by == "id" else entry)
    assert find(queue.base_dir) == [name for name in before if name != file]
    assert queue.status(id) is Status.UNKNOWN
    assert [queue.status(other) for other in others] == [Status.QUEUED, Status.SCHEDULED]
    assert not queue.cancel(id)


@kinds
@pytest.mark.parametrize("delay", [0, 60])
def test_what_is_recorded_of_a_job_goes_with_it(queue: Pacchettino, send: Send, kind: str, delay: float) -> None:
    id = send(kind, 0)
    job = queue.claim()
    assert job is not None
    job.retry(delay, "once more")
    assert len(entries(queue.base_dir / "history")) == 1
    assert queue.cancel(id)
    assert entries(queue.base_dir / "history") == []


@kinds
def test_a_job_that_was_claimed_is_not(queue: Pacchettino, send: Send, kind: str) -> None:
    id = send(kind, 0)
    job = queue.claim()
    assert job is not None
    assert not queue.cancel(id)
    job.succeed()
    assert not queue.cancel(id)
    assert queue.is_success(id)


@pytest.mark.parametrize(
    "id", ["", "raw-", "nonsense", new_id(0), f"fle-{new_id(0)}-../x"], ids=["empty", "raw-", "nonsense", "id", "path"]
)
def test_of_what_is_no_job_there_is_none_to_cancel(queue: Pacchettino, id: str) -> None:
    queue.send_data("a")
    assert not queue.cancel(id)
    assert queue.count_queued() == 1


@pytest.mark.parametrize("state", ["queued", "scheduled"])
@pytest.mark.needs("symlinks")
def test_what_is_no_job_under_a_jobs_name_is_left_alone(queue: Pacchettino, tmp_path: Path, state: str) -> None:
    target = tmp_path / "target"
    target.write_text("content")
    for make in (lambda path: path.symlink_to(target), Path.mkdir):
        id = new_id()
        path = queue.base_dir / state / (f"raw-{id}" if state == "queued" else f"9000000000000-raw-{id}")
        make(path)
        assert not queue.cancel(id)
        assert os.path.lexists(path)
    assert target.read_text() == "content"


@pytest.mark.parametrize("id", [None, 1, b"raw", Path("raw")])
def test_an_id_of_a_wrong_type_is_a_type_error(queue: Pacchettino, id: Any) -> None:
    with pytest.raises(TypeError):
        queue.cancel(id)


def test_of_a_claim_and_a_cancel_one_wins(quick_dir: Path) -> None:
    queue = Pacchettino(quick_dir / "queue")
    ids = queue.send_many(["a"] * 3000)
    queue.on_data_received(lambda id, data: None)
    with Peer(queue.base_dir) as peer:
        peer("handled = []; queue.on_data_received(lambda id, data: handled.append(id)); None")
        peer.begin("queue.receive()")
        cancelled = {id for id in ids if queue.cancel(id)}
        peer.end()
        handled = peer("handled")
    assert len(handled) == len(set(handled))
    assert cancelled.isdisjoint(handled)
    assert cancelled.union(handled) == set(ids)
    assert queue.count_all() == len(handled)


# Figures


def test_the_figures_of_an_empty_queue(queue: Pacchettino) -> None:
    found = queue.stats()
    assert dataclasses.astuple(found) == (0, 0, 0, 0, 0, 0, None, None, ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.queued = 1  # type: ignore[misc]


def test_each_state_is_counted_whatever_the_policy(queue_dir: Path) -> None:
    directories = {"queued": 1, "scheduled": 2, "success": 3, "failed": 4, "interrupted": 5}
    for state, count in directories.items():
        prefix = "9000000000000-" if state == "scheduled" else ""
        lay_down(queue_dir, {f"{state}/{prefix}raw-{new_id()}".encode(): b"" for _ in range(count)})
    with Pacchettino(queue_dir, Pacchettino.KeepPolicy.NONE) as queue:
        found = queue.stats()
    assert {state: getattr(found, state) for state in directories} == directories
    assert found.processing == 0


def test_the_oldest_that_waits_and_the_next_that_is_due(queue: Pacchettino) -> None:
    now = datetime.now(UTC)
    hour_ago = int((now - timedelta(hours=1)).timestamp() * 1000)
    lay_down(queue.base_dir, {f"queued/raw-{new_id(hour_ago)}".encode(): b"", f"success/raw-{new_id(1)}".encode(): b""})
    queue.send_data("a")
    queue.send_data("a", delay=7200)
    queue.send_data("a", delay=3600)
    found = queue.stats()
    assert found.oldest is not None
    assert found.next_due is not None
    assert timedelta(0) <= found.oldest - timedelta(hours=1) < timedelta(minutes=1)
    assert timedelta(0) <= found.next_due - now - timedelta(hours=1) < timedelta(minutes=1)


def test_a_job_from_the_future_has_no_negative_age(queue: Pacchettino) -> None:
    lay_down(queue.base_dir, {f"queued/raw-{new_id(int(time.time() * 1000) + 10**9)}".encode(): b""})
    assert queue.stats().oldest == timedelta(0)


def test_who_lives_and_holds_what_and_since_when(queue: Pacchettino) -> None:
    by_pid = "crash_detection=CrashDetection.PID"
    with Peer(queue.base_dir) as one, Peer(queue.base_dir, by_pid) as two, Peer(queue.base_dir) as idle:
        began = datetime.now(UTC)
        idle("queue.send_many(list('abc'))")
        first = one("jobs = [queue.claim(fifo=True), queue.claim(fifo=True)]; [job.id for job in jobs]")
        (second,) = two("jobs = [queue.claim()]; [job.id for job in jobs]")
        consumers = sorted(queue.stats().consumers, key=lambda consumer: len(consumer.holds))
        assert [[job.id for job in consumer.holds] for consumer in consumers] == [[second], first]
        assert consumers[0].owner == str(two.pid)
        assert (queue.base_dir / "owners" / consumers[1].owner).exists()
        slack = timedelta(milliseconds=50)  # files are stamped by a clock that ticks
        for job in (job for consumer in consumers for job in consumer.holds):
            assert began - slack <= job.since <= datetime.now(UTC)
        one("for job in jobs: job.succeed()")
        two.kill()
        two.reap()
        found = queue.stats()
        assert (found.processing, found.success, found.consumers) == (1, 2, ())


def test_a_dead_consumer_is_none(queue: Pacchettino) -> None:
    lay_down(queue.base_dir, {f"processing/raw-{new_id()}.{dead_pid()}/raw".encode(): b""})
    found = queue.stats()
    assert (found.processing, found.consumers) == (1, ())
