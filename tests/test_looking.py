"""Looking at a queue, and tidying it: status, counts, listings, requeue, cleanup."""

import copy
import dataclasses
import math
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import find, finish_thread, start_python
from pacchettino import Job, JobInfo, KeepPolicy, NotKeptError, Pacchettino, Result, Status

STATES = [status for status in Status if status is not Status.UNKNOWN]
KEPT = [Status.SUCCESS, Status.FAILED, Status.INTERRUPTED]
POLICIES = [KeepPolicy(bits) for bits in range(8)]
COUNTS = {
    Status.SCHEDULED: "count_scheduled",
    Status.QUEUED: "count_queued",
    Status.PROCESSING: "count_processing",
    Status.SUCCESS: "count_successful",
    Status.FAILED: "count_failed",
    Status.INTERRUPTED: "count_interrupted",
}

states = pytest.mark.parametrize("status", STATES, ids=lambda status: status.value)
kept_states = pytest.mark.parametrize("status", KEPT, ids=lambda status: status.value)
kinds = pytest.mark.parametrize("kind", ["data", "file"])
Put = Callable[[Status, str], tuple[str, str]]


@pytest.fixture
def put(queue: Pacchettino, tmp_path: Path) -> Iterator[Put]:
    """Puts a new job into a state and tells its id and its entry name."""
    source = tmp_path / "report.v2.txt"
    source.write_bytes(b"content")
    held: list[Job] = []

    def put(status: Status, kind: str) -> tuple[str, str]:
        delay = 60 if status is Status.SCHEDULED else 0
        if kind == "data":
            id = queue.send_data("data", delay=delay)
            entry = f"raw-{id}"
        else:
            id = queue.send_file(source, delay=delay)
            entry = f"fle-{id}-{source.name}"
        if status in (Status.SCHEDULED, Status.QUEUED):
            return id, entry
        job, others = queue.claim(), []
        while job is not None and job.id != id:
            others.append(job)
            job = queue.claim()
        assert job is not None
        for other in others:
            other.retry(0)
        if status is Status.SUCCESS:
            job.succeed()
        elif status is Status.FAILED:
            job.fail()
        elif status is Status.PROCESSING:
            held.append(job)
        else:
            with pytest.raises(KeyboardInterrupt), job:
                raise KeyboardInterrupt
        return id, entry

    yield put
    for job in held:
        job.succeed()


def one_of_each(put: Put, kind: str = "data") -> dict[Status, str]:
    """Put a job into every state; tell their ids."""
    return {status: put(status, kind)[0] for status in STATES}


def held_by(queue: Pacchettino, name: str, job: str) -> bool:
    answer = getattr(queue, name)(job)
    assert isinstance(answer, bool)
    return answer


# Where a job is


@states
@kinds
@pytest.mark.parametrize("by", ["id", "entry"])
def test_a_job_is_found_by_its_id_and_by_its_entry_name(
    queue: Pacchettino, put: Put, status: Status, kind: str, by: str
) -> None:
    one_of_each(put, "data")
    one_of_each(put, "file")
    id, entry = put(status, kind)
    known = id if by == "id" else entry
    assert queue.status(known) is status
    for state in STATES:
        assert held_by(queue, f"is_{state.value}", known) == (state is status)


@states
@kinds
def test_an_entry_name_that_only_resembles_is_not_the_jobs(
    queue: Pacchettino, put: Put, status: Status, kind: str
) -> None:
    id, entry = put(status, kind)
    others = [f"fle-{id}-other", f"fle-{id}-raw", f"fle-{id}-report", f"fle-{id}-report.v2.txt.x"]
    others.append(f"fle-{id}-report.v2.txt" if kind == "data" else f"raw-{id}")
    for other in others:
        assert other != entry
        assert queue.status(other) is Status.UNKNOWN
        assert not held_by(queue, f"is_{status.value}", other)
        assert queue.requeue(other) is False
    assert queue.status(id) is status


ID = "01a227f2-b0d6-7000-826e-93b281bc7bc6"
UNKNOWN = [ID, f"raw-{ID}", f"fle-{ID}-report.txt", f"fle-{ID}-" + "n" * 200]
MALFORMED = [
    "",
    "x",
    ID.upper(),
    ID.replace("-", ""),
    ID[:-1],
    ID + "0",
    f" {ID}",
    f"{ID}\n",
    f"{{{ID}}}",
    f"urn:uuid:{ID}",
    ID.replace("-7000-", "-4000-"),
    ID.replace("-826e-", "-026e-"),
    str(uuid.UUID(int=0)),
    "938a703d-bc9c-4311-a94c-ae79714e4510",
    f"raw-{ID}-",
    f"raw-{ID}x",
    f"raw-{ID.upper()}",
    "raw-",
    "fle-",
    f"fle-{ID}",
    f"fle-{ID}-",
    f"fle-{ID}-.",
    f"fle-{ID}-..",
    f"fle-{ID}-a/b",
    f"fle-{ID}-../{ID}",
    f"fle-{ID}-a\0b",
    f"fle-{ID}-" + "n" * 201,
    f"RAW-{ID}",
    f"1790000000000-raw-{ID}",
    f"raw-{ID}.12345",
    f"queued/raw-{ID}",
    f"../queued/raw-{ID}",
    "..",
    "/",
    "\0",
    "\ud800",
    "\udcff",
    "ünïcödé",
    "x" * 5000,
]


@pytest.mark.parametrize("id", UNKNOWN + MALFORMED, ids=lambda id: ascii(id[:60]))
def test_what_is_no_jobs_id_is_unknown_and_nowhere(queue: Pacchettino, put: Put, id: str) -> None:
    one_of_each(put)
    assert queue.status(id) is Status.UNKNOWN
    for state in STATES:
        assert held_by(queue, f"is_{state.value}", id) is False
    assert queue.requeue(id) is False


def test_a_job_that_was_deleted_is_unknown(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, KeepPolicy.NONE)
    queue.on_data_received(lambda id, data: None)
    id = queue.send_data("a")
    assert queue.receive_one()
    assert queue.status(id) is Status.UNKNOWN


def test_a_job_on_its_way_is_never_unknown(queue: Pacchettino, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ids = [queue.send_data("a") if number % 2 else queue.send_file(tmp_path / "file") for number in range(200)]
    seen: set[Status] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.update(map(queue.status, ids))

    queue.on_data_received(lambda id, data: None)
    queue.on_file_received(lambda id, name, path: None)
    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    handled = queue.receive()
    done.set()
    for thread in looking:
        finish_thread(thread)
    assert handled == 200
    assert seen <= {Status.QUEUED, Status.PROCESSING, Status.SUCCESS}


# When it was sent


@kinds
def test_the_time_is_read_from_the_id(queue: Pacchettino, put: Put, kind: str) -> None:
    before = datetime.now(UTC)
    id, entry = put(Status.QUEUED, kind)
    after = datetime.now(UTC)
    sent = Pacchettino.sent_at(id)
    assert sent == Pacchettino.sent_at(entry) == queue.sent_at(id)
    assert sent.tzinfo is UTC
    assert before - timedelta(milliseconds=1) < sent <= after
    assert sent == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=uuid.UUID(id).int >> 80)


@pytest.mark.parametrize(
    ("id", "sent"),
    [
        ("00000000-0000-7000-8000-000000000000", datetime(1970, 1, 1, tzinfo=UTC)),
        ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)),
        ("e677d21f-dbff-7000-8000-000000000000", datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
    ],
)
def test_the_time_of_a_known_id_needs_no_queue(id: str, sent: datetime) -> None:
    assert Pacchettino.sent_at(id) == sent


@pytest.mark.parametrize("id", [*MALFORMED, "e677d21f-dc00-7000-8000-000000000000"], ids=lambda id: ascii(id[:60]))
def test_the_time_of_what_is_no_id_is_a_value_error(id: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Pacchettino.sent_at(id)


# Counts


def test_an_empty_queue_counts_nothing(queue: Pacchettino) -> None:
    assert [getattr(queue, count)() for count in COUNTS.values()] == [0] * 6
    assert queue.count_all() == 0


def test_each_state_is_counted_alone(queue: Pacchettino, put: Put) -> None:
    expected = {status: number + 1 for number, status in enumerate(STATES)}
    for status, number in expected.items():
        for n in range(number):
            put(status, "file" if n % 2 else "data")
    assert {status: getattr(queue, count)() for status, count in COUNTS.items()} == expected
    assert queue.count_all() == sum(expected.values()) == 21


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_what_the_policy_does_not_keep_is_not_asked_for(queue_dir: Path, put: Put, policy: KeepPolicy) -> None:
    ids = one_of_each(put)
    queue = Pacchettino(queue_dir, policy)
    for status, id in ids.items():
        count, look = getattr(queue, COUNTS[status]), getattr(queue, f"is_{status.value}")
        if status not in KEPT or KeepPolicy[status.name] in policy:
            assert count() == 1
            assert look(id) is True
            assert look("malformed") is False
        else:
            for ask in (count, lambda look=look, id=id: look(id), lambda look=look: look("malformed")):
                with pytest.raises(NotKeptError):
                    ask()
        assert queue.status(id) is status
    assert queue.count_all() == 3 + policy.bit_count()


def test_a_claim_counts_once_it_holds_its_file(queue: Pacchettino, queue_dir: Path) -> None:
    with start_python("input()") as process:
        claim = queue_dir / f"processing/raw-{ID}.{process.pid}"
        claim.mkdir()
        assert (queue.count_processing(), queue.count_all()) == (0, 0)
        assert list(queue.jobs(Status.PROCESSING)) == []
        assert queue.status(ID) is Status.UNKNOWN
        assert queue.is_processing(ID) is False
        (claim / "raw").write_bytes(b"data")
        assert (queue.count_processing(), queue.count_all()) == (1, 1)
        assert [(job.id, job.owner) for job in queue.jobs(Status.PROCESSING)] == [(ID, str(process.pid))]
        assert queue.status(ID) is Status.PROCESSING
        assert queue.is_processing(ID) is True
        process.communicate("\n", timeout=30)


# Listings


@states
@kinds
def test_a_listing_tells_all_about_a_job(
    queue: Pacchettino, queue_dir: Path, put: Put, status: Status, kind: str
) -> None:
    before = datetime.now(UTC)
    one_of_each(put)
    id, entry = put(status, kind)
    after = datetime.now(UTC)
    job = list(queue.jobs(status))[-1]
    assert isinstance(job, JobInfo)
    assert (job.id, job.entry, job.kind, job.status) == (id, entry, kind, status)
    assert job.name == (None if kind == "data" else "report.v2.txt")
    assert job.sent_at == Pacchettino.sent_at(id)
    assert type(job.path) is type(Path())
    assert job.path.relative_to(queue_dir).parts[0] == status.value
    assert job.path.read_bytes() == (b"data" if kind == "data" else b"content")
    if status is Status.SCHEDULED:
        assert job.due is not None
        assert job.due.tzinfo is UTC
        assert before <= job.due - timedelta(seconds=60) <= after + timedelta(milliseconds=1)
    else:
        assert job.due is None
    if status is Status.PROCESSING:
        assert (queue_dir / f"owners/{job.owner}").is_file()
    else:
        assert job.owner is None


@states
def test_a_listing_is_oldest_first_whatever_the_kind(queue: Pacchettino, put: Put, status: Status) -> None:
    ids = [put(status, "file" if n % 3 == 1 else "data")[0] for n in range(12)]
    assert [job.id for job in queue.jobs(status)] == ids


def test_scheduled_jobs_are_listed_by_when_they_were_sent(queue: Pacchettino) -> None:
    ids = [queue.send_data("a", delay=delay) for delay in (3000, 1000, 2000)]
    assert [job.id for job in queue.jobs(Status.SCHEDULED)] == ids


@kept_states
def test_a_listing_goes_by_the_ids_and_not_by_the_times_of_the_files(
    queue: Pacchettino, put: Put, status: Status
) -> None:
    ids = [put(status, "data")[0] for _ in range(5)]
    for age, job in enumerate(queue.jobs(status)):
        os.utime(job.path, (5000 - age, 5000 - age))
    assert [job.id for job in queue.jobs(status)] == ids


def test_a_listing_is_an_iterator_that_bears_that_jobs_go_on(queue: Pacchettino) -> None:
    ids = queue.send_many(["a", "b", "c"])
    jobs = queue.jobs(Status.QUEUED)
    assert iter(jobs) is jobs
    assert next(jobs).id == ids[0]
    queue.on_data_received(lambda id, data: None)
    assert queue.receive() == 3
    assert {job.id for job in jobs} <= set(ids)
    assert list(jobs) == []
    assert list(queue.jobs(Status.QUEUED)) == []


def test_what_a_listing_tells_of_a_job_is_frozen(queue: Pacchettino, put: Put) -> None:
    put(Status.QUEUED, "data")
    (job,) = queue.jobs(Status.QUEUED)
    names = {field.name for field in dataclasses.fields(JobInfo)}
    assert names >= {"id", "entry", "kind", "name", "status", "path", "sent_at", "due", "owner"}
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(job, name, None)
    assert hash(job) == hash(dataclasses.replace(job))


@states
@kinds
def test_what_a_listing_tells_of_a_job_is_a_dataclass_like_any_other(
    queue: Pacchettino, put: Put, status: Status, kind: str
) -> None:
    put(status, kind)
    asked: list[Callable[[JobInfo], object]] = [
        lambda job: JobInfo(**dataclasses.asdict(job)),
        dataclasses.replace,
        copy.copy,
        copy.deepcopy,
        lambda job: pickle.loads(pickle.dumps(job)),
    ]
    for ask in asked:
        (job,), (untouched,) = queue.jobs(status), queue.jobs(status)
        assert ask(job) == job == untouched
        assert repr(ask(untouched)) == repr(job)
    with pytest.raises(AttributeError, match="'JobInfo' object has no attribute 'colour'"):
        _ = job.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [b"queued", Result.SUCCESS, KeepPolicy.SUCCESS, None, 1], ids=repr)
def test_listing_what_is_no_status_is_a_type_error(queue: Pacchettino, status: Any) -> None:
    with pytest.raises(TypeError):
        list(queue.jobs(status))


@kept_states
def test_what_the_policy_does_not_keep_is_listed_requeued_and_deleted_all_the_same(
    queue_dir: Path, put: Put, status: Status
) -> None:
    ids = [put(status, "data")[0] for _ in range(4)]
    queue = Pacchettino(queue_dir, KeepPolicy.NONE)
    assert [job.id for job in queue.jobs(status)] == ids
    assert queue.requeue(ids[0]) is True
    assert queue.cleanup(older_than=3600) == 0
    assert queue.requeue_all(KeepPolicy.ALL) == 3
    again = queue.claim(fifo=True)
    assert again is not None
    assert again.id == ids[0]
    again.fail()
    put(status, "data")
    assert queue.cleanup() == 1


# Back to the queue


@kept_states
@kinds
@pytest.mark.parametrize("by", ["id", "entry"])
def test_a_requeued_job_is_the_same_job_in_the_queue(
    queue: Pacchettino, queue_dir: Path, put: Put, status: Status, kind: str, by: str
) -> None:
    others = one_of_each(put)
    id, entry = put(status, kind)
    before = set(find(queue_dir))
    assert queue.requeue(id if by == "id" else entry) is True
    assert set(find(queue_dir)) == before - {f"{status.value}/{entry}"} | {f"queued/{entry}"}
    assert queue.requeue(id if by == "id" else entry) is False
    assert {other: queue.status(job) for other, job in others.items()} == {state: state for state in others}
    queue.requeue_all()
    seen: dict[str, bytes] = {}
    queue.on_data_received(lambda id, data: seen.update({id: data}))
    queue.on_file_received(lambda id, name, path: seen.update({id: path.read_bytes()}))
    queue.receive()
    assert seen[id] == (b"data" if kind == "data" else b"content")
    assert queue.status(id) is Status.SUCCESS


@pytest.mark.parametrize("status", [Status.QUEUED, Status.PROCESSING, Status.SCHEDULED], ids=repr)
@kinds
def test_only_kept_jobs_can_be_requeued(
    queue: Pacchettino, queue_dir: Path, put: Put, status: Status, kind: str
) -> None:
    id, entry = put(status, kind)
    files = find(queue_dir)
    assert queue.requeue(id) is False
    assert queue.requeue(entry) is False
    assert queue.requeue_all(KeepPolicy.ALL) == 0
    assert find(queue_dir) == files


@pytest.mark.parametrize("which", [None, *POLICIES], ids=repr)
def test_requeue_all_takes_those_it_is_told_or_the_failed_and_the_interrupted(
    queue: Pacchettino, put: Put, which: KeepPolicy | None
) -> None:
    ids = [one_of_each(put, kind) for kind in ("data", "file")]
    wanted = KeepPolicy.FAILED | KeepPolicy.INTERRUPTED if which is None else which
    assert (queue.requeue_all() if which is None else queue.requeue_all(which)) == 2 * wanted.bit_count()
    for jobs in ids:
        for status, id in jobs.items():
            back = status in KEPT and KeepPolicy[status.name] in wanted
            assert queue.status(id) is (Status.QUEUED if back else status)


def test_requeue_of_an_empty_queue_is_nothing(queue: Pacchettino) -> None:
    assert queue.requeue_all(KeepPolicy.ALL) == 0


@pytest.mark.parametrize("id", [None, 5, b"raw-" + ID.encode(), uuid.UUID(ID)], ids=repr)
def test_an_id_of_a_wrong_type_is_a_type_error(queue: Pacchettino, id: Any) -> None:
    for call in (queue.requeue, queue.sent_at, *(getattr(queue, f"is_{status.value}") for status in STATES)):
        with pytest.raises(TypeError):
            call(id)


# Tidying


@pytest.mark.parametrize("which", [None, *POLICIES], ids=repr)
def test_cleanup_deletes_the_kept_jobs_it_is_told_and_no_others(
    queue: Pacchettino, put: Put, which: KeepPolicy | None
) -> None:
    ids = [one_of_each(put, kind) for kind in ("data", "file")]
    wanted = KeepPolicy.ALL if which is None else which
    assert (queue.cleanup() if which is None else queue.cleanup(which)) == 2 * wanted.bit_count()
    for jobs in ids:
        for status, id in jobs.items():
            gone = status in KEPT and KeepPolicy[status.name] in wanted
            assert queue.status(id) is (Status.UNKNOWN if gone else status)


def test_what_is_no_job_is_neither_deleted_nor_requeued(queue: Pacchettino, queue_dir: Path) -> None:
    for status in STATES:
        (queue_dir / status.value / "notes.txt").write_bytes(b"mine")
        (queue_dir / status.value / f"raw-{ID}").mkdir()
    before = find(queue_dir)
    assert queue.cleanup() == 0
    assert queue.requeue_all(KeepPolicy.ALL) == 0
    assert queue.requeue(ID) is False
    assert queue.requeue(f"raw-{ID}") is False
    assert find(queue_dir) == before
    assert all((queue_dir / status.value / f"raw-{ID}").is_dir() for status in STATES)


@kept_states
@kinds
@pytest.mark.parametrize("older_than", [3600, 3600.0, timedelta(hours=1), math.inf], ids=repr)
def test_a_job_settled_just_now_is_not_old_whatever_its_id_and_its_files_times_say(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, status: Status, kind: str, older_than: Any
) -> None:
    source = tmp_path / "old"
    source.write_bytes(b"content")
    os.utime(source, (1, 1))
    if kind == "data":
        (queue_dir / f"queued/raw-{ID}").write_bytes(b"data")
        os.utime(queue_dir / f"queued/raw-{ID}", (1, 1))
    else:
        queue.send_file(source, copy=False)
    job = queue.claim()
    assert job is not None
    if status is Status.INTERRUPTED:
        with pytest.raises(KeyboardInterrupt), job:
            raise KeyboardInterrupt
    else:
        (job.succeed if status is Status.SUCCESS else job.fail)()
    kept = queue_dir / status.value / job.entry
    assert kept.stat().st_mtime == 1
    assert queue.cleanup(older_than=older_than) == 0
    assert kept.exists()
    os.utime(kept, (1e10, 1e10))  # and a file of the future is as old as its verdict
    assert queue.cleanup() == 1
    assert not kept.exists()


@pytest.mark.parametrize("older_than", [0.2, timedelta(milliseconds=200)], ids=repr)
def test_a_job_is_deleted_once_its_verdict_is_old_enough_and_not_before(
    queue: Pacchettino, put: Put, older_than: float | timedelta
) -> None:
    put(Status.FAILED, "data")
    (job,) = queue.jobs(Status.FAILED)
    os.utime(job.path, (1, 1))
    settled = job.path.stat().st_ctime
    deadline = time.monotonic() + 30
    while queue.cleanup(older_than=older_than) == 0:
        assert time.monotonic() < deadline
    assert time.time() - settled >= 0.2
    assert queue.status(job.id) is Status.UNKNOWN


@pytest.mark.parametrize("older_than", [-1, timedelta(days=-1)], ids=repr)
def test_a_negative_age_is_none(queue: Pacchettino, put: Put, older_than: float | timedelta) -> None:
    put(Status.SUCCESS, "data")
    assert queue.cleanup(older_than=older_than) == 1


@pytest.mark.parametrize("older_than", [True, False, "1", None], ids=repr)
def test_an_age_that_is_no_duration_is_a_type_error(queue: Pacchettino, put: Put, older_than: Any) -> None:
    id, _ = put(Status.SUCCESS, "data")
    with pytest.raises(TypeError):
        queue.cleanup(older_than=older_than)
    assert queue.status(id) is Status.SUCCESS


def test_directories_that_were_moved_aside_are_noticed(queue: Pacchettino) -> None:
    for name in ("queued", "owners"):
        path = queue.base_dir / name
        path.rename(path.with_name(f"{name} moved"))
        path.mkdir()
        assert queue.claim() is None  # a look that finds nothing looks around
        id = queue.send_data("work")
        assert [path.name for path in (queue.base_dir / "queued").iterdir()] == [f"raw-{id}"]
        assert len(list((queue.base_dir / "owners").iterdir())) == 1
        job = queue.claim()
        assert job is not None
        job.succeed()


def test_a_job_that_comes_with_the_directory_s_old_time_is_found(queue: Pacchettino) -> None:
    id = queue.send_data("work")
    with queue.claim() as job:  # type: ignore[union-attr]
        assert job.id == id
    queued = queue.base_dir / "queued"
    time.sleep(3.2)  # before that nobody relies on the directory's time
    assert queue.claim() is None
    times = queued.stat()
    (queue.base_dir / "success" / job.entry).rename(queued / job.entry)
    os.utime(queued, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = queue.claim()
    assert again is not None
    again.succeed()


def test_an_id_from_the_far_future_hides_nothing(queue: Pacchettino) -> None:
    id = queue.send_data("work")
    far = "ffffffff-ffff-7000-8000-000000000000"
    (queue.base_dir / "queued" / f"raw-{far}").write_text("far")
    assert [job.id for job in queue.jobs(Status.QUEUED)] == [id, far]


@pytest.mark.parametrize("state", ["queued", "success", "failed", "interrupted"])
def test_the_status_of_a_data_job_and_of_an_entry_lists_no_large_directory(
    queue: Pacchettino, tmp_path: Path, mode_bound: None, state: str
) -> None:
    file = tmp_path / "report.txt"
    file.write_text("report")
    data, entry = queue.send_data("work"), f"fle-{queue.send_file(file)}-report.txt"
    queued = queue.base_dir / "queued"
    for path in list(queued.iterdir()):
        path.rename(queue.base_dir / state / path.name)
    large = [queue.base_dir / name for name in ("queued", "success", "failed", "interrupted")]
    for directory in large:
        directory.chmod(0o300)  # its entries can be reached, but not listed
    try:
        assert (queue.status(data), queue.status(entry)) == (Status(state), Status(state))
        with pytest.raises(PermissionError):
            queue.count_queued()
    finally:
        for directory in large:
            directory.chmod(0o700)


@pytest.mark.parametrize("call", ["cleanup", "requeue_all"])
def test_a_plain_number_is_no_policy(queue: Pacchettino, call: str) -> None:
    id = queue.send_data("work")
    with queue.claim() as job:  # type: ignore[union-attr]
        assert job.id == id
    with pytest.raises(TypeError, match="older_than"):
        getattr(queue, call)(7)  # not seven days
    assert queue.status(id) is Status.SUCCESS


def lay_down_dead_claim(queue: Pacchettino) -> str:
    id = queue.send_data("work")
    claim = queue.base_dir / "processing" / f"raw-{id}.{'a' * 10}"
    claim.mkdir()
    (queue.base_dir / "queued" / f"raw-{id}").rename(claim / "raw")
    return id


@pytest.mark.parametrize("look", ["requeue", "requeue_all"])
def test_what_a_requeue_notices_is_logged_when_it_does(
    queue: Pacchettino, caplog: pytest.LogCaptureFixture, look: str
) -> None:
    dead = lay_down_dead_claim(queue)
    assert (queue.requeue(dead) if look == "requeue" else queue.requeue_all()) == 1
    assert [(record.levelname, dead in record.message) for record in caplog.records] == [("WARNING", True)]
    caplog.clear()
    # Also where it does not end well.
    dead = lay_down_dead_claim(queue)
    (queue.base_dir / "queued" / f"raw-{dead}").mkdir()
    with pytest.raises(OSError, match=dead):
        queue.requeue(dead) if look == "requeue" else queue.requeue_all()
    assert any(dead in record.message and "died" in record.message for record in caplog.records)
    assert not queue._core.has_notices


def test_notices_that_nobody_takes_do_not_pile_up(quick_dir: Path) -> None:
    with Pacchettino(quick_dir / "queue") as queue:
        for number in range(1_200):
            claim = queue.base_dir / "processing" / f"raw-{uuid.UUID(int=number | 7 << 76 | 2 << 62)}.{'a' * 10}"
            claim.mkdir()
            (claim / "raw").touch()
            if number % 400 == 399:
                assert queue._core.requeue_all(int(KeepPolicy.INTERRUPTED)) == 400
        notices = queue._core.take_notices()
        assert len(notices) == 1_001
        assert notices[-1] == ("more was noticed, and is not logged", None)


@pytest.mark.parametrize("all_", [True, False])
def test_a_requeue_looks_for_the_dead_first(queue: Pacchettino, all_: bool) -> None:
    id = queue.send_data("work")
    claim = queue.base_dir / "processing" / f"raw-{id}.{'a' * 10}"
    claim.mkdir()
    (queue.base_dir / "queued" / f"raw-{id}").rename(claim / "raw")
    assert queue.status(id) is Status.PROCESSING
    assert (queue.requeue_all() if all_ else queue.requeue(id)) == 1
    assert queue.status(id) is Status.QUEUED
