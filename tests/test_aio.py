"""The queue for asyncio: names, waits, cancellation, handlers, streams, ends; under asyncio's own loop and uvloop."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import finish_thread
from helpers import PATIENCE, Peer, claims, files, new_id, raiser, until
from pacchettino import (
    Backoff,
    Fail,
    Job,
    KeepPolicy,
    NotKeptError,
    Pacchettino,
    QueueFull,
    Result,
    Retry,
    Status,
    current_job,
)
from pacchettino.aio import THREADS, AsyncJob, AsyncPacchettino

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

SOON = 0.5
"""Seconds that no event takes; who is told of nothing looks after a second."""

GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "asyncio.md"

LOOPS = {
    "asyncio": "asyncio.new_event_loop",
    "uvloop": pytest.param(
        "uvloop.new_event_loop",
        marks=pytest.mark.skipif(sys.platform == "win32", reason="NOT TESTED: there is no uvloop for Windows"),
    ),
}


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def loop_factory(request: pytest.FixtureRequest) -> str:
    """Give the expression that makes an event loop."""
    return request.param


@pytest.fixture
def new_loop(loop_factory: str) -> Callable[[], asyncio.AbstractEventLoop]:
    module, name = loop_factory.split(".")
    return getattr(pytest.importorskip(module), name)


@pytest.fixture
def run(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Run[Any]:
    """Run a coroutine to its end, which does not hang."""

    def run(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(asyncio.wait_for(main, 60))

    return run


@pytest.fixture
def aqueue(queue_dir: Path) -> AsyncPacchettino:
    return AsyncPacchettino(queue_dir)


@pytest.fixture
def asyncio_peer(queue_dir: Path, loop_factory: str) -> Iterator[Peer]:
    """Give a process with a queue called `aqueue`, in which `run` runs a coroutine."""
    with Peer(queue_dir) as peer:
        peer(f"""
            import asyncio, gc, time
            from pathlib import Path
            import {loop_factory.split(".")[0]}
            from pacchettino.aio import AsyncPacchettino

            aqueue = AsyncPacchettino(queue.base_dir)

            new_loop = {loop_factory}

            def run(main):
                with asyncio.Runner(loop_factory=new_loop) as runner:
                    return runner.run(main)
        """)
        yield peer


async def until_true(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of, while the loop runs."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it does not come"
        await asyncio.sleep(0.001)


def listens(pid: int) -> bool:
    """Whether an event loop of it watches for jobs: in its `epoll` set there is another one."""
    sets: dict[str, set[str]] = {}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            watched = {line.split()[1] for line in info.read_text().splitlines() if line.startswith("tfd:")}
            if watched:
                sets[info.name] = watched
    return any(watched & set(sets) for watched in sets.values())


async def until_it_waits() -> None:
    """Let those tasks wait that are about to. Where that can't be seen they get the time for it."""
    if sys.platform == "linux":
        await until_true(lambda: listens(os.getpid()))
    else:
        await asyncio.sleep(0.05)


def held_back(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Let what a thread does under that name come back only when told. Two events: it is done, and it may."""
    done, go = threading.Event(), threading.Event()
    act = getattr(AsyncPacchettino, name)

    def held(*arguments: Any) -> Any:
        try:
            return act(*arguments)
        finally:
            done.set()
            assert go.wait(30)

    monkeypatch.setattr(AsyncPacchettino, name, held)
    return done, go


# Names


def public(kind: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "other"), [(Pacchettino, AsyncPacchettino), (Job, AsyncJob)])
def test_the_names_and_their_parameters_are_the_same(sync: type, other: type) -> None:
    ours, theirs = public(other), public(sync)
    assert set(theirs) <= set(ours)
    assert set(ours) - set(theirs) <= {"stream"}
    for name, value in theirs.items():
        assert type(ours[name]) is type(value)
        if callable(value) and not isinstance(value, type) and name not in {"work", "on_settled"}:
            assert list(inspect.signature(ours[name]).parameters.values()) == [
                parameter.replace(annotation=inspect.signature(ours[name]).parameters[parameter.name].annotation)
                for parameter in inspect.signature(value).parameters.values()
            ], name
    if sync is Pacchettino:
        assert inspect.signature(other) == inspect.signature(sync)


def test_each_call_does_what_the_one_of_that_name_does(run: Run[Any], queue_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("content")

    async def main() -> None:
        async with AsyncPacchettino(queue_dir, max_attempts=2, fifo=True) as queue:
            with Pacchettino(queue_dir) as other:
                ids = [await queue.send_data("a"), *await queue.send_many(str(n) for n in range(2))]
                ids.append(await queue.send_file(tmp_path / "report.txt", name="other.txt"))
                later = await queue.send_data("later", delay=3600)
                assert [job.id for job in other.jobs(Status.QUEUED)] == ids
                assert [job.id async for job in queue.jobs(Status.QUEUED)] == ids
                assert await queue.status(later) is Status.SCHEDULED
                assert await queue.is_scheduled(later)
                assert await queue.is_queued(ids[0])
                assert (await queue.count_scheduled(), await queue.count_queued(), await queue.count_all()) == (1, 4, 5)
                assert await queue.cancel(later)
                assert not await queue.cancel(later)

                await queue.pause()
                assert await queue.is_paused()
                assert await queue.claim() is None
                await queue.resume()
                assert not await queue.is_paused()

                job = await queue.claim(kind="file")
                assert job is not None
                assert (job.id, job.name, job.kind, await job.attempt) == (ids[3], "other.txt", "file", 1)
                assert await job.data == b"content"
                assert job.path.read_text() == "content"
                assert await queue.is_processing(job.id)
                assert await queue.count_processing() == 1
                (consumer,) = (await queue.stats()).consumers
                assert [held.id for held in consumer.holds] == [job.id]
                await job.fail("no")
                assert await queue.is_failed(job.id)
                assert [attempt.reason for attempt in await queue.history(job.id)] == ["no"]

                job = await queue.claim()
                assert job is not None
                assert (job.id, job.kind, await job.data, job.entry) == (ids[0], "data", b"a", f"raw-{ids[0]}")
                assert job.sent_at == queue.sent_at(job.id)
                await job.succeed()
                assert await queue.is_success(ids[0])
                with pytest.raises(RuntimeError, match="verdict"):
                    await job.succeed()

                job = await queue.claim()
                assert job is not None
                await job.retry(3600, "later")
                assert await queue.count_scheduled() == 1
                assert await queue.requeue(ids[0])
                assert await queue.requeue_all() == 1
                assert await queue.count_failed() == await queue.count_successful() == 0
                assert await queue.count_interrupted() == 0
                assert not await queue.is_interrupted(ids[0])
                await (await queue.claim()).succeed()
                assert await queue.cleanup(older_than=timedelta(hours=1)) == 0
                assert await queue.cleanup() == 1
        with pytest.raises(ValueError, match="closed"):
            await queue.send_data("a")
        none = AsyncPacchettino(queue_dir, KeepPolicy.NONE)
        with pytest.raises(NotKeptError):
            await none.count_failed()

    run(main())


def test_settings_are_those_of_the_queue_and_travel(queue_dir: Path) -> None:
    settings: dict[str, Any] = {
        "durable": True,
        "crash_detection": Pacchettino.CrashDetection.PID,
        "retry_delay": Backoff(1),
        "fifo": True,
        "max_attempts": 3,
        "retry_on": (OSError,),
        "interrupted_attempts": 2,
        "max_queued": 7,
        "min_free": 1,
    }
    queue = AsyncPacchettino(queue_dir, KeepPolicy.FAILED, **settings)
    for one in (queue, pickle.loads(pickle.dumps(queue))):
        assert type(one) is AsyncPacchettino
        assert {name: getattr(one, name) for name in settings} == settings
        assert (one.base_dir, one.keep_policy) == (queue_dir, KeepPolicy.FAILED)
        assert repr(one) == f"Async{Pacchettino(queue_dir, KeepPolicy.FAILED, **settings)!r}"
    queue.durable, queue.retry_delay = False, 5
    queue.crash_detection = Pacchettino.CrashDetection.LOCK_FILE
    assert (queue.durable, queue.retry_delay) == (False, 5)
    assert queue.crash_detection is Pacchettino.CrashDetection.LOCK_FILE


def how_it_is_used(value: Any) -> str:
    """Return how a public name is used, in the words of the guide."""
    if isinstance(value, property):
        assert value.fget is not None
        returned = inspect.signature(value.fget).return_annotation
        if returned == "NoReturn":
            return "never"
        return "`await`, without a call" if returned.startswith("Awaitable[") else "without `await`"
    if inspect.iscoroutinefunction(value):
        return "`await`, with a call"
    returned = "" if isinstance(value, type) else inspect.signature(value).return_annotation
    return "`async for`" if returned.startswith("AsyncIterator[") else "without `await`"


def test_the_guide_says_how_each_name_is_used() -> None:
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("|")]
    (_, *kinds), _, *rows = table
    assert kinds == ["`AsyncPacchettino`", "`AsyncJob`"]
    for column, kind in enumerate((AsyncPacchettino, AsyncJob), 1):
        listed = {name: row[0] for row in rows for name in re.findall(r"`(\w+)`", row[column])}
        assert listed == {name: how_it_is_used(getattr(kind, name)) for name in public(kind)}


def test_a_name_that_must_be_awaited_does_not_pass_for_its_value(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        with pytest.raises(AttributeError, match=r"use `await queue.is_paused\(\)`"):
            assert aqueue.paused
        await aqueue.send_data("1")
        async with await aqueue.claim() as job:
            for misused in (
                lambda: bool(job.data),
                lambda: job.data == b"1",
                lambda: job.data != b"1",
                lambda: len(job.data),
                lambda: f"{job.attempt}",
                lambda: str(job.data),
                lambda: job.attempt >= 1,
                lambda: job.attempt < 2,
            ):
                with pytest.raises(TypeError, match=r"write `await job.(data|attempt)`"):
                    misused()
            assert await asyncio.gather(job.data, job.attempt) == [b"1", 1]
            assert await asyncio.wait_for(job.data, 10) == b"1"

    run(main())


def test_where_a_loop_runs_constructor_and_settings_leave_the_disk_to_the_first_call(
    run: Run[Any], queue_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    async def main() -> None:
        queue = AsyncPacchettino(queue_dir, durable=True)
        assert queue.durable
        assert not queue_dir.exists()
        assert not queue._queue._core.durable  # for that the queue's directories are flushed
        assert f"{queue_dir}" in repr(queue)
        queue.stop()  # and whatever else takes no thread
        id = await queue.send_data("a")
        assert await queue.status(id) is Status.QUEUED
        assert queue._queue._core.durable
        queue.durable = False
        assert not queue.durable
        assert await queue.count_queued() == 1
        assert not queue._queue._core.durable

        for impossible in (tmp_path / "file", tmp_path / "file" / "queue"):
            queue = AsyncPacchettino(impossible)
            for _ in range(2):
                with pytest.raises(NotADirectoryError):
                    await queue.count_queued()
        with pytest.raises(TypeError, match="base_dir"):
            AsyncPacchettino(7)

    run(main())
    with pytest.raises(NotADirectoryError):
        AsyncPacchettino(tmp_path / "file")
    AsyncPacchettino(tmp_path / "another")
    assert (tmp_path / "another" / "queued").is_dir()


@pytest.mark.parametrize("wrong", [str, 0, -1, 1.5, True])
def test_a_concurrency_is_a_whole_number(run: Run[Any], aqueue: AsyncPacchettino, wrong: Any) -> None:
    aqueue.on_data_received(lambda id, data: None)
    with pytest.raises((TypeError, ValueError), match="concurrency"):
        aqueue.stream(wrong)
    with pytest.raises((TypeError, ValueError), match="concurrency"):
        run(aqueue.work(wrong))


def test_what_is_no_handler_is_refused(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def generator(id: str, data: bytes) -> Any:
        yield

    for wrong in ("no", generator):
        with pytest.raises(TypeError):
            aqueue.on_data_received(wrong)
    for call in (aqueue.receive, aqueue.receive_one, aqueue.work):
        with pytest.raises(RuntimeError, match="no handler"):
            run(call())
    with pytest.raises(ValueError, match="kind"):
        run(aqueue.claim(kind="files"))


def test_who_blocks_sends_once_there_is_room_and_can_be_cancelled(run: Run[Any], queue_dir: Path) -> None:
    async def main() -> None:
        queue = AsyncPacchettino(queue_dir, max_queued=1)
        await queue.send_data("a")
        with pytest.raises(QueueFull):
            await queue.send_data("b", block=0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await queue.send_data("b", block=None)
        sending = asyncio.create_task(queue.send_many(["c"], block=None))
        await asyncio.sleep(0.1)
        assert not sending.done()
        job = await queue.claim()
        assert job is not None
        assert await job.data == b"a"
        await sending
        await job.succeed()
        assert await queue.count_queued() == 1

    run(main())


# What ends a wait


def send_as_another_program(queue: Pacchettino, source: Path, id: str) -> None:
    source.rename(queue.base_dir / "queued" / f"raw-{new_id()}")


def pause_and_resume(queue: Pacchettino, source: Path, id: str) -> None:
    queue.pause()
    queue.send_data("a")
    time.sleep(0.02)
    queue.resume()


WAYS: dict[str, Callable[[Pacchettino, Path, str], Any]] = {
    "a data job": lambda queue, source, id: queue.send_data("a"),
    "a file that is moved": lambda queue, source, id: queue.send_file(source, copy=False),
    "a delay that ends": lambda queue, source, id: queue.send_data("a", delay=0.02),
    "a requeue": lambda queue, source, id: queue.requeue(id),
    "a resume": pause_and_resume,
    "a job of another program": send_as_another_program,
}


@pytest.mark.parametrize("whose", ["another process", "another thread", "the same instance"])
@pytest.mark.needs("kernel events")
def test_a_wait_is_ended_at_once(
    run: Run[Any], aqueue: AsyncPacchettino, queue: Pacchettino, tmp_path: Path, whose: str
) -> None:
    rounds = 3

    async def main(act: Callable[[str, Path, str], Any]) -> None:
        id = await aqueue.send_data("the first")
        async with await aqueue.claim():
            pass
        for way in WAYS:
            began = time.monotonic()
            for _ in range(rounds):
                source = tmp_path / "source"
                source.write_bytes(b"content")
                wait = asyncio.create_task(aqueue.claim(timeout=None))
                await until_it_waits()
                await asyncio.to_thread(act, way, source, id)
                async with await wait:
                    pass
            # Without a word of the kernel it looks once a second, and each of these came when it had just looked.
            assert time.monotonic() - began < rounds / 2, way

    if whose == "another process":
        with Peer(queue.base_dir) as peer:
            peer("from pathlib import Path; from test_aio import WAYS")
            run(main(lambda way, source, id: peer(f"WAYS[{way!r}](queue, Path({str(source)!r}), {id!r}); None")))
    else:
        with Pacchettino(queue.base_dir) as other:
            sender = other if whose == "another thread" else aqueue._queue
            run(main(lambda way, source, id: WAYS[way](sender, source, id)))


@pytest.mark.needs("kernel events")
def test_what_comes_between_a_look_and_the_sleep_is_not_slept_through(
    run: Run[Any], aqueue: AsyncPacchettino, queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = AsyncPacchettino._glance

    def look_and_send(self: AsyncPacchettino, *arguments: Any) -> Any:
        glance = look(self, *arguments)
        looks.append(glance)
        if len(looks) == 2:  # the first one is made before it stands in the line
            assert glance.found is None
            queue.send_data("a")
        return glance

    monkeypatch.setattr(AsyncPacchettino, "_glance", look_and_send)

    async def main() -> None:
        began = time.monotonic()
        job = await aqueue.claim(timeout=None)
        assert time.monotonic() - began < SOON
        assert job is not None
        await job.succeed()
        assert len(looks) == 3

    run(main())


@pytest.mark.needs("kernel events")
def test_threads_and_tasks_that_wait_side_by_side_are_all_woken(
    run: Run[Any], aqueue: AsyncPacchettino, queue: Pacchettino
) -> None:
    rounds, each = 30, 3

    async def main() -> None:
        sender = Pacchettino(queue.base_dir)
        with Peer(queue.base_dir) as peer:
            began = time.monotonic()
            for turn in range(rounds):
                # All sleep; then as many jobs come as there are.
                waits = [
                    *(asyncio.create_task(aqueue.claim(timeout=None)) for _ in range(each)),
                    *(asyncio.create_task(asyncio.to_thread(queue.claim, 60)) for _ in range(each)),
                ]
                await asyncio.sleep(0.005 * (turn % 4))
                data = [str(number) for number in range(2 * each)]
                if turn % 2:
                    await asyncio.to_thread(sender.send_many, data)
                else:
                    await asyncio.to_thread(peer, f"queue.send_many({data!r}); None")
                for job in await asyncio.gather(*waits):
                    ended = job.succeed()
                    if ended is not None:
                        await ended
            assert time.monotonic() - began < rounds / 2
        assert await aqueue.count_successful() == rounds * 2 * each

    run(main())


def test_close_and_stop_end_every_wait_of_the_instance_and_no_other(run: Run[Any], queue_dir: Path) -> None:
    async def main(end: str) -> None:
        queue, other = AsyncPacchettino(queue_dir), AsyncPacchettino(queue_dir)
        queue.on_data_received(lambda id, data: None)
        waits = [
            *(asyncio.create_task(queue.receive_one(timeout=None)) for _ in range(10)),
            *(asyncio.create_task(queue.claim(timeout=60, kind="file")) for _ in range(10)),
        ]
        stream = asyncio.create_task(anext(queue.stream(), None))
        work = asyncio.create_task(queue.work(3))
        others = asyncio.create_task(other.claim(timeout=None))
        await until_it_waits()
        began = time.monotonic()
        if end == "close":
            await queue.close()
        elif end == "stop":
            queue.stop()
        else:
            await asyncio.to_thread(queue.stop)
        assert await asyncio.gather(*waits) == [False] * 10 + [None] * 10
        assert await stream is None
        assert await work == 0
        assert time.monotonic() - began < SOON
        assert await queue.claim(timeout=1) is None if end != "close" else True
        assert not others.done()
        if end != "close":
            await queue.send_data("a")
            assert await queue.receive() == 0
            assert not await queue.receive_one()
            assert [job async for job in queue.stream()] == []
        else:
            await other.send_data("a")
        job = await others
        assert job is not None
        await job.succeed()

    for end in ("close", "stop", "stop in a thread"):
        run(main(end))


def test_a_job_is_settled_though_another_thread_closes_the_queue_just_then(
    run: Run[Any], aqueue: AsyncPacchettino, queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = ThreadPoolExecutor.submit
    closing: list[threading.Thread] = []

    def submit_late(self: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
        """Submit a call when the pool has been closed, after it was looked up."""
        if handled and not closing:
            closing.append(threading.Thread(target=lambda: asyncio.run(aqueue.close())))
            closing[0].start()
            finish_thread(closing[0])
        return submit(self, call)

    handled = []
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_late)

    @aqueue.on_data_received
    async def handle(id: str, data: bytes) -> None:
        handled.append(id)

    ids = queue.send_many(["a", "b"])
    assert run(aqueue.work(1)) == 1
    assert queue.status(handled[0]) is Status.SUCCESS
    assert [queue.status(id) for id in ids if id not in handled] == [Status.QUEUED]


def test_a_timeout_ends_a_wait_with_none_also_in_the_line(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        began = time.monotonic()
        waits = [aqueue.claim(timeout=0.1) for _ in range(5)]
        assert await asyncio.gather(*waits) == [None] * 5
        assert 0.1 <= time.monotonic() - began < 0.1 + SOON

    run(main())


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e18, timedelta.max])
def test_a_timeout_may_have_no_end(run: Run[Any], aqueue: AsyncPacchettino, timeout: Any) -> None:
    async def main() -> None:
        waits = [asyncio.create_task(aqueue.claim(timeout=timeout)) for _ in range(2)]
        await until_it_waits()
        await aqueue.send_many(["a", "b"])
        for wait in waits:
            async with await wait:
                pass

    run(main())


def test_who_only_looks_looks_also_where_others_stand_in_line(
    run: Run[Any], aqueue: AsyncPacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_line, go = threading.Event(), threading.Event()
    look, looks = AsyncPacchettino._glance, []

    def look_slowly(self: AsyncPacchettino, listener: Any, left: float | None, *rest: Any) -> Any:
        glance = look(self, listener, left, *rest)
        looks.append(left)
        if looks == [None, None]:
            in_line.set()
            assert go.wait(30)
        return glance

    monkeypatch.setattr(AsyncPacchettino, "_glance", look_slowly)

    async def main() -> None:
        waiting = asyncio.create_task(aqueue.claim(timeout=None))
        await asyncio.to_thread(in_line.wait, 30)
        for timeout in (0, -1):
            id = await aqueue.send_data("a")
            async with await aqueue.claim(timeout=timeout) as job:
                assert job.id == id
        go.set()
        await aqueue.send_data("a")
        async with await waiting:
            pass

    run(main())


def test_who_waits_for_files_is_not_kept_by_who_waits_for_data(
    run: Run[Any], aqueue: AsyncPacchettino, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a")

    async def main() -> None:
        data = [asyncio.create_task(aqueue.claim(timeout=None, kind="data")) for _ in range(3)]
        file = asyncio.create_task(aqueue.claim(timeout=None, kind="file"))
        await until_it_waits()
        await aqueue.send_file(tmp_path / "file")
        job = await file
        assert job is not None
        await job.succeed()
        for wait in data:
            assert not wait.done()
            wait.cancel()
        await asyncio.wait(data)

    run(main())


def test_who_came_first_is_served_first(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        waits = [asyncio.create_task(aqueue.claim(timeout=None))]
        await until_it_waits()
        waits += [asyncio.create_task(aqueue.claim(timeout=None)) for _ in range(4)]
        await asyncio.sleep(0)
        for first, wait in enumerate(waits):
            id = await aqueue.send_data("a")
            job = await wait
            assert job is not None
            assert job.id == id
            assert not any(later.done() for later in waits[first + 1 :])
            await job.succeed()

    run(main())


def test_a_directory_that_is_replaced_is_found_again(run: Run[Any], aqueue: AsyncPacchettino, tmp_path: Path) -> None:
    async def main() -> None:
        wait = asyncio.create_task(aqueue.claim(timeout=None))
        await until_it_waits()
        aqueue.base_dir.rename(tmp_path / "old")
        with Pacchettino(aqueue.base_dir) as new:
            new.send_data("a")
            job = await wait
            assert job is not None
            await job.succeed()
            # From now on the kernel tells of jobs there.
            began = time.monotonic()
            for _ in range(3):
                wait = asyncio.create_task(aqueue.claim(timeout=None))
                await until_it_waits()
                new.send_data("a")
                job = await wait
                assert job is not None
                await job.succeed()
            assert time.monotonic() - began < 3 * SOON
            assert new.count_successful() == 4

    run(main())


# What waiting costs


@pytest.mark.needs("/proc")
def test_a_hundred_that_wait_have_no_thread_and_make_one_look_in_a_second(asyncio_peer: Peer) -> None:
    asyncio_peer("""
        shorten_waits(4)
        looks = []
        glance = AsyncPacchettino._glance
        AsyncPacchettino._glance = lambda self, *rest: looks.append(rest) or glance(self, *rest)

        def figures():
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        async def main(many):
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(aqueue.claim(timeout=None)) for _ in range(many)]
                await asyncio.sleep(0.2)
                looks.clear()
                before = time.process_time()
                await asyncio.sleep(0.5)
                spent = time.process_time() - before
                found = figures()
                for wait in waits:
                    wait.cancel()
            return spent, len(looks), *found

        one, many = run(main(1)), run(main(100))
        None
    """)
    spent, looks, threads, descriptors = asyncio_peer("many")
    assert spent < 0.1
    assert looks <= 3
    assert threads <= 1 + THREADS
    assert descriptors == asyncio_peer("one[3]")


@pytest.mark.needs("/proc")
def test_loops_leave_nothing_behind(asyncio_peer: Peer) -> None:
    asyncio_peer("""
        async def wait_a_little():
            # As many threads as there can be: how many there are depends on who comes when.
            await asyncio.gather(*(aqueue.count_all() for _ in range(200)))
            queue = AsyncPacchettino(aqueue.base_dir)
            async with queue:
                assert await queue.claim(timeout=0.01) is None
                assert await aqueue.claim(timeout=0.01) is None
                await asyncio.gather(*(queue.send_data("a") for _ in range(50)))
                assert len([await job.succeed() async for job in queue.stream(drain=True)]) == 50

        def figures():
            gc.collect()
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        run(wait_a_little())
        None
    """)
    before = asyncio_peer("figures()")
    asyncio_peer("for _ in range(8): run(wait_a_little())")
    # Threads that were told to end need a moment for it.
    until(lambda: all(now <= then for now, then in zip(asyncio_peer("figures()"), before, strict=True)))


# Cancellation


def test_a_claim_that_arrives_as_its_wait_is_cancelled_is_put_back(
    run: Run[Any], aqueue: AsyncPacchettino, queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(take: Callable[[], Coroutine[Any, Any, Any]], name: str, times: int) -> None:
        id = queue.send_data("a")
        with monkeypatch.context() as patch:
            done, go = held_back(patch, name)
            task = asyncio.create_task(take())
            await asyncio.to_thread(done.wait, 30)
            assert len(claims(queue.base_dir)) == 1  # a job is taken, and nobody has it yet
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0.01)
            assert not task.done()  # it waits for what it has begun
            go.set()
            await asyncio.wait([task])
            assert task.cancelled()
        assert queue.status(id) is Status.QUEUED
        assert claims(queue.base_dir) == []
        with queue.claim() as job:
            assert job.id == id
            assert job.attempt == 1
        assert queue.history(id) == []

    aqueue.on_data_received(lambda id, data: None)
    for times in (1, 3):
        run(main(lambda: aqueue.claim(timeout=None), "_glance", times))
        run(main(lambda: aqueue.claim(), "_glance", times))
        run(main(lambda: anext(aqueue.stream()), "_glance", times))
        run(main(lambda: aqueue.receive_one(), "_glance", times))
        run(main(lambda: aqueue.work(), "_glance", times))
        run(main(lambda: aqueue.receive(), "_claim_next", times))


def test_a_wait_that_is_cancelled_at_any_moment_takes_no_job_with_it(
    run: Run[Any], aqueue: AsyncPacchettino, queue: Pacchettino
) -> None:
    got, turns = [], 150

    async def main() -> None:
        for turn in range(turns):
            task = asyncio.create_task(aqueue.claim(timeout=None))
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            sending = asyncio.create_task(aqueue.send_data(str(turn)))
            for _ in range(turn % 13):
                await asyncio.sleep(0)
            if turn % 3 == 0:
                await sending
                time.sleep(turn % 7 / 10_000)  # the loop does not see what comes meanwhile
            task.cancel()
            await asyncio.wait([task, sending])
            if not task.cancelled():
                job = task.result()
                got.append(job.id)
                await job.succeed()

    run(main())
    assert queue.count_interrupted() == queue.count_processing() == 0
    assert queue.count_successful() == len(got)
    assert queue.count_queued() == turns - len(got)
    assert all(queue.history(job.id) == [] for job in queue.jobs(Status.QUEUED))
    assert len(files(queue.base_dir)) == turns


def test_asyncio_timeout_and_task_groups_cancel_waits(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await aqueue.claim(timeout=None)

        async def fail() -> None:
            await asyncio.sleep(0.05)
            raise ValueError("planned")

        async def wait_and_fail() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(aqueue.claim(timeout=None))
                group.create_task(fail())

        with pytest.raises(ExceptionGroup):
            await wait_and_fail()
        id = await aqueue.send_data("a")
        job = await aqueue.claim(timeout=None)
        assert job is not None
        assert job.id == id
        await job.succeed()

    run(main())


def test_a_handler_that_is_cancelled_leaves_its_job_interrupted(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        begun = asyncio.Event()

        @aqueue.on_data_received
        async def handle(id: str, data: bytes) -> None:
            begun.set()
            await asyncio.Event().wait()

        id = await aqueue.send_data("a")
        task = asyncio.create_task(call())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await aqueue.status(id) is Status.INTERRUPTED
        (attempt,) = await aqueue.history(id)
        assert attempt.ended == "interrupted"
        assert "CancelledError" in (attempt.reason or "")
        await aqueue.cleanup()

    for call in (aqueue.receive_one, aqueue.receive, aqueue.work):
        run(main(call))


def test_a_block_that_is_cancelled_leaves_its_job_interrupted(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        ids = await aqueue.send_many(["a", "b", "c"])

        async def hold(job: AsyncJob) -> None:
            async with job:
                assert current_job().id == job.id
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(hold(job)) async for job in aqueue.stream(drain=True)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
            task.cancel()
        await asyncio.wait(tasks)
        assert [await aqueue.status(id) for id in ids] == [Status.INTERRUPTED] * 3

    run(main())


def test_a_verdict_that_is_cancelled_stands(
    run: Run[Any], aqueue: AsyncPacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        id = await aqueue.send_data("a")
        job = await aqueue.claim()
        assert job is not None
        begun, go = threading.Event(), threading.Event()
        succeed = Job.succeed
        monkeypatch.setattr(Job, "succeed", lambda self: (begun.set(), go.wait(30), succeed(self)))
        task = asyncio.create_task(job.succeed())
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await aqueue.status(id) is Status.SUCCESS

    run(main())


@pytest.mark.parametrize("call", ["send", "settle"])
def test_a_call_that_fails_after_its_task_was_cancelled_is_the_cause_of_the_cancellation(
    run: Run[Any],
    aqueue: AsyncPacchettino,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    begun, go = threading.Event(), threading.Event()

    def fail(*_: object, **__: object) -> Any:
        begun.set()
        assert go.wait(30)
        raise OSError("planned")

    async def main() -> None:
        await aqueue.send_data("a")
        job = await aqueue.claim()
        assert job is not None
        with monkeypatch.context() as patch:
            patch.setattr(Job, "succeed", fail)
            patch.setattr(Pacchettino, "send_data", fail)
            task = asyncio.create_task(aqueue.send_data("b") if call == "send" else job.succeed())
            await asyncio.to_thread(begun.wait, 30)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
        assert "planned" in str(cancelled.value.__cause__)
        await job.succeed()

    run(main())
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_job_that_is_dropped_is_interrupted_by_a_thread(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        id = await aqueue.send_data("a")
        job = await aqueue.claim()
        with pytest.warns(ResourceWarning, match=id) as warned:
            del job
        assert [Path(warning.filename).name for warning in warned] == [Path(__file__).name]
        with Pacchettino(aqueue.base_dir) as other:
            assert other.status(id) is Status.PROCESSING  # nothing happens in the loop's own thread
            await until_true(lambda: other.status(id) is Status.INTERRUPTED)
        assert [attempt.reason for attempt in await aqueue.history(id)] == ["dropped without a verdict"]

    run(main())


def test_a_plain_handler_that_is_cancelled_does_not_run_twice_at_the_same_time(
    run: Run[Any], queue_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[threading.Event] = []
    results: dict[str, Callable[[], Any]] = {
        "success": lambda: None,
        "failed": lambda: Result.FAILED,
        "an exception": raiser(ValueError("planned")),
        "the end of a worker": raiser(SystemExit()),
        "what nobody awaits any more": lambda: asyncio.sleep(0),
    }

    async def main(result: str) -> None:
        queue = AsyncPacchettino(queue_dir, interrupted_attempts=1)
        runs.clear()

        @queue.on_data_received
        def handle(id: str, data: bytes) -> Any:
            runs.append(threading.Event())
            if len(runs) == 1:
                assert runs[0].wait(30)
                return results[result]()
            return None

        id = await queue.send_data("a")
        task = asyncio.create_task(queue.work(1))
        await until_true(lambda: runs)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await queue.status(id) is Status.PROCESSING
        assert await queue.work(1, drain=True) == 0
        runs[0].set()
        with Pacchettino(queue_dir) as other:
            await until_true(lambda: other.status(id) is not Status.PROCESSING)
        if result in ("the end of a worker", "what nobody awaits any more"):
            assert await queue.status(id) is Status.QUEUED
            assert await queue.work(1, drain=True) == 1
            assert [attempt.ended for attempt in await queue.history(id)] == ["interrupted"]
            assert await queue.status(id) is Status.SUCCESS
        else:
            assert await queue.status(id) is (Status.SUCCESS if result == "success" else Status.FAILED)
            assert len(runs) == 1

    for result in results:
        run(main(result))
    assert [record for record in caplog.records if not record.name.startswith("pacchettino")] == []


def test_a_worker_whose_handler_is_cancelled_goes_on(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        ids = await aqueue.send_many(["cancelled", "stray", "fine"])

        @aqueue.on_data_received
        async def handle(id: str, data: bytes) -> None:
            task = asyncio.current_task()
            assert task is not None
            if data == b"cancelled":
                task.cancel()
                await asyncio.Event().wait()
            if data == b"stray":
                other = asyncio.create_task(asyncio.Event().wait())
                other.cancel()
                await other

        assert await aqueue.work(1, drain=True) == 2
        wanted = [Status.INTERRUPTED, Status.FAILED, Status.SUCCESS]
        assert [await aqueue.status(id) for id in ids] == wanted

    run(main())


# Handlers


class Odd(BaseException):
    """As the timeouts of some libraries are, and a panic in an extension that is written in Rust."""


def outcomes() -> dict[str, tuple[Callable[[], Any], Status]]:
    def throw(error: BaseException) -> Any:
        raise error

    return {
        "None": (lambda: None, Status.SUCCESS),
        "SUCCESS": (lambda: Result.SUCCESS, Status.SUCCESS),
        "FAILED": (lambda: Result.FAILED, Status.FAILED),
        "RETRY": (lambda: Result.RETRY, Status.SCHEDULED),
        "nonsense": (lambda: True, Status.FAILED),
        "another value": (lambda: 42, Status.SUCCESS),
        "an exception": (lambda: throw(ValueError("planned")), Status.FAILED),
        "an exception of retry_on": (lambda: throw(ConnectionError("planned")), Status.SCHEDULED),
        "Retry": (lambda: throw(Retry(1000, "again")), Status.SCHEDULED),
        "Fail": (lambda: throw(Fail("never")), Status.FAILED),
        "StopIteration": (lambda: throw(StopIteration("planned")), Status.FAILED),
        "a CancelledError of a library": (lambda: throw(asyncio.CancelledError("planned")), Status.FAILED),
        "an exception that is no Exception": (lambda: throw(Odd("planned")), Status.FAILED),
        "a group of such": (lambda: throw(BaseExceptionGroup("planned", [Odd()])), Status.FAILED),
        "a verdict through current_job": (lambda: current_job().fail("told"), Status.FAILED),
        "a verdict, then an exception": (lambda: (current_job().succeed(), throw(ValueError())), Status.SUCCESS),
    }


@pytest.mark.parametrize(
    ("outcome", "kind", "call"),
    [
        *((outcome, kind, "receive_one") for outcome in outcomes() for kind in ("async", "plain")),
        *(("FAILED", kind, "work") for kind in ("async", "plain", "plain, awaitable", "callable", "partial")),
        *(("an exception", "async", call) for call in ("receive", "work")),
        *(("an exception that is no Exception", kind, "work") for kind in ("async", "plain")),
        *(("a CancelledError of a library", kind, "work") for kind in ("async", "plain")),
    ],
)
def test_what_a_handler_says_decides(run: Run[Any], queue_dir: Path, outcome: str, kind: str, call: str) -> None:
    act, status = outcomes()[outcome]
    logging.getLogger("pacchettino").addHandler(logging.NullHandler())
    threads = []

    async def handle_async(id: str, data: bytes) -> Any:
        await asyncio.sleep(0)
        return handle_plain(id, data)

    def handle_plain(id: str, data: bytes) -> Any:
        threads.append(threading.current_thread())
        assert data == b"a"
        assert current_job().id == id
        return act()

    class Callable_:
        async def __call__(self, id: str, data: bytes) -> Any:
            return await handle_async(id, data)

    handlers: dict[str, Any] = {
        "async": handle_async,
        "plain": handle_plain,
        "plain, awaitable": lambda id, data: handle_async(id, data),
        "callable": Callable_(),
        "partial": functools.partial(handle_async),
    }

    async def main() -> None:
        queue = AsyncPacchettino(queue_dir, retry_delay=1000, retry_on=(ConnectionError,))
        assert queue.on_data_received(handlers[kind]) is handlers[kind]
        id = await queue.send_data("a")
        if call == "work":
            assert await queue.work(2, drain=True) == 1
        else:
            assert await getattr(queue, call)() == 1
        assert await queue.status(id) is status
        if "a verdict" not in outcome:
            assert len(await queue.history(id)) == (status is not Status.SUCCESS)
        assert (threads == [threading.main_thread()]) is (kind != "plain")
        with pytest.raises(RuntimeError, match="no job"):
            current_job()

    run(main())


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("error", ["SystemExit(7)", "KeyboardInterrupt()"])
def test_what_ends_a_program_ends_it_also_in_a_handler(
    asyncio_peer: Peer, queue: Pacchettino, kind: str, error: str
) -> None:
    id, later = queue.send_data("a"), queue.send_data("b", delay=3600)
    assert (
        asyncio_peer(f"""
        @aqueue.on_data_received
        {"async " if kind == "async" else ""}def handle(id, data):
            raise {error}

        try:
            raised = run(aqueue.work(2))
        except BaseException as error:
            raised = error
        repr(raised)
    """)
        == error
    )
    assert queue.status(id) is Status.INTERRUPTED
    assert queue.history(id)[0].reason.startswith(error.partition("(")[0])
    assert queue.status(later) is Status.SCHEDULED


def test_an_earlier_cancellation_of_the_task_is_not_taken_for_one_of_the_handler(
    run: Run[Any], aqueue: AsyncPacchettino
) -> None:
    @aqueue.on_data_received
    async def handle(id: str, data: bytes) -> None:
        if data == b"stray":
            raise asyncio.CancelledError("planned")
        begun.set()
        await asyncio.Event().wait()

    begun = asyncio.Event()

    async def goes_on_when_cancelled() -> None:
        with suppress(asyncio.CancelledError):
            waiting.set()
            await asyncio.Event().wait()
        assert await aqueue.receive_one()
        await aqueue.send_data("cancelled")
        assert await aqueue.receive_one()

    waiting = asyncio.Event()

    async def main() -> None:
        id = await aqueue.send_data("stray")
        task = asyncio.create_task(goes_on_when_cancelled())
        await waiting.wait()
        task.cancel()
        await begun.wait()
        assert await aqueue.status(id) is Status.FAILED
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await aqueue.count_interrupted() == 1

    run(main())


def test_hooks_are_told_of_each_verdict_once(
    run: Run[Any], aqueue: AsyncPacchettino, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pacchettino")
    told: list[tuple[str, str, bool]] = []

    @aqueue.on_settled
    def hook(job: Job, outcome: str, seconds: float) -> None:
        told.append((job.id, outcome, 0 <= seconds < 60))

    @aqueue.on_data_received
    async def handle(id: str, data: bytes) -> Result:
        return Result(data.decode())

    async def main() -> None:
        outcomes = ["success", "failed", "success", "failed", "success"]
        ids = await aqueue.send_many(outcomes)
        assert await aqueue.work(1, drain=True) == 5
        ids.append(await aqueue.send_data("success"))
        assert await aqueue.receive_one()
        ids.append(await aqueue.send_data("a"))
        async with await aqueue.claim() as job:
            await job.fail()
        ids.append(await aqueue.send_data("a"))
        async for job in aqueue.stream(drain=True):
            await job.retry(1000)
        outcomes += ["success", "failed", "retry"]
        assert sorted(told) == sorted((id, outcome, True) for id, outcome in zip(ids, outcomes, strict=True))
        for id in ids:
            assert [record.getMessage() for record in caplog.records].count(f"job {id} taken") == 1

    run(main())


def test_files_have_their_handler(run: Run[Any], aqueue: AsyncPacchettino, tmp_path: Path) -> None:
    (tmp_path / "name").write_text("content")
    handled = []

    @aqueue.on_file_received
    async def handle(id: str, name: str, path: Path) -> None:
        handled.append((id, name, path.read_text()))

    async def main() -> None:
        id = await aqueue.send_file(tmp_path / "name")
        await aqueue.send_data("is left")
        assert await aqueue.receive() == 1
        assert handled == [(id, "name", "content")]
        assert await aqueue.count_queued() == 1

    run(main())


def test_each_task_has_its_own_current_job(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    here = asyncio.Barrier(5)

    @aqueue.on_data_received
    async def handle(id: str, data: bytes) -> None:
        await here.wait()
        for _ in range(3):
            assert current_job().id == id
            assert await asyncio.create_task(asyncio.to_thread(lambda: current_job().id)) == id
        await here.wait()

    async def main() -> None:
        await aqueue.send_many(["a", "b", "c", "d", "e"])
        assert await aqueue.work(5, drain=True) == 5
        assert await aqueue.count_successful() == 5

    run(main())


def test_plain_handlers_run_side_by_side_and_their_number_is_bounded(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    many = 20
    barrier = threading.Barrier(many, timeout=30)
    aqueue.on_data_received(lambda id, data: (barrier.wait(), None)[1])

    async def main() -> None:
        await aqueue.send_many(["a"] * 2 * many)
        assert await aqueue.work(many, drain=True) == 2 * many
        assert await aqueue.count_successful() == 2 * many

    run(main())


def test_a_job_that_can_not_be_read_fails_and_the_others_go_on(
    run: Run[Any], aqueue: AsyncPacchettino, caplog: pytest.LogCaptureFixture
) -> None:
    @aqueue.on_data_received
    async def handle(id: str, data: bytes) -> None:
        pass

    async def main() -> None:
        id = await aqueue.send_data("a")
        (aqueue.base_dir / "queued" / f"raw-{new_id()}").mkdir()
        bad = aqueue.base_dir / "queued" / f"raw-{new_id()}"
        bad.symlink_to(aqueue.base_dir / "nowhere")
        assert await aqueue.work(3, drain=True) >= 1
        assert await aqueue.status(id) is Status.SUCCESS

    run(main())


# Streams


def test_a_stream_never_holds_more_than_it_may(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        await aqueue.send_many(str(number) for number in range(20))
        stream = aqueue.stream(3)
        jobs = [await anext(stream) for _ in range(3)]
        following = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.1)
        assert not following.done()
        assert await aqueue.count_processing() == 3
        for number, verdict in enumerate(
            (AsyncJob.succeed, AsyncJob.fail, functools.partial(AsyncJob.retry, delay=99))
        ):
            await verdict(jobs[number])
            jobs.append(await following)
            following = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.02)
            assert not following.done()
            assert await aqueue.count_processing() == 3
        for job in jobs[3:]:
            async with job:
                pass
        jobs = [await following, await anext(stream), await anext(stream)]
        assert await aqueue.count_processing() == 3
        with pytest.raises(ValueError, match="2286"):
            await jobs[0].retry(1e12)
        following = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.02)
        assert not following.done()  # that was no verdict
        following.cancel()
        await asyncio.wait([following])
        # A job that is dropped makes room as well.
        job = jobs.pop()
        with pytest.warns(ResourceWarning, match=job.id):
            del job
        jobs.append(await anext(stream))
        for job in jobs:
            await job.succeed()
        assert await aqueue.count_processing() == 0
        assert await aqueue.count_interrupted() == 1

    run(main())


def test_a_stream_that_is_left_holds_nothing(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        await aqueue.send_many(["a", "b", "c", "d"])
        async for job in aqueue.stream():
            await job.succeed()
            break
        assert await aqueue.count_queued() == 3
        assert await aqueue.count_processing() == 0
        kinds = [job.kind async for job in aqueue.stream(kind="file", drain=True)]
        assert kinds == []

    run(main())


def test_what_comes_of_the_block_of_a_job_decides(run: Run[Any], queue_dir: Path) -> None:
    async def main() -> None:
        queue = AsyncPacchettino(queue_dir, retry_delay=1000, retry_on=(ConnectionError,))
        wanted = {
            None: Status.SUCCESS,
            Fail("no"): Status.FAILED,
            Retry(): Status.SCHEDULED,
            ValueError("planned"): Status.FAILED,
            ConnectionError("planned"): Status.SCHEDULED,
            SystemExit(): Status.INTERRUPTED,
        }
        for error, status in wanted.items():
            id = await queue.send_data("a")
            with suppress(ValueError, ConnectionError, SystemExit):
                async with await queue.claim() as job:
                    assert current_job().id == job.id == id
                    if error is not None:
                        raise error
                assert error is None or isinstance(error, Fail | Retry)
            assert await queue.status(id) is status
            with pytest.raises(RuntimeError, match="no job"):
                current_job()

    run(main())


def test_many_tasks_share_a_stream(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        ids = await aqueue.send_many(str(number) for number in range(100))
        stream, handled = aqueue.stream(7, drain=True), []

        async def consume() -> None:
            async for job in stream:
                async with job:
                    assert await aqueue.count_processing() <= 7
                    handled.append(job.id)

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(consume())
        assert sorted(handled) == ids

    run(main())


# Work and its end

WORK = """
    handled = []

    @aqueue.on_data_received
    async def handle(id, data):
        Path(data.decode()).touch()
        while not Path(data.decode() + ".go").exists():
            await asyncio.sleep(0.005)
        handled.append(id)

    def work(**settings):
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            return run(aqueue.work(3, **settings))
        except BaseException as error:
            return repr(error)
        finally:
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
"""


def begin(peer: Peer, queue: Pacchettino, tmp_path: Path, settings: str = "") -> tuple[str, Path]:
    """Let it work, and be in the middle of a job. Gives the id, and the file for which the job waits."""
    peer(WORK)
    peer.begin(f"work({settings})")
    id = queue.send_data(str(tmp_path / "job"))
    until((tmp_path / "job").exists)
    return id, tmp_path / "job.go"


@pytest.mark.needs("signals", "kernel events")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_the_first_signal_the_jobs_in_hand_are_finished_and_no_other_is_taken(
    asyncio_peer: Peer, queue: Pacchettino, tmp_path: Path, number: int
) -> None:
    id, go = begin(asyncio_peer, queue, tmp_path)
    os.kill(asyncio_peer.pid, number)
    until(lambda: not listens(asyncio_peer.pid))
    later = queue.send_data(str(tmp_path / "later"))
    time.sleep(0.1)
    assert not (tmp_path / "later").exists()
    go.touch()
    assert asyncio_peer.end() == 1
    assert (queue.status(id), queue.status(later)) == (Status.SUCCESS, Status.QUEUED)


@pytest.mark.needs("signals")
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, "SystemExit(143)"), (signal.SIGINT, "KeyboardInterrupt()")]
)
@pytest.mark.parametrize("grace", [None, 0.1])
def test_after_the_second_signal_or_the_grace_handlers_are_cancelled(
    asyncio_peer: Peer, queue: Pacchettino, tmp_path: Path, number: int, error: str, grace: float | None
) -> None:
    id, _ = begin(asyncio_peer, queue, tmp_path, f"grace={grace}")
    os.kill(asyncio_peer.pid, number)
    if grace is None:
        time.sleep(0.1)
        assert not asyncio_peer.has_answered()
        os.kill(asyncio_peer.pid, number)
    assert asyncio_peer.end() == error
    assert queue.status(id) is Status.INTERRUPTED
    assert asyncio_peer("handled") == []


@pytest.mark.needs("signals")
@pytest.mark.parametrize("code", [143, -signal.SIGINT])
def test_a_program_that_is_told_twice_ends_as_programs_do(queue_dir: Path, loop_factory: str, code: int) -> None:
    program = f"""
import asyncio, sys
import {loop_factory.split(".")[0]}
from pacchettino.aio import AsyncPacchettino

queue = AsyncPacchettino(sys.argv[1])

@queue.on_data_received
async def handle(id, data):
    print(id, flush=True)
    await asyncio.sleep(60)

with asyncio.Runner(loop_factory={loop_factory}) as runner:
    runner.run(queue.work())
"""
    with Pacchettino(queue_dir) as queue:
        command = [sys.executable, "-W", "error", "-c", program, str(queue_dir)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            id = queue.send_data("a")
            assert process.stdout.readline() == f"{id}\n"
            number = signal.SIGTERM if code == 143 else signal.SIGINT
            process.send_signal(number)
            time.sleep(0.1)
            assert process.poll() is None
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == code
        assert "never retrieved" not in errors
        assert "ResourceWarning" not in errors
        assert (errors == "") is (code == 143)
        assert queue.status(id) is Status.INTERRUPTED


@pytest.mark.needs("signals")
def test_two_signals_end_it_also_while_its_workers_are_made(asyncio_peer: Peer, queue: Pacchettino) -> None:
    asyncio_peer("aqueue.on_data_received(lambda id, data: None); None")
    id = queue.send_data("a")
    assert (
        asyncio_peer("""
        made = []

        def make(loop, coroutine, **more):
            made.append(coroutine)
            if len(made) in (50, 60):
                os.kill(os.getpid(), signal.SIGTERM)
            return asyncio.Task(coroutine, loop=loop, **more)

        async def main():
            asyncio.get_running_loop().set_task_factory(make)
            await aqueue.work(100)

        try:
            run(main())
        except BaseException as error:
            raised = repr(error)
        raised
    """)
        == "SystemExit(143)"
    )
    assert queue.status(id) is Status.QUEUED


@pytest.mark.needs("signals")
def test_one_signal_ends_all_that_work_and_the_handlers_of_others_stay(asyncio_peer: Peer) -> None:
    asyncio_peer("""
        other = AsyncPacchettino(queue.base_dir.with_name("other"))
        for each in (aqueue, other):
            each.on_data_received(lambda id, data: None)
        mine = []

        async def taken(what):
            while mine != [what]:
                await asyncio.sleep(0)
            mine.clear()

        async def main():
            loop = asyncio.get_running_loop()
            before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
            works = [asyncio.create_task(each.work()) for each in (aqueue, other)]
            while signal.getsignal(signal.SIGTERM) == before[0]:
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.gather(*works) == [0, 0]
            assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before

            # Handlers of the application get their signals, however they were set; `work` goes on.
            signal.signal(signal.SIGINT, lambda number, frame: mine.append("SIGINT"))
            loop.add_signal_handler(signal.SIGTERM, mine.append, "SIGTERM")
            works = [asyncio.create_task(each.work()) for each in (aqueue, other)]
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                await aqueue.send_data("a")
                while await aqueue.count_all() > await aqueue.count_successful():
                    await asyncio.sleep(0)
                os.kill(os.getpid(), number)
                await taken(number.name)

            # The others are still taken, also by one that begins when the application has given up its own handler.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            works.append(asyncio.create_task(other.work()))
            while signal.getsignal(signal.SIGINT) == signal.default_int_handler:
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.gather(*works)
            os.kill(os.getpid(), signal.SIGTERM)
            await taken("SIGTERM")

        run(main())
    """)


@pytest.mark.needs("signals")
def test_without_signals_a_program_ends_as_it_does_by_default(queue: Pacchettino, asyncio_peer: Peer) -> None:
    id = queue.send_data("a")
    asyncio_peer.begin("""
        @aqueue.on_data_received
        async def handle(id, data):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

        run(aqueue.work(signals=False))
    """)
    asyncio_peer.wait()
    asyncio_peer.reap()
    assert asyncio_peer._process.returncode == -signal.SIGTERM
    assert queue.claim() is None
    assert queue.status(id) is Status.INTERRUPTED


# The guide's application, with a handler that waits for the test.
SERVED = """
import asyncio
import warnings
from pathlib import Path

from app import app, queue

warnings.simplefilter("ignore")
stop = queue.stop


@queue.on_data_received
async def handle(id, data):
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.005)


def stop_and_say_so():
    stop()
    Path("stopped").touch()


queue.stop = stop_and_say_so
"""


def order(server: Path) -> bool:
    """Send a job through a web server. Returns whether the server is there."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(server))
        except OSError:
            return False
        connection.sendall(b"POST /orders HTTP/1.0\r\nContent-Length: 1\r\n\r\na")
        assert connection.makefile("rb").readline().split()[1] == b"202"
        return True


SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--uds=socket", "--no-access-log", "served:app"],
    "gunicorn": ["-m", "gunicorn", "--bind=unix:socket", "--no-control-socket", "served:app", "--worker-class"],
}


@pytest.mark.needs("signals")
@pytest.mark.parametrize(
    "server",
    [
        [*SERVERS["uvicorn"], "--loop=asyncio"],
        [*SERVERS["uvicorn"], "--loop=uvloop"],
        [*SERVERS["gunicorn"], "uvicorn_worker.UvicornWorker"],
        [*SERVERS["gunicorn"], "asgi"],
    ],
    ids=["uvicorn", "uvicorn-uvloop", "gunicorn-uvicorn", "gunicorn"],
)
def test_a_web_server_gets_its_signals_and_ends_after_the_jobs_in_progress(quick_dir: Path, server: list[str]) -> None:
    app = re.search(r'```python title="app.py"\n(.*?)^```', GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert app is not None
    (quick_dir / "app.py").write_text(app[1])
    (quick_dir / "served.py").write_text(SERVED)
    with (
        (quick_dir / "log").open("w") as log,
        subprocess.Popen([sys.executable, *server], cwd=quick_dir, stdout=log, stderr=log, process_group=0) as process,
        Pacchettino(quick_dir / "queue") as queue,
    ):
        try:
            until(lambda: order(quick_dir / "socket") or process.poll() is not None)
            until((quick_dir / "begun").exists)
            process.terminate()
            until((quick_dir / "stopped").exists)
            later = queue.send_data("later")
            (quick_dir / "go").touch()
            process.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):  # also the workers of a server that did not end
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode in (0, -signal.SIGTERM), (quick_dir / "log").read_text()
        assert [job.status for job in queue.jobs(Status.SUCCESS)] == [Status.SUCCESS]
        assert queue.status(later) is Status.QUEUED
        assert queue.count_all() == 2


@pytest.mark.needs("signals", "fork")
def test_a_child_that_a_handler_forks_takes_signals_as_it_did_before(asyncio_peer: Peer, queue: Pacchettino) -> None:
    asyncio_peer("""
        @aqueue.on_data_received
        async def handle(id, data):
            is_up, up = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(up, b"up")
                signal.pause()
                os._exit(1)
            os.read(is_up, 2)
            os.kill(child, signal.SIGTERM)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        codes = []
    """)
    queue.send_data("a")
    assert asyncio_peer("run(aqueue.work(drain=True))") == 1
    assert asyncio_peer("codes") == [-signal.SIGTERM]


def test_stop_lets_handlers_finish_and_after_the_grace_cancels_them(run: Run[Any], queue_dir: Path) -> None:
    async def main(grace: float | None) -> None:
        queue = AsyncPacchettino(queue_dir)
        begun, go = asyncio.Event(), asyncio.Event()

        @queue.on_data_received
        async def handle(id: str, data: bytes) -> None:
            begun.set()
            await go.wait()

        id = await queue.send_data("a")
        work = asyncio.create_task(queue.work(grace=grace))
        await begun.wait()
        queue.stop()
        queue.stop()
        later = await queue.send_data("b")
        await asyncio.sleep(0.02)
        assert not work.done()
        if grace is None:
            go.set()
            assert await work == 1
        else:
            with pytest.raises(TimeoutError):
                await work
        assert await queue.status(id) is (Status.SUCCESS if grace is None else Status.INTERRUPTED)
        assert await queue.status(later) is Status.QUEUED
        assert await queue.work() == 0  # for good
        await queue.cancel(later)

    run(main(None))
    run(main(0.05))


def test_a_plain_handler_that_does_not_end_is_left_behind(asyncio_peer: Peer, queue: Pacchettino) -> None:
    id = queue.send_data("a")
    assert asyncio_peer("""
        begun, go = threading.Event(), threading.Event()
        aqueue.on_data_received(lambda id, data: (begun.set(), go.wait(), None)[-1])

        async def main():
            work = asyncio.create_task(aqueue.work(grace=0.01))
            await asyncio.to_thread(begun.wait)
            aqueue.stop()
            try:
                await work
            except TimeoutError:
                return True

        run(main())
    """)
    assert queue.status(id) is Status.INTERRUPTED
    # And it keeps no program from its end.
    asyncio_peer.finish()


def test_an_error_of_the_queue_ends_work_after_the_jobs_in_hand(
    run: Run[Any], aqueue: AsyncPacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        @aqueue.on_data_received
        async def handle(id: str, data: bytes) -> None:
            begun.set()
            await go.wait()

        id = await aqueue.send_data("a")
        work = asyncio.create_task(aqueue.work(3))
        await begun.wait()

        def fail(*_: object) -> Any:
            raise MemoryError("planned")

        monkeypatch.setattr(AsyncPacchettino, "_glance", fail)
        await aqueue.send_data("b")
        await asyncio.sleep(0.1)
        assert not work.done()
        go.set()
        with pytest.raises(MemoryError, match="planned"):
            await work
        assert await aqueue.status(id) is Status.SUCCESS

    run(main())


def test_no_worker_of_a_drain_ends_while_another_may_send_jobs(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    async def main() -> None:
        both = asyncio.Barrier(2)

        @aqueue.on_data_received
        async def handle(id: str, data: bytes) -> None:
            if data == b"first":
                await aqueue.send_many(["second", "second"])
            else:
                await both.wait()  # two workers are still there

        await aqueue.send_data("first")
        assert await aqueue.work(2, drain=True) == 3

    run(main())


def test_no_job_is_left_by_a_drain_that_another_one_sent_last(run: Run[Any], quick_dir: Path) -> None:
    async def main() -> None:
        async with AsyncPacchettino(quick_dir) as aqueue:

            @aqueue.on_data_received
            async def handle(id: str, data: bytes) -> None:
                if int(data) < 10:
                    await aqueue.send_data(str(int(data) + 1))

            for _ in range(50):
                await aqueue.send_data("1")
                assert await aqueue.work(3, drain=True) == 10
                assert await aqueue.count_queued() == 0

    run(main())


def test_a_verdict_that_waits_for_a_thread_is_given_although_its_task_is_cancelled(
    run: Run[Any], aqueue: AsyncPacchettino
) -> None:
    async def main() -> None:
        settled: list[str] = []
        aqueue.on_settled(lambda job, outcome, seconds: settled.append(outcome))
        go_on, returned = threading.Event(), asyncio.Event()
        busy: list[Any] = []

        @aqueue.on_data_received
        async def handle(id: str, data: bytes) -> None:
            busy.extend(aqueue._start(go_on.wait) for _ in range(64))  # more than there are threads
            returned.set()

        id = await aqueue.send_data("a")
        work = asyncio.create_task(aqueue.work(1))
        await returned.wait()
        work.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await aqueue.status(id) is Status.SUCCESS
        assert settled == ["success"]

    run(main())


def test_a_drain_does_what_waits_and_returns(run: Run[Any], aqueue: AsyncPacchettino) -> None:
    @aqueue.on_data_received
    async def handle(id: str, data: bytes) -> Result:
        return Result.RETRY if current_job().attempt == 1 else Result.SUCCESS

    async def main() -> None:
        ids = await aqueue.send_many(str(number) for number in range(20))
        assert await aqueue.work(4, drain=True) == 40
        assert await aqueue.count_successful() == len(ids)
        assert await aqueue.work(drain=True) == 0

    run(main())


# Loops, processes, power


def test_one_instance_serves_loops_one_after_the_other_and_side_by_side(
    new_loop: Callable[[], asyncio.AbstractEventLoop], aqueue: AsyncPacchettino, queue: Pacchettino
) -> None:
    handled: list[str] = []

    async def main() -> None:
        while (job := await aqueue.claim(timeout=None)) is not None:
            async with job:
                handled.append(job.id)
                await asyncio.sleep(0.002)

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    threads = [threading.Thread(target=run_loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    ids = [queue.send_data(str(number)) for number in range(100)]
    until(lambda: len(handled) == 100)
    aqueue.stop()
    for thread in threads:
        finish_thread(thread)
    assert sorted(handled) == ids
    assert queue.count_successful() == 100


def test_a_loop_that_is_closed_under_a_wait_and_a_handler_loses_no_job(asyncio_peer: Peer, queue: Pacchettino) -> None:
    id = queue.send_data("a")
    asyncio_peer("""
        import logging
        logging.getLogger("asyncio").addHandler(logging.NullHandler())
        begun = threading.Event()

        @aqueue.on_data_received
        async def handle(id, data):
            begun.set()
            await asyncio.Event().wait()

        async def main():
            global tasks
            calls = aqueue.work(2), aqueue.claim(timeout=None, kind="file")
            tasks = [asyncio.ensure_future(call) for call in calls]
            while not begun.is_set():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # the other worker has looked by now, and sleeps
    """)
    asyncio_peer("loop = new_loop(); loop.run_until_complete(main()); loop.close()")
    later = queue.send_data("b")
    asyncio_peer("del tasks")

    def is_dropped() -> bool:
        asyncio_peer("gc.collect()")  # a look in a thread, if there is one just now, keeps all of it for a moment
        return queue.status(id) is Status.INTERRUPTED

    until(is_dropped)
    assert queue.status(later) is Status.QUEUED
    # And the instance goes on in another loop.
    assert asyncio_peer("run(aqueue.claim(timeout=10)).id") == later


@pytest.mark.needs("signals")
def test_a_process_that_is_killed_leaves_its_jobs_interrupted_and_no_other_is_lost(
    asyncio_peer: Peer, queue: Pacchettino, tmp_path: Path
) -> None:
    ids = [queue.send_data(str(number)) for number in range(10)]
    asyncio_peer("""
        async def main():
            jobs = [job async for job in aqueue.stream(4)]
    """)
    asyncio_peer.begin("run(main())")
    until(lambda: queue.count_processing() == 4)
    asyncio_peer.kill()
    asyncio_peer.reap()
    found = [queue.claim() for _ in range(6)]
    assert queue.count_interrupted() == 4
    assert queue.claim() is None
    interrupted = [job.id for job in queue.jobs(Status.INTERRUPTED)]
    assert sorted(interrupted + [job.id for job in found if job is not None]) == ids
    for job in found:
        assert job is not None
        job.succeed()


@pytest.mark.needs("fork")
def test_a_forked_child_uses_the_instance_in_a_loop_of_its_own(asyncio_peer: Peer, queue: Pacchettino) -> None:
    asyncio_peer("""
        async def take():
            await asyncio.gather(*(aqueue.count_all() for _ in range(20)))
            async with await aqueue.claim(timeout=10) as job:
                return job.id
    """)
    for _ in range(2):
        id = queue.send_data("a")
        assert asyncio_peer("run(take())") == id
        with asyncio_peer.fork() as child:
            child.begin("run(take())")
            id = queue.send_data("a")
            assert child.end() == id
            child.leave()
            child.finish()


@pytest.mark.needs("fork")
def test_a_child_that_is_forked_while_its_parent_waits_is_in_nobody_s_way(
    asyncio_peer: Peer, queue: Pacchettino
) -> None:
    asyncio_peer("""
        async def look():
            await aqueue.send_data("the child's", delay=3600)
            assert await aqueue.claim(timeout=0.05, kind="file") is None

        async def wait_and_fork():
            waiting = asyncio.create_task(aqueue.claim(timeout=None, kind="data"))
            other = asyncio.create_task(aqueue.claim(timeout=None, kind="file"))
            await asyncio.sleep(0.05)
            if (child := os.fork()) == 0:
                try:
                    thread = threading.Thread(target=lambda: run(look()) or done.append(True))
                    done = []
                    thread.start()
                    thread.join()
                    waiting = other = None
                finally:
                    os._exit(not done)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            began = time.monotonic()
            id = await aqueue.send_data("the parent's")
            job = await waiting
            assert job.id == id
            await job.succeed()
            other.cancel()
            return time.monotonic() - began
    """)
    assert asyncio_peer("run(wait_and_fork())") < SOON
    assert (queue.count_scheduled(), queue.count_successful()) == (1, 1)
