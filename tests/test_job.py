"""Claims without handlers, and what a queue is as an object: its settings, words, pickles."""

import copy
import json
import logging
import math
import os
import pickle
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pacchettino
import pytest
from conftest import find, finish_thread, start_python
from pacchettino import (
    CrashDetection,
    Job,
    KeepPolicy,
    NotKeptError,
    Pacchettino,
    PacchettinoError,
    Result,
    SendError,
    Status,
)


@pytest.fixture
def tmp_path(quick_dir: Path) -> Path:
    """Give a directory in memory: nothing here depends on the filesystem, and a busy disk takes four times as long."""
    return quick_dir


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "report.txt"
    file.write_bytes(b"content")
    return file


def claim(queue: Pacchettino, **arguments: Any) -> Job:
    job = queue.claim(**arguments)
    assert job is not None
    return job


# Claiming


def test_a_claimed_data_job_tells_all_about_itself(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data(b"\xff\0data")
    with claim(queue) as job:
        assert isinstance(job, Job)
        assert (job.id, job.entry, job.kind, job.name) == (id, f"raw-{id}", "data", None)
        assert (job.data, job.sent_at) == (b"\xff\0data", Pacchettino.sent_at(id))
        assert type(job.path) is type(Path())
        assert job.path.read_bytes() == job.data
        assert [job.path.relative_to(queue_dir).as_posix()] == find(queue_dir)
        assert re.fullmatch(rf"processing/raw-{id}\.[a-z][0-9a-z]{{9}}/raw", find(queue_dir)[0])
        assert queue.status(id) is Status.PROCESSING
        assert id in repr(job)


def test_a_claimed_file_job_tells_all_about_itself(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    id = queue.send_file(source)
    with claim(queue) as job:
        assert (job.id, job.entry, job.kind, job.name) == (id, f"fle-{id}-report.txt", "file", "report.txt")
        assert (job.data, job.sent_at) == (b"content", Pacchettino.sent_at(id))
        assert job.path.read_bytes() == b"content"
        assert [job.path.relative_to(queue_dir).as_posix()] == find(queue_dir)
        assert re.fullmatch(rf"processing/fle-{id}-report\.txt\.[a-z][0-9a-z]{{9}}/report\.txt", find(queue_dir)[0])
        assert queue.status(id) is Status.PROCESSING
        assert id in repr(job)


def test_the_time_of_a_job_is_aware_and_utc(queue: Pacchettino) -> None:
    before = datetime.now(UTC)
    queue.send_data("a")
    after = datetime.now(UTC)
    with claim(queue) as job:
        assert job.sent_at.tzinfo is UTC
        assert before - timedelta(milliseconds=1) < job.sent_at <= after


def test_an_empty_queue_gives_no_job(queue: Pacchettino) -> None:
    assert queue.claim() is None
    assert queue.claim(0.05) is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(None, ["data", "file", "data"]), ("data", ["data", "data"]), ("file", ["file"])],
)
def test_only_the_kind_asked_for_is_claimed(queue: Pacchettino, source: Path, kind: Any, expected: list[str]) -> None:
    ids = [queue.send_data("a"), queue.send_file(source), queue.send_data("b")]
    taken = []
    while (job := queue.claim(kind=kind, fifo=True)) is not None:
        taken.append((job.id, job.kind))
        job.succeed()
    assert [kind for _, kind in taken] == expected
    rest = sorted(set(ids) - {id for id, _ in taken})
    assert [job.id for job in queue.jobs(Status.QUEUED)] == rest


@pytest.mark.parametrize("kind", ["any", "", "raw", "DATA"])
def test_a_kind_that_there_is_not_is_a_value_error(queue: Pacchettino, kind: Any) -> None:
    with pytest.raises(ValueError, match="kind"):
        queue.claim(kind=kind)


def test_claiming_needs_no_handler_and_takes_the_kinds_that_have_none(queue: Pacchettino, source: Path) -> None:
    queue.on_data_received(lambda id, data: None)
    id = queue.send_file(source)
    assert queue.receive() == 0
    with claim(queue) as job:
        assert job.id == id


def test_a_claimed_job_is_nobody_elses(queue: Pacchettino, queue_dir: Path) -> None:
    other = Pacchettino(queue_dir)
    queue.send_many(["a", "b"])
    with claim(queue) as first, claim(other) as second:
        assert first.id != second.id
        assert queue.claim() is None
        assert other.claim(0.1) is None
        other.on_data_received(lambda id, data: None)
        assert other.receive() == 0
        assert queue.count_processing() == 2


# Verdicts

VERDICTS: dict[str, tuple[Callable[[Job], None], str]] = {
    "succeed": (lambda job: job.succeed(), "success"),
    "fail": (lambda job: job.fail(), "failed"),
    "fail with reason": (lambda job: job.fail("reason"), "failed"),
    "retry": (lambda job: job.retry(), "queued"),
    "retry at once": (lambda job: job.retry(0), "queued"),
    "retry in the past": (lambda job: job.retry(-5), "queued"),
    "retry later": (lambda job: job.retry(60), "scheduled"),
    "retry after a timedelta": (lambda job: job.retry(delay=timedelta(minutes=1)), "scheduled"),
}
verdicts = pytest.mark.parametrize(("settle", "state"), VERDICTS.values(), ids=VERDICTS)
kinds = pytest.mark.parametrize("kind", ["data", "file"])


def claimed(queue: Pacchettino, kind: str, source: Path) -> Job:
    id = queue.send_data("data") if kind == "data" else queue.send_file(source)
    job = claim(queue)
    assert job.id == id
    return job


def state_of(queue: Pacchettino, job: Job) -> str:
    """Tell in which directory the job's file is, the only one of the queue."""
    (name,) = find(queue.base_dir)
    state, _, entry = name.partition("/")
    assert re.fullmatch(r"(\d{13}-)?" + re.escape(job.entry), entry)
    assert bool(re.match(r"\d{13}-", entry)) == (state == "scheduled")
    assert queue.status(job.id).value == state
    assert list((queue.base_dir / "processing").iterdir()) == []
    return state


@verdicts
@kinds
def test_a_verdict_moves_the_job(
    queue: Pacchettino, source: Path, kind: str, settle: Callable[[Job], None], state: str
) -> None:
    job = claimed(queue, kind, source)
    settle(job)
    assert state_of(queue, job) == state
    assert (queue.base_dir / find(queue.base_dir)[0]).read_bytes() == (b"data" if kind == "data" else b"content")


@verdicts
def test_there_is_one_verdict_and_a_second_is_a_runtime_error(
    queue: Pacchettino, source: Path, settle: Callable[[Job], None], state: str
) -> None:
    job = claimed(queue, "data", source)
    settle(job)
    for again, _ in VERDICTS.values():
        with pytest.raises(RuntimeError):
            again(job)
    assert state_of(queue, job) == state


@pytest.mark.parametrize("policy", [KeepPolicy(bits) for bits in range(8)], ids=repr)
@verdicts
def test_the_policy_says_what_a_verdict_keeps(
    queue_dir: Path, source: Path, policy: KeepPolicy, settle: Callable[[Job], None], state: str
) -> None:
    queue = Pacchettino(queue_dir, policy)
    job = claimed(queue, "file", source)
    settle(job)
    if state in ("queued", "scheduled") or KeepPolicy[state.upper()] in policy:
        assert state_of(queue, job) == state
    else:
        assert find(queue_dir) == []


def test_the_policy_of_the_instance_that_claimed_decides(queue_dir: Path, source: Path) -> None:
    keeping, deleting = Pacchettino(queue_dir, KeepPolicy.ALL), Pacchettino(queue_dir, KeepPolicy.NONE)
    deleting.send_data("a")
    kept = claim(keeping)
    keeping.send_data("b")
    deleted = claim(deleting)
    kept.succeed()
    deleted.succeed()
    assert find(queue_dir) == [f"success/{kept.entry}"]


def test_the_reason_of_a_failure_is_logged(queue: Pacchettino, caplog: pytest.LogCaptureFixture) -> None:
    queue.send_data("a")
    job = claim(queue)
    job.fail("the reason")
    (record,) = caplog.records
    assert (record.name, record.levelno >= logging.WARNING) == ("pacchettino", True)
    assert "the reason" in record.message
    assert job.id in record.message


def test_a_retry_waits_as_long_as_the_queue_says_unless_told_otherwise(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, retry_delay=3600)
    for delay, seconds in [(None, 3600), (60, 60), (timedelta(minutes=2), 120)]:
        queue.send_data("a")
        job = claim(queue)
        before = datetime.now(UTC)
        job.retry(delay)
        after = datetime.now(UTC)
        (due,) = [info.due for info in queue.jobs(Status.SCHEDULED) if info.id == job.id]
        assert due is not None
        assert before <= due - timedelta(seconds=seconds) <= after + timedelta(milliseconds=1)
    queue.send_data("a")
    job = claim(queue)
    job.retry(0)
    assert queue.status(job.id) is Status.QUEUED


@pytest.mark.parametrize(
    ("delay", "error"),
    [
        (True, TypeError),
        (False, TypeError),
        ("1", TypeError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (1e12, ValueError),
        (timedelta.max, ValueError),
    ],
    ids=repr,
)
def test_a_retry_with_a_wrong_delay_is_an_error_and_no_verdict(
    queue: Pacchettino, source: Path, delay: Any, error: type[Exception]
) -> None:
    job = claimed(queue, "data", source)
    with pytest.raises(error):
        job.retry(delay)
    assert queue.status(job.id) is Status.PROCESSING
    job.succeed()
    assert state_of(queue, job) == "success"


def test_a_retried_job_can_be_claimed_again(queue: Pacchettino, source: Path) -> None:
    first = claimed(queue, "file", source)
    first.retry(0.05)
    second = claim(queue, timeout=30)
    assert (second.id, second.entry, second.data) == (first.id, first.entry, b"content")
    with pytest.raises(RuntimeError):
        first.succeed()
    assert queue.status(second.id) is Status.PROCESSING
    second.succeed()
    assert state_of(queue, second) == "success"


def test_another_thread_can_give_the_verdict(queue: Pacchettino, source: Path) -> None:
    job = claimed(queue, "data", source)
    thread = threading.Thread(target=job.fail)
    thread.start()
    finish_thread(thread)
    assert state_of(queue, job) == "failed"


def test_of_many_threads_one_gives_the_verdict(queue: Pacchettino, source: Path) -> None:
    job = claimed(queue, "data", source)
    together = threading.Barrier(8)
    outcomes = []

    def settle() -> None:
        together.wait(30)
        try:
            job.succeed()
        except RuntimeError:
            outcomes.append("refused")
        else:
            outcomes.append("taken")

    threads = [threading.Thread(target=settle) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finish_thread(thread)
    assert sorted(outcomes) == ["refused"] * 7 + ["taken"]
    assert state_of(queue, job) == "success"


@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_verdict_can_be_given_after_the_queue_is_gone(queue: Pacchettino, queue_dir: Path, way: str) -> None:
    other = Pacchettino(queue_dir, retry_delay=60)
    queue.send_many(["a", "b", "c"])
    jobs = [claim(other) for _ in range(3)]
    if way == "close":
        other.close()
    del other
    assert [queue.status(job.id) for job in jobs] == [Status.PROCESSING] * 3
    jobs[0].succeed()
    jobs[1].fail()
    jobs[2].retry()
    assert [queue.status(job.id) for job in jobs] == [Status.SUCCESS, Status.FAILED, Status.SCHEDULED]


@pytest.mark.parametrize("policy", [KeepPolicy.ALL, KeepPolicy.NONE], ids=repr)
@verdicts
def test_a_verdict_on_a_job_whose_file_is_gone_is_logged_and_no_error(
    queue_dir: Path,
    source: Path,
    settle: Callable[[Job], None],
    state: str,
    policy: KeepPolicy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = Pacchettino(queue_dir, policy)
    job = claimed(queue, "file", source)
    job.path.unlink()
    settle(job)
    assert queue.claim() is None
    assert find(queue_dir) == []
    assert list((queue_dir / "processing").iterdir()) == []
    assert any(job.id in record.message and "deleted" in record.message for record in caplog.records)


@pytest.fixture
def closed(queue: Pacchettino, mode_bound: None) -> Iterator[Callable[[str], None]]:
    """Closes a directory of the queue to writers, or opens it again."""

    def close(state: str) -> None:
        directory = queue.base_dir / state
        directory.chmod(0o700 if directory.stat().st_mode & 0o200 == 0 else 0o500)

    yield close
    for directory in queue.base_dir.iterdir():
        directory.chmod(0o700)


@verdicts
def test_a_verdict_that_the_disk_does_not_take_is_kept_and_tried_again(
    queue: Pacchettino,
    source: Path,
    closed: Callable[[str], None],
    settle: Callable[[Job], None],
    state: str,
) -> None:
    job = claimed(queue, "file", source)
    closed(state)
    with pytest.raises(PermissionError):
        settle(job)
    assert queue.status(job.id) is Status.PROCESSING
    with pytest.raises(RuntimeError):
        job.succeed()
    closed(state)
    assert queue.claim(kind="data") is None  # any look for jobs will do
    assert state_of(queue, job) == state


@pytest.mark.parametrize(
    ("error", "state"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted"), (SystemExit, "interrupted")]
)
def test_an_error_goes_on_out_of_the_block_even_where_the_disk_does_not_take_the_verdict(
    queue: Pacchettino, source: Path, closed: Callable[[str], None], error: type[BaseException], state: str
) -> None:
    job = claimed(queue, "data", source)
    closed(state)
    with pytest.raises(error, match="mine"), job:
        raise error("mine")
    closed(state)
    assert queue.claim(kind="file") is None
    assert state_of(queue, job) == state


# The data


@kinds
def test_data_is_read_when_asked_and_then_stays(queue: Pacchettino, source: Path, kind: str) -> None:
    job = claimed(queue, kind, source)
    job.path.write_bytes(b"changed")
    assert job.data == b"changed"
    job.path.write_bytes(b"changed again")
    job.succeed()
    assert job.data == b"changed"


@verdicts
def test_data_first_asked_for_after_the_verdict_is_a_runtime_error(
    queue: Pacchettino, source: Path, settle: Callable[[Job], None], state: str
) -> None:
    job = claimed(queue, "data", source)
    settle(job)
    with pytest.raises(RuntimeError):
        _ = job.data
    assert (job.id, job.name, job.kind) == (job.entry[4:], None, "data")
    assert state_of(queue, job) == state


def test_data_that_can_not_be_read_is_an_os_error_and_no_verdict(
    queue: Pacchettino, source: Path, mode_bound: None
) -> None:
    job = claimed(queue, "data", source)
    job.path.chmod(0)
    with pytest.raises(PermissionError) as caught:
        _ = job.data
    assert caught.value.filename == str(job.path)
    job.path.chmod(0o600)
    assert job.data == b"data"
    job.succeed()
    assert state_of(queue, job) == "success"


# As a context manager


@kinds
def test_the_end_of_the_block_is_success(queue: Pacchettino, source: Path, kind: str) -> None:
    with claimed(queue, kind, source) as job:
        assert queue.status(job.id) is Status.PROCESSING
    assert state_of(queue, job) == "success"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError, "failed"),
        (OSError, "failed"),
        (StopIteration, "failed"),
        (KeyboardInterrupt, "interrupted"),
        (SystemExit, "interrupted"),
        (GeneratorExit, "interrupted"),
    ],
)
def test_an_error_that_leaves_the_block_decides_and_goes_on(
    queue: Pacchettino, source: Path, error: type[BaseException], state: str
) -> None:
    raised = error("mine")
    with pytest.raises(error) as caught, claimed(queue, "data", source) as job:
        raise raised
    assert caught.value is raised
    assert state_of(queue, job) == state


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
@verdicts
def test_a_verdict_given_inside_the_block_stands(
    queue: Pacchettino,
    source: Path,
    settle: Callable[[Job], None],
    state: str,
    error: type[BaseException] | None,
) -> None:
    def block() -> None:
        with job:
            settle(job)
            if error is not None:
                raise error("mine")

    job = claimed(queue, "data", source)
    if error is None:
        block()
    else:
        with pytest.raises(error, match="mine"):
            block()
    assert state_of(queue, job) == state


def test_leaving_the_block_by_return_or_break_is_success(queue: Pacchettino, source: Path) -> None:
    def leave() -> Job:
        with claimed(queue, "data", source) as job:
            return job

    assert state_of(queue, leave()) == "success"


# Dropped


@kinds
@pytest.mark.parametrize("policy", [KeepPolicy.ALL, KeepPolicy.SUCCESS | KeepPolicy.FAILED], ids=repr)
def test_a_job_dropped_without_a_verdict_is_interrupted_with_a_resource_warning(
    queue_dir: Path, source: Path, kind: str, policy: KeepPolicy
) -> None:
    queue = Pacchettino(queue_dir, policy)
    job = claimed(queue, kind, source)
    entry, gone = job.entry, weakref.ref(job)
    with pytest.warns(ResourceWarning, match=job.id):
        del job
    assert gone() is None
    assert find(queue_dir) == ([f"interrupted/{entry}"] if KeepPolicy.INTERRUPTED in policy else [])
    assert list((queue_dir / "processing").iterdir()) == []


@verdicts
def test_a_job_dropped_after_its_verdict_is_left_alone(
    queue: Pacchettino, queue_dir: Path, source: Path, settle: Callable[[Job], None], state: str
) -> None:
    job = claimed(queue, "data", source)
    settle(job)
    before = find(queue_dir)
    gone = weakref.ref(job)
    del job
    assert gone() is None
    assert find(queue_dir) == before


def test_a_dropped_job_is_interrupted_even_where_warnings_are_errors(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("a")
    code = """
import sys
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1])
queue.claim()
print(queue.status(sys.argv[2]).value)
"""
    with start_python(code, queue_dir, id) as process:
        output, errors = process.communicate(timeout=30)
    assert output == "interrupted\n"
    assert "ResourceWarning" in errors


# The queue as an object


def test_the_package_has_its_names_and_they_say_that_they_are_its_own() -> None:
    names = {"CrashDetection", "Job", "JobInfo", "KeepPolicy", "NotKeptError", "Pacchettino"}
    names |= {"PacchettinoError", "Result", "SendError", "Status"}
    assert names <= set(pacchettino.__all__)
    for name in names:
        assert getattr(pacchettino, name).__module__ == "pacchettino"


def test_the_enums_have_these_members_and_values() -> None:
    assert {member.name: member.value for member in KeepPolicy.__members__.values()} == {
        "NONE": 0,
        "SUCCESS": 1,
        "FAILED": 2,
        "INTERRUPTED": 4,
        "ALL": 7,
    }
    assert {member.name: member.value for member in Result} == {
        name: name.lower() for name in ("SUCCESS", "FAILED", "RETRY")
    }
    states = ("UNKNOWN", "QUEUED", "PROCESSING", "SUCCESS", "FAILED", "INTERRUPTED", "SCHEDULED")
    assert {member.name: member.value for member in Status} == {name: name.lower() for name in states}
    assert {member.name for member in CrashDetection} == {"PID", "LOCK_FILE"}


def test_the_enums_are_attributes_of_the_class_and_of_its_instances(queue: Pacchettino) -> None:
    for enum in (KeepPolicy, Result, Status, CrashDetection):
        assert getattr(Pacchettino, enum.__name__) is enum
        assert getattr(queue, enum.__name__) is enum
    assert Pacchettino.KeepPolicy.ALL is KeepPolicy.ALL


@pytest.mark.parametrize("name", ["SUCCESS", "FAILED"])
def test_results_states_and_policies_are_not_interchangeable(name: str) -> None:
    one: object = Result[name]
    other: object = Status[name]
    third: object = KeepPolicy[name]
    assert len({one, other, third}) == 3
    assert one != other
    assert one != name.lower()
    assert other == name.lower()  # so that it can be written as JSON, or typed


def test_a_status_is_a_string_and_a_string_will_do(queue: Pacchettino) -> None:
    id = queue.send_data("work")
    queue.claim().fail()  # type: ignore[union-attr]
    assert json.dumps({"status": queue.status(id)}) == '{"status": "failed"}'
    assert f"{queue.status(id)} {queue.status(id)!r}" == "failed <Status.FAILED: 'failed'>"
    for status in Status:
        assert pickle.loads(pickle.dumps(status)) is status is Status(status.value)
        if status is not Status.UNKNOWN:
            as_text = [job.id for job in queue.jobs(str(status))]
            assert as_text == [job.id for job in queue.jobs(status)] == ([id] if status == "failed" else [])
    for unlisted in ("unknown", "Failed", "done", ""):
        with pytest.raises(ValueError, match=f"status must be one of queued, .*, not '{unlisted}'"):
            queue.jobs(unlisted)
    for wrong in (None, 1, b"failed", Result.FAILED, KeepPolicy.FAILED):
        with pytest.raises(TypeError, match="status must be a Status or its value"):
            queue.jobs(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [8, 9, 15, 16, 255, 256, 1 << 70, -9])
def test_bits_that_no_policy_has_are_a_value_error(queue_dir: Path, queue: Pacchettino, bits: int) -> None:
    with pytest.raises(ValueError, match=str(bits)):
        KeepPolicy(bits)
    for use in (lambda value: Pacchettino(queue_dir, value), queue.cleanup, queue.requeue_all):
        with pytest.raises(ValueError, match=str(bits)):
            use(bits)


@pytest.mark.parametrize("value", [Status.SUCCESS, Result.SUCCESS, "ALL", None, 1.0, [KeepPolicy.ALL]], ids=repr)
def test_what_is_no_policy_is_a_type_error(queue_dir: Path, queue: Pacchettino, value: Any) -> None:
    for use in (lambda value: Pacchettino(queue_dir, value), queue.cleanup, queue.requeue_all):
        with pytest.raises(TypeError):
            use(value)


def test_the_errors_of_the_project_have_one_root() -> None:
    assert issubclass(PacchettinoError, Exception)
    assert issubclass(NotKeptError, PacchettinoError)
    assert issubclass(SendError, PacchettinoError)
    assert issubclass(SendError, OSError)
    assert not issubclass(NotKeptError, OSError)


def test_the_settings_that_can_be_set_can_be_set(queue: Pacchettino) -> None:
    assert (queue.durable, queue.crash_detection, queue.retry_delay) == (False, CrashDetection.LOCK_FILE, 0)
    queue.durable = True
    queue.crash_detection = CrashDetection.PID
    queue.retry_delay = timedelta(seconds=60)
    assert (queue.durable, queue.crash_detection) == (True, CrashDetection.PID)
    assert queue.retry_delay == timedelta(seconds=60)
    queue.durable = False
    assert not queue.durable
    queue.send_data("a")
    job = claim(queue)
    job.retry()
    assert queue.status(job.id) is Status.SCHEDULED


def test_crash_detection_decides_whose_name_is_on_the_next_claim(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, crash_detection=CrashDetection.PID)
    queue.send_many(["a"] * 3)
    jobs = []
    for detection in (CrashDetection.PID, CrashDetection.LOCK_FILE, CrashDetection.PID):
        queue.crash_detection = detection
        jobs.append(claim(queue))
    owners = {info.id: info.owner for info in queue.jobs(Status.PROCESSING)}
    by_pid, by_lock, by_pid_again = (owners[job.id] for job in jobs)
    assert by_pid == by_pid_again == str(os.getpid())
    assert (queue_dir / f"owners/{by_lock}").is_file()
    for job in jobs:
        job.succeed()
    assert queue.count_successful() == 3


@pytest.mark.parametrize(
    ("delay", "error"),
    [(True, TypeError), (None, TypeError), ("1", TypeError), (math.nan, ValueError), (math.inf, ValueError)],
    ids=repr,
)
def test_a_retry_delay_that_is_none_is_an_error(
    queue: Pacchettino, queue_dir: Path, delay: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        queue.retry_delay = delay
    assert queue.retry_delay == 0
    with pytest.raises(error):
        Pacchettino(queue_dir, retry_delay=delay)


@pytest.mark.parametrize("value", [True, "pid", None, 1, Status.SUCCESS], ids=repr)
def test_what_is_no_crash_detection_is_a_type_error(queue: Pacchettino, queue_dir: Path, value: Any) -> None:
    with pytest.raises(TypeError):
        queue.crash_detection = value
    with pytest.raises(TypeError):
        Pacchettino(queue_dir, crash_detection=value)
    assert queue.crash_detection is CrashDetection.LOCK_FILE


def test_the_settings_but_the_first_two_go_by_keyword_only(queue_dir: Path) -> None:
    with pytest.raises(TypeError):
        Pacchettino(queue_dir, KeepPolicy.ALL, True)  # type: ignore[call-arg]


def every_setting(queue_dir: Path) -> Pacchettino:
    return Pacchettino(
        queue_dir,
        KeepPolicy.FAILED,
        durable=True,
        crash_detection=CrashDetection.PID,
        retry_delay=timedelta(seconds=7),
        fifo=True,
    )


def test_the_repr_shows_the_directory_and_the_settings(queue_dir: Path) -> None:
    text = repr(every_setting(queue_dir))
    for shown in (
        "Pacchettino",
        repr(str(queue_dir)),
        "FAILED",
        "durable=True",
        "CrashDetection.PID",
        "seconds=7",
        "fifo=True",
    ):
        assert shown in text
    assert repr(Pacchettino(queue_dir, KeepPolicy.SUCCESS)) != repr(Pacchettino(queue_dir, KeepPolicy.FAILED))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_queue_has_the_settings_but_not_the_handlers(queue_dir: Path, protocol: int) -> None:
    queue = every_setting(queue_dir)
    queue.on_data_received(lambda id, data: None)
    other = pickle.loads(pickle.dumps(queue, protocol))
    assert repr(other) == repr(queue)
    id = queue.send_data("a")
    assert other.status(id) is Status.QUEUED
    with pytest.raises(RuntimeError):
        other.receive_one()


@pytest.mark.parametrize(
    "name", ["queue", pytest.param("queue \udcff", marks=pytest.mark.needs("names of any bytes"))], ids=ascii
)
def test_a_pickled_queue_finds_the_directory_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Pacchettino(name))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    id = pickle.loads(pickled).send_data("a")
    assert find(tmp_path / name) == [f"queued/raw-{id}"]


def test_a_subclass_is_pickled_as_itself(queue_dir: Path) -> None:
    assert type(pickle.loads(pickle.dumps(Subclass(queue_dir)))) is Subclass


class Subclass(Pacchettino):
    pass


def test_a_copied_queue_is_another_instance_on_the_same_directory(queue: Pacchettino) -> None:
    other = copy.copy(queue)
    assert other is not queue
    id = other.send_data("a")
    queue.close()
    assert other.status(id) is Status.QUEUED


def test_the_block_of_a_queue_closes_it_and_swallows_nothing(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir)
    id = queue.send_data("a")
    with pytest.raises(LookupError, match="mine"), queue:
        raise LookupError("mine")
    queue.close()  # twice does no harm
    assert Pacchettino(queue_dir).status(id) is Status.QUEUED


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_job_can_not_be_doubled(queue: Pacchettino, source: Path, duplicate: Callable[[Job], object]) -> None:
    with claimed(queue, "data", source) as job:
        with pytest.raises(TypeError):
            duplicate(job)
        assert queue.status(job.id) is Status.PROCESSING
