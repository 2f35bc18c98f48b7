"""The directory, as the D library and this one leave it to each other."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers import (
    DIRECTORIES,
    DUE,
    ID,
    STATES,
    TOKEN,
    Peer,
    claims,
    dead_pid,
    entries,
    everything,
    files,
    grow_old,
    is_locked,
    lay_down,
    new_id,
    odd_names,
)
from pacchettino import CrashDetection, Job, JobInfo, KeepPolicy, Pacchettino, Result, Status, current_job

ODD_NAMES = odd_names(
    b"a.12345",
    b"b.abcdefghij",
    b"c.12345.abcdefghij",
    b"new\nline.txt",
    b"inv\xff\xfealid.bin",
    b"n" * 200,
    b"\xc3\xa4" * 100,
    b"bad-name-with-dashes.tar.gz",
    b"-",
    b"--help",
    b"raw",
    b"raw-x",
    b"ok report.pdf",
    b" ",
    b".hidden",
    b"...",
    b"*?[a]",
    b"'\"\\$(x)",
    b"tab\tand\x01\x7f",
    b"trailing.",
)
ODD_IDS = [repr(name.values[0][:20])[1:] for name in ODD_NAMES]


def in_name(name: bytes | None) -> bytes:
    """Give a new job's entry name: a file job's, or a data job's if there is no name."""
    identity = new_id().encode()
    return b"raw-" + identity if name is None else b"fle-" + identity + b"-" + name


def id_of(entry: bytes) -> str:
    return entry[4:40].decode()


def is_like(pattern: bytes, *names: bytes) -> bool:
    return bool(names) and all(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def consumer(base: Path, *settings: object, **more: object) -> tuple[Pacchettino, list[tuple[str, str | None, bytes]]]:
    """Give a queue whose handlers succeed, and the list of what they are going to see: id, name, bytes."""
    queue = Pacchettino(base, *settings, **more)
    seen: list[tuple[str, str | None, bytes]] = []
    queue.on_data_received(lambda id, data: seen.append((id, None, data)))
    queue.on_file_received(lambda id, name, path: seen.append((id, name, path.read_bytes())))
    return queue, seen


def use_in_every_way(base: Path) -> int:
    """Call all that looks at jobs or moves them; give the number of jobs that anything was done to."""
    queue, seen = consumer(base)
    handled = queue.receive() + queue.receive(fifo=True) + queue.receive_one() + queue.receive_one(fifo=True)
    assert handled == len(seen)
    handled += sum(queue.claim(kind=kind) is not None for kind in ("data", "file", None))
    handled += queue.count_all() + sum(len(list(queue.jobs(status))) for status in Status if status != Status.UNKNOWN)
    return handled + queue.requeue_all(KeepPolicy.ALL) + queue.cleanup()


# What the D library left


NOW = time.time()
fixture_time = pytest.mark.skipif(
    not 1795966549.014 < NOW < 2111326549.012,
    reason="two of the delayed jobs are due in November 2026, the other two in November 2036",
)

LEFT: dict[str, list[tuple[bytes, bytes]]] = {
    "scheduled": [
        (b"1795966549014-fle-01a227f2-bc15-7001-b336-1c7901ce02aa-bad-name-with-dashes.tar.gz", b"bad"),
        (b"1795966549014-raw-01a227f2-bc15-7000-b371-6ed899f2730b", b"due"),
        (b"2111326549012-fle-01a227f2-bc14-7000-b5a1-bc438093408b-bad-name-with-dashes.tar.gz", b"bad"),
        (b"2111326549012-raw-01a227f2-bc13-7000-9c25-26cb7d9878ef", b"tomorrow"),
    ],
    "queued": [
        (b"fle-01a227f2-b5ae-7001-b241-8446a2f060f0-b.abcdefghij", b"token"),
        (b"fle-01a227f2-b5ae-7002-b32f-6e1d11cb9597-bad-name-with-dashes.tar.gz", b"bad"),
        (b"fle-01a227f2-bc1d-7005-95ac-a2dc4436955c-a.12345", b"pid"),
        (b"fle-01a227f2-bc1e-7000-b471-c9e509852cf4-b.abcdefghij", b"token"),
        (b"fle-01a227f2-bc1e-7001-96d5-fd295a08ffe4-bad-name-with-dashes.tar.gz", b"bad"),
        (b"fle-01a227f2-bc1e-7002-b479-f7589cf470b0-inv\xff\xfealid.bin", b"x"),
        (b"fle-01a227f2-bc1e-7003-be23-1b369d83c1ef-new\nline.txt", b"nl"),
        (b"fle-01a227f2-bc1f-7000-b125-2486c320ad06-" + b"n" * 200, b"long"),
        (b"fle-01a227f2-bc1f-7001-a98b-4ed7400a5812-ok report.pdf", b"okay file"),
        (b"raw-01a227f2-bc1c-7000-8cb8-1831d9f87e3e", b"data 0"),
        (b"raw-01a227f2-bc1c-7001-95e6-2d0e04ef04bd", b"data 1"),
        (b"raw-01a227f2-bc1d-7000-8e15-26d97a718d02", b"data 2"),
        (b"raw-01a227f2-bc1d-7001-8317-2f6e4c761752", b"data 3"),
        (b"raw-01a227f2-bc1d-7002-bd76-bf0d2a07ebf4", b"data 4"),
        (b"raw-01a227f2-bc1d-7003-8c39-21caf393cc3f", b"\x00\xff\n\r\x00"),
        (b"raw-01a227f2-bc1d-7004-b2d8-91359ca2c579", b""),
    ],
    "processing": [
        (b"fle-01a227f2-b0e3-7002-832c-aa3f2bfc077b-ok report.pdf.4194303/ok report.pdf", b"okay file"),
        (b"fle-01a227f2-b0e4-7000-a487-612aa799fc18-a.12345.d1d8r8yxy6/a.12345", b"pid"),
        (b"raw-01a227f2-b5ad-7000-b646-0fe91b823150.4194302/raw", b"ok 1"),
        (b"raw-01a227f2-b5ae-7000-9c92-f8a6d0deb930.bvvpam64u8/raw", b"bad 1"),
    ],
    "success": [
        (b"fle-01a227f2-b0d6-7002-85cd-a1fccad1615c-ok report.pdf", b"okay file"),
        (b"raw-01a227f2-b0d6-7000-826e-93b281bc7bc6", b"ok 1"),
    ],
    "failed": [
        (b"fle-01a227f2-b0d7-7000-8397-db419fc50f33-bad-name-with-dashes.tar.gz", b"bad"),
        (b"raw-01a227f2-b0d6-7001-9218-25ae1ac934be", b"bad 1"),
    ],
    "interrupted": [
        (b"raw-01a227f2-b0e3-7000-99aa-b5ee29f5821b", b"ok 1"),
        (b"raw-01a227f2-b0e3-7001-b3ea-06db92d4697f", b"bad 1"),
    ],
}


def below(state: str, jobs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return {state.encode() + b"/" + name: content for name, content in jobs}


def claimed_entry(path: bytes) -> bytes:
    """Give the entry name of `<job>.<owner>/<file>`."""
    return path.split(b"/")[0].rpartition(b".")[0]


HANDLED = LEFT["queued"] + [(name[14:], content) for name, content in LEFT["scheduled"][:2]]
WORKED_OFF = {
    **below("scheduled", LEFT["scheduled"][2:]),
    **below("success", LEFT["success"] + HANDLED),
    **below("failed", LEFT["failed"]),
    **below("interrupted", LEFT["interrupted"]),
    **below("interrupted", [(claimed_entry(path), content) for path, content in LEFT["processing"]]),
}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Give the directory that programs built on the D library left."""
    if sys.platform == "win32":
        pytest.skip("NOT TESTED: needs names of any bytes")
    with tarfile.open(Path(__file__).parent / "data" / "d-library-queue.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    base = tmp_path / "q"
    assert files(base) == {path: data for state, jobs in LEFT.items() for path, data in below(state, jobs).items()}
    assert entries(base / "owners") == [b"bvvpam64u8", b"d1d8r8yxy6"]
    return base


def counts(queue: Pacchettino) -> dict[str, int]:
    return {
        "scheduled": queue.count_scheduled(),
        "queued": queue.count_queued(),
        "processing": queue.count_processing(),
        "success": queue.count_successful(),
        "failed": queue.count_failed(),
        "interrupted": queue.count_interrupted(),
    }


def as_info(base: Path, status: Status, path: bytes) -> JobInfo:
    """Give what a listing should say of a file below a state's directory."""
    entry, due, owner = path, None, None
    if status is Status.SCHEDULED:
        due, entry = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(path[:13])), path[14:]
    elif status is Status.PROCESSING:
        entry = claimed_entry(path)
        owner = path.split(b"/")[0].rpartition(b".")[2].decode()
    name = None if entry.startswith(b"raw-") else os.fsdecode(entry[41:])
    sent = int(entry[4:17].replace(b"-", b""), 16)
    return JobInfo(
        id=id_of(entry),
        entry=os.fsdecode(entry),
        kind="data" if name is None else "file",
        name=name,
        status=status,
        path=base / status.value / os.fsdecode(path),
        sent_at=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=sent),
        due=due,
        owner=owner,
    )


def test_what_the_d_library_left_is_counted_as_it_counted(left: Path) -> None:
    assert counts(Pacchettino(left)) == {
        "scheduled": 4,
        "queued": 16,
        "processing": 4,
        "success": 2,
        "failed": 2,
        "interrupted": 2,
    }


@pytest.mark.parametrize("state", STATES)
def test_every_job_that_the_d_library_left_is_listed_with_all_that_its_name_says(left: Path, state: str) -> None:
    status = Status(state)
    infos = [as_info(left, status, path) for path, _ in LEFT[state]]
    listed = list(Pacchettino(left).jobs(status))
    assert listed == sorted(infos, key=lambda info: info.id)
    assert [info.path.read_bytes() for info in listed] == [
        content for _, content in sorted(zip([info.id for info in infos], [c for _, c in LEFT[state]], strict=True))
    ]


def test_every_job_that_the_d_library_left_has_the_status_of_its_directory(left: Path) -> None:
    queue = Pacchettino(left)
    for state in STATES:
        for info in queue.jobs(Status(state)):
            assert (queue.status(info.id), queue.status(info.entry)) == (Status(state), Status(state))


@fixture_time
def test_one_receive_works_off_what_the_d_library_left(left: Path) -> None:
    queue, seen = consumer(left)
    assert queue.receive() == 18
    assert sorted((id, data) for id, _, data in seen) == sorted((id_of(entry), data) for entry, data in HANDLED)
    names = {id_of(entry): os.fsdecode(entry[41:]) if entry.startswith(b"fle-") else None for entry, _ in HANDLED}
    assert {id: name for id, name, _ in seen} == names
    assert files(left) == WORKED_OFF
    assert counts(queue) == {
        "scheduled": 2,
        "queued": 0,
        "processing": 0,
        "success": 20,
        "failed": 2,
        "interrupted": 6,
    }


@fixture_time
def test_nothing_but_jobs_is_left_once_the_process_that_worked_it_off_has_ended(left: Path) -> None:
    with Peer(left) as peer:
        peer("""
            queue.on_data_received(lambda id, data: None)
            queue.on_file_received(lambda id, name, path: None)
            pass
        """)
        assert peer("queue.receive()") == 18
        peer.finish()
    everywhere = {
        **{directory.encode(): ("directory", b"") for directory in DIRECTORIES},
        **{path: ("file", content) for path, content in WORKED_OFF.items()},
    }
    found = everything(left)
    assert {path: what for path, what in found.items() if not path.startswith(b"history")} == everywhere
    # Those that it found dead.
    assert len([path for path in found if path.startswith(b"history/") and path.endswith(b"/1.settled")]) == 4


@fixture_time
def test_what_the_d_library_left_is_worked_off_in_steps_oldest_first(left: Path) -> None:
    queue, seen = consumer(left, fifo=True)
    for _ in range(5):
        assert queue.receive_one()
    with queue.claim() as job:
        seen.append((job.id, job.name, job.data))
    assert queue.receive() == 12
    assert not queue.receive_one()
    assert [id for id, _, _ in seen] == sorted(id_of(entry) for entry, _ in HANDLED)
    assert files(left) == WORKED_OFF


# Directories laid down here


@pytest.fixture
def living() -> Iterator[Peer]:
    """Give another process that lives; it has opened no queue."""
    with Peer() as peer:
        yield peer


class Owners:
    """Makes owners of claims."""

    def __init__(self, base: Path, living: Peer) -> None:
        self.base = base
        self.living = living

    def a_dead_pid(self) -> bytes:
        return str(dead_pid()).encode()

    def a_live_pid(self) -> bytes:
        return str(self.living.pid).encode()

    def a_token_without_a_lock_file(self) -> bytes:
        return b"gone000000"

    def a_token_whose_lock_is_free(self) -> bytes:
        (self.base / "owners" / "free000000").write_bytes(b"")
        return b"free000000"

    def a_token_whose_lock_is_held(self) -> bytes:
        path = self.base / "owners" / "held000000"
        self.living(f"lock = lock_file({os.fspath(path)!r})")
        assert is_locked(path)
        return b"held000000"


DEAD = ["a_dead_pid", "a_token_without_a_lock_file", "a_token_whose_lock_is_free"]
ALIVE = ["a_live_pid", "a_token_whose_lock_is_held"]


@pytest.fixture
def owners(queue_dir: Path, living: Peer) -> Owners:
    lay_down(queue_dir, {})
    return Owners(queue_dir, living)


@pytest.mark.parametrize("name", [None, b"report.pdf"])
@pytest.mark.parametrize("kind", DEAD)
def test_a_claim_of_the_dead_becomes_an_interrupted_job(
    queue_dir: Path, owners: Owners, kind: str, name: bytes | None
) -> None:
    owner, entry = getattr(owners, kind)(), in_name(name)
    lay_down(queue_dir, {b"processing/%s.%s/%s" % (entry, owner, name or b"raw"): b"payload"})
    queue, seen = consumer(queue_dir)
    assert queue.receive() == 0
    assert seen == []
    assert files(queue_dir) == {b"interrupted/" + entry: b"payload"}
    assert entries(queue_dir / "processing") == []
    assert entries(queue_dir / "owners") == []


@pytest.mark.parametrize("name", [None, b"report.pdf"])
@pytest.mark.parametrize("kind", ALIVE)
def test_a_claim_of_the_living_is_left_alone_until_they_die(
    queue_dir: Path, owners: Owners, kind: str, name: bytes | None
) -> None:
    owner, entry = getattr(owners, kind)(), in_name(name)
    path = b"processing/%s.%s/%s" % (entry, owner, name or b"raw")
    lay_down(queue_dir, {path: b"payload"})
    before = everything(queue_dir)
    queue, seen = consumer(queue_dir)
    assert queue.receive() == 0
    assert queue.status(id_of(entry)) is Status.PROCESSING
    assert [info.owner for info in queue.jobs(Status.PROCESSING)] == [owner.decode()]
    assert everything(queue_dir) == before

    owners.living.kill()
    owners.living.reap()
    assert queue.receive() == 0
    assert files(queue_dir) == {b"interrupted/" + entry: b"payload"}
    assert entries(queue_dir / "owners") == []
    assert seen == []


@pytest.mark.parametrize("kind", DEAD)
def test_an_empty_claim_directory_of_the_dead_is_removed(queue_dir: Path, owners: Owners, kind: str) -> None:
    (queue_dir / "processing" / os.fsdecode(b"%s.%s" % (in_name(None), getattr(owners, kind)()))).mkdir()
    queue, _ = consumer(queue_dir)
    assert queue.count_processing() == 0
    assert queue.receive() == 0
    assert entries(queue_dir / "processing") == []
    assert files(queue_dir) == {}


@pytest.mark.parametrize("kind", ALIVE)
def test_an_empty_claim_directory_of_the_living_stays(queue_dir: Path, owners: Owners, kind: str) -> None:
    name = b"%s.%s" % (in_name(None), getattr(owners, kind)())
    (queue_dir / "processing" / os.fsdecode(name)).mkdir()
    queue, _ = consumer(queue_dir)
    assert queue.count_processing() == 0
    assert queue.receive() == 0
    assert entries(queue_dir / "processing") == [name]


@pytest.mark.parametrize("detection", CrashDetection)
def test_a_job_is_claimed_beside_an_empty_claim_directory_that_a_living_process_made_for_it(
    queue_dir: Path, owners: Owners, detection: CrashDetection
) -> None:
    entry = in_name(None)
    lay_down(queue_dir, {b"queued/" + entry: b"payload"})
    empty = b"%s.%s" % (entry, owners.a_live_pid())
    (queue_dir / "processing" / os.fsdecode(empty)).mkdir()
    queue, seen = consumer(queue_dir, crash_detection=detection)
    assert queue.receive() == 1
    assert [data for _, _, data in seen] == [b"payload"]
    assert entries(queue_dir / "processing") == [empty]


def test_a_claim_under_our_own_pid_that_we_do_not_work_on_is_a_leftover(queue_dir: Path) -> None:
    entry = in_name(None)
    lay_down(queue_dir, {b"processing/%s.%d/raw" % (entry, os.getpid()): b"payload"})
    queue, _ = consumer(queue_dir)
    assert queue.receive() == 0
    assert files(queue_dir) == {b"interrupted/" + entry: b"payload"}
    assert entries(queue_dir / "processing") == []


def test_a_claim_under_our_own_token_that_we_do_not_work_on_is_a_leftover(queue_dir: Path) -> None:
    queue, _ = consumer(queue_dir)
    queue.send_data("held meanwhile")
    with queue.claim():
        (ours,) = entries(queue_dir / "owners")
        entry = in_name(b"left over")
        lay_down(queue_dir, {b"processing/%s.%s/left over" % (entry, ours): b"payload"})
        assert queue.receive() == 0
        assert files(queue_dir)[b"interrupted/" + entry] == b"payload"
        assert queue.count_processing() == 1
    assert queue.count_successful() == 1


@pytest.mark.parametrize("name", ODD_NAMES, ids=ODD_IDS)
def test_an_odd_name_goes_through_every_state_byte_for_byte(queue_dir: Path, name: bytes) -> None:
    waiting, due, later, orphan, of_pid = (in_name(name) for _ in range(5))
    lay_down(
        queue_dir,
        {
            b"queued/" + waiting: b"waiting",
            b"scheduled/0000000000001-" + due: b"due",
            b"scheduled/9999999999999-" + later: b"later",
            b"processing/%s.gone000000/%s" % (orphan, name): b"orphan",
            b"processing/%s.%d/%s" % (of_pid, dead_pid(), name): b"of pid",
        },
    )
    queue, seen = consumer(queue_dir)
    assert queue.receive() == 2
    text = os.fsdecode(name)
    assert sorted(seen) == sorted([(id_of(waiting), text, b"waiting"), (id_of(due), text, b"due")])
    assert files(queue_dir) == {
        b"success/" + waiting: b"waiting",
        b"success/" + due: b"due",
        b"scheduled/9999999999999-" + later: b"later",
        b"interrupted/" + orphan: b"orphan",
        b"interrupted/" + of_pid: b"of pid",
    }
    assert entries(queue_dir / "processing") == []
    for entry in (waiting, due, later, orphan, of_pid):
        assert queue.status(id_of(entry)) is queue.status(os.fsdecode(entry)) is not Status.UNKNOWN
    assert queue.requeue(id_of(waiting))
    assert queue.requeue(os.fsdecode(due))
    assert queue.requeue_all() == 2
    assert entries(queue_dir / "queued") == sorted([waiting, due, orphan, of_pid])


def test_delayed_jobs_are_promoted_when_due_and_not_before(queue_dir: Path) -> None:
    now = time.time_ns() // 1_000_000
    dues = {0: True, 1: True, now - 60_000: True, now: True, now + 3_600_000: False, 9_999_999_999_999: False}
    jobs = {b"%013d-%s" % (due, in_name(None)): is_due for due, is_due in dues.items()}
    lay_down(queue_dir, {b"scheduled/" + name: name for name in jobs})
    queue, seen = consumer(queue_dir)
    assert queue.count_scheduled() == 6
    assert queue.receive() == 4
    assert sorted(data for _, _, data in seen) == sorted(name for name, is_due in jobs.items() if is_due)
    assert entries(queue_dir / "scheduled") == sorted(name for name, is_due in jobs.items() if not is_due)
    assert entries(queue_dir / "success") == sorted(name[14:] for name, is_due in jobs.items() if is_due)


def test_a_delayed_job_whose_name_is_taken_in_the_queue_waits_and_both_are_kept(queue_dir: Path) -> None:
    entry = in_name(None)
    lay_down(queue_dir, {b"scheduled/0000000000001-" + entry: b"second", b"queued/" + entry: b"first"})
    queue, seen = consumer(queue_dir)
    assert queue.receive() == 1
    assert seen == [(id_of(entry), None, b"first")]
    assert files(queue_dir) == {b"scheduled/0000000000001-" + entry: b"second", b"success/" + entry: b"first"}


@pytest.mark.parametrize("kind", DEAD)
@pytest.mark.parametrize("name", [None, b"report.pdf"])
def test_of_a_dead_claim_only_the_file_of_the_job_is_moved_and_the_rest_is_kept(
    queue_dir: Path, owners: Owners, kind: str, name: bytes | None
) -> None:
    owner, entry, bare = getattr(owners, kind)(), in_name(name), in_name(name)
    claim, file = b"processing/%s." % entry, name or b"raw"
    other_claim = b"processing/%s." % bare
    others = {claim + b"%s/notes": b"notes", claim + b"%s/raw~": b"more", claim + b"%s/deep/" + file: b"deep"}
    rest = {**others, other_claim + b"%s/another": b"another file and none of the job's"}
    lay_down(queue_dir, {claim + owner + b"/" + file: b"payload", **{path % owner: rest[path] for path in rest}})
    assert use_in_every_way(queue_dir) > 0  # the job is counted, listed, and requeued in the end
    assert files(queue_dir) == {b"queued/" + entry: b"payload", **{path % b"left-1": rest[path] for path in rest}}


@pytest.mark.parametrize("kind", DEAD)
def test_a_dead_claim_with_further_files_is_interrupted_once(queue_dir: Path, owners: Owners, kind: str) -> None:
    entry = in_name(None)
    claim = b"processing/%s.%s/" % (entry, getattr(owners, kind)())
    lay_down(queue_dir, {claim + b"raw": b"payload", claim + b"notes": b"notes"})
    aside = b"processing/%s.left-1/notes" % entry
    queue, seen = consumer(queue_dir)
    for _ in range(3):
        assert queue.receive() == 0
        assert files(queue_dir) == {b"interrupted/" + entry: b"payload", aside: b"notes"}
    assert queue.requeue(id_of(entry))
    assert queue.receive() == 1
    assert seen == [(id_of(entry), None, b"payload")]
    assert files(queue_dir) == {b"success/" + entry: b"payload", aside: b"notes"}


NO_OWNERS = [
    b"",
    b".",
    b".0",
    b".-1",
    b".+1",
    b".99999999999",
    b".1 ",
    b".1x",
    b".0x1",
    b".1d1d8r8yxy",
    b".D1D8R8YXY6",
    b".d1d8r8yxy",
    b".d1d8r8yxy66",
    b".d1d8-8yxy6",
    b".d1d8r8yxy\xc3",
    b".4194303~",
    b".gone000000.bak",
    b".4194303.x",
]


@pytest.mark.parametrize("suffix", odd_names(*NO_OWNERS), ids=[repr(suffix)[1:] for suffix in NO_OWNERS])
def test_a_directory_whose_suffix_is_no_owner_is_left_alone(queue_dir: Path, suffix: bytes) -> None:
    file_entry = in_name(b"report")
    lay_down(
        queue_dir,
        {
            b"processing/%s%s/raw" % (in_name(None), suffix): b"payload",
            b"processing/%s%s/report" % (file_entry, suffix): b"payload",
        },
    )
    before = everything(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    assert everything(queue_dir) == before


@pytest.mark.parametrize("kind", DEAD)
def test_a_directory_whose_name_is_no_job_is_left_alone(queue_dir: Path, owners: Owners, kind: str) -> None:
    owner, identity = getattr(owners, kind)(), new_id().encode()
    names = [
        b"xyz-" + identity,
        b"RAW-" + identity,
        identity,
        b"raw-" + identity.upper().replace(b"7", b"A", 1),
        b"raw-" + identity + b"x",
        b"raw-" + identity[:-1],
        b"fle-" + identity,
        b"fle-" + identity + b"-",
        b"fle-" + identity + b"-..",
        b"notes",
        b"spare",
        b"",
    ]
    lay_down(queue_dir, {b"processing/%s.%s/raw" % (name, owner): b"payload" for name in names})
    before = {path: found for path, found in everything(queue_dir).items() if not path.startswith(b"owners/")}
    assert use_in_every_way(queue_dir) == 0
    after = {path: found for path, found in everything(queue_dir).items() if not path.startswith(b"owners/")}
    assert after == before


def strange_names() -> list[bytes]:
    """Give names that are no jobs', and some that only look like one."""
    identity = new_id().encode()
    return [
        b"notes.txt",
        b".hidden",
        b"raw",
        b"raw-",
        b"raw-notes",
        b"raw-" + identity + b"-",
        b"raw-" + identity + b"x",
        b"raw-" + identity.upper().replace(b"7", b"A", 1),
        b"raw-" + identity[:14] + b"4" + identity[15:],
        b"raw-" + identity[:19] + b"c" + identity[20:],
        b"raw-" + identity.replace(b"-", b"_"),
        b"RAW-" + identity,
        b"xyz-" + identity,
        b"fle-" + identity,
        b"fle-" + identity + b"-",
        b"fle-" + identity + b"-.",
        b"fle-" + identity + b"-..",
        b"fle-" + identity + b"-" + b"n" * 201,
        *([] if sys.platform == "win32" else [b"inv\xff\xfealid"]),
    ]


def test_strange_files_are_left_alone_in_every_directory(queue_dir: Path) -> None:
    strangers = {b"%s/%s" % (d.encode(), name): b"stranger" for d in DIRECTORIES for name in strange_names()}
    for stamp in (b"", b"123-", b"123456789012-", b"12345678901234-", b"0000000000000", b"-000000000001-", b"x" * 14):
        strangers[b"scheduled/" + stamp + in_name(None)] = b"stranger"
    strangers[b"scheduled/0000000000001-notes"] = b"stranger"
    strangers[b"scheduled/0000000000001-" + in_name(b"..")] = b"stranger"
    for claim in (in_name(None) + b".4194303", in_name(b"a") + b".gone000000"):
        strangers[b"processing/" + claim] = b"a file, not a directory"
    strangers[b"queue.conf"] = strangers[b"history/raw"] = b"stranger"
    lay_down(queue_dir, strangers)
    before = everything(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    assert everything(queue_dir) == before


def put_what_is_no_file(make_path: Callable[[], Path], outside: Path) -> None:
    """Make directories, links and a FIFO, each at a path of its own."""
    full = make_path()
    full.mkdir()
    (full / "raw").write_bytes(b"in a directory")
    os.mkfifo(make_path())
    make_path().symlink_to(outside / "raw")
    make_path().symlink_to(outside)
    make_path().symlink_to("nowhere")


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Give a directory beside the queue with a file in it, which must be there in the end."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "raw").write_bytes(b"somebody else's")
    yield outside
    assert everything(outside) == {b"raw": ("file", b"somebody else's")}


@pytest.mark.parametrize("name", [None, b"raw"])
@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.needs("symlinks", "FIFOs and sockets")
def test_what_is_called_like_a_job_but_is_no_file_is_left_alone(
    queue_dir: Path, outside: Path, directory: str, name: bytes | None
) -> None:
    lay_down(queue_dir, {})
    prefix = b"0000000000001-" if directory == "scheduled" else b""
    make_path = lambda: queue_dir / directory / os.fsdecode(prefix + in_name(name))  # noqa: E731
    put_what_is_no_file(make_path, outside)
    make_path().mkdir()
    before = everything(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    assert everything(queue_dir) == before


@pytest.mark.needs("symlinks", "FIFOs and sockets")
def test_what_is_called_like_a_dead_claim_but_is_no_directory_is_not_followed(queue_dir: Path, outside: Path) -> None:
    lay_down(queue_dir, {})
    make_path = lambda: queue_dir / "processing" / os.fsdecode(in_name(None) + b".gone000000")  # noqa: E731
    os.mkfifo(make_path())
    make_path().write_bytes(b"a file")
    make_path().symlink_to(outside / "raw")
    make_path().symlink_to(outside)
    make_path().symlink_to("nowhere")
    before = everything(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    assert everything(queue_dir) == before


def recover_as_the_d_library_does(base: Path) -> list[bytes]:
    """Move any file in a directory with the name of a dead owner's claim to `interrupted/`, over what is there."""
    moved = []
    for name in entries(base / "processing"):
        job, _, owner = name.rpartition(b".")
        if re.fullmatch(TOKEN, owner) and not (base / "owners" / os.fsdecode(owner)).exists():
            claim = base / "processing" / os.fsdecode(name)
            for file in claim.iterdir():
                file.replace(base / "interrupted" / os.fsdecode(job))
                moved.append(job)
            claim.rmdir()
    return moved


def leave_beside(job: Job) -> None:
    job.path.with_name("movie.mp3").write_bytes(b"sound")


SETTLES: dict[str, Callable[[Pacchettino, bool], Any]] = {
    "one claim": lambda queue, fails: leave_and_settle(queue.claim(), fails),
    "receive": lambda queue, fails: queue.receive(),
    "receive_one": lambda queue, fails: queue.receive_one(),
}


def leave_and_settle(job: Job | None, fails: bool) -> None:
    assert job is not None
    leave_beside(job)
    job.fail() if fails else job.succeed()


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("way", SETTLES)
@pytest.mark.parametrize("state", ["failed", "success", None])
def test_what_a_handler_leaves_beside_its_job_is_no_job_of_a_d_worker(
    queue_dir: Path, tmp_path: Path, state: str | None, way: str, durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keep = KeepPolicy.NONE if state is None else KeepPolicy.ALL
    queue = Pacchettino(queue_dir, keep, durable=durable)
    (tmp_path / "movie.avi").write_bytes(b"pictures")
    id = queue.send_file(tmp_path / "movie.avi")

    @queue.on_file_received
    def handle(id: str, name: str, path: Path) -> Result:
        path.with_suffix(".mp3").write_bytes(b"sound")
        return Result.FAILED if state == "failed" else Result.SUCCESS

    SETTLES[way](queue, state == "failed")
    (token,) = (name.decode() for name in entries(queue_dir / "owners"))
    (queue_dir / "owners" / token).unlink()  # as if it had died now
    assert recover_as_the_d_library_does(queue_dir) == []
    entry = b"fle-%b-movie.avi" % id.encode()
    aside = b"processing/" + entry + b".left-1"
    kept = {} if state is None else {os.fsencode(state) + b"/" + entry: b"pictures"}
    assert files(queue_dir) == {aside + b"/movie.mp3": b"sound", **kept}
    for _ in range(3):
        assert queue.receive() == 0
    queue.close()
    (told,) = (record.getMessage() for record in caplog.records if "movie.mp3" in record.getMessage())
    assert id in told
    assert os.fsdecode(aside) in told


@pytest.mark.parametrize("name", [None, b"report.pdf"])
@pytest.mark.parametrize("has_job", [True, False])
@pytest.mark.parametrize("others", [1, 5])
def test_what_a_dead_handler_left_beside_its_job_is_no_job_of_a_d_worker(
    queue_dir: Path, name: bytes | None, has_job: bool, others: int, caplog: pytest.LogCaptureFixture
) -> None:
    entry = in_name(name)
    left = {b"notes-%d" % number: b"notes" for number in range(others)}
    payload = {name or b"raw": b"payload"} if has_job else {}
    # Without its file, its handler died between the two renames of its settle.
    done = {} if has_job else {b"success/" + entry: b"payload"}
    claim = {**left, **payload}
    lay_down(queue_dir, {**done, **{b"processing/%b.gone000000/%b" % (entry, file): claim[file] for file in claim}})
    queue, _ = consumer(queue_dir)
    for _ in range(3):
        assert queue.receive() == 0
    assert recover_as_the_d_library_does(queue_dir) == []
    aside = {b"processing/%b.left-1/%b" % (entry, file): left[file] for file in left}
    assert files(queue_dir) == {**aside, **(done or {b"interrupted/" + entry: b"payload"})}
    (told,) = (record.getMessage() for record in caplog.records if "notes-0" in record.getMessage())
    assert f"{os.fsdecode(entry)}.left-1" in told
    assert ("and 2 more" in told) == (others == 5)


def test_what_is_set_aside_takes_a_name_that_is_free(queue_dir: Path) -> None:
    entry = in_name(None)
    there = {b"processing/%b.left-%d/notes" % (entry, number): b"before" for number in (1, 2)}
    lay_down(queue_dir, {**there, b"processing/%b.gone000000/notes" % entry: b"notes"})
    assert use_in_every_way(queue_dir) == 0
    assert files(queue_dir) == {**there, b"processing/%b.left-3/notes" % entry: b"notes"}


@pytest.mark.needs("symlinks", "FIFOs and sockets")
def test_what_is_in_place_of_the_file_of_a_dead_claim_is_set_aside(queue_dir: Path, outside: Path) -> None:
    lay_down(queue_dir, {})

    def make_path() -> Path:
        claim = queue_dir / "processing" / os.fsdecode(in_name(None) + b".gone000000")
        claim.mkdir()
        return claim / "raw"

    put_what_is_no_file(make_path, outside)
    before = everything(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    aside = {path.replace(b".gone000000", b".left-1"): what for path, what in before.items()}
    assert everything(queue_dir) == aside


@pytest.mark.needs("symlinks")
def test_a_claim_whose_lock_file_can_not_be_opened_counts_as_alive(queue_dir: Path, outside: Path) -> None:
    claims = {b"processing/%s.%s/raw" % (in_name(None), token): b"payload" for token in (b"linked0000", b"folder0000")}
    lay_down(queue_dir, claims)
    (queue_dir / "owners" / "linked0000").symlink_to(outside / "raw")
    (queue_dir / "owners" / "folder0000").mkdir()
    before = everything(queue_dir)
    assert Pacchettino(queue_dir).claim() is None
    assert everything(queue_dir) == before


def test_a_bare_file_in_tmp_is_never_deleted(queue_dir: Path) -> None:
    path = b"tmp/" + new_id(1).encode()
    lay_down(queue_dir, {path: b"perhaps the only copy", b"queued/" + in_name(None): b"payload"})
    queue, _ = consumer(queue_dir)
    assert queue.receive() == 1
    assert use_in_every_way(queue_dir) > 0
    assert files(queue_dir)[path] == b"perhaps the only copy"


@pytest.mark.parametrize("kind", DEAD[1:])
def test_a_file_that_a_dead_process_of_ours_was_writing_is_deleted(queue_dir: Path, owners: Owners, kind: str) -> None:
    lay_down(queue_dir, {b"tmp/%s-%s" % (new_id().encode(), getattr(owners, kind)()): b"half a file"})
    queue, _ = consumer(queue_dir)
    assert queue.receive() == 0
    assert files(queue_dir) == {}
    assert entries(queue_dir / "owners") == []


def test_a_file_that_a_living_process_of_ours_is_writing_stays(queue_dir: Path, owners: Owners) -> None:
    path = b"tmp/%s-%s" % (new_id().encode(), owners.a_token_whose_lock_is_held())
    lay_down(queue_dir, {path: b"half a file"})
    before = everything(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    assert everything(queue_dir) == before


def test_a_lock_file_of_a_process_that_died_is_removed_though_it_claimed_nothing(
    queue_dir: Path, owners: Owners
) -> None:
    owners.a_token_whose_lock_is_free()
    held = owners.a_token_whose_lock_is_held()
    queue, _ = consumer(queue_dir)
    assert queue.receive() == 0
    assert entries(queue_dir / "owners") == [held]


def test_a_lock_file_that_never_got_its_name_is_removed_when_its_process_is_dead(
    queue_dir: Path, owners: Owners
) -> None:
    lay_down(queue_dir, {b"tmp/owner-gone000000": b"", b"tmp/owner-held000000": b""})
    owners.living(f"unborn = lock_file({os.fspath(queue_dir / 'tmp' / 'owner-held000000')!r})")
    queue, _ = consumer(queue_dir)
    assert queue.receive() == 0
    assert entries(queue_dir / "tmp") == [b"owner-gone000000", b"owner-held000000"]  # perhaps just being made
    grow_old(queue_dir)
    assert queue.receive() == 0
    assert entries(queue_dir / "tmp") == [b"owner-held000000"]


@pytest.mark.parametrize("suffix", [b"GONE000000", b"gone00000", b"gone0000000", b"0gone00000", b"0123", b"", b"-"])
def test_a_file_in_tmp_whose_suffix_is_no_owner_is_never_deleted(queue_dir: Path, suffix: bytes) -> None:
    path = b"tmp/%s-%s" % (new_id(1).encode(), suffix)
    lay_down(queue_dir, {path: b"perhaps the only copy"})
    assert use_in_every_way(queue_dir) == 0
    assert files(queue_dir) == {path: b"perhaps the only copy"}


# What we write


CLAIM_BY_TOKEN = rb"raw-" + ID + rb"\." + TOKEN


@pytest.fixture
def by_pid(queue_dir: Path) -> Pacchettino:
    """Give a queue that claims under its PID."""
    return Pacchettino(queue_dir, crash_detection=CrashDetection.PID)


def test_opening_makes_the_directories_and_nothing_else(queue_dir: Path) -> None:
    Pacchettino(queue_dir)
    assert everything(queue_dir) == {directory.encode(): ("directory", b"") for directory in DIRECTORIES}


@pytest.mark.parametrize("data", [b"", b"payload", b"\x00\xff\n\r\x00", b"x" * 3_000_000])
def test_a_data_job_is_one_file_called_by_its_id(queue_dir: Path, queue: Pacchettino, data: bytes) -> None:
    before = time.time_ns() // 1_000_000
    id = queue.send_data(data)
    assert is_like(rb"queued/raw-" + ID, *files(queue_dir))
    assert files(queue_dir) == {b"queued/raw-" + id.encode(): data}
    assert before <= int(id.replace("-", "")[:12], 16) <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("name", ODD_NAMES, ids=ODD_IDS)
def test_a_file_job_is_one_file_called_by_its_id_and_its_name(
    queue_dir: Path, queue: Pacchettino, tmp_path: Path, name: bytes, copy: bool
) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(b"payload")
    id = queue.send_file(path, copy=copy)
    assert files(queue_dir) == {b"queued/fle-%s-%s" % (id.encode(), name): b"payload"}
    assert is_like(rb"queued/fle-" + ID + b"-" + re.escape(name), *files(queue_dir))
    assert path.exists() == copy


def test_a_file_job_can_have_another_name_than_its_file(queue_dir: Path, queue: Pacchettino, tmp_path: Path) -> None:
    path = tmp_path / "draft"
    path.write_bytes(b"payload")
    id = queue.send_file(path, name="report.pdf")
    assert files(queue_dir) == {b"queued/fle-%s-report.pdf" % id.encode(): b"payload"}


def test_many_jobs_have_ids_that_rise_in_the_order_of_the_items(queue_dir: Path, queue: Pacchettino) -> None:
    items = [b"%d" % number for number in range(2_000)]
    ids = queue.send_many(items)
    assert ids == sorted(set(ids))
    assert files(queue_dir) == {b"queued/raw-" + id.encode(): item for id, item in zip(ids, items, strict=True)}
    assert is_like(rb"queued/raw-" + ID, *files(queue_dir))


@pytest.mark.parametrize("delay", [0.0004, 3, 86_400 * 365])
def test_a_delayed_job_has_its_due_time_before_its_name(
    queue_dir: Path, queue: Pacchettino, tmp_path: Path, delay: float
) -> None:
    path = tmp_path / "report"
    path.write_bytes(b"payload")
    before = time.time_ns()
    ids = [queue.send_data(b"data", delay=delay), *queue.send_many([b"one", b"two"], delay=delay)]
    files_sent = [queue.send_file(path, delay=delay), queue.send_file(path, copy=False, delay=delay)]
    after = time.time_ns()
    found = files(queue_dir)
    assert {path[len(b"scheduled/") + 14 :] for path in found} == {
        *(b"raw-" + id.encode() for id in ids),
        *(b"fle-" + id.encode() + b"-report" for id in files_sent),
    }
    assert is_like(rb"scheduled/" + DUE + rb"-(raw-" + ID + rb"|fle-" + ID + rb"-report)", *found)
    for path in found:
        due = int(path[len(b"scheduled/") :][:13])
        assert before + delay * 1e9 <= due * 1_000_000
        assert due * 1_000_000 <= after + delay * 1e9 + 1_000_000


def test_a_sender_killed_while_it_writes_leaves_a_file_that_names_it_and_no_job(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        die_while_writing(peer)
        (draft,) = entries(queue_dir / "tmp")
        assert is_like(ID + b"-" + TOKEN, draft)
        assert entries(queue_dir / "owners") == [draft[37:]]
        assert list(files(queue_dir)) == [b"tmp/" + draft]
        queue, _ = consumer(queue_dir)
        assert queue.receive() == 0
        assert files(queue_dir) == {}
        assert entries(queue_dir / "owners") == []


def test_a_sender_by_pid_killed_while_it_writes_leaves_a_file_that_goes_when_it_is_old(queue_dir: Path) -> None:
    with Peer(queue_dir, "crash_detection=CrashDetection.PID") as peer:
        die_while_writing(peer)
        (draft,) = files(queue_dir)
        assert draft.endswith(b"-%d" % peer.pid)
        assert use_in_every_way(queue_dir) == 0
        assert files(queue_dir) == {draft: b"x" * 4096}  # its sender may live in another container, under another PID
        grow_old(queue_dir)
        assert use_in_every_way(queue_dir) == 0
        assert files(queue_dir) == {}


def test_a_file_in_tmp_stays_while_the_pid_that_it_names_is_alive(queue_dir: Path, owners: Owners) -> None:
    draft = b"tmp/%s-%s" % (new_id(1).encode(), owners.a_live_pid())
    lay_down(queue_dir, {draft: b"half"})
    grow_old(queue_dir)
    assert use_in_every_way(queue_dir) == 0
    assert files(queue_dir) == {draft: b"half"}


def die_while_writing(peer: Peer) -> None:
    """Have a process killed by the kernel after the first 4096 bytes of the file that it sends."""
    if sys.platform == "win32":
        pytest.skip("NOT TESTED: needs a limit of a file's size")
    peer("""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    """)
    peer.begin("queue.send_data(b'x' * 100_000)")
    peer.wait()
    peer.reap()


@pytest.mark.parametrize("name", [None, *ODD_NAMES], ids=["data", *ODD_IDS])
def test_a_claim_is_a_directory_with_one_file_under_a_locked_token(
    queue_dir: Path, queue: Pacchettino, name: bytes | None
) -> None:
    entry = in_name(name)
    lay_down(queue_dir, {b"queued/" + entry: b"payload"})
    with queue.claim() as job:
        (claim,) = entries(queue_dir / "processing")
        (owner,) = entries(queue_dir / "owners")
        assert claim == entry + b"." + owner
        assert is_like(TOKEN, owner)
        assert files(queue_dir) == {b"processing/%s/%s" % (claim, name or b"raw"): b"payload"}
        assert entries(queue_dir / "processing" / os.fsdecode(claim)) == [name or b"raw"]
        assert is_locked(queue_dir / "owners" / os.fsdecode(owner))
        path = queue_dir / "processing" / os.fsdecode(claim) / os.fsdecode(name or b"raw")
        if sys.platform == "win32" and len(os.fspath(path)) >= 260:
            path = Path(rf"\\?\{path}")  # else a program might not be able to open it
        assert job.path == path
    assert entries(queue_dir / "processing") == []


def test_a_claim_by_pid_is_a_directory_with_one_file_and_without_a_lock_file(
    queue_dir: Path, by_pid: Pacchettino
) -> None:
    id = by_pid.send_data(b"payload")
    with by_pid.claim():
        claim = b"processing/raw-%s.%d" % (id.encode(), os.getpid())
        assert files(queue_dir) == {claim + b"/raw": b"payload"}
        assert entries(queue_dir / "processing") == [claim[11:]]
        assert entries(queue_dir / "owners") == entries(queue_dir / "tmp") == []


@pytest.mark.parametrize("call", ["receive", "receive_one"])
def test_while_a_handler_runs_its_claim_holds_one_file_and_its_lock_is_held(queue_dir: Path, call: str) -> None:
    queue = Pacchettino(queue_dir)
    looks = []

    def look(id: str) -> None:
        (claim,) = entries(queue_dir / "processing")
        (owner,) = entries(queue_dir / "owners")
        within = entries(queue_dir / "processing" / os.fsdecode(claim))
        looks.append((claim[4:40].decode() == id, claim.endswith(b"." + owner), within))
        assert is_locked(queue_dir / "owners" / os.fsdecode(owner))

    queue.on_data_received(lambda id, data: look(id))
    queue.on_file_received(lambda id, name, path: look(id))
    queue.send_data(b"payload")
    assert getattr(queue, call)()
    queue.send_file(__file__)
    assert getattr(queue, call)()
    assert looks == [(True, True, [b"raw"]), (True, True, [b"test_layout.py"])]


def test_two_claims_of_one_process_are_under_one_token(queue_dir: Path, queue: Pacchettino) -> None:
    queue.send_many([b"one", b"two"])
    with queue.claim(), Pacchettino(queue_dir).claim():
        claims = entries(queue_dir / "processing")
        assert is_like(CLAIM_BY_TOKEN, *claims)
        assert {claim[41:] for claim in claims} == set(entries(queue_dir / "owners"))
        assert len(claims) == 2
        assert len(entries(queue_dir / "owners")) == 1


IN_A_ROW: dict[str, Callable[[Pacchettino], Any]] = {
    "receive": lambda queue: queue.receive(),
    "receive_one": lambda queue: [queue.receive_one() for _ in range(8)],
    "work": lambda queue: queue.work(drain=True),
    "a result by the handler itself": lambda queue: (
        setattr(queue, "on_data_received", lambda id, data: current_job().succeed()),
        queue.receive(),
    ),
}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("way", IN_A_ROW)
def test_what_is_settled_has_no_claim_while_a_hook_runs(queue_dir: Path, way: str, durable: bool) -> None:
    queue = Pacchettino(queue_dir, durable=durable)
    queue.on_data_received(lambda id, data: None)
    seen: list[list[bytes]] = []
    queue.on_settled(lambda job, outcome, seconds: seen.append(claims(queue_dir)))
    queue.send_many(["x"] * 8)  # directories are used again after a few
    IN_A_ROW[way](queue)
    assert seen == [[]] * 8


def settle(queue: Pacchettino, verdict: str) -> None:
    """End a job one way or another."""
    if verdict == "by an exception":
        with pytest.raises(ZeroDivisionError), queue.claim():
            _ = 1 / 0
    elif verdict == "by an interrupt":
        with pytest.raises(KeyboardInterrupt), queue.claim():
            raise KeyboardInterrupt
    elif verdict == "by being dropped":
        job = queue.claim()
        with pytest.warns(ResourceWarning, match="without a verdict"):
            del job
    else:
        getattr(queue.claim(), verdict)()


ENDS = {
    "succeed": "success",
    "fail": "failed",
    "retry": "queued",
    "by an exception": "failed",
    "by an interrupt": "interrupted",
    "by being dropped": "interrupted",
}
POLICY_OF = {"success": KeepPolicy.SUCCESS, "failed": KeepPolicy.FAILED, "interrupted": KeepPolicy.INTERRUPTED}


@pytest.mark.parametrize("name", [None, *odd_names(b"inv\xff\xfe\n.12345"), b"a.12345"])
@pytest.mark.parametrize("verdict", ENDS)
def test_a_verdict_moves_the_file_to_its_directory_under_the_name_it_was_sent_by(
    queue_dir: Path, queue: Pacchettino, verdict: str, name: bytes | None
) -> None:
    entry = in_name(name)
    lay_down(queue_dir, {b"queued/" + entry: b"payload"})
    settle(queue, verdict)
    assert files(queue_dir) == {b"%s/%s" % (ENDS[verdict].encode(), entry): b"payload"}
    assert entries(queue_dir / "processing") == []


@pytest.mark.parametrize("verdict", [verdict for verdict, state in ENDS.items() if state != "queued"])
def test_a_verdict_deletes_the_file_where_the_policy_says_so_and_only_there(queue_dir: Path, verdict: str) -> None:
    state = ENDS[verdict]
    Pacchettino(queue_dir).send_data(b"payload")
    settle(Pacchettino(queue_dir, KeepPolicy.ALL & ~POLICY_OF[state]), verdict)
    assert files(queue_dir) == {}
    assert entries(queue_dir / "processing") == []
    id = Pacchettino(queue_dir).send_data(b"payload")
    settle(Pacchettino(queue_dir, POLICY_OF[state]), verdict)
    assert files(queue_dir) == {b"%s/raw-%s" % (state.encode(), id.encode()): b"payload"}


@pytest.mark.parametrize("name", [None, *odd_names(b"inv\xff\xfe\n.12345"), b"a.12345"])
def test_a_retry_with_a_delay_is_a_delayed_job_again(queue_dir: Path, name: bytes | None) -> None:
    queue, entry = Pacchettino(queue_dir, retry_delay=3600), in_name(name)
    lay_down(queue_dir, {b"queued/" + entry: b"payload"})
    queue.on_data_received(lambda id, data: Result.RETRY)
    queue.on_file_received(lambda id, name, path: Result.RETRY)
    before = time.time_ns() // 1_000_000
    assert queue.receive() == 1
    (path,) = files(queue_dir)
    assert is_like(rb"scheduled/" + DUE + b"-" + re.escape(entry), path)
    assert before <= int(path[10:23]) - 3_600_000 <= time.time_ns() // 1_000_000 + 1
    assert entries(queue_dir / "processing") == []


@pytest.mark.parametrize("name", [None, *odd_names(b"inv\xff\xfe\n.12345"), b"a.12345"])
@pytest.mark.parametrize("state", ["success", "failed", "interrupted"])
def test_a_requeue_moves_the_file_back_under_the_same_name(
    queue_dir: Path, queue: Pacchettino, state: str, name: bytes | None
) -> None:
    one, other = in_name(name), in_name(name)
    lay_down(queue_dir, {b"%s/%s" % (state.encode(), entry): entry for entry in (one, other)})
    assert queue.requeue(id_of(one))
    assert files(queue_dir) == {b"queued/" + one: one, b"%s/%s" % (state.encode(), other): other}
    assert queue.requeue_all(POLICY_OF[state]) == 1
    assert files(queue_dir) == {b"queued/" + one: one, b"queued/" + other: other}


@pytest.mark.parametrize("verdict", ["succeed", "fail", "retry"])
def test_a_verdict_replaces_nothing_that_has_its_name_already(
    queue_dir: Path, queue: Pacchettino, verdict: str
) -> None:
    entry = in_name(None)
    lay_down(queue_dir, {b"queued/" + entry: b"second"})
    target = b"%s/%s" % (ENDS[verdict].encode(), entry)
    job = queue.claim()
    assert job is not None
    lay_down(queue_dir, {target: b"first"})
    with pytest.raises(FileExistsError):
        getattr(job, verdict)()
    (owner,) = entries(queue_dir / "owners")
    assert files(queue_dir) == {target: b"first", b"processing/%s.%s/raw" % (entry, owner): b"second"}


@pytest.mark.parametrize("state", ["success", "failed", "interrupted"])
def test_a_requeue_replaces_nothing_that_has_its_name_already(queue_dir: Path, queue: Pacchettino, state: str) -> None:
    entry = in_name(None)
    there = {b"queued/" + entry: b"first", b"%s/%s" % (state.encode(), entry): b"second"}
    lay_down(queue_dir, there)
    with pytest.raises(FileExistsError):
        queue.requeue(id_of(entry))
    assert files(queue_dir) == there


def test_a_lock_file_goes_when_its_process_ends_in_order(queue_dir: Path) -> None:
    with Peer(queue_dir) as peer:
        peer("""
            queue.send_data(b"payload")
            queue.claim().succeed()
        """)
        assert is_like(TOKEN, *entries(queue_dir / "owners"))
        peer.finish()
        assert entries(queue_dir / "owners") == entries(queue_dir / "tmp") == []


@pytest.mark.needs("to delete what is open")
def test_a_lock_file_that_somebody_deleted_is_replaced_before_the_next_claim(
    queue_dir: Path, queue: Pacchettino
) -> None:
    queue.send_many([b"one", b"two"])
    with queue.claim():
        (first,) = entries(queue_dir / "owners")
        (queue_dir / "owners" / os.fsdecode(first)).unlink()
        with queue.claim() as job:
            (second,) = entries(queue_dir / "owners")
            assert second != first
            assert os.fsencode(job.path.parent).endswith(b"." + second)
            assert is_locked(queue_dir / "owners" / os.fsdecode(second))
            # This process still works on both.
            assert queue.claim() is None
            assert queue.count_processing() == 2
    assert queue.count_successful() == 2


@pytest.mark.parametrize("content", [None, b"left over"])
@pytest.mark.parametrize("name", [None, b"report.pdf"])
def test_a_leftover_under_the_name_that_a_claim_would_have_is_not_taken_for_it(
    queue_dir: Path, name: bytes | None, content: bytes | None
) -> None:
    entry = in_name(name)
    leftover = b"%s.%d" % (entry, os.getpid())
    lay_down(queue_dir, {b"queued/" + entry: b"payload"})
    (queue_dir / "processing" / os.fsdecode(leftover)).mkdir()
    if content is not None:
        lay_down(queue_dir, {b"processing/%s/%s" % (leftover, name or b"raw"): content})
    queue, seen = consumer(queue_dir, crash_detection=CrashDetection.PID)
    assert queue.receive() == 1
    assert [data for _, _, data in seen] == [b"payload"]
    assert files(queue_dir) == {
        b"success/" + entry: b"payload",
        **({} if content is None else {b"interrupted/" + entry: content}),
    }
    assert entries(queue_dir / "processing") == []


def test_a_leftover_that_is_in_the_way_of_a_claim_is_set_aside_with_what_is_in_it(queue_dir: Path) -> None:
    entry = in_name(None)
    leftover = b"processing/%s.%d/" % (entry, os.getpid())
    lay_down(queue_dir, {b"queued/" + entry: b"payload", leftover + b"notes": b"notes"})
    queue, seen = consumer(queue_dir, crash_detection=CrashDetection.PID)
    assert queue.receive() == 1
    assert len(seen) == 1
    aside = b"processing/" + entry + b".left-1/notes"
    assert files(queue_dir) == {b"success/" + entry: b"payload", aside: b"notes"}
