"""File names that a filesystem shows otherwise than they were given: in another case, or composed otherwise.

macOS may store `é` as one character or as two and finds it by either, Windows and FUSE filesystems ignore case, and a
directory may be carried from one such system to another. The id says which job it is; the name must not hinder that.
"""

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import filesystem_in_a_file, start_python
from helpers import entries, lay_down, new_id
from pacchettino import Pacchettino, Status

PLAIN = "Résumé Ångström.TXT"
SPELLINGS = {
    "composed": unicodedata.normalize("NFC", PLAIN),
    "decomposed": unicodedata.normalize("NFD", PLAIN),
    "lower case": unicodedata.normalize("NFC", PLAIN).lower(),
}
STATES = [status for status in Status if status not in (Status.UNKNOWN, Status.PROCESSING)]


@pytest.fixture
def caseless(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that ignores case, and lists all names in lower case."""
    make, mount = ["mkntfs", "-q", "-F", "-f"], ["lowntfs-3g", "-o", "ignore_case,windows_names"]
    with filesystem_in_a_file(tmp_path, make, mount, "a filesystem that ignores case") as directory:
        yield directory


@pytest.mark.parametrize("asked", SPELLINGS)
@pytest.mark.parametrize("stored", SPELLINGS)
@pytest.mark.parametrize("state", STATES)
def test_a_job_is_found_however_its_name_is_spelled(queue_dir: Path, state: Status, stored: str, asked: str) -> None:
    id = new_id()
    due = b"9000000000000-" if state is Status.SCHEDULED else b""
    entry = due + f"fle-{id}-{SPELLINGS[stored]}".encode()
    lay_down(queue_dir, {os.fsencode(state.value) + b"/" + entry: b"bytes"})
    queue = Pacchettino(queue_dir)
    wanted = f"fle-{id}-{SPELLINGS[asked]}"
    assert queue.status(wanted) is state
    for other in STATES:
        assert getattr(queue, f"is_{other.value}")(wanted) is (other is state)
    # What a listing shows can be used as it is read.
    [listed] = queue.jobs(state)
    assert listed.name == SPELLINGS[stored]
    assert listed.path.read_bytes() == b"bytes"
    kept = state in (Status.SUCCESS, Status.FAILED, Status.INTERRUPTED)
    assert queue.requeue(wanted) is kept
    if kept:
        # Where that is the same name, it may be spelled as it was asked for.
        assert len(entries(queue_dir / "queued")) == 1
        assert (queue_dir / "queued" / os.fsdecode(entry)).read_bytes() == b"bytes"


@pytest.mark.parametrize("other", ["Resume Angstrom.TXT", "Résumé Ångström.TXT.bak"])
def test_a_name_that_is_another_one_is_not_found(queue_dir: Path, other: str) -> None:
    id = new_id()
    lay_down(queue_dir, {f"failed/fle-{id}-{PLAIN}".encode(): b"bytes"})
    queue = Pacchettino(queue_dir)
    assert queue.status(f"fle-{id}-{other}") is Status.UNKNOWN
    assert queue.requeue(f"fle-{id}-{other}") is False


def test_on_a_filesystem_that_ignores_case_a_job_goes_through_every_state(caseless: Path, tmp_path: Path) -> None:
    file = tmp_path / PLAIN
    file.write_bytes(b"bytes")
    queue = Pacchettino(caseless / "queue")
    id = queue.send_file(file, delay=0.2)
    wanted = f"fle-{id}-{PLAIN}"
    assert queue.status(wanted) is Status.SCHEDULED
    assert [job.name for job in queue.jobs(Status.SCHEDULED)] == [PLAIN.lower()], (
        "this filesystem is not what it should be"
    )

    with start_python(
        "import os, sys, pacchettino; job = pacchettino.Pacchettino(sys.argv[1]).claim(timeout=30); os._exit(0)",
        queue.base_dir,
    ) as dying:
        assert dying.wait() == 0
    assert queue.status(wanted) is Status.PROCESSING
    assert queue.requeue(wanted) is True, "the job of a consumer that died"

    job = queue.claim()
    assert job is not None
    assert job.path.read_bytes() == b"bytes"
    assert queue.is_processing(wanted)
    job.fail()
    assert queue.status(wanted) is Status.FAILED
    assert queue.requeue(wanted) is True

    done = []
    queue.on_file_received(lambda id, name, path: done.append((id, name.lower(), path.read_bytes())))
    assert queue.receive() == 1
    assert done == [(id, PLAIN.lower(), b"bytes")]
    assert queue.status(wanted) is Status.SUCCESS
    assert queue.cleanup() == 1
    assert queue.status(wanted) is Status.UNKNOWN


def test_on_a_filesystem_that_ignores_case_no_job_is_done_twice_or_lost(caseless: Path) -> None:
    base = caseless / "queue"
    queue = Pacchettino(base)
    sent = queue.send_many(str(number) for number in range(60))
    work = """
import sys, pacchettino
queue = pacchettino.Pacchettino(sys.argv[1])
queue.on_data_received(lambda id, data: print(id))
queue.receive()
"""
    workers = [start_python(work, base) for _ in range(3)]
    done = [id for worker in workers for id in worker.communicate()[0].split()]
    # FUSE may leave entries out of a listing while others go, which ends a pass early: then they wait for the next one.
    waiting = [job.id for job in queue.jobs(Status.QUEUED)]
    assert sorted(done + waiting) == sorted(sent)
    assert done
    assert queue.count_successful() == len(done)
