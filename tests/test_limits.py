"""How much may wait, and how full the disk may be: `max_queued`, `min_free`, `block`."""

import inspect
import os
import pickle
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import finish_thread
from helpers import Peer, until
from pacchettino import Pacchettino, PacchettinoError, QueueFull, Result

KIB = 1024


def fill(queue: Pacchettino, size: int = 1) -> int:
    """Send as many jobs as there is room for."""
    sent = 0
    while True:
        try:
            queue.send_data(b"x" * size)
        except QueueFull:
            return sent
        sent += 1


FILL = inspect.getsource(fill)

# How many wait


@pytest.mark.parametrize("limit", [1, 2, 15, 16, 17, 100])
def test_one_process_sends_as_many_as_may_wait_and_no_more(queue_dir: Path, limit: int) -> None:
    with Pacchettino(queue_dir, max_queued=limit) as queue:
        assert fill(queue) == limit
        assert queue.count_queued() == limit
        job = queue.claim()
        assert job is not None
        job.succeed()
        assert fill(queue) == 1


@pytest.mark.parametrize(
    "send",
    [
        lambda queue, source: queue.send_data("a"),
        lambda queue, source: queue.send_data("a", delay=60),
        lambda queue, source: queue.send_many(["a"]),
        lambda queue, source: queue.send_file(source),
        lambda queue, source: queue.send_file(source, copy=False),
    ],
    ids=["data", "delayed", "many", "copied", "moved"],
)
def test_what_there_is_no_room_for_is_not_sent(
    queue_dir: Path, tmp_path: Path, send: Callable[[Pacchettino, Path], object]
) -> None:
    source = tmp_path / "source"
    source.write_text("content")
    with Pacchettino(queue_dir, max_queued=2) as queue:
        queue.send_data("one")
        queue.send_data("two", delay=60)  # is counted as well
        with pytest.raises(
            QueueFull, match=r"^2 job\(s\) wait; max_queued is 2; block=SECONDS waits for room$"
        ) as raised:
            send(queue, source)
        assert isinstance(raised.value, PacchettinoError)
        assert not isinstance(raised.value, OSError)
        assert queue.count_all() == 2
        assert os.listdir(queue_dir / "tmp") == []  # noqa: PTH208
    assert source.read_text() == "content"


def test_many_are_sent_all_or_none(queue_dir: Path) -> None:
    with Pacchettino(queue_dir, max_queued=5) as queue:
        queue.send_many(list("abc"))
        with pytest.raises(QueueFull):
            queue.send_many(list("abc"))
        assert queue.count_queued() == 3
        assert len(queue.send_many(list("ab"))) == 2
        assert queue.send_many([]) == []


def test_more_at_once_than_may_ever_wait_is_a_value_error_whatever_the_patience(queue_dir: Path) -> None:
    with Pacchettino(queue_dir, max_queued=2) as queue, pytest.raises(ValueError, match=r"3 jobs .* max_queued is 2"):
        queue.send_many(list("abc"), block=None)


def test_what_is_to_be_done_again_needs_no_room(queue_dir: Path) -> None:
    with Pacchettino(queue_dir, max_queued=1) as queue:
        queue.on_data_received(lambda id, data: Result.RETRY)
        queue.send_data("again")
        assert queue.receive() == 1
        job = queue.claim()
        assert job is not None
        queue.send_data("another")
        job.fail()
        assert queue.requeue(job.id)
        assert queue.count_queued() == 2


def test_who_counted_before_others_sent_is_over_the_limit_by_a_sixteenth_at_the_most(queue_dir: Path) -> None:
    limit = 320
    settings = f"max_queued={limit}"
    with Peer(queue_dir, settings) as peer, Pacchettino(queue_dir, max_queued=limit) as queue:
        peer(FILL)
        peer("queue.send_data('a')")  # it has counted, and nothing waited
        assert fill(queue) == limit - 1
        assert peer("fill(queue)") == limit // 16 - 1
        assert peer("fill(queue)") == 0


def test_processes_that_send_as_fast_as_they_can_stay_within_that(queue_dir: Path) -> None:
    limit, others = 640, 3
    peers = [Peer(queue_dir, f"max_queued={limit}") for _ in range(others + 1)]
    for peer in peers:
        peer(FILL)
    for peer in peers:
        peer.begin("fill(queue)")
    sent = sum(peer.end() for peer in peers)
    assert limit <= sent <= limit + others * limit // 16
    for peer in peers:
        peer.finish()


def test_threads_of_a_process_keep_the_limit_together(queue_dir: Path) -> None:
    limit, threads = 300, 8
    with Pacchettino(queue_dir, max_queued=limit) as queue:
        senders = [threading.Thread(target=fill, args=(queue,)) for _ in range(threads)]
        for sender in senders:
            sender.start()
        for sender in senders:
            finish_thread(sender)
        # A job that another thread is sending may be counted twice: the last may be refused too early, never too late.
        assert limit - threads < queue.count_queued() <= limit
        fill(queue)
        assert queue.count_queued() == limit


# Waiting for room


@pytest.mark.parametrize("block", [60, timedelta(minutes=1), None])
def test_who_blocks_sends_once_there_is_room(queue_dir: Path, block: Any) -> None:
    with Pacchettino(queue_dir, max_queued=1) as queue:
        queue.send_data("first")
        sent: list[str] = []
        sender = threading.Thread(target=lambda: sent.append(queue.send_data("second", block=block)))
        sender.start()
        job = queue.claim()
        assert job is not None
        finish_thread(sender)
        job.succeed()
        assert queue.is_queued(*sent)


@pytest.mark.parametrize(
    "send",
    [
        lambda queue, block: queue.send_data("a", block=block),
        lambda queue, block: queue.send_many(iter("a"), block=block),
        lambda queue, block: queue.send_file(__file__, block=block),
    ],
    ids=["data", "many", "file"],
)
def test_who_blocks_gives_up_when_the_time_is_over(
    queue_dir: Path, send: Callable[[Pacchettino, float], object]
) -> None:
    with Pacchettino(queue_dir, max_queued=1) as queue:
        queue.send_data("first")
        began = time.monotonic()
        with pytest.raises(QueueFull):
            send(queue, 0.2)
        assert 0.2 <= time.monotonic() - began < 5


def test_who_blocks_is_let_go_by_close(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, max_queued=1)
    queue.send_data("first")
    raised: list[Exception] = []

    def send() -> None:
        try:
            queue.send_data("second", block=None)
        except ValueError as error:
            raised.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    queue.close()
    finish_thread(sender)
    assert "closed" in str(*raised)


@pytest.mark.parametrize("block", [True, False, "1"])
def test_a_patience_that_is_no_duration_is_a_type_error(queue: Pacchettino, block: Any) -> None:
    with pytest.raises(TypeError, match="block"):
        queue.send_data("a", block=block)


# How full the disk may be


def free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def test_a_disk_is_not_filled_beyond_what_must_be_free(small_filesystem: Path) -> None:
    with Pacchettino(small_filesystem / "queue", min_free=512 * KIB) as queue:
        assert fill(queue, 20 * KIB) > 10
        assert 512 * KIB <= free(small_filesystem) < (512 + 20) * KIB
        with pytest.raises(
            QueueFull,
            match=r"^\d+ bytes are free on the disk, and 20480 are needed; min_free is 524288; block",
        ):
            queue.send_data(b"x" * 20 * KIB)
        job = queue.claim()
        assert job is not None
        job.succeed()
        queue.cleanup()
        assert fill(queue, 20 * KIB) == 1


def test_what_others_write_is_noticed(small_filesystem: Path) -> None:
    with Pacchettino(small_filesystem / "queue", min_free=512 * KIB) as queue:
        queue.send_data("a")
        other = small_filesystem / "other"
        other.write_bytes(b"x" * 600 * KIB)
        began = time.monotonic()
        until(lambda: not _sends(queue))
        assert time.monotonic() - began < 1.5
        other.unlink()
        queue.send_data("a")


def _sends(queue: Pacchettino) -> bool:
    try:
        queue.send_data("a")
    except QueueFull:
        return False
    return True


def test_a_file_that_is_only_renamed_needs_no_room(small_filesystem: Path, tmp_path: Path) -> None:
    with Pacchettino(small_filesystem / "queue", min_free=512 * KIB) as queue:
        inside, outside = small_filesystem / "source", tmp_path / "source"
        for source in (inside, outside):
            source.write_bytes(b"x" * 300 * KIB)
        for source, copy in ((inside, True), (outside, True), (outside, False)):
            with pytest.raises(QueueFull):
                queue.send_file(source, copy=copy)
        queue.send_file(inside, copy=False)
        assert not inside.exists()
        with pytest.raises(FileNotFoundError):
            queue.send_file(inside)


# The settings


def test_limits_are_shown_and_travel(queue_dir: Path) -> None:
    with Pacchettino(queue_dir, max_queued=1, min_free=2) as queue, pickle.loads(pickle.dumps(queue)) as again:
        for one in (queue, again):
            assert (one.max_queued, one.min_free) == (1, 2)
            assert "max_queued=1, min_free=2" in repr(one)
        queue.send_data("a")
        with pytest.raises(QueueFull):
            again.send_data("a")
    with Pacchettino(queue_dir) as other:
        assert (other.max_queued, other.min_free) == (None, 0)
        other.send_many(["a"] * 100)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("max_queued", 0, ValueError),
        ("max_queued", -1, ValueError),
        ("max_queued", 2**64, ValueError),
        ("max_queued", True, TypeError),
        ("max_queued", 1.0, TypeError),
        ("max_queued", "1", TypeError),
        ("min_free", -1, ValueError),
        ("min_free", 2**64, ValueError),
        ("min_free", False, TypeError),
        ("min_free", None, TypeError),
    ],
)
def test_what_is_no_limit_is_an_error(queue_dir: Path, setting: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=setting):
        Pacchettino(queue_dir, **{setting: value})
    assert not queue_dir.exists()
