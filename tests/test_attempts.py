"""A job is tried as often as is said, with the pauses that are said, and its history tells a person why it failed."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import finish_thread, start_python
from helpers import entries, files, lay_down, new_id, raiser
from pacchettino import (
    Attempt,
    Backoff,
    Fail,
    Job,
    KeepPolicy,
    Pacchettino,
    Result,
    Retry,
    Status,
    current_job,
)


@pytest.fixture
def tmp_path(quick_dir: Path) -> Path:
    """Give a directory in memory: nothing here depends on the filesystem, and a busy disk takes four times as long."""
    return quick_dir


WORST = 2**32 - 1


def handle_with(queue: Pacchettino, *acts: Callable[[], Any]) -> list[int]:
    """Have each attempt do the next of these things, and the last of them from then on. Gives the attempts' numbers."""
    attempts: list[int] = []

    def handler(id: str, data: bytes) -> Any:
        attempts.append(current_job().attempt)
        return acts[min(len(attempts), len(acts)) - 1]()

    queue.on_data_received(handler)
    return attempts


def drain(queue: Pacchettino) -> None:
    """Handle all that waits or is due within a moment."""
    while queue.count_queued() or queue.count_scheduled():
        queue.receive_one(timeout=1)


def endings(history: list[Attempt]) -> list[tuple[int, str]]:
    return [(attempt.attempt, attempt.ended) for attempt in history]


def history_files(base: Path) -> list[str]:
    return sorted(str(path.relative_to(base)) for path in (base / "history").rglob("*") if path.is_file())


# How often, and when


def test_a_job_that_is_to_be_tried_again_fails_after_max_attempts(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, max_attempts=3)
    attempts = handle_with(queue, lambda: Result.RETRY)
    id = queue.send_data("work")
    drain(queue)
    assert (attempts, queue.status(id)) == ([1, 2, 3], Status.FAILED)
    assert endings(queue.history(id)) == [(1, "retry"), (2, "retry"), (3, "failed")]
    assert queue.history(id)[-1].reason == "given up after 3 attempts"


def test_without_max_attempts_a_job_is_tried_on_and_a_hundred_records_are_kept(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir)
    attempts = handle_with(queue, *[lambda: Result.RETRY] * 120, lambda: Result.FAILED)
    id = queue.send_data("work")
    drain(queue)
    assert attempts == [*range(1, 122)]
    assert [attempt.attempt for attempt in queue.history(id)] == [*range(22, 122)]


def test_attempts_are_counted_by_whoever_takes_the_job(queue_dir: Path) -> None:
    id = Pacchettino(queue_dir).send_data("work")
    for number in (1, 2, 3):
        code = "import sys; from pacchettino import Pacchettino\njob = Pacchettino(sys.argv[1]).claim()\n"
        with start_python(code + "print(job.attempt); job.retry()", queue_dir) as process:
            assert process.communicate(timeout=60) == (f"{number}\n", "")
    assert len({attempt.pid for attempt in Pacchettino(queue_dir).history(id)}) == 3


def test_a_job_s_own_verdict_counts_as_well(queue_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = Pacchettino(queue_dir, max_attempts=2)
    id = queue.send_data("work")
    for attempt in (1, 2):
        job = queue.claim()
        assert job is not None
        assert job.attempt == attempt
        job.retry(reason="not yet")
        assert job.attempt == attempt, "it was known before the verdict"
    assert queue.status(id) is Status.FAILED
    assert [attempt.reason for attempt in queue.history(id)] == ["not yet", "given up after 2 attempts: not yet"]
    assert f"job {id} failed: given up after 2 attempts: not yet" in caplog.text


def test_an_attempt_that_is_first_asked_for_after_the_verdict_is_not_told(queue: Pacchettino) -> None:
    queue.send_data("work")
    job = queue.claim()
    assert job is not None
    job.succeed()
    with pytest.raises(RuntimeError):
        _ = job.attempt


def test_what_is_put_back_before_anybody_began_is_no_attempt(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("work")
    claim, _ = queue._core.claim(0, 1, True, True, True)
    del claim
    assert (queue.status(id), queue.history(id)) == (Status.QUEUED, [])
    assert not (queue_dir / "history").exists()


def test_the_pause_is_what_a_callable_makes_of_the_attempt(queue_dir: Path) -> None:
    asked: list[int] = []

    def delay(attempt: int) -> timedelta:
        asked.append(attempt)
        return timedelta(milliseconds=attempt)

    queue = Pacchettino(queue_dir, retry_delay=delay, max_attempts=3)
    handle_with(queue, lambda: Result.RETRY)
    id = queue.send_data("work")
    drain(queue)
    assert asked == [1, 2]
    for attempt in queue.history(id)[:2]:
        assert attempt.due is not None
        assert timedelta(0) <= attempt.due - attempt.at <= timedelta(seconds=1)


@pytest.mark.parametrize(
    "delay", [lambda attempt: 1 / 0, lambda attempt: None, lambda attempt: float("nan")], ids=["raises", "None", "NaN"]
)
def test_a_callable_that_gives_no_delay_fails_the_job_with_that_reason(
    queue_dir: Path, delay: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Pacchettino(queue_dir, retry_delay=delay)
    handle_with(queue, lambda: Result.RETRY)
    id = queue.send_data("work")
    assert queue.receive_one()
    (attempt,) = queue.history(id)
    assert (queue.status(id), attempt.ended) == (Status.FAILED, "failed")
    assert (attempt.reason or "").startswith("retry_delay raised: ")
    assert "retry_delay raised: " in caplog.text


def test_a_backoff_grows_up_to_its_maximum_and_strays_by_its_jitter() -> None:
    exact = Backoff(1, factor=3, maximum=20, jitter=0)
    assert [exact(attempt) for attempt in range(1, 6)] == [1, 3, 9, 20, 20]
    assert exact(10**6) == 20
    assert 0 < Backoff(timedelta(minutes=1))(10**6) <= 100 * 366 * 24 * 3600
    assert [Backoff(0, factor=factor)(10**6) for factor in (1, 2, 10)] == [0, 0, 0]
    drawn = {Backoff(10, jitter=0.5)(2) for _ in range(200)}
    assert len(drawn) > 100
    assert 10 <= min(drawn) < 15 < 25 < max(drawn) <= 30
    assert pickle.loads(pickle.dumps(exact)) == exact


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Backoff(float("inf")), ValueError),
        (lambda: Backoff("1"), TypeError),  # type: ignore[arg-type]
        (lambda: Backoff(1, factor=0.5), ValueError),
        (lambda: Backoff(1, factor=float("nan")), ValueError),
        (lambda: Backoff(1, maximum=1e12), ValueError),
        (lambda: Backoff(10, maximum=1), ValueError),
        (lambda: Backoff(1, jitter=1.5), ValueError),
        (lambda: Retry("1"), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(1e12), ValueError),
        (lambda: Retry(reason=1), TypeError),  # type: ignore[arg-type]
        (lambda: Fail(b"no text"), TypeError),  # type: ignore[arg-type]
        (partial(Pacchettino, "q", max_attempts=0), ValueError),
        (partial(Pacchettino, "q", max_attempts=True), TypeError),
        (partial(Pacchettino, "q", max_attempts=2.0), TypeError),
        (partial(Pacchettino, "q", interrupted_attempts=-1), ValueError),
        (partial(Pacchettino, "q", retry_on="ConnectionError"), TypeError),
        (partial(Pacchettino, "q", retry_on=(KeyboardInterrupt,)), TypeError),
        (partial(Pacchettino, "q", retry_on=(SystemExit,)), TypeError),
        (partial(Pacchettino, "q", retry_on=(GeneratorExit, ValueError)), TypeError),
        (partial(Pacchettino, "q", retry_delay="1"), TypeError),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    make: Callable[[], object], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        make()
    assert list(tmp_path.iterdir()) == []


def test_the_settings_are_told_and_travel(queue_dir: Path) -> None:
    settings: dict[str, Any] = {"max_attempts": 5, "retry_on": (OSError,), "interrupted_attempts": WORST + 1}
    queue = Pacchettino(queue_dir, retry_delay=Backoff(1), **settings)
    again = pickle.loads(pickle.dumps(queue))
    for told in (queue, again):
        assert (told.max_attempts, told.retry_on, told.interrupted_attempts) == (5, (OSError,), WORST)
        assert told.retry_delay == Backoff(1)
    assert "max_attempts=5, retry_on=(OSError,), interrupted_attempts=" in repr(again)


# What a handler says


@pytest.mark.parametrize("way", ["handler", "block"])
@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Retry(), Status.QUEUED, None),
        (Retry(reason="later"), Status.QUEUED, "later"),
        (Retry(3600, "much later"), Status.SCHEDULED, "much later"),
        (Retry(timedelta(hours=1)), Status.SCHEDULED, None),
        (Fail("no such customer"), Status.FAILED, "no such customer"),
        (ConnectionResetError("gone"), Status.QUEUED, "ConnectionResetError: gone"),
        (ValueError("bad"), Status.FAILED, "ValueError: bad"),
    ],
    ids=["Retry", "reason", "delay", "timedelta", "Fail", "retry_on", "other"],
)
def test_what_is_raised_is_the_verdict_and_its_reason_is_kept(
    queue_dir: Path, error: Exception, status: Status, reason: str | None, way: str
) -> None:
    queue = Pacchettino(queue_dir, retry_on=(ConnectionError, TimeoutError), retry_delay=0)
    id = queue.send_data("work")
    if way == "handler":
        handle_with(queue, raiser(error))
        assert queue.receive_one()
    else:
        is_error = not isinstance(error, Retry | Fail)
        with pytest.raises(type(error)) if is_error else nullcontext(), queue.claim():  # type: ignore[union-attr]
            raiser(error)()
    (attempt,) = queue.history(id)
    assert (queue.status(id), attempt.reason) == (status, reason)
    assert (attempt.traceback is not None) == (not isinstance(error, Retry | Fail))
    assert attempt.traceback is None or "in raises" in attempt.traceback


AT_ONCE, BACKOFF, GIVEN = timedelta(0), timedelta(seconds=1), timedelta(seconds=30)


@pytest.mark.parametrize("way", ["handler", "block"])
@pytest.mark.parametrize("given", [False, True], ids=["no retry_delay", "retry_delay=30"])
@pytest.mark.parametrize(
    ("act", "wait"),
    [
        (raiser(ConnectionError("away")), BACKOFF),
        (raiser(Retry()), BACKOFF),
        (raiser(Retry(reason="away")), BACKOFF),
        (raiser(Retry(0)), None),
        (lambda: Result.RETRY, AT_ONCE),
        (lambda: current_job().retry(), AT_ONCE),
    ],
    ids=["retry_on", "Retry()", "Retry(reason)", "Retry(0)", "RETRY", "job.retry()"],
)
def test_an_exception_waits_also_where_no_delay_was_given_and_a_retry_that_is_said_goes_back_at_once(
    queue_dir: Path, act: Callable[[], Any], wait: timedelta | None, given: bool, way: str
) -> None:
    queue = Pacchettino(queue_dir, retry_on=ConnectionError, **({"retry_delay": GIVEN} if given else {}))
    id = queue.send_data("work")
    if way == "handler":
        handle_with(queue, act)
        assert queue.receive_one()
    else:
        with suppress(ConnectionError), queue.claim() as job:  # type: ignore[union-attr]
            if act() is Result.RETRY:
                job.retry()
    expected = AT_ONCE if wait is None else GIVEN if given else wait
    (attempt,) = queue.history(id)
    assert attempt.due is not None
    assert expected * 0.89 <= attempt.due - attempt.at <= expected * 1.11
    assert queue.status(id) == ("scheduled" if expected else "queued")


def test_the_pauses_after_exceptions_grow_up_to_a_minute(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, retry_on=ConnectionError)
    handle_with(queue, raiser(ConnectionError("away")))
    id = queue.send_data("work")
    for _ in range(9):
        queue.receive()
        for path in (queue_dir / "scheduled").iterdir():
            path.rename(path.with_name("0000000000001" + path.name[13:]))
    waits = [(attempt.due - attempt.at).total_seconds() for attempt in queue.history(id) if attempt.due is not None]
    assert waits == [pytest.approx(wait, rel=0.11) for wait in (1, 2, 4, 8, 16, 32, 60, 60, 60)]


def test_that_no_retry_delay_was_given_travels(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir)
    assert queue.retry_delay == 0
    for other in (pickle.loads(pickle.dumps(queue)), Pacchettino(queue_dir, retry_delay=queue.retry_delay)):
        assert repr(other) == repr(queue) != repr(Pacchettino(queue_dir, retry_delay=0))
        handle_with(other, raiser(Retry()))
        id = queue.send_data("work")
        assert other.receive_one()
        assert queue.status(id) is Status.SCHEDULED
        other.retry_delay = 0
        id = queue.send_data("work")
        assert other.receive_one()
        assert queue.status(id) is Status.QUEUED
        assert queue.cancel(id)


def test_the_cause_of_a_verdict_that_is_raised_is_told_with_it(queue: Pacchettino) -> None:
    def handler() -> None:
        try:
            raise KeyError("customer")
        except KeyError as error:
            raise Fail from error

    handle_with(queue, handler)
    id = queue.send_data("work")
    queue.receive()
    (attempt,) = queue.history(id)
    assert attempt.reason == "KeyError: 'customer'"
    assert "in handler" in (attempt.traceback or "")


def test_a_cause_that_is_left_out_is_not_told(queue: Pacchettino) -> None:
    def handler() -> None:
        try:
            raise KeyError("customer")
        except KeyError:
            raise Fail from None

    handle_with(queue, handler)
    id = queue.send_data("work")
    queue.receive()
    (attempt,) = queue.history(id)
    assert (attempt.reason, attempt.traceback) == (None, None)


def test_a_handler_that_is_tried_again_is_logged_without_its_traceback(
    queue_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Pacchettino(queue_dir, retry_on=(ConnectionError,), max_attempts=3, retry_delay=0)
    handle_with(queue, raiser(ConnectionError("no network")), raiser(Retry()), raiser(Retry(reason="still none")))
    id = queue.send_data("work")
    drain(queue)
    assert [(record.levelno, record.getMessage(), record.exc_info) for record in caplog.records] == [
        (logging.WARNING, f"job {id} is to be tried again in 0 s: ConnectionError: no network", None),
        (logging.ERROR, f"job {id} failed: given up after 3 attempts: still none", None),
    ]


def test_what_a_handler_returns_by_mistake_is_the_reason(queue: Pacchettino) -> None:
    handle_with(queue, lambda: True)
    id = queue.send_data("work")
    queue.receive()
    assert "returned True; return None or a pacchettino.Result" in (queue.history(id)[0].reason or "")


def test_an_interruption_is_recorded(queue: Pacchettino) -> None:
    handle_with(queue, raiser(KeyboardInterrupt()))
    id = queue.send_data("work")
    with pytest.raises(KeyboardInterrupt):
        queue.receive()
    (attempt,) = queue.history(id)
    assert (attempt.ended, attempt.reason, attempt.due) == ("interrupted", "KeyboardInterrupt", None)


# The job at hand


@pytest.mark.parametrize("way", ["receive", "receive_one"])
def test_a_handler_knows_its_job(queue: Pacchettino, tmp_path: Path, way: str) -> None:
    seen: list[tuple[str, str | None, int]] = []
    (tmp_path / "name").write_text("content")
    sent = [queue.send_data("work"), queue.send_file(tmp_path / "name")]

    def see(id: str) -> None:
        job = current_job()
        assert job is current_job()
        assert job.id == id
        seen.append((job.id, job.name, job.attempt))

    queue.on_data_received(lambda id, data: see(id))
    queue.on_file_received(lambda id, name, path: see(id))
    for _ in sent:
        getattr(queue, way)()
    assert sorted(seen) == sorted([(sent[0], None, 1), (sent[1], "name", 1)])
    assert queue.count_successful() == 2


def test_where_no_job_is_being_handled_there_is_none(queue: Pacchettino) -> None:
    queue.on_data_received(lambda id, data: None)
    queue.send_many(["work"] * 2)
    queue.receive_one()
    for nothing in (current_job, lambda: asyncio.run(_current())):
        with pytest.raises(RuntimeError, match="no job is being handled here"):
            nothing()
    job = queue.claim()
    assert job is not None
    with pytest.raises(RuntimeError, match="no job is being handled here"):
        current_job()
    job.succeed()


async def _current() -> Job:
    return current_job()


def test_a_handler_that_handles_another_job_gets_its_own_back(queue: Pacchettino) -> None:
    seen: list[str] = []
    first, second, third = queue.send_many(["work"] * 3)

    def handler(id: str, data: bytes) -> None:
        if id == first:
            queue.receive_one(fifo=True)
            with queue.claim() as job:  # type: ignore[union-attr]
                seen.append(current_job().id)
                assert current_job() is job
                raise Fail
        seen.append(current_job().id)

    queue.on_data_received(handler)
    assert queue.receive_one(fifo=True)
    assert seen == [second, third, first]


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_each_thread_and_each_task_has_its_own(queue: Pacchettino, way: str) -> None:
    jobs = [queue.claim() for _ in queue.send_many(["work"] * 5)]
    seen: dict[str, str] = {}

    if way == "threads":
        barrier = threading.Barrier(len(jobs))

        def handle(job: Job) -> None:
            with job:
                barrier.wait(30)
                seen[job.id] = current_job().id

        threads = [threading.Thread(target=handle, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            finish_thread(thread)
    else:

        async def handle_as_task(job: Job) -> None:
            with job:
                await asyncio.sleep(0)
                seen[job.id] = (await _current()).id

        async def handle_all() -> None:
            await asyncio.gather(*(handle_as_task(job) for job in jobs if job is not None))

        asyncio.run(handle_all())
    assert seen == {job.id: job.id for job in jobs if job is not None}


def test_who_was_started_by_a_handler_with_its_context_has_its_job_and_never_another(queue: Pacchettino) -> None:
    seen: list[tuple[str, bool]] = []
    contexts: list[contextvars.Context] = []

    def handler(id: str, data: bytes) -> None:
        async def in_a_thread() -> Job:
            return await asyncio.to_thread(current_job)

        contexts.append(contextvars.copy_context())
        jobs = {asyncio.run(_current()), asyncio.run(in_a_thread()), contexts[-1].run(current_job), current_job()}
        before = [context.run(current_job).id for context in contexts[:-1]]
        seen.append((id, {job.id for job in jobs} == {id} and len(jobs) == 1 and before == [id for id, _ in seen]))

    queue.on_data_received(handler)
    ids = queue.send_many(["work"] * 3)
    assert queue.receive(fifo=True) == 3
    assert seen == [(id, True) for id in ids]


def test_threads_of_one_handler_that_ask_at_once_get_the_same_job(
    queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    begin = Job.__init__

    def begin_at_once(job: Job, *arguments: Any) -> None:
        barrier.wait(30)
        begin(job, *arguments)

    monkeypatch.setattr(Job, "__init__", begin_at_once)

    def handler(id: str, data: bytes) -> None:
        with ThreadPoolExecutor(2) as pool:
            ways = [pool.submit(contextvars.copy_context().run, current_job) for _ in range(2)]
            assert len({way.result(30) for way in ways} | {current_job()}) == 1

    queue.on_data_received(handler)
    id = queue.send_data("work")
    assert queue.receive() == 1
    assert queue.is_success(id)


@pytest.mark.parametrize("error", [ValueError, Retry, Fail, KeyboardInterrupt, SystemExit])
def test_after_a_handler_that_raised_no_job_is_at_hand(queue: Pacchettino, error: type[BaseException]) -> None:
    handle_with(queue, raiser(error()))
    queue.send_data("work")
    with nullcontext() if issubclass(error, Exception) else pytest.raises(error):
        queue.receive_one()
    with pytest.raises(RuntimeError, match="no job is being handled here"):
        current_job()


@pytest.mark.parametrize("ending", [lambda: None, lambda: Result.RETRY, raiser(ValueError("late"))])
def test_a_verdict_that_a_handler_gives_through_its_job_stands(
    queue: Pacchettino, ending: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> Any:
        current_job().fail("broken")
        return ending()

    handle_with(queue, handler)
    id = queue.send_data("work")
    assert queue.receive() == 1
    assert (queue.status(id), [attempt.reason for attempt in queue.history(id)]) == (Status.FAILED, ["broken"])
    assert [record.getMessage() for record in caplog.records] == [f"job {id} failed: broken"]


def test_a_verdict_stands_when_its_handler_is_interrupted(queue: Pacchettino) -> None:
    def handler() -> None:
        current_job().succeed()
        raise KeyboardInterrupt

    handle_with(queue, handler)
    id = queue.send_data("work")
    with pytest.raises(KeyboardInterrupt):
        queue.receive()
    assert (queue.status(id), queue.history(id)) == (Status.SUCCESS, [])


# The history


def test_a_first_time_success_leaves_no_history_and_no_directory_for_it(queue: Pacchettino, queue_dir: Path) -> None:
    attempts = handle_with(queue, lambda: None)
    id = queue.send_data("work")
    queue.receive()
    assert (attempts, queue.history(id)) == ([1], [])
    assert not (queue_dir / "history").exists()


def test_a_history_tells_when_where_how_and_why(queue_dir: Path) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    queue = Pacchettino(queue_dir, retry_delay=3600, retry_on=(ConnectionError,))
    handle_with(queue, raiser(ConnectionError("no network")))
    id = queue.send_data("work")
    queue.receive()
    (attempt,) = queue.history(id)
    assert attempt.due is not None
    assert before <= attempt.at <= datetime.now(UTC)
    assert timedelta(minutes=59) < attempt.due - attempt.at <= timedelta(hours=1, seconds=1)
    (job,) = queue.jobs(Status.SCHEDULED)
    assert abs(attempt.due - job.due) < timedelta(milliseconds=1)  # type: ignore[operator]
    assert (attempt.pid, attempt.ended, attempt.settled) == (os.getpid(), "retry", True)
    assert attempt.host == os.uname().nodename if hasattr(os, "uname") else attempt.host
    assert attempt.owner in {name.decode() for name in entries(queue_dir / "owners")}
    assert (attempt.traceback or "").splitlines()[-1] == attempt.reason == "ConnectionError: no network"
    for asked in (job.entry, id, id.upper(), "nonsense", new_id(), f"raw-{new_id()}"):
        assert queue.history(asked) == ([attempt] if asked in (job.entry, id) else [])


def test_a_person_can_read_a_history_with_cat(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir)
    handle_with(queue, raiser(ValueError("two\nlines")))
    id = queue.send_data("work")
    queue.receive()
    text = (queue_dir / "history" / f"raw-{id}" / "1.settled").read_text()
    keys = re.findall(r"^(\w+): ", text, re.MULTILINE)
    assert keys == ["attempt", "ended", "at", "host", "pid", "owner", "interruptions", "reason", "traceback"]
    assert "\nreason: ValueError: two\n  lines\ntraceback: Traceback (most recent call last):\n    File " in text


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("\x1b[31mred\x07\r", "\\u{1b}[31mred\\u{7}\\r"),
        ("name \udcff", "name \\udcff"),
        ("a\n\n  b: c\nsettled\n", "a\n\n  b: c\nsettled\n"),
        ("", ""),
        ("\u2028 \x85 \ufeff\u4e2d", "\u2028 \\u{85} \ufeff\u4e2d"),
        ("x" * 5000, "x" * 1000 + "..."),
    ],
    ids=["terminal", "surrogate", "lines", "empty", "odd lines", "long"],
)
def test_whatever_is_said_comes_back_as_far_as_it_can_be_shown(queue: Pacchettino, said: str, kept: str) -> None:
    id = queue.send_data("work")
    job = queue.claim()
    assert job is not None
    job.fail(said)
    assert [attempt.reason for attempt in queue.history(id)] == [kept]


def test_a_reason_and_a_traceback_of_any_size_are_bounded(queue: Pacchettino, queue_dir: Path) -> None:
    handle_with(queue, raiser(ValueError("\x00" * 10_000_000)))
    id = queue.send_data("work")
    queue.receive()
    (file,) = history_files(queue_dir)
    assert (queue_dir / file).stat().st_size < 150_000
    assert queue.status(id) is Status.FAILED
    assert (queue.history(id)[0].reason or "").startswith("ValueError: \\u{0}")


def test_a_file_job_s_history_is_found_by_its_id_and_its_name(queue: Pacchettino, tmp_path: Path) -> None:
    (tmp_path / "a name.txt").write_text("content")
    queue.on_file_received(lambda id, name, path: Result.FAILED)
    ids = [queue.send_file(tmp_path / "a name.txt") for _ in range(3)]
    queue.receive()
    for id in ids:
        assert endings(queue.history(id)) == endings(queue.history(f"fle-{id}-a name.txt")) == [(1, "failed")]


def test_a_requeue_starts_the_attempts_anew_and_keeps_the_history(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, max_attempts=2)
    attempts = handle_with(queue, lambda: Result.RETRY)
    ids = queue.send_many(["work"] * 2)
    drain(queue)
    assert queue.requeue(ids[0])
    assert queue.requeue_all() == 1
    drain(queue)
    assert sorted(attempts) == [1] * 4 + [2] * 4
    half = [(1, "retry"), (2, "failed")]
    for id in ids:
        assert endings(queue.history(id)) == [*half, (0, "requeued"), *half]
        assert queue.status(id) is Status.FAILED


def move_back(queue_dir: Path, state: str, id: str) -> None:
    """Requeue a job as the D library does, or a person by `mv`."""
    (queue_dir / state / f"raw-{id}").rename(queue_dir / "queued" / f"raw-{id}")


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_requeue_by_others_starts_the_attempts_anew(queue_dir: Path, state: str) -> None:
    queue = Pacchettino(queue_dir, max_attempts=5)
    last = raiser(KeyboardInterrupt()) if state == "interrupted" else lambda: Result.FAILED
    attempts = handle_with(queue, *[lambda: Result.RETRY, lambda: Result.RETRY, last] * 3)
    id = queue.send_data("work")
    for expected in ([1, 2, 3] * times for times in (1, 2, 3)):
        with suppress(KeyboardInterrupt):
            drain(queue)
        assert attempts == expected
        assert queue.status(id).value == state
        move_back(queue_dir, state, id)


def test_a_requeue_by_others_starts_the_interruptions_anew(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, interrupted_attempts=2)
    id = queue.send_data("kills who takes it")
    for times in (1, 2):
        while queue.status(id) is Status.QUEUED:
            # Somebody claims it, and dies.
            claim = queue_dir / "processing" / f"raw-{id}.gone000000"
            claim.mkdir()
            (queue_dir / "queued" / f"raw-{id}").rename(claim / "raw")
            assert not queue.requeue(new_id())
        assert queue.status(id) is Status.INTERRUPTED
        assert [attempt.attempt for attempt in queue.history(id)] == [1, 2, 3] * times
        move_back(queue_dir, "interrupted", id)


def test_a_requeue_of_a_job_without_a_history_makes_none(queue: Pacchettino, queue_dir: Path) -> None:
    lay_down(queue_dir, {f"failed/raw-{new_id()}".encode(): b"", f"failed/raw-{new_id()}".encode(): b""})
    (first, _) = queue.jobs(Status.FAILED)
    assert queue.requeue(first.id)
    assert queue.requeue_all() == 1
    assert not (queue_dir / "history").exists()


def test_a_cleanup_removes_the_history_of_what_it_deletes(queue: Pacchettino, queue_dir: Path) -> None:
    handle_with(queue, lambda: Result.FAILED, lambda: Result.RETRY, lambda: None)
    failed, succeeded = queue.send_many(["work"] * 2)
    while queue.count_queued():
        queue.receive_one(fifo=True)
    assert endings(queue.history(succeeded)) == [(1, "retry")]
    assert queue.cleanup(older_than=3600) == 0
    assert len(history_files(queue_dir)) == 2
    assert queue.cleanup(KeepPolicy.SUCCESS) == 1
    assert (len(queue.history(failed)), queue.history(succeeded)) == (1, [])
    assert queue.cleanup() == 1
    assert entries(queue_dir / "history") == []


@pytest.mark.parametrize("ending", [lambda: None, lambda: Result.FAILED])
def test_a_job_that_is_not_kept_leaves_no_history(queue_dir: Path, ending: Callable[[], Any]) -> None:
    queue = Pacchettino(queue_dir, KeepPolicy.NONE)
    attempts = handle_with(queue, lambda: Result.RETRY, ending)
    id = queue.send_data("work")
    drain(queue)
    assert (attempts, queue.history(id)) == ([1, 2], [])
    assert entries(queue_dir / "history") == []


def test_what_somebody_put_into_a_history_stays_and_is_not_counted(queue: Pacchettino, queue_dir: Path) -> None:
    handle_with(queue, lambda: Result.RETRY, lambda: None)
    id = queue.send_data("work")
    queue.receive()
    theirs = queue_dir / "history" / f"raw-{id}" / "notes.txt"
    theirs.write_text("called the customer")
    (theirs.parent / "2").mkdir()
    (theirs.parent / "3.settled").write_text("attempt: many\n")
    assert len(queue.history(id)) == 1
    drain(queue)
    assert queue.cleanup() == 1
    assert theirs.read_text() == "called the customer"


@pytest.mark.needs("symlinks")
@pytest.mark.parametrize("where", ["history", "history/{}", "history/{}/1.settled"])
def test_a_link_in_a_history_is_not_followed(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.on_data_received(lambda id, data: Result.RETRY)
    id = queue.send_data("work")
    queue.receive()
    place, elsewhere = queue_dir / where.format(f"raw-{id}"), tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*")) if elsewhere.is_dir() else elsewhere.read_bytes()
    queue.receive()
    assert queue.status(id) is Status.QUEUED
    assert queue.cleanup() == 0
    assert before == (sorted(elsewhere.rglob("*")) if elsewhere.is_dir() else elsewhere.read_bytes())
    if "1.settled" in where:
        assert endings(queue.history(id)) == [(1, "retry")], "what is no record is none"
    else:
        assert "this attempt is not in its history" in caplog.text
        with pytest.raises(NotADirectoryError):
            queue.history(id)


def test_an_attempt_that_can_not_be_recorded_has_its_verdict_all_the_same(
    queue_dir: Path, mode_bound: None, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Pacchettino(queue_dir, max_attempts=5)
    handle_with(queue, lambda: Result.FAILED)
    id = queue.send_data("work")
    (queue_dir / "history").mkdir(mode=0o500)
    assert queue.receive() == 1
    assert queue.status(id) is Status.FAILED
    assert f"job {id}: this attempt is not in its history: " in caplog.text
    assert "Permission denied" in caplog.text
    (queue_dir / "history").chmod(0o700)


def test_a_history_that_can_not_be_read_keeps_no_job_from_being_tried_again(
    queue_dir: Path, mode_bound: None, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Pacchettino(queue_dir, max_attempts=5)
    queue.on_data_received(lambda id, data: Result.RETRY)
    id = queue.send_data("work")
    (queue_dir / "history").mkdir(mode=0)
    assert queue.receive() == 1
    assert queue.status(id) is Status.QUEUED
    assert f"job {id}: its attempts can't be counted: " in caplog.text
    (queue_dir / "history").chmod(0o700)


def test_a_program_of_the_d_library_may_take_a_job_with_a_history_and_give_it_back(
    queue: Pacchettino, queue_dir: Path
) -> None:
    attempts = handle_with(queue, lambda: Result.RETRY, lambda: None)
    id = queue.send_data("work")
    queue.receive()
    # It knows the other directories alone: it recovers, and requeues.
    (queue_dir / "queued" / f"raw-{id}").rename(queue_dir / "interrupted" / f"raw-{id}")
    (queue_dir / "interrupted" / f"raw-{id}").rename(queue_dir / "queued" / f"raw-{id}")
    drain(queue)
    assert attempts == [1, 2]
    assert files(queue_dir) == {f"success/raw-{id}".encode(): b"work"}


# Consumers that die


DIES = """
import json, os, sys
from pacchettino import *
def consume():
    queue = Pacchettino(sys.argv[1], **json.loads(sys.argv[2]))
    @queue.on_data_received
    def handle(id, data):
        print(current_job().attempt, flush=True)
        os._exit(9)
    queue.receive_one()
if sys.argv[3] == "once":
    consume()
else:
    for _ in range(int(sys.argv[3])):
        if os.fork() == 0:
            consume()
            os._exit(0)
        os.wait()
"""


def die_of(queue_dir: Path, times: int, **settings: Any) -> list[str]:
    """Let so many consumers, one after the other, die of whatever they get; give the attempts that they began."""
    told = ""
    # To fork is quicker than to start a Python, and a process that is forked dies as well.
    for consumers in [str(times)] if hasattr(os, "fork") else ["once"] * times:
        with start_python(DIES, queue_dir, json.dumps(settings), consumers) as process:
            out, errors = process.communicate(timeout=60)
            assert (errors.strip() == "") or "was interrupted" in errors
            told += out
    return told.split()


@pytest.mark.parametrize(
    ("settings", "begun"),
    [
        ({}, 1),
        ({"interrupted_attempts": 1}, 2),
        ({"interrupted_attempts": 3}, 4),
        ({"interrupted_attempts": 3, "max_attempts": 2}, 2),
        ({"interrupted_attempts": 3, "max_attempts": 1}, 1),
        ({"interrupted_attempts": 2, "durable": True}, 3),
    ],
    ids=str,
)
def test_a_job_that_kills_every_worker_comes_to_rest(queue_dir: Path, settings: dict[str, Any], begun: int) -> None:
    id = Pacchettino(queue_dir).send_data("poison")
    attempts = die_of(queue_dir, begun + 2, **settings)
    assert attempts == [str(number) for number in range(1, begun + 1)]
    queue = Pacchettino(queue_dir, **settings)
    assert queue.status(id) is Status.INTERRUPTED
    history = queue.history(id)
    assert endings(history) == [(number, "interrupted") for number in range(1, begun + 1)]
    assert [attempt.due is not None for attempt in history] == [True] * (begun - 1) + [False]
    assert {(attempt.reason, attempt.settled) for attempt in history} == {("its consumer died", True)}
    assert len({attempt.owner for attempt in history}) == begun
    # Somebody looks into it, and lets it be tried anew, as often.
    assert queue.requeue(id)
    assert len(die_of(queue_dir, begun + 2, **settings)) == begun
    assert queue.requeue_all() == 1


def test_a_job_is_put_back_only_if_that_can_be_recorded(queue_dir: Path, mode_bound: None) -> None:
    id = Pacchettino(queue_dir).send_data("poison")
    assert die_of(queue_dir, 1) == ["1"]
    (queue_dir / "history").mkdir(mode=0o500, exist_ok=True)
    queue = Pacchettino(queue_dir, interrupted_attempts=5)
    assert queue.claim() is None
    assert queue.status(id) is Status.INTERRUPTED
    (queue_dir / "history").chmod(0o700)


@pytest.mark.parametrize("keep", [KeepPolicy.ALL, KeepPolicy.NONE])
@pytest.mark.parametrize("take", ["receive", "receive_one", "claim", "drop"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_job_that_its_consumer_leaves_is_put_back_as_often_as_one_whose_consumer_died(
    queue_dir: Path, keep: KeepPolicy, take: str, durable: bool
) -> None:
    queue = Pacchettino(queue_dir, keep, interrupted_attempts=2, durable=durable)
    handle_with(queue, *[raiser(SystemExit(3))] * 3)

    def leave() -> None:
        if take in ("receive", "receive_one"):
            with pytest.raises(SystemExit):
                getattr(queue, take)()
            return
        job = queue.claim()
        assert job is not None
        if take == "drop":
            with pytest.warns(ResourceWarning):
                del job
            return
        with pytest.raises(SystemExit), job:
            raise SystemExit(3)

    id = queue.send_data("work")
    for attempt in (1, 2):
        leave()
        assert queue.status(id) is Status.QUEUED
        assert [(told.attempt, told.ended, told.settled) for told in queue.history(id)] == [
            (number, "interrupted", True) for number in range(1, attempt + 1)
        ]
    leave()
    if keep is KeepPolicy.ALL:
        assert queue.status(id) is Status.INTERRUPTED
        assert len(queue.history(id)) == 3
    else:
        assert (queue.status(id), entries(queue_dir / "history")) == (Status.UNKNOWN, [])


def test_who_leaves_a_job_with_its_last_attempt_does_not_put_it_back(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, interrupted_attempts=5, max_attempts=1)
    handle_with(queue, raiser(SystemExit(3)))
    id = queue.send_data("work")
    with pytest.raises(SystemExit):
        queue.receive()
    assert queue.status(id) is Status.INTERRUPTED


def test_a_job_that_is_left_is_put_back_only_if_that_can_be_recorded(queue_dir: Path, mode_bound: None) -> None:
    queue = Pacchettino(queue_dir, interrupted_attempts=5)
    handle_with(queue, raiser(SystemExit(3)))
    id = queue.send_data("work")
    (queue_dir / "history").mkdir(mode=0o500)
    with pytest.raises(SystemExit):
        queue.receive()
    assert queue.status(id) is Status.INTERRUPTED
    (queue_dir / "history").chmod(0o700)


def test_a_job_of_the_dead_that_is_not_kept_leaves_no_history(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, KeepPolicy.NONE)
    handle_with(queue, lambda: Result.RETRY)
    id = queue.send_data("poison")
    queue.receive()
    assert die_of(queue_dir, 1) == ["2"]
    assert queue.claim() is None
    assert (queue.status(id), entries(queue_dir / "history")) == (Status.UNKNOWN, [])
