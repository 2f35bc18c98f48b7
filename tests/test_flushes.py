"""How many flushes an operation of a durable queue makes: exact numbers, since they are what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pacchettino import KeepPolicy, Pacchettino, Result, Status
from syscalls import Tell, needs_traps, trap

pytestmark = needs_traps

JOBS = 100

Work = Callable[[Pacchettino], object]


def handled(verdict: Result, receive: Work) -> Work:
    """Have jobs handled with that verdict."""

    def work(queue: Pacchettino) -> None:
        queue.on_data_received(lambda id, data: verdict)
        receive(queue)

    return work


def receive_one_by_one(queue: Pacchettino) -> None:
    for _ in range(JOBS):
        assert queue.receive_one()


def receive_all(queue: Pacchettino) -> None:
    assert queue.receive() == JOBS


def send_one_by_one(queue: Pacchettino) -> None:
    for _ in range(JOBS):
        queue.send_data("x")


RECORD = 2
"""The record of an attempt, and its directory."""

FIRST_RECORD = RECORD + 2
"""Beside that the directories above it."""

FLUSHES: dict[str, tuple[Work, KeepPolicy, int]] = {
    "send_data": (send_one_by_one, KeepPolicy.ALL, 2 * JOBS),
    "send_many": (lambda queue: queue.send_many(["x"] * JOBS), KeepPolicy.ALL, JOBS + 1),
    "send_many, delayed": (lambda queue: queue.send_many(["x"] * JOBS, delay=3600), KeepPolicy.ALL, JOBS + 1),
    "receive_one": (handled(Result.SUCCESS, receive_one_by_one), KeepPolicy.ALL, 3 * JOBS),
    "receive_one, nothing kept": (handled(Result.SUCCESS, receive_one_by_one), KeepPolicy.NONE, 3 * JOBS),
    "receive": (handled(Result.SUCCESS, receive_all), KeepPolicy.ALL, 3 * JOBS),
    "receive, nothing kept": (handled(Result.FAILED, receive_all), KeepPolicy.NONE, 3 * JOBS),
    "receive, again": (handled(Result.RETRY, receive_all), KeepPolicy.ALL, (3 + FIRST_RECORD) * JOBS),
    "requeue_all": (lambda queue: queue.requeue_all(), KeepPolicy.ALL, RECORD * JOBS + 1),
    "cleanup": (lambda queue: queue.cleanup(KeepPolicy.FAILED), KeepPolicy.ALL, 1),
    "cancel": (lambda queue: [queue.cancel(job.id) for job in queue.jobs(Status.QUEUED)], KeepPolicy.ALL, JOBS),
    "pause": (lambda queue: queue.pause(), KeepPolicy.ALL, 1),
    "pause and resume": (lambda queue: [queue.pause(), queue.resume()], KeepPolicy.ALL, 2),
}
"""What is done with a hundred jobs, waiting or failed, and how many flushes all of it makes."""


def calls_of(base: Path, name: str, *, durable: bool) -> list[str]:
    work, keep, _ = FLUSHES[name]

    def program(tell: Tell) -> Iterator[None]:
        queue = Pacchettino(base, keep, durable=durable)
        queue.send_data("so that all is there that is made once", delay=3600)
        if name in {"requeue_all", "cleanup"}:
            queue.send_many(["x"] * JOBS)
            handled(Result.FAILED, receive_all)(queue)
        elif "receive" in name or name == "cancel":
            queue.send_many(["x"] * JOBS)
        yield
        work(queue)

    return trap(program)


@pytest.mark.parametrize("name", FLUSHES)
def test_a_durable_operation_makes_that_many_flushes_and_another_none(name: str, quick_dir: Path) -> None:
    assert Counter(calls_of(quick_dir / "durable", name, durable=True))["fsync"] == FLUSHES[name][2]
    assert not {"fsync", "sync_file_range"} & {*calls_of(quick_dir / "not", name, durable=False)}


def test_of_a_batch_the_disk_has_begun_with_each_file_before_any_is_waited_for(quick_dir: Path) -> None:
    calls = [call for call in calls_of(quick_dir, "send_many", durable=True) if call in {"fsync", "sync_file_range"}]
    begun = [call for call in calls if call == "sync_file_range"]
    assert len(begun) == JOBS
    assert calls[:65] == begun[:65]


def test_of_a_receive_the_flush_of_a_verdict_comes_after_those_of_the_next_claim(quick_dir: Path) -> None:
    """By then the filesystem has written it with the claim, and has nothing more to do."""
    calls = [call for call in calls_of(quick_dir, "receive", durable=True) if call in {"fsync", "renameat2"}]
    first, between, last = ["renameat2"], ["renameat2", "renameat2", *["fsync"] * 3], ["renameat2", "fsync"]
    assert calls == [*first, "fsync", "fsync", *between * (JOBS - 1), *last]


def test_the_record_of_an_attempt_is_flushed_before_its_job_moves_and_marked_after_that_is_flushed(
    quick_dir: Path,
) -> None:
    def program(tell: Tell) -> Iterator[None]:
        queue = Pacchettino(quick_dir / "queue", durable=True)
        queue.send_data("x")
        job = queue.claim()
        assert job is not None
        yield
        job.fail()

    calls = [call for call in trap(program) if call in {"write", "fsync", "renameat2"}]
    record, settle, mark = ["write", *["fsync"] * FIRST_RECORD], ["renameat2", "fsync"], ["renameat2"]
    assert calls == [*record, *settle, *mark]
