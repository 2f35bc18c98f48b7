"""Properties that hold whatever is sent, asked and done: names, ids, sizes, and a queue beside a model of it."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import start_python
from helpers import claims, entries, everything, files
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pacchettino import CrashDetection, Job, KeepPolicy, NotKeptError, Pacchettino, Result, Status


@pytest.fixture
def tmp_path(quick_dir: Path) -> Path:
    """Give a directory in memory: nothing here depends on the filesystem, and a busy disk takes four times as long."""
    return quick_dir


def repeatable(examples: int) -> settings:
    """Give settings under which each run draws the same examples."""
    # What a test's own directory was made with is made anew by the test itself.
    ignored = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=ignored
    )


FAR = 1_000_000
KEPT = {
    Status.SUCCESS: KeepPolicy.SUCCESS,
    Status.FAILED: KeepPolicy.FAILED,
    Status.INTERRUPTED: KeepPolicy.INTERRUPTED,
}
PRESENT = [status for status in Status if status is not Status.UNKNOWN]


# Names

NAME_BYTES = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.binary(min_size=190, max_size=200),
    st.text("-.0123456789abcdefrawfl \n", min_size=1, max_size=60).map(str.encode),
    st.builds(lambda start, end: start + end, st.binary(max_size=180), st.sampled_from([b".12345", b".abcdefghij"])),
)
GOOD_NAMES = NAME_BYTES.map(lambda name: name.replace(b"\0", b"\1").replace(b"/", b"|")).filter(
    lambda name: name not in (b".", b"..")
)


@repeatable(100)
@given(name=GOOD_NAMES, way=st.sampled_from(["copy", "move", "name"]), content=st.binary(max_size=20))
@pytest.mark.needs("names of any bytes")
def test_every_name_that_a_file_can_have_goes_round_the_queue_byte_for_byte(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, name: bytes, way: str, content: bytes
) -> None:
    text = os.fsdecode(name)
    source = tmp_path / ("source" if way == "name" else text)
    source.write_bytes(content)
    id = queue.send_file(source, copy=way != "move", name=text if way == "name" else None)
    assert source.exists() == (way != "move")
    entry = b"fle-" + id.encode() + b"-" + name
    handled: list[tuple[str, bytes, bytes, bytes]] = []

    @queue.on_file_received
    def handle(id: str, name: str, path: Path) -> None:
        handled.append((id, os.fsencode(name), os.fsencode(path.name), path.read_bytes()))

    assert queue.receive() == 1
    assert handled == [(id, name, name, content)]
    assert files(queue_dir) == {b"success/" + entry: content}
    assert queue.requeue(id)
    (info,) = queue.jobs(Status.QUEUED)
    assert (info.id, os.fsencode(info.entry), info.kind) == (id, entry, "file")
    assert info.name is not None
    assert os.fsencode(info.name) == name
    assert os.fsencode(info.path) == os.fsencode(queue_dir / "queued") + b"/" + entry
    assert queue.status(os.fsdecode(entry)) is Status.QUEUED
    job = queue.claim()
    assert job is not None
    with job:
        assert (job.name, job.entry, job.data) == (text, os.fsdecode(entry), content)
    assert queue.cleanup() == 1
    assert files(queue_dir) == {}
    if way != "move":
        source.unlink()


BAD_NAMES = st.one_of(
    st.sampled_from(["", ".", "..", "/", "\0", "a/", "/a", "../a", "a\0", "n" * 201, "ä" * 101, "\udcff" * 201]),
    st.builds(
        lambda start, bad, end: os.fsdecode(start + bad + end),
        st.binary(max_size=99),
        st.sampled_from([b"\0", b"/"]),
        st.binary(max_size=99),
    ),
    st.binary(min_size=201, max_size=300).map(os.fsdecode),
    # Surrogates that stand for no byte: there is no such file name.
    st.builds(
        lambda start, bad, end: start + bad + end,
        st.text("abc", max_size=9),
        st.characters(min_codepoint=0xD800, max_codepoint=0xDC7F, categories=["Cs"]),
        st.text("abc", max_size=9),
    ),
)


@repeatable(100)
@given(name=BAD_NAMES, do_copy=st.booleans(), delay=st.sampled_from([0, FAR]))
@pytest.mark.needs("names of any bytes")
def test_every_name_that_a_file_can_not_have_is_refused_and_nothing_is_left(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, name: str, do_copy: bool, delay: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    with pytest.raises(ValueError, match=r"."):
        queue.send_file(source, copy=do_copy, name=name, delay=delay)
    assert source.read_bytes() == b"content"
    assert files(queue_dir) == {}


@repeatable(20)
@given(length=st.integers(201, 255), filler=st.sampled_from([b"n", b"\xff", b"-", b"."]), do_copy=st.booleans())
@pytest.mark.needs("names of any bytes")
def test_a_file_whose_own_name_is_too_long_is_refused_and_stays(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, length: int, filler: bytes, do_copy: bool
) -> None:
    source = tmp_path / os.fsdecode(filler * length)
    source.write_bytes(b"content")
    with pytest.raises(ValueError, match=rf"200\b.*\b{length}\b|\b{length}\b.*200\b"):
        queue.send_file(source, copy=do_copy)
    assert source.read_bytes() == b"content"
    assert files(queue_dir) == {}
    source.unlink()


# Ids

ODD_CHARACTERS = [*"\0/\\.- \nßAg{}", "\ud800", "\udcff", "\udfff", "\U0010ffff"]
ANY_TEXT = st.one_of(
    st.text(max_size=80),
    st.text(st.characters(categories=["Cs", "Cc", "Lu", "Nd"]), max_size=80),
    st.sampled_from(["x", "\0", "\ud800", "/", "../", "raw-", "0"]).map(lambda text: text * 100_000),
    st.sampled_from(["../queued/", "/etc/", "./", "../../outside/", "processing/"]).flatmap(
        lambda start: st.text("abcraw-fle0123456789/.", max_size=40).map(lambda end: start + end)
    ),
)


@dataclass(frozen=True)
class Settled:
    """A directory with a queue in it, and beside the queue what must not be touched."""

    home: Path
    base: Path
    queue: Pacchettino
    known: dict[bytes, Status]
    """The jobs of the queue, by their ids and by their entry names."""
    names: list[str]


@pytest.fixture
def settled(tmp_path: Path) -> Iterator[Settled]:
    home = tmp_path / "home"
    base = home / "queue"
    (home / "outside").mkdir(parents=True)
    (home / "outside" / "canary").write_bytes(b"not to be touched")
    source = home / "source"
    source.write_bytes(b"file")
    known: dict[bytes, Status] = {}
    with Pacchettino(base) as queue:
        for status in PRESENT:
            for kind in ("data", "file"):
                delay = FAR if status is Status.SCHEDULED else 0
                is_data, name = kind == "data", "re-port.v2 ä.txt"
                if is_data:
                    id = queue.send_data(b"data", delay=delay)
                else:
                    id = queue.send_file(source, name=name, delay=delay)
                entry = f"raw-{id}" if is_data else f"fle-{id}-{name}"
                if status in KEPT:
                    (base / "queued" / entry).rename(base / status.value / entry)
                elif status is Status.PROCESSING:
                    # Process 1 lives.
                    claim = base / "processing" / f"{entry}.1"
                    claim.mkdir()
                    (base / "queued" / entry).rename(claim / ("raw" if is_data else name))
                known |= {id.encode(): status, os.fsencode(entry): status}
        yield Settled(home, base, queue, known, [os.fsdecode(name) for name in known])


@st.composite
def nearly(draw: st.DrawFn, names: list[str]) -> str:
    """Draw an id or an entry name with something wrong about it."""
    name = draw(st.sampled_from(names))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(name)))
        odd = draw(st.one_of(st.sampled_from(ODD_CHARACTERS), st.characters(codec=None)))
        change = draw(st.integers(0, 7))
        if change == 0:
            name = name[:at] + name[at + 1 :]
        elif change == 1:
            name = name[:at] + odd + name[at:]
        elif change == 2:
            name = name[:at] + odd + name[at + 1 :]
        elif change == 3:
            name = name[:at] + draw(st.sampled_from("0123456789abcdef")) + name[at + 1 :]
        elif change == 4:
            name = name.upper()
        elif change == 5:
            name = draw(st.sampled_from(["../queued/", "queued/", "./", "0000000000001-", "raw-", "fle-", " "])) + name
        elif change == 6:
            name += draw(st.sampled_from([".1", ".abcdefghij", "-", "-x", "/", "/raw", "/.", "\0", "\n", "x" * 300]))
        else:
            name = name[:at]
    return name


AN_ID = rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
A_JOB = re.compile(rb"(?s)(?:raw-)?(%s)|fle-(%s)-(?!\.{1,2}\Z)[^/\0]{1,200}" % (AN_ID, AN_ID))


def bytes_of(text: str) -> bytes | None:
    """Give the bytes that a text is as a file name, if it is one."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return None


def time_in(text: str) -> datetime | None:
    """Give the time that an id or an entry name tells, worked out in another way than the queue's."""
    match = A_JOB.fullmatch(bytes_of(text) or b"")
    if match is None:
        return None
    try:
        stamp = int((match[1] or match[2])[:13].replace(b"-", b""), 16)
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=stamp)
    except OverflowError:
        return None


def ask_everything(settled: Settled, text: str) -> None:
    """Ask the queue all it can be asked about a job, and compare with what is known."""
    queue = settled.queue
    known = settled.known.get(bytes_of(text) or b"", Status.UNKNOWN)
    assert queue.status(text) is known
    for status in PRESENT:
        assert getattr(queue, f"is_{status.value}")(text) is (status is known)
    sent = time_in(text)
    if sent is None:
        with pytest.raises(ValueError, match=r"."):
            Pacchettino.sent_at(text)
    else:
        assert Pacchettino.sent_at(text) == sent
    if known not in KEPT:
        assert queue.requeue(text) is False


@repeatable(100)
@given(data=st.data())
@pytest.mark.needs("names of any bytes")
def test_any_text_for_an_id_is_answered_and_touches_nothing(settled: Settled, data: st.DataObject) -> None:
    before = everything(settled.home)
    ask_everything(settled, data.draw(ANY_TEXT))
    assert everything(settled.home) == before


@repeatable(200)
@given(data=st.data())
@pytest.mark.needs("names of any bytes")
def test_what_is_nearly_an_id_is_answered_as_exactly_what_it_is(settled: Settled, data: st.DataObject) -> None:
    before = everything(settled.home)
    text = data.draw(nearly([os.fsdecode(name) for name in sorted(settled.known)]))
    ask_everything(settled, text)
    assert everything(settled.home) == before


@pytest.mark.needs("names of any bytes")
def test_the_ids_and_the_entries_themselves_are_found(settled: Settled) -> None:
    for name in settled.names:
        ask_everything(settled, name)


@repeatable(60)
@given(stamp=st.one_of(st.integers(0, 2**48 - 1), st.sampled_from([0, 253402300799999, 253402300800000, 2**48 - 1])))
def test_a_job_sent_at_any_time_that_an_id_can_tell_is_listed_with_the_others(quick_dir: Path, stamp: int) -> None:
    text = f"{stamp:012x}"
    odd = f"{text[:8]}-{text[8:]}-7000-8000-000000000000"
    with tempfile.TemporaryDirectory(dir=quick_dir) as base, Pacchettino(base) as queue:
        Path(base, "queued", f"raw-{odd}").write_bytes(b"odd")
        id = queue.send_data(b"usual")
        assert {info.id for info in queue.jobs(Status.QUEUED)} == {odd, id}
        # A year after 9999 is none that a `datetime` can tell.
        with contextlib.suppress(ValueError):
            assert Pacchettino.sent_at(odd) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=stamp)
        for _ in range(2):
            job = queue.claim()
            assert job is not None
            job.succeed()
        assert {info.id for info in queue.jobs(Status.SUCCESS)} == {odd, id}


# Sizes


@repeatable(60)
@given(
    content=st.one_of(st.sampled_from([b"", b"\0", b"\xff"]), st.binary(max_size=300), st.binary(min_size=5000)),
    way=st.sampled_from(["bytes", "bytearray", "memoryview", "many", "copy", "move"]),
)
def test_any_content_arrives_byte_for_byte(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path, content: bytes, way: str
) -> None:
    if way in ("copy", "move"):
        source = tmp_path / "source"
        source.write_bytes(content)
        queue.send_file(source, copy=way == "copy")
    elif way == "many":
        queue.send_many([content])
    else:
        queue.send_data({"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}[way](content))
    arrived: list[bytes] = []
    queue.on_data_received(lambda id, data: arrived.append(data))
    queue.on_file_received(lambda id, name, path: arrived.append(path.read_bytes()))
    assert queue.receive() == 1
    assert arrived == [content]
    assert list(files(queue_dir).values()) == [content]
    assert queue.cleanup() == 1


HANDLE_A_LARGE_FILE = """
import os, sys
from pathlib import Path
from pacchettino import Pacchettino


def most_memory():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


base, source, way = sys.argv[1:]
queue = Pacchettino(base)
handled = []
queue.on_file_received(lambda id, name, path: handled.append(path.stat().st_size))
# Once with a small file, so that all that is needed only once is there.
small = Path(source + ".small")
small.write_bytes(b"small")
queue.send_file(small, copy=way == "copy")
assert queue.receive() == 1
before = most_memory()
id = queue.send_file(source, copy=way == "copy")
assert queue.receive() == 1
assert queue.requeue(id)
with queue.claim() as job:
    assert job.path.stat().st_size == handled[1]
print(handled, most_memory() - before)
"""


@pytest.mark.parametrize("way", ["copy", "move"])
@pytest.mark.needs("/proc")
def test_a_large_file_passes_without_passing_through_the_memory(
    tmp_path_factory: pytest.TempPathFactory, way: str
) -> None:
    home = tmp_path_factory.mktemp("disk")  # memory may have no room
    size = 1 << 28
    queue_dir, source = home / "queue", home / "large"
    with source.open("wb") as file:
        if way == "copy":
            os.posix_fallocate(file.fileno(), 0, size)  # no byte of it is left out as a hole
        else:
            file.truncate(size)
    inode = source.stat().st_ino
    try:
        with start_python(HANDLE_A_LARGE_FILE, queue_dir, source, way) as program:
            answer, errors = program.communicate(timeout=100)
        assert (program.returncode, errors) == (0, "")
        sizes, _, grown = answer.rpartition("] ")
        assert sizes == f"[5, {size}"
        assert int(grown) < 8 << 20
        (arrived,) = (path for path in (queue_dir / "success").iterdir() if path.name.endswith("-large"))
        assert arrived.stat().st_size == size
        if way == "copy":
            assert arrived.stat().st_blocks * 512 >= size
        else:
            assert (arrived.stat().st_ino, arrived.stat().st_blocks) == (inode, 0)
        assert source.exists() == (way == "copy")
        assert entries(queue_dir / "tmp") == []
    finally:
        source.unlink(missing_ok=True)
        shutil.rmtree(queue_dir, ignore_errors=True)


# A queue and a model of it

GONE = "gone"
DEAD = "dead"  # claimed by a consumer that died, and not noticed yet


@dataclass
class Expected:
    """A job as it should be."""

    id: str
    name: str | None
    content: bytes
    state: Status | str
    due: int = 0
    """For a scheduled job: whether its delay is over."""
    stayed: bool = True
    """Whether it has been queued ever since it was sent."""
    keep: KeepPolicy = KeepPolicy.ALL
    """Of a claimed job: what the instance that claimed it keeps."""
    job: Job | None = field(default=None, repr=False)

    @property
    def entry(self) -> str:
        return f"raw-{self.id}" if self.name is None else f"fle-{self.id}-{self.name}"

    @property
    def kind(self) -> str:
        return "data" if self.name is None else "file"

    def settle(self, verdict: str, keep: KeepPolicy) -> None:
        """Do what a verdict does."""
        self.stayed = False
        self.job = None
        if verdict == "retry":
            self.state = Status.QUEUED
        elif verdict == "later":
            self.state, self.due = Status.SCHEDULED, False
        else:
            status = Status(verdict)
            self.state = status if KEPT[status] in keep else GONE


INSTANCES = 4
POLICY_OF = [KeepPolicy.ALL, KeepPolicy.INTERRUPTED, KeepPolicy.FAILED, KeepPolicy.NONE]
POLICIES = st.builds(KeepPolicy, st.integers(0, 7))
SETTINGS = st.fixed_dictionaries(
    {
        "keep_policy": POLICIES,
        "durable": st.booleans(),
        "crash_detection": st.sampled_from(CrashDetection),
        "retry_delay": st.sampled_from([0, FAR]),
        "fifo": st.booleans(),
    }
)
WHICH = st.integers(0, INSTANCES - 1)
NUMBER = st.integers(0, 99)
CONTENT = st.binary(max_size=12)
DELAY = st.sampled_from([0, 0, 0, FAR, timedelta(days=30), -1])
# Windows has not all names, and the longest make paths with a prefix.
ODD_ONES = ["n" * 40] if sys.platform == "win32" else ["\udcff", "new\nline", "n" * 200]
NAMES = st.sampled_from(["report.txt", "a", "raw", "x-y.12345", *ODD_ONES])
KIND = st.sampled_from([None, None, "data", "file"])
KINDS = st.sampled_from(["data", "file", "data file"])
FIFO = st.sampled_from([None, True, False])
VERDICTS = st.sampled_from(
    ["succeeds", "fails", "retry", "later", "block succeeds", "block fails", "block is interrupted", "dropped"]
)
ANSWERS = st.sampled_from(["none", "success", "failed", "retry", "raises", "wrong", "other", "interrupts"])


class QueueBesideModel(RuleBasedStateMachine):
    """What several instances make of one directory is at every moment what a plain list of jobs says.

    Which job a claim takes is not the model's to say, so nothing that is drawn depends on the state of the model: a job
    is picked by a number.
    """

    def __init__(self) -> None:
        super().__init__()
        shm = Path("/dev/shm")
        self.home = Path(tempfile.mkdtemp(prefix="pacchettino-test-", dir=shm if os.access(shm, os.W_OK) else None))
        self.base = self.home / "queue"
        # One of the instances comes to the directory by another path.
        self.by_another_path = self.home / ("QUEUE" if sys.platform == "win32" else "link")
        if sys.platform != "win32":
            self.by_another_path.symlink_to("queue")
        self.jobs: list[Expected] = []
        self.queues: list[Pacchettino] = []
        self.looks = 0
        self.gone = 0
        """How many jobs who takes them in order may have found gone."""
        for number in range(INSTANCES):
            self.queues.append(self.open(number, keep_policy=POLICY_OF[number], fifo=number % 2 == 0))

    def open(self, number: int, **chosen: Any) -> Pacchettino:
        return Pacchettino(self.by_another_path if number == 1 else self.base, **chosen)

    def in_state(self, *states: Status | str) -> list[Expected]:
        return [job for job in self.jobs if job.state in states]

    def waiting(self, kinds: str) -> list[Expected]:
        """Give the jobs that can be claimed now, or as soon as somebody looks at the clock."""
        return [
            job
            for job in self.jobs
            if (job.state is Status.QUEUED or (job.state is Status.SCHEDULED and job.due)) and job.kind in kinds
        ]

    # Sending

    def sent(self, id: str, name: str | None, content: bytes, delay: Any) -> None:
        if self.jobs:
            assert id > max(job.id for job in self.jobs)
        is_now = delay in (0, -1)
        self.jobs.append(Expected(id, name, content, Status.QUEUED if is_now else Status.SCHEDULED, stayed=is_now))

    @initialize(which=WHICH, contents=st.lists(CONTENT, min_size=3, max_size=6))
    def begin(self, which: int, contents: list[bytes]) -> None:
        self.send_many(self.queues[which], contents, 0)

    @rule(which=WHICH, contents=st.lists(CONTENT, max_size=3), delay=DELAY, one_by_one=st.booleans())
    def send(self, which: int, contents: list[bytes], delay: Any, one_by_one: bool) -> None:
        queue = self.queues[which]
        if not one_by_one:
            self.send_many(queue, contents, delay)
            return
        for content in contents:
            self.sent(queue.send_data(content, delay=delay), None, content, delay)

    def send_many(self, queue: Pacchettino, contents: list[bytes], delay: Any) -> None:
        ids = queue.send_many(iter(contents), delay=delay)
        for id, content in zip(ids, contents, strict=True):
            self.sent(id, None, content, delay)

    @rule(which=WHICH, content=CONTENT, delay=DELAY, name=NAMES, do_copy=st.booleans(), renamed=st.booleans())
    def send_file(self, which: int, content: bytes, delay: Any, name: str, do_copy: bool, renamed: bool) -> None:
        source = self.home / ("source" if renamed else name)
        source.write_bytes(content)
        id = self.queues[which].send_file(source, copy=do_copy, name=name if renamed else None, delay=delay)
        assert source.exists() == do_copy
        source.unlink(missing_ok=True)
        self.sent(id, name, content, delay)

    @rule(number=NUMBER)
    def time_passes(self, number: int) -> None:
        """Let the delay of a job be over."""
        if not self.in_state(Status.SCHEDULED):
            self.send_many(self.queues[0], [b"later"], FAR)
        job = pick(self.in_state(Status.SCHEDULED), number)
        (path,) = (path for path in (self.base / "scheduled").iterdir() if job.id in path.name)
        path.rename(path.with_name(f"{1_000_000_000_000 + self.jobs.index(job):013}-{job.entry}"))
        job.due = True

    @rule(number=NUMBER, token=st.sampled_from(["gone000000", "gone000001"]))
    def a_consumer_dies(self, number: int, token: str) -> None:
        """Leave a claim under a name that is nobody's."""
        if not self.in_state(Status.QUEUED):
            self.send_many(self.queues[0], [b"a consumer's last"], 0)
        job = pick(self.in_state(Status.QUEUED), number)
        claim = self.base / "processing" / f"{job.entry}.{token}"
        claim.mkdir()
        (self.base / "queued" / job.entry).rename(claim / (job.name or "raw"))
        job.state, job.stayed = DEAD, False
        self.gone += 1

    # Claiming

    def somebody_looked(self, queue: Pacchettino, *, surely: bool) -> None:
        """Take into account what a look for jobs does besides, by what the disk says where that is left open."""
        on_disk = {os.fsdecode(path) for path in files(self.base)}
        for job in self.in_state(Status.SCHEDULED):
            if job.due and (surely or f"queued/{job.entry}" in on_disk):
                job.state, job.stayed = Status.QUEUED, False
        for job in self.in_state(DEAD):
            if surely or not any(path.startswith(f"processing/{job.entry}.") for path in on_disk):
                job.settle("interrupted", queue.keep_policy)

    @rule(which=WHICH, kind=KIND, fifo=FIFO)
    def claim(self, which: int, kind: Any, fifo: bool | None) -> None:
        self.take(which, kind, fifo)

    def take(self, which: int, kind: Any, fifo: bool | None) -> Expected | None:
        queue = self.queues[which]
        waiting = self.waiting(kind or "data file")
        found = queue.claim(kind=kind, fifo=fifo)
        if found is None:
            assert waiting == []
            self.somebody_looked(queue, surely=True)
            return None
        (job,) = (job for job in waiting if job.id == found.id)
        if not (queue.fifo if fifo is None else fifo):
            self.gone += 1
        elif self.gone < 4:  # or others may be taken to be at work, and one of the oldest few is taken
            assert [other.id for other in waiting if other.stayed and other.id < job.id] == []
        job.state, job.stayed, job.keep, job.job = Status.PROCESSING, False, queue.keep_policy, found
        self.somebody_looked(queue, surely=False)
        assert (found.entry, found.name, found.kind) == (job.entry, job.name, job.kind)
        assert found.path.read_bytes() == found.data == job.content
        assert found.sent_at == Pacchettino.sent_at(job.id)
        return job

    @rule(which=WHICH, kind=KIND, fifo=FIFO, verdict=VERDICTS)
    def work(self, which: int, kind: Any, fifo: bool | None, verdict: str) -> None:
        job = self.take(which, kind, fifo)
        if job is not None:
            self.settle(job, verdict)

    @rule(number=NUMBER, verdict=VERDICTS)
    def give_a_verdict(self, number: int, verdict: str) -> None:
        if self.in_state(Status.PROCESSING):
            self.settle(pick(self.in_state(Status.PROCESSING), number), verdict)

    def settle(self, job: Expected, verdict: str) -> None:
        held, job.job = job.job, None
        assert held is not None
        if verdict == "succeeds":
            held.succeed()
        elif verdict == "fails":
            held.fail()
        elif verdict == "retry":
            held.retry(0)
        elif verdict == "later":
            held.retry(FAR)
        elif verdict == "block succeeds":
            with held:
                pass
        elif verdict == "block fails":
            with pytest.raises(ZeroDivisionError), held:
                raise ZeroDivisionError
        elif verdict == "block is interrupted":
            with pytest.raises(KeyboardInterrupt), held:
                raise KeyboardInterrupt
        else:
            with pytest.warns(ResourceWarning, match=job.id):
                del held
            held = None
        meaning = {"succeeds": "success", "fails": "failed", "dropped": "interrupted", "interrupted": "interrupted"}
        job.settle(meaning.get(verdict.split()[-1], verdict), job.keep)
        if held is not None:
            with pytest.raises(RuntimeError):
                held.fail()

    @rule(which=WHICH, kinds=KINDS, fifo=FIFO, answers=st.lists(ANSWERS, min_size=1, max_size=5))
    def receive(self, which: int, kinds: str, fifo: bool | None, answers: list[str]) -> None:
        self.handle(which, kinds, fifo, answers, only_one=False)

    @rule(which=WHICH, kinds=KINDS, fifo=FIFO, answer=ANSWERS)
    def receive_one(self, which: int, kinds: str, fifo: bool | None, answer: str) -> None:
        self.handle(which, kinds, fifo, [answer], only_one=True)

    def handle(self, which: int, kinds: str, fifo: bool | None, answers: list[str], *, only_one: bool) -> None:
        # A copy has no handlers yet.
        with copy.copy(self.queues[which]) as queue:
            waiting = {job.id: job for job in self.waiting(kinds)}
            calls: list[str] = []
            verdicts: dict[str, str] = {}

            def handle(id: str, content: bytes) -> Any:
                assert waiting[id].content == content
                assert queue.status(id) is Status.PROCESSING
                answer = answers[len(calls) % len(answers)]
                calls.append(id)
                verdicts[id] = verdict_of(answer, queue)
                return give(answer)

            if "data" in kinds:
                queue.on_data_received(handle)
            if "file" in kinds:
                queue.on_file_received(lambda id, name, path: handle(id, path.read_bytes()))
            try:
                handled = int(queue.receive_one(fifo=fifo)) if only_one else queue.receive(fifo=fifo)
                assert handled == len(calls) == (min(len(waiting), 1) if only_one else len(waiting))
            except KeyboardInterrupt:
                assert calls
                assert verdicts[calls[-1]] == "interrupted"
            assert len(set(calls)) == len(calls)
            if queue.fifo if fifo is None else fifo:
                stayed = [id for id in calls if waiting[id].stayed]
                assert stayed == sorted(stayed)
            if not only_one and (queue.fifo if fifo is None else fifo):
                assert calls == sorted(calls)
            for id, verdict in verdicts.items():
                waiting[id].settle(verdict, queue.keep_policy)
            self.somebody_looked(queue, surely=not only_one or not calls)

    # Tidying

    @rule(which=WHICH, number=NUMBER, by_entry=st.booleans())
    def requeue(self, which: int, number: int, by_entry: bool) -> None:
        job = pick(self.jobs, number)
        self.somebody_looked(self.queues[which], surely=True)
        done = self.queues[which].requeue(job.entry if by_entry else job.id)
        assert done == (job.state in KEPT)
        if done:
            job.state, job.stayed = Status.QUEUED, False

    @rule(which=WHICH, states=POLICIES)
    def requeue_all(self, which: int, states: KeepPolicy) -> None:
        self.somebody_looked(self.queues[which], surely=True)
        those = [job for job in self.in_state(*KEPT) if KEPT[Status(job.state)] in states]
        assert self.queues[which].requeue_all(states) == len(those)
        for job in those:
            job.state, job.stayed = Status.QUEUED, False

    @rule(which=WHICH, states=POLICIES, older_than=st.sampled_from([0, 0, 0, timedelta(hours=1)]))
    def cleanup(self, which: int, states: KeepPolicy, older_than: Any) -> None:
        those = [job for job in self.in_state(*KEPT) if KEPT[Status(job.state)] in states and older_than == 0]
        assert self.queues[which].cleanup(states, older_than=older_than) == len(those)
        for job in those:
            job.state = GONE

    # Coming and going

    @rule(which=WHICH, chosen=SETTINGS, goes_on=st.booleans())
    def change_settings(self, which: int, chosen: dict[str, Any], goes_on: bool) -> None:
        queue = self.queues[which]
        if goes_on:
            queue.durable, queue.crash_detection = chosen["durable"], chosen["crash_detection"]
            return
        queue.close()
        with pytest.raises(ValueError, match="closed"):
            queue.send_data(b"never")
        with pytest.raises(ValueError, match="closed"):
            queue.claim()
        self.queues[which] = self.open(which, **chosen)

    @invariant()
    def the_disk_is_as_the_model_says(self) -> None:
        expected: dict[str, bytes] = {}
        for job in self.jobs:
            if job.state is Status.PROCESSING:
                assert job.job is not None
                expected[job.job.path.resolve().relative_to(self.base.resolve()).as_posix()] = job.content
            elif job.state is not Status.SCHEDULED and job.state not in (GONE, DEAD):
                assert isinstance(job.state, Status)
                expected[f"{job.state.value}/{job.entry}"] = job.content
        found = {os.fsdecode(path): content for path, content in files(self.base).items()}
        for job in self.in_state(Status.SCHEDULED, DEAD):
            # Whatever the due time, whoever the owner.
            sign = f"-{job.entry}" if job.state is Status.SCHEDULED else f"processing/{job.entry}.gone00000"
            (path,) = (path for path in found if sign in path)
            assert path.startswith("scheduled/" if job.state is Status.SCHEDULED else sign)
            assert found.pop(path) == job.content
        assert found == expected
        assert entries(self.base / "tmp") == []
        # A claim has one directory, with one file in it.
        assert len(claims(self.base)) == len(self.in_state(Status.PROCESSING, DEAD))

    @invariant()
    def whoever_looks_sees_the_same(self) -> None:
        """Let one instance look at all, each time another one."""
        self.looks += 1
        queue, total = self.queues[self.looks % INSTANCES], 0
        for job in self.jobs:
            assert queue.status(job.entry if self.looks % 2 else job.id) is status_of(job)
        for status in PRESENT:
            there = [job for job in self.jobs if status_of(job) is status]
            listed = list(queue.jobs(status))
            assert [(info.id, info.entry) for info in listed] == [(job.id, job.entry) for job in there]
            assert all(info.path.is_file() and info.status is status for info in listed)
            count = getattr(queue, f"count_{'successful' if status is Status.SUCCESS else status.value}")
            ask = getattr(queue, f"is_{status.value}")
            if KEPT.get(status, KeepPolicy.NONE) in queue.keep_policy:
                assert count() == len(there)
                # Of all jobs one state is asked for at a time, since this is most of what takes time here.
                asked = self.jobs if self.looks // INSTANCES % len(PRESENT) == PRESENT.index(status) else there
                assert [job for job in asked if ask(job.id)] == there
                total += len(there)
            else:
                with pytest.raises(NotKeptError):
                    count()
                with pytest.raises(NotKeptError):
                    ask("whatever")
        assert queue.count_all() == total

    def teardown(self) -> None:
        for job in self.in_state(Status.PROCESSING):
            if job.job is not None:
                job.job.succeed()
        for queue in self.queues:
            queue.close()
        shutil.rmtree(self.home, ignore_errors=sys.platform == "win32")  # where what is open stays


def pick(jobs: list[Expected], number: int) -> Expected:
    return jobs[number % len(jobs)]


def status_of(job: Expected) -> Status:
    if job.state == DEAD:
        return Status.PROCESSING
    return job.state if isinstance(job.state, Status) else Status.UNKNOWN


def verdict_of(answer: str, queue: Pacchettino) -> str:
    """Give what an answer of a handler means to its job."""
    if answer == "retry":
        return "later" if queue.retry_delay else "retry"
    if answer in ("none", "success", "other"):
        return "success"
    return "interrupted" if answer == "interrupts" else "failed"


def give(answer: str) -> Any:
    """Answer as a handler does."""
    if answer == "raises":
        raise ZeroDivisionError("as drawn")
    if answer == "interrupts":
        raise KeyboardInterrupt
    results = {"success": Result.SUCCESS, "failed": Result.FAILED, "retry": Result.RETRY}
    return {**results, "wrong": True, "other": "failed"}.get(answer)


TestQueueBesideModel = QueueBesideModel.TestCase
TestQueueBesideModel.settings = settings(
    repeatable(50),
    stateful_step_count=40,
    # Claims in random order are another story each time, which can't be told more shortly.
    phases=[Phase.generate],
)
