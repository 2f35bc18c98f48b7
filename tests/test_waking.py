"""Waking: what ends a wait, what does not, and what waiting costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Peer, entries, lay_down, new_id, sleeps_on_the_watch, until
from pacchettino import KeepPolicy, Pacchettino, Status


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "report.txt"
    file.write_bytes(b"content")
    return file


# What ends a wait


def send_as_another_program(queue: Pacchettino, source: Path, id: str) -> None:
    source.rename(queue.base_dir / "queued" / f"raw-{new_id()}")


def make_due_as_another_program(queue: Pacchettino, source: Path, id: str) -> None:
    source.rename(queue.base_dir / "scheduled" / f"0000000000001-raw-{new_id()}")


WAYS: dict[str, Callable[[Pacchettino, Path, str], Any]] = {
    "a data job": lambda queue, source, id: queue.send_data("a"),
    "several data jobs": lambda queue, source, id: queue.send_many(["a"]),
    "a file that is copied": lambda queue, source, id: queue.send_file(source),
    "a file that is moved": lambda queue, source, id: queue.send_file(source, copy=False),
    "a delay that ends": lambda queue, source, id: queue.send_data("a", delay=0.02),
    "a requeue": lambda queue, source, id: queue.requeue(id),
    "a requeue of all": lambda queue, source, id: queue.requeue_all(KeepPolicy.SUCCESS),
    "a job of another program": send_as_another_program,
    "a job of another program that is due": make_due_as_another_program,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.needs("kernel events")
def test_a_wait_in_another_process_is_ended_at_once_by(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, way: str
) -> None:
    rounds = 10
    with Peer(queue_dir) as peer:
        peer("""
            handled = []
            queue.on_data_received(lambda id, data: handled.append(id))
            queue.on_file_received(lambda id, name, path: handled.append(id))
            None
        """)
        queue.send_data("the first")
        assert peer("queue.receive_one()")
        (id,) = peer("handled")
        began = time.monotonic()
        for _ in range(rounds):
            source = tmp_path / "source"
            source.write_bytes(b"content")
            peer.begin("queue.receive_one(timeout=None)")
            until(lambda: sleeps_on_the_watch(peer))
            WAYS[way](queue, source, id)
            assert peer.end() is True
        # Without a word of the kernel the consumer looks once a second, and each of these came when it had just looked.
        assert time.monotonic() - began < rounds / 2
        assert peer("len(handled)") == rounds + 1
        assert queue.count_successful() == len(set(peer("handled")))


LIMITS = {"with inotify": None, "without instances": "max_inotify_instances", "without watches": "max_inotify_watches"}


@pytest.fixture(params=LIMITS)
def limited(request: pytest.FixtureRequest, queue_dir: Path) -> Peer:
    """Give a process with a queue, which can watch the directories or can not; its log is in `lines`."""
    limit = LIMITS[request.param]
    under: list[str] = []
    if limit is not None:
        apart = ["unshare", "--user", "--map-root-user", "--fork"]
        lower = f"echo 0 > /proc/sys/user/{limit}"
        if shutil.which("unshare") is None or subprocess.run([*apart, "sh", "-c", lower], check=False).returncode != 0:
            pytest.skip("NOT TESTED: the limits of inotify need the right to make a user namespace")
        under = [*apart, "sh", "-c", f'{lower} && exec "$@"', "sh"]
    with Peer(queue_dir, under=under) as peer:
        peer("""
            import logging, time
            lines = []
            handler = logging.Handler()
            handler.emit = lambda record: lines.append(record.getMessage())
            logging.getLogger("pacchettino").addHandler(handler)
            handled = []
            queue.on_data_received(lambda id, data: handled.append(id))

            def in_threads(count, act):
                results = []
                threads = [threading.Thread(target=lambda: results.append(act()), daemon=True) for _ in range(count)]
                for thread in threads:
                    thread.start()
                return threads, results

            def end_of(threads):
                for thread in threads:
                    thread.join(30)
                    assert not thread.is_alive(), "it still waits"
        """)
        peer(f"is_limited = {limit is not None}")
        yield peer


def test_every_wait_is_ended_by_a_job_of_another_process(limited: Peer, queue: Pacchettino) -> None:
    for delay in (0, 0.1):
        for _ in range(3):
            limited.begin("queue.receive_one(timeout=None)")
            id = queue.send_data("a", delay=delay)
            assert limited.end() is True
            assert queue.status(id) is Status.SUCCESS


def test_every_wait_is_ended_by_a_job_that_another_thread_of_its_process_sends_or_requeues(limited: Peer) -> None:
    limited("""
        other = Pacchettino(queue.base_dir)
        for turn in range(5):
            threads, results = in_threads(1, lambda: queue.receive_one(timeout=None))
            id = (other if turn % 2 else queue).send_data("a", delay=turn % 3 / 20)
            end_of(threads)
            assert results == [True] and handled[-1] == id, (results, handled, id)
            threads, results = in_threads(1, lambda: queue.receive_one(timeout=None))
            assert (queue if turn % 2 else other).requeue(id)
            end_of(threads)
            assert results == [True] and handled[-1] == id, (results, handled, id)
    """)


def test_every_wait_is_ended_when_its_queue_is_closed_and_no_other_is(limited: Peer) -> None:
    limited("""
        other = Pacchettino(queue.base_dir)
        threads, results = in_threads(4, lambda: queue.receive_one(timeout=None))
        others, jobs = in_threads(2, lambda: other.claim(timeout=None))
        threads[0].join(0.1)
        assert all(thread.is_alive() for thread in threads + others)
        queue.close()
        end_of(threads)
        assert results == [False] * 4, results
        others[0].join(0.1)
        assert all(thread.is_alive() for thread in others)
        ids = other.send_many(["a", "b"])
        end_of(others)
        assert sorted(job.id for job in jobs) == ids
        for job in jobs:
            job.succeed()
    """)


def test_of_many_that_wait_one_gets_the_job_and_the_others_go_on_waiting(limited: Peer, queue: Pacchettino) -> None:
    limited("""
        other = Pacchettino(queue.base_dir)
        other.on_data_received(lambda id, data: handled.append(id))
        turn = iter([queue, other] * 4)
        threads, results = in_threads(8, lambda: next(turn).receive_one(timeout=None))
        threads[0].join(0.1)
    """)
    sent = []
    for turn in range(8):
        assert limited("sum(thread.is_alive() for thread in threads)") == 8 - turn
        sent.append(queue.send_data("a"))
        until(lambda: len(limited("results")) == len(sent))
        # One that was woken in vain and gave up shows when it is counted in the next turn.
        assert limited("results") == [True] * len(sent)
        assert limited("handled") == sent
    limited("end_of(threads)")
    assert limited("results") == [True] * len(sent)


def test_where_inotify_has_reached_its_limits_the_log_says_so_once(limited: Peer, queue: Pacchettino) -> None:
    limited("""
        Pacchettino(queue.base_dir).claim(timeout=0.1)
        end_of(in_threads(4, lambda: queue.receive_one(timeout=0.2))[0])
    """)
    for _ in range(3):
        limited.begin("queue.receive_one(timeout=None)")
        queue.send_data("a")
        assert limited.end() is True
    assert limited("queue.receive_one(timeout=0.2)") is False
    lines = limited("lines")
    assert [("inotify" in line, "limit" in line) for line in lines] == [(True, True)] * limited("is_limited")


def test_where_inotify_has_reached_its_limits_the_log_says_so_while_the_wait_goes_on(limited: Peer) -> None:
    limited("""
        shorten_waits(20)
        threads, results = in_threads(1, lambda: queue.receive_one(timeout=None))
    """)
    until(lambda: limited("len(lines)") == limited("is_limited"))
    limited("threads[0].join(0.2)")  # it looks several times more
    assert limited("threads[0].is_alive()")
    assert limited("len(lines)") == limited("is_limited")


# What waiting costs

MOST = 0.1
"""Seconds of a processor that half a second of waiting may take, in which each thread looks twice."""

SPEND = """
    import logging, time

    logging.getLogger("pacchettino").addHandler(logging.NullHandler())
    queue.on_data_received(lambda id, data: None)

    shorten_waits(4)

    def wait():
        assert not queue.receive_one(timeout=0.5)

    def spend(count):
        assert not queue.receive_one(timeout=0.01)  # the first look reads all, and logs what is strange
        threads = [threading.Thread(target=wait) for _ in range(count)]
        before = time.process_time()
        for thread in threads:
            thread.start()
        if not threads:
            wait()
        for thread in threads:
            thread.join()
        return time.process_time() - before
"""


@pytest.mark.needs("kernel events")
@pytest.mark.parametrize("threads", [0, 4], ids=["main thread", "four threads"])
@pytest.mark.parametrize("beside", ["nothing", "file jobs", "strange files", "delayed jobs"])
def test_waiting_takes_next_to_nothing_beside(quick_dir: Path, threads: int, beside: str) -> None:
    queue_dir = quick_dir / "queue"
    many = 1000
    found = {
        "nothing": {},
        "file jobs": {f"queued/fle-{new_id()}-report.txt".encode(): b"" for _ in range(many)},
        "strange files": {f"queued/raw-{number}".encode(): b"" for number in range(many)},
        "delayed jobs": {f"scheduled/9000000000000-raw-{new_id()}".encode(): b"" for _ in range(many)},
    }[beside]
    lay_down(queue_dir, found)
    with Peer(queue_dir) as peer:
        peer(SPEND)
        assert peer(f"spend({threads})") < MOST
    assert len(entries(queue_dir / "queued")) == sum(path.startswith(b"queued/") for path in found)


# A directory that is replaced


def delete_and_make(queue_dir: Path, tmp_path: Path) -> None:
    shutil.rmtree(queue_dir)


def rename_and_make(queue_dir: Path, tmp_path: Path) -> None:
    queue_dir.rename(tmp_path / "old")


def rename_and_replace(queue_dir: Path, tmp_path: Path) -> None:
    Pacchettino(tmp_path / "new").close()
    queue_dir.rename(tmp_path / "old")
    (tmp_path / "new").rename(queue_dir)


def turn_a_link(queue_dir: Path, tmp_path: Path) -> None:
    Pacchettino(tmp_path / "new").close()
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "link").rename(queue_dir)


@pytest.mark.parametrize("replace", [delete_and_make, rename_and_make, rename_and_replace, turn_a_link])
@pytest.mark.parametrize("thread", ["main thread", "another thread"])
@pytest.mark.needs("kernel events")
def test_who_waits_goes_on_with_the_directory_that_came_to_the_place_of_the_one_before(
    queue_dir: Path, tmp_path: Path, replace: Callable[[Path, Path], None], thread: str
) -> None:
    if replace is turn_a_link:
        (tmp_path / "old").mkdir()
        queue_dir.symlink_to("old")
    with Peer(queue_dir) as peer:
        peer("""
            import logging
            logging.getLogger("pacchettino").addHandler(logging.NullHandler())
            shorten_waits(20)  # until it has found the new one
            handled = []
            queue.on_data_received(lambda id, data: handled.append(id))

            def receive_one():
                return queue.receive_one(timeout=None)

            def receive_one_in_a_thread():
                results = []
                thread = threading.Thread(target=lambda: results.append(receive_one()))
                thread.start()
                thread.join()
                return results[0]
        """)
        receive = "receive_one()" if thread == "main thread" else "receive_one_in_a_thread()"
        peer.begin(receive)
        until(lambda: sleeps_on_the_watch(peer))
        replace(queue_dir, tmp_path)
        with Pacchettino(queue_dir) as queue:
            ids = [queue.send_data("a")]
            assert peer.end() is True
            if (tmp_path / "old").exists():
                with Pacchettino(tmp_path / "old") as old:
                    left = old.send_data("to the old one")
            # It has found the new one; from now on the kernel tells of jobs there.
            peer("shorten_waits(1)")
            began = time.monotonic()
            for _ in range(6):
                peer.begin(receive)
                until(lambda: sleeps_on_the_watch(peer))
                ids.append(queue.send_data("a"))
                assert peer.end() is True
            assert time.monotonic() - began < 3
            assert peer("handled") == ids
            assert queue.count_successful() == len(ids)
        if (tmp_path / "old").exists():
            assert os.listdir(tmp_path / "old" / "queued") == [f"raw-{left}"]  # noqa: PTH208


@pytest.mark.needs("kernel events")
def test_who_waits_outlasts_a_time_without_the_directory_and_says_so_once_meanwhile(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("""
            import logging
            lines = []
            handler = logging.Handler()
            handler.emit = lambda record: lines.append(record.getMessage())
            logging.getLogger("pacchettino").addHandler(handler)
            shorten_waits(20)
            thread = threading.Thread(target=lambda: jobs.append(queue.claim(timeout=None)))
            jobs = []
            thread.start()
        """)
        until(lambda: sleeps_on_the_watch(peer))
        shutil.rmtree(queue_dir)
        # It looks twenty times a second, and then sees that there is nothing.
        until(lambda: not sleeps_on_the_watch(peer))
        peer("thread.join(0.3)")
        assert peer("jobs == [] and thread.is_alive()")
        lines = peer("lines")
        with Pacchettino(queue_dir) as queue:
            id = queue.send_data("a")
            peer("thread.join(30)")
            assert peer("jobs[0].id") == id
            peer("jobs[0].succeed()")
            assert queue.status(id) is Status.SUCCESS
        assert peer("lines") == lines
        assert [os.fspath(queue_dir) in line for line in lines] == [True]
