"""A clock that is stepped while a queue is at work: forward, back, and to 1970 as on a board without a battery."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from helpers import Clock, Ledger, Peer, entries, files, new_id, sleeps_on_the_watch, until
from pacchettino import Pacchettino, Status

MINUTE, HOUR, DAY, YEAR = 60, 3600, 24 * 3600, 365 * 24 * 3600

BOOT = 100
"""What a clock shows soon after boot, on a board without a battery."""


def start_of(year: int) -> int:
    """Give the seconds from 1970 to the beginning of a year."""
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


def right(clock: Clock) -> None:
    """Set a clock right."""
    clock.step(-clock.offset)


@pytest.fixture
def peer(queue_dir: Path, clock: Clock) -> Iterator[Peer]:
    """A process whose clock the test can set; it notes the jobs that it handles."""
    with Peer(queue_dir, clock=clock) as peer:
        peer("""
            import time
            from datetime import timedelta
            handled = []
            queue.on_data_received(lambda id, data: handled.append(id))
            handled
        """)
        yield peer


# Ids

STEPS = {
    "back an hour": [-HOUR],
    "forward ten years and back": [10 * YEAR, -10 * YEAR],
    "back to 1970": [-start_of(2020)],
    "back before 1970": [-200 * YEAR],
    "beyond what an id can tell, and back": [8_890 * YEAR, -8_890 * YEAR],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_the_ids_of_a_process_increase_whatever_the_clock_does(peer: Peer, clock: Clock, steps: list[int]) -> None:
    peer("""
        def send():
            mine = []
            for _ in range(20):
                mine += [queue.send_data("a"), *queue.send_many(["a", "b"])]
            return mine

        def send_in_threads():
            sent = []
            threads = [threading.Thread(target=lambda: sent.append(send())) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sent
    """)
    before: list[str] = []
    for step in [0, *steps, 0]:
        clock.step(step)
        threads = peer("send_in_threads()")
        assert all(one < other for ids in threads for one, other in pairwise(ids))
        ids = sorted(id for ids in threads for id in ids)
        assert len(set(ids)) == 3 * 60
        assert before[-1:] < ids[:1]
        before = ids
    with peer.fork() as child:
        clock.step(-HOUR)
        sent = peer("send()"), child("send()")
        assert before[-1] < min(sent[0]) < max(sent[0])
        assert before[-1] < min(sent[1])
        assert not {*sent[0]} & {*sent[1]}


@pytest.mark.parametrize("year", [1970, 2039, 2107, 2287, 9999])
def test_an_id_tells_the_time_whatever_the_year(queue_dir: Path, clock: Clock, year: int) -> None:
    with Peer(queue_dir, clock=clock) as peer:
        clock.set(start_of(year) + DAY)
        sent = Pacchettino.sent_at(peer("queue.send_data('a')"))
        assert timedelta(0) <= sent - datetime(year, 1, 2, tzinfo=UTC) < timedelta(hours=1)
        assert peer("queue.claim().sent_at") == sent


def test_a_clock_before_1970_counts_as_1970(queue_dir: Path, clock: Clock) -> None:
    clock.set(-YEAR)
    with Peer(queue_dir, clock=clock) as peer:
        ids = peer("[queue.send_data('a') for _ in range(3)]")
        assert ids == sorted(ids)
        assert {Pacchettino.sent_at(id).year for id in ids} == {1970}
        peer("queue.send_data('later', delay=60)")
        assert [job.due for job in Pacchettino(queue_dir).jobs(Status.SCHEDULED)] == [
            datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
        ]
        assert {peer("queue.claim().id") for _ in ids} == {*ids}


def test_a_clock_beyond_the_year_9999_counts_as_its_end(queue_dir: Path, clock: Clock) -> None:
    with Peer(queue_dir, clock=clock) as peer:
        clock.set(start_of(9999) + 2000 * YEAR)
        ids = peer("queue.send_many(['a'] * 3)")
        assert ids == sorted(ids)
        assert {Pacchettino.sent_at(id).replace(microsecond=0) for id in ids} == {
            datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
        }


def test_in_fifo_order_what_is_sent_after_the_clock_went_back_comes_first_if_another_process_sent_it(
    queue_dir: Path, peer: Peer, clock: Clock
) -> None:
    first = peer("queue.send_data('a')")
    clock.step(-HOUR)
    with Peer(queue_dir, clock=clock) as other:
        third = other("queue.send_data('a')")
    second = peer("queue.send_data('a')")
    peer("queue.receive(fifo=True)")
    assert peer("handled") == [third, first, second]


# Delays


def test_a_delay_counts_by_the_clock(peer: Peer, clock: Clock) -> None:
    id = peer("queue.send_data('a', delay=600)")
    clock.step(-HOUR)
    assert peer(f"queue.receive(), queue.status({id!r}).value") == (0, "scheduled")
    clock.step(HOUR)
    assert peer("queue.receive()") == 0
    clock.step(HOUR)
    assert peer("queue.receive(), queue.receive(), handled") == (1, 0, [id])


@pytest.mark.parametrize("wait", ["queue.receive_one(timeout=None)", "queue.receive_one(timeout=7200)"])
def test_who_waits_for_a_delay_to_end_notices_that_the_clock_jumped_over_it(
    peer: Peer, clock: Clock, wait: str
) -> None:
    id = peer("queue.send_data('a', delay=3600)")
    peer.begin(wait)
    until(lambda: sleeps_on_the_watch(peer))
    clock.step(10 * YEAR)
    assert peer.end()
    assert peer("handled") == [id]


def test_who_waits_for_a_delay_that_the_clock_made_longer_takes_what_comes_before(
    queue_dir: Path, peer: Peer, clock: Clock
) -> None:
    delayed = peer("queue.send_data('a', delay=600)")
    peer.begin("queue.receive_one(timeout=None)")
    until(lambda: sleeps_on_the_watch(peer))
    clock.set(BOOT)
    id = Pacchettino(queue_dir).send_data("b")
    assert peer.end()
    assert peer("handled") == [id]
    assert Pacchettino(queue_dir).is_scheduled(delayed)


RETRIES = {
    "a handler": "queue.retry_delay = 600; queue.on_data_received = lambda id, data: Result.RETRY; queue.receive()",
    "a job": "queue.claim().retry(600)",
}


@pytest.mark.parametrize("retry", RETRIES.values(), ids=RETRIES)
@pytest.mark.parametrize("year", [1970, 2200])
def test_a_retry_is_due_by_the_clock_at_its_verdict(
    queue_dir: Path, peer: Peer, clock: Clock, year: int, retry: str
) -> None:
    peer("queue.send_data('a')")
    clock.set(start_of(year))
    peer(retry)
    (job,) = Pacchettino(queue_dir).jobs(Status.SCHEDULED)
    assert job.due is not None
    assert timedelta(0) <= job.due - datetime(year, 1, 1, 0, 10, tzinfo=UTC) < timedelta(hours=1)
    clock.step(2 * HOUR)
    assert peer("queue.claim().id") == job.id


def test_a_retry_that_no_name_can_hold_interrupts_the_job_and_ends_no_loop(
    queue_dir: Path, peer: Peer, clock: Clock
) -> None:
    clock.set(start_of(2200))
    peer("queue.retry_delay = timedelta(days=36500)")
    peer("queue.on_data_received = lambda id, data: Result.RETRY if data == b'again' else None")
    id = peer("queue.send_data('again')")
    assert peer("queue.receive_one()")
    assert entries(queue_dir / "interrupted") == [b"raw-" + id.encode()]
    assert peer("queue.send_data('once') and queue.receive_one()")


def test_a_delay_beyond_the_year_2286_is_refused_and_leaves_nothing(queue_dir: Path, clock: Clock) -> None:
    with Peer(queue_dir, clock=clock) as peer:
        clock.set(9_999_999_999 - HOUR)
        id = peer("queue.send_data('a', delay=1800)")
        with pytest.raises(ValueError, match="2286"):
            peer("queue.send_data('b', delay=7200)")
        assert [path[-36:].decode() for path in files(queue_dir)] == [id]
        clock.step(HOUR - 60)
        assert peer("queue.claim().id") == id


def test_on_a_board_without_a_battery_what_is_sent_before_the_time_is_known_comes_once_it_is(
    queue_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    clock.set(BOOT)
    with Peer(queue_dir, clock=clock) as peer, Peer(queue_dir, clock=clock) as other:
        peer("handled = []; queue.on_data_received(lambda id, data: handled.append(id)) and None")
        ids = peer("[queue.send_data('a', delay=delay) for delay in (600, 3600, 86400)]")
        assert not peer("queue.receive_one()")
        other.begin("job = queue.claim(timeout=None); job.id")
        until(lambda: sleeps_on_the_watch(other))
        right(clock)
        taken = other.end()
        other("job.succeed()")
        peer("queue.receive()")
        assert sorted([taken, *peer("handled")]) == sorted(ids)
        assert peer("queue.receive()") == 0


def test_on_a_board_without_a_battery_a_delay_from_before_the_reboot_waits_until_the_time_is_known(
    queue_dir: Path, clock: Clock
) -> None:
    with Peer(queue_dir, clock=clock) as sender:
        id = sender("queue.send_data('a', delay=600)")
        sender.kill()
    clock.set(BOOT)
    with Peer(queue_dir, clock=clock) as peer:
        assert peer("queue.claim()") is None
        clock.step(HOUR)
        assert peer("queue.claim()") is None
        peer.begin("queue.claim(timeout=None).id")
        until(lambda: sleeps_on_the_watch(peer))
        right(clock)
        clock.step(HOUR)
        assert peer.end() == id
        assert peer("queue.claim()") is None


def test_a_delay_given_by_a_clock_that_was_ahead_waits_for_that_time_or_for_somebody_to_move_the_file(
    queue_dir: Path, peer: Peer, clock: Clock
) -> None:
    clock.step(10 * YEAR)
    ids = sorted(peer("[queue.send_data('a', delay=5) for _ in range(2)]"))
    right(clock)
    assert peer("queue.receive()") == 0
    first, _ = sorted((queue_dir / "scheduled").iterdir())
    first.rename(queue_dir / "queued" / first.name[14:])
    assert peer("queue.receive()") == 1
    clock.step(10 * YEAR + MINUTE)
    assert peer("queue.receive(), sorted(handled)") == (1, ids)


# Waits


def test_a_wait_keeps_its_length_when_the_clock_goes_forward(queue_dir: Path, peer: Peer, clock: Clock) -> None:
    """That it has looked since is seen by a job of the other kind, which becomes due by that."""
    other = peer("queue.send_data('of the other kind', delay=timedelta(days=1000))")
    peer.begin("queue.claim(timeout=3600, kind='file').name")
    until(lambda: sleeps_on_the_watch(peer))
    clock.step(10 * YEAR)
    until(lambda: entries(queue_dir / "queued") == [b"raw-" + other.encode()])
    until(lambda: sleeps_on_the_watch(peer))
    Pacchettino(queue_dir).send_file(__file__)
    assert peer.end() == Path(__file__).name


@pytest.mark.parametrize("step", [-HOUR, -start_of(2020), 10 * YEAR])
@pytest.mark.parametrize("wait", ["queue.receive_one(timeout=0.3)", "queue.claim(timeout=0.3)"])
def test_a_wait_ends_after_its_time_whatever_the_clock_does(peer: Peer, clock: Clock, wait: str, step: int) -> None:
    peer("queue.send_data('a', delay=timedelta(days=30000))")
    peer.begin(f"began = time.monotonic(); job = {wait}; time.monotonic() - began, bool(job)")
    until(lambda: sleeps_on_the_watch(peer) or peer.has_answered())
    clock.step(step)
    length, job = peer.end()
    assert (length >= 0.3, job) == (True, False)


def test_waiting_takes_next_to_nothing_while_the_directories_have_times_of_the_future(peer: Peer, clock: Clock) -> None:
    """A thousand jobs of another kind are listed at every look then; a look a second takes about a millisecond."""
    peer("queue.send_many(['a'] * 1000, delay=0)")
    clock.set(BOOT)
    assert peer("began = time.process_time(); queue.claim(timeout=1.5, kind='file'); time.process_time() - began") < 0.3


# Directories that have the time that they had before


def test_a_job_is_not_missed_when_the_clock_goes_back_to_the_time_of_the_last_look(
    filesystem_of_seconds: Path, clock: Clock
) -> None:
    """In a second that came twice the directory's time is the same before and after a job came."""
    queued = filesystem_of_seconds / "queue" / "queued"
    sender = Pacchettino(queued.parent)

    def second() -> int:
        return queued.stat().st_ctime_ns

    with Peer(queued.parent, clock=clock) as peer:
        while True:
            sender.send_data("of the other kind")
            before = second()
            clock.step(HOUR)
            assert peer("queue.claim(kind='file')") is None
            clock.step(-HOUR)
            id = sender.send_file(__file__)
            if second() == before:
                break
            assert peer("queue.claim(kind='file').succeed()") is None
        assert peer("queue.claim(kind='file').id") == id


# What is deleted by its age


@pytest.mark.parametrize("step", [-HOUR, -start_of(2020), 10 * YEAR])
def test_what_the_living_have_in_tmp_and_owners_stays_whatever_the_clock_does(
    queue_dir: Path, peer: Peer, clock: Clock, step: int
) -> None:
    peer("queue.send_data('a') and queue.claim().succeed()")
    (token,) = entries(queue_dir / "owners")
    drafts = {
        new_id().encode() + b"-" + token: "being written by a process that lives",
        new_id().encode(): "being written by a process without a lock file",
        b"owner-abcdefghij": "about to be renamed, and locked",
    }
    for name, content in drafts.items():
        (queue_dir / "tmp" / os.fsdecode(name)).write_text(content)
    with (queue_dir / "tmp" / "owner-abcdefghij").open() as unborn:
        fcntl.flock(unborn, fcntl.LOCK_EX)
        clock.step(step)
        with Peer(queue_dir, clock=clock) as other:
            for process in (other, peer):
                assert process("queue.claim()") is None
                assert entries(queue_dir / "tmp") == sorted(drafts)
                assert token in entries(queue_dir / "owners")


@pytest.mark.parametrize(
    ("before_sending", "before_settling", "after", "deleted"),
    [
        pytest.param(0, 0, 0, 0, id="no step"),
        pytest.param(0, 0, 23 * HOUR, 0, id="less than a day"),
        pytest.param(0, 0, 25 * HOUR, 1, id="more than a day"),
        pytest.param(0, 0, -HOUR, 0, id="back an hour"),
        pytest.param(0, 0, -start_of(2020), 0, id="back to 1970"),
        pytest.param(10 * YEAR, 0, -10 * YEAR, 0, id="ahead, then right"),
        pytest.param(0, 10 * YEAR, -10 * YEAR, 0, id="ahead for the verdict, then right"),
        pytest.param(10 * YEAR, -10 * YEAR, 23 * HOUR, 0, id="ahead for the sending, less than a day"),
        pytest.param(10 * YEAR, -10 * YEAR, 25 * HOUR, 1, id="ahead for the sending, more than a day"),
        pytest.param(0, -start_of(2020), start_of(2020), 0, id="in 1970 for the verdict, then right"),
        pytest.param(0, -start_of(2020), start_of(2020) + 25 * HOUR, 1, id="the same, and more than a day"),
        # Nothing tells that this was not long ago; the README says so.
        pytest.param(-start_of(2020), 0, start_of(2020), 1, id="in 1970, then right"),
    ],
)
def test_cleanup_deletes_what_was_settled_a_day_ago_as_far_as_that_can_be_known(
    queue_dir: Path, clock: Clock, before_sending: int, before_settling: int, after: int, deleted: int
) -> None:
    clock.step(before_sending)
    with Peer(queue_dir, clock=clock) as peer:
        peer("queue.send_data('a')")
        clock.step(before_settling)
        peer("queue.claim().fail()")
        clock.step(after)
        assert peer("from datetime import timedelta; queue.cleanup(older_than=timedelta(days=1))") == deleted


# All of it together


@pytest.mark.parametrize("rounds", [40, pytest.param(600, marks=[pytest.mark.torture, pytest.mark.timeout(300)])])
def test_each_job_is_handled_once_while_the_clock_goes_to_and_fro(
    queue_dir: Path, tmp_path: Path, clock: Clock, rounds: int
) -> None:
    seed = int(os.environ.get("PACCHETTINO_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"PACCHETTINO_SEED={seed}")
    chance = random.Random(seed)
    ledger = Ledger(tmp_path / "ledger")
    with Peer(queue_dir, clock=clock) as sender, Peer(queue_dir, clock=clock) as consumer:
        consumer(f"path = {str(ledger.path)!r}")
        consumer("""
            from helpers import Ledger
            ledger, over = Ledger(path), threading.Event()
            queue.on_data_received(lambda id, data: ledger.add(id))
            def loop():
                while not over.is_set():
                    queue.receive_one(timeout=0.05)
            threads = [threading.Thread(target=loop) for _ in range(2)]
            for thread in threads:
                thread.start()
        """)
        ids = []
        for _ in range(rounds):
            clock.set(chance.choice([BOOT, start_of(2026), start_of(2036), clock.now() + HOUR, clock.now() - HOUR]))
            delay = chance.choice([0, 0.001, 60, 2 * HOUR])
            ids.append(sender(f"queue.send_data('a', delay={delay})"))
        clock.set(start_of(2100))
        until(lambda: len(ledger.lines()) >= len(ids))
        consumer("over.set(); [thread.join() for thread in threads]; queue.receive()")
    assert sorted(ledger.lines()) == sorted(ids)
    assert entries(queue_dir / "scheduled") == entries(queue_dir / "queued") == entries(queue_dir / "processing") == []
    ledger.close()
