"""The operations that are let die, fail and lose their power, and where they lead the jobs.

A scenario is one operation on jobs that are told apart by their content. What its calls are and by which states it
leads the jobs is not written down but seen when it runs undisturbed: a new operation is one scenario more.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from helpers import DUE, ID, STATES, TOKEN, entries, everything, grow_old, lay_down, new_id
from pacchettino import CrashDetection, KeepPolicy, Pacchettino, Result, Status, _core
from syscalls import Program, Tell, trap

CONTENT = {name: f"{name} ".encode() * 1000 for name in ("one", "two", "three", "later")}
"""Long enough for a part of it to be told from all of it."""

NAMES = {content: name for name, content in CONTENT.items()}

BESIDE = b"beside"
"""What a handler left beside its job's file."""

SENDER = "with its sender"

DEAD = b"dead000000"
"""The token of a consumer that died."""

Where = dict[str, tuple[str, ...]]
"""Where each job is."""

Shape = frozenset[tuple[bytes, tuple[str, bytes]]]
"""What is in a place, whatever the ids, tokens, PIDs and times."""


# What is looked at


@dataclass(frozen=True)
class Place:
    """Where a queue can be made, and two directories that are none of it: on its filesystem, and on another."""

    base: Path
    beside: Path
    elsewhere: Path

    def where(self) -> Where:
        """Find the jobs. No file in a state's directory is less than a job, and no job is in two states."""
        found: dict[str, list[str]] = {name: [] for name in CONTENT}
        ids = []
        for path, (kind, content) in everything(self.base).items():
            state, *_ = path.decode().split("/")
            if kind == "file" and state in STATES and content != BESIDE:
                assert content in NAMES, f"{path!r} holds {content[:60]!r}"
                found[NAMES[content]].append(state)
                ids += re.findall(ID, path)
        assert all(len(states) <= 1 for states in found.values()), found
        assert len(set(ids)) == len(ids), "two files of one id"
        for file in (*self.beside.iterdir(), *self.elsewhere.iterdir()):
            content = file.read_bytes()
            assert content in NAMES, f"{file} holds {content[:60]!r}"
            found[NAMES[content]].append(SENDER)
        return {name: tuple(places) for name, places in found.items()}

    def left_beside(self) -> list[bytes]:
        """Find what handlers left beside their jobs' files."""
        return [path for path, (_, content) in everything(self.base).items() if content == BESIDE]

    def leftovers(self) -> dict[str, list[bytes]]:
        """List what is in the directories that are empty when nobody is at work, but for what was set aside."""
        directories = [self.base / name for name in ("tmp", "processing", "owners")]
        found = {
            directory.name: [name for name in entries(directory) if not name.endswith(b".left-1")]
            for directory in directories
            if directory.exists()
        }
        return {name: names for name, names in found.items() if names}

    @classmethod
    def make(cls, directory: Path, elsewhere: Path) -> Place:
        """Make a place for a queue that is not there yet; the directory above it is not, either."""
        ours, beside, elsewhere = (Path(tempfile.mkdtemp(dir=path)) for path in (directory, directory, elsewhere))
        return cls(ours / "new" / "queue", beside, elsewhere)

    def copied(self) -> Place:
        """Make another place like this one."""
        copy = self.make(self.beside.parent, self.elsewhere.parent)
        for ours, theirs in zip(astuple(self), astuple(copy), strict=True):
            if ours.exists():
                shutil.copytree(ours, theirs, dirs_exist_ok=True)
        return copy

    def contents(self) -> list[dict[bytes, tuple[str, bytes]]]:
        """Give all that is in it."""
        return [everything(directory) for directory in astuple(self)]

    def shape(self) -> Shape:
        """Give what is in it, whatever the ids, tokens, PIDs and times; of the records of attempts only the names."""
        names = re.compile(rb"(?P<id>%b)|(?P<due>%b)-|(?<=[-./])(?P<token>%b|[0-9]+)(?=$|[-/])" % (ID, DUE, TOKEN))
        return frozenset(
            (
                names.sub(lambda name: f"<{name.lastgroup}>".encode(), path),
                (what[0], b"" if b"history/" in path else what[1]),
            )
            for contents in self.contents()
            for path, what in contents.items()
        )

    def remove(self) -> None:
        for directory in (self.base.parent.parent, self.beside, self.elsewhere):
            shutil.rmtree(directory)


# The operations

Open = Callable[..., Pacchettino]
Steps = Callable[[Place, Open, Tell], Iterator[None]]


@dataclass(frozen=True)
class Scenario:
    """An operation: what comes before its `yield` is preparation."""

    steps: Steps
    keep: KeepPolicy
    durable: bool
    """Durable queues make all the calls that others make and more, with the exception of what they must not do."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(keep: KeepPolicy = KeepPolicy.ALL, *, durable: bool = True) -> Callable[[Steps], Steps]:
    def register(steps: Steps) -> Steps:
        SCENARIOS[steps.__name__] = Scenario(steps, keep, durable)
        return steps

    return register


def handle(queue: Pacchettino, tell: Tell, *verdicts: Result | BaseException) -> Pacchettino:
    """Have jobs handled so that the test hears of it: job one with the first verdict and so on, later with success."""
    rest: dict[str, Result | BaseException] = dict(zip(CONTENT, verdicts, strict=False))

    def handler(content: bytes) -> Result:
        verdict = rest.pop(NAMES[content], Result.SUCCESS)
        tell("handling", NAMES[content], verdict is Result.RETRY)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    queue.on_data_received = lambda id, data: handler(data)
    queue.on_file_received = lambda id, name, path: handler(path.read_bytes())
    return queue


def put(directory: Path, name: str = "one") -> Path:
    """Make a file to be sent."""
    file = directory / "file"
    file.write_bytes(CONTENT[name])
    return file


def lay_job(place: Place, path: str, name: str = "one") -> str:
    """Lay a job into a queue by hand, sent after those before; `{}` in the path becomes its id, which is returned."""
    id = new_id(list(CONTENT).index(name))
    lay_down(place.base, {path.format(id).encode(): CONTENT[name]})
    return id


@scenario()
def opening(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    yield
    open()


@scenario()
def a_first_send_data(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    yield
    open().send_data(CONTENT["one"])
    tell("returned", "one")


@scenario()
def send_data(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    queue.send_data(CONTENT["two"])
    yield
    queue.send_data(CONTENT["one"])
    tell("returned", "one")


@scenario()
def send_data_delayed(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    yield
    queue.send_data(CONTENT["one"], delay=3600)
    tell("returned", "one")


@scenario()
def send_data_by_pid(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open(crash_detection=CrashDetection.PID)
    yield
    queue.send_data(CONTENT["one"])
    tell("returned", "one")


@scenario()
def send_many(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    yield
    queue.send_many([CONTENT["one"], CONTENT["two"], CONTENT["three"]])
    tell("returned", "one", "two", "three")


@scenario()
def send_file_by_copy(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue, file = open(), put(place.beside)
    yield
    queue.send_file(file)
    tell("returned", "one")


@scenario()
def send_file_by_move(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue, file = open(), put(place.beside)
    yield
    queue.send_file(file, copy=False)
    tell("returned", "one")


@scenario()
def send_file_by_copy_across_filesystems(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue, file = open(), put(place.elsewhere)
    yield
    queue.send_file(file)
    tell("returned", "one")


@scenario()
def send_file_by_move_across_filesystems(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue, file = open(), put(place.elsewhere)
    yield
    queue.send_file(file, copy=False)
    tell("returned", "one")


def receiving(place: Place, queue: Pacchettino, tell: Tell, *verdicts: Result | Exception) -> Iterator[None]:
    """Handle one job."""
    handle(queue, tell, *verdicts)
    yield
    queue.receive_one()
    tell("returned", "one")


@scenario()
def success(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(), tell)


@scenario()
def success_by_pid(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(crash_detection=CrashDetection.PID), tell)


@scenario()
def success_of_a_file(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/fle-{}-name")
    return receiving(place, open(), tell)


@scenario()
def success_with_a_file_beside_it(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/fle-{}-name")
    job = open().claim()
    assert job is not None
    job.path.with_name("beside").write_bytes(BESIDE)
    yield
    tell("handling", "one", False)
    job.succeed()
    tell("returned", "one")


@scenario()
def failure(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(), tell, Result.FAILED)


@scenario()
def an_exception_of_the_handler(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(), tell, ValueError("planned"))


@scenario()
def a_retry_now(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(), tell, Result.RETRY)


@scenario()
def a_retry_later(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(retry_delay=3600), tell, Result.RETRY)


def tried(queue: Pacchettino, name: str = "one", verdict: Result = Result.RETRY) -> str:
    """Send a job that was tried once, and has a history."""
    id = queue.send_data(CONTENT[name])
    handle(queue, lambda *fact: None, verdict).receive_one()
    assert len(queue.history(id)) == 1
    return id


@scenario()
def a_second_retry(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open(max_attempts=3)
    tried(queue)
    return receiving(place, queue, tell, Result.RETRY)


@scenario()
def an_interruption_that_puts_back(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    queue = open(interrupted_attempts=1)
    yield
    job = queue.claim()
    assert job is not None
    with suppress(KeyboardInterrupt), job:
        raise KeyboardInterrupt
    tell("returned", "one")


@scenario()
def giving_up(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open(max_attempts=2)
    tried(queue)
    return receiving(place, queue, tell, Result.RETRY)


@scenario(KeepPolicy.NONE)
def a_removal_of_what_was_tried_before(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    tried(queue)
    return receiving(place, queue, tell)


@scenario(KeepPolicy.NONE)
def a_removal(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    return receiving(place, open(), tell)


@scenario(KeepPolicy.NONE)
def a_removal_of_a_file(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/fle-{}-name")
    return receiving(place, open(), tell, Result.FAILED)


@scenario()
def an_interruption(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    queue = open()
    yield
    with suppress(KeyboardInterrupt), queue.claim():  # type: ignore[union-attr]
        tell("handling", "one", False)
        raise KeyboardInterrupt
    tell("returned", "one")


@scenario()
def receive(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    for name in ("one", "two", "three"):
        lay_job(place, "queued/raw-{}", name)
    queue = handle(open(), tell_settled(tell), Result.FAILED, Result.RETRY)
    yield
    queue.receive()
    tell("returned", "one", "two", "three")


def several_in_a_row(queue: Pacchettino, tell: Tell) -> None:
    """Handle so many jobs that directories of claims are used again; they are gone from where jobs are kept then."""
    ids = queue.send_many([b""] * 6)
    queue.on_data_received(lambda id, data: None)
    for _ in ids:
        queue.receive_one()
    assert any((queue.base_dir / "processing").iterdir())
    queue.cleanup()


@scenario(durable=False)
def receive_one_in_a_row(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    several_in_a_row(queue, tell)
    lay_job(place, "queued/raw-{}")
    lay_job(place, "queued/raw-{}", "two")
    handle(queue, tell, Result.RETRY)
    yield
    queue.receive_one()
    tell("returned", "one")
    queue.receive_one()


@scenario(KeepPolicy.NONE, durable=False)
def receive_in_a_row(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    several_in_a_row(queue, tell)
    for name in ("one", "two", "three"):
        lay_job(place, "queued/raw-{}", name)
    handle(queue, tell, Result.FAILED)
    yield
    queue.receive()
    tell("returned", "one", "two", "three")


def tell_settled(tell: Tell) -> Tell:
    """Have a handler tell that the jobs before its own are settled: their verdicts must be on the disk by then."""
    before: list[str] = []

    def handling(what: str, job: str, again: bool) -> None:
        tell(what, job, again)
        if before:
            tell("returned", *before)
        before.append(job)

    return handling


@scenario()
def receive_with_a_hook(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    names = {lay_job(place, "queued/raw-{}", name): name for name in ("one", "two", "three")}
    queue = handle(open(), tell, Result.FAILED)
    queue.on_settled(lambda job, outcome, seconds: tell("returned", names[job.id]))
    yield
    queue.receive()


@scenario(KeepPolicy.FAILED)
def receive_of_what_is_removed(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    for name in ("one", "two", "three"):
        lay_job(place, "queued/raw-{}", name)
    queue = handle(open(), tell_settled(tell), Result.SUCCESS, Result.FAILED)
    yield
    queue.receive()
    tell("returned", "one", "two", "three")


@scenario()
def receive_that_is_broken_off(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    for name in ("one", "two", "three"):
        lay_job(place, "queued/raw-{}", name)
    queue = handle(open(), tell, Result.SUCCESS, KeyboardInterrupt())
    yield
    with suppress(KeyboardInterrupt):
        queue.receive()
    tell("returned", "one", "two", "three")


@scenario()
def a_look_in_the_middle_of_receive(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, "queued/raw-{}")
    queue = open()
    core = queue._core
    yield
    waiting = core.start_pass(True, True, True)
    claim = core.claim_next(waiting)
    assert claim is not None
    claim.begin()
    tell("handling", "one", False)
    claim.succeed()
    # A claim's directory that may not be read counts as one in progress.
    assert queue.status(id) in {Status.SUCCESS, Status.PROCESSING}
    tell("returned", "one")
    waiting.end()


@scenario()
def a_wait_for_a_job(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    queue = handle(open(), tell)
    yield
    queue.receive_one(timeout=60)
    tell("returned", "one")


@scenario()
def a_wait_for_nothing(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = handle(open(), tell)
    yield
    queue.receive_one(timeout=0.01)


def looking(place: Place, open: Open) -> Iterator[None]:
    """Look after the dead, and what is due."""
    queue = open()
    yield
    queue.requeue(new_id())


@scenario()
def recovery(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, f"processing/raw-{{}}.{DEAD.decode()}/raw")
    lay_job(place, f"processing/fle-{{}}-name.{DEAD.decode()}/name", "two")
    lay_down(place.base, {b"owners/" + DEAD: b""})
    return looking(place, open)


@scenario()
def recovery_with_a_file_beside_the_job(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, f"processing/raw-{{}}.{DEAD.decode()}/raw")
    lay_down(place.base, {b"processing/raw-%b.%b/beside" % (id.encode(), DEAD): BESIDE})
    return looking(place, open)


@scenario()
def repair(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, f"processing/raw-{{}}.{DEAD.decode()}/raw")
    lay_job(place, "queued/raw-{}", "two")
    lay_down(place.base, {b"owners/" + DEAD: b""})
    queue = open()
    yield
    found = _core.Inspection(place.base)
    found.look_again()
    queue._core.repair(found)


@scenario(KeepPolicy.SUCCESS)
def recovery_that_removes(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, f"processing/raw-{{}}.{DEAD.decode()}/raw")
    return looking(place, open)


@scenario()
def recovery_that_puts_back(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, f"processing/raw-{{}}.{DEAD.decode()}/raw")
    return looking(place, partial(open, interrupted_attempts=1))


@scenario()
def recovery_of_what_had_this_pid_before(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, f"processing/raw-{{}}.{os.getpid()}/raw")
    return looking(place, partial(open, crash_detection=CrashDetection.PID))


@scenario()
def sweeping(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    draft = b"tmp/%b-%b" % (new_id().encode(), DEAD)
    lay_down(place.base, {draft: b"half", b"owners/" + DEAD: b""})
    return looking(place, open)


@scenario()
def promotion(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "scheduled/0000000000001-raw-{}")
    lay_job(place, "scheduled/0000000000002-fle-{}-name", "two")
    return looking(place, open)


@scenario()
def promotion_and_success(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "scheduled/0000000000001-raw-{}")
    return receiving(place, open(), tell)


@scenario()
def requeue(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, "failed/raw-{}")
    queue = open()
    yield
    queue.requeue(id)
    tell("returned", "one")


@scenario()
def requeue_of_a_file(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, "interrupted/fle-{}-name")
    queue = open()
    yield
    queue.requeue(id)
    tell("returned", "one")


@scenario()
def requeue_all(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "failed/raw-{}")
    lay_job(place, "interrupted/fle-{}-name", "two")
    queue = open()
    yield
    queue.requeue_all()
    tell("returned", "one", "two")


@scenario()
def requeue_of_what_was_tried_before(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    id = tried(queue, verdict=Result.FAILED)
    yield
    queue.requeue(id)
    tell("returned", "one")


@scenario()
def cleanup_of_what_was_tried_before(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    id = tried(queue, verdict=Result.FAILED)
    yield
    queue.cleanup()
    tell("returned", "one")
    queue.history(id)


@scenario()
def cleanup(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "failed/raw-{}")
    lay_job(place, "success/fle-{}-name", "two")
    queue = open()
    yield
    queue.cleanup()
    tell("returned", "one", "two")


@scenario()
def send_data_within_limits(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}", "two")
    queue = open(max_queued=2, min_free=1)
    yield
    queue.send_data(CONTENT["one"])
    tell("returned", "one")


@scenario()
def send_file_within_limits(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue, file = open(max_queued=1, min_free=1), put(place.beside)
    yield
    queue.send_file(file)
    tell("returned", "one")


@scenario()
def pause(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    queue = handle(open(), tell)
    yield
    queue.pause()
    assert queue.paused
    assert not queue.receive_one()


@scenario()
def resume(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    queue = handle(open(), tell)
    queue.pause()
    yield
    queue.resume()
    queue.receive_one()
    tell("returned", "one")


@scenario()
def cancel(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, "queued/raw-{}")
    lay_job(place, "queued/raw-{}", "two")
    queue = open()
    yield
    assert queue.cancel(id)
    tell("returned", "one")


@scenario()
def cancel_of_a_file(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, "queued/fle-{}-name")
    queue = open()
    yield
    assert queue.cancel(id)
    tell("returned", "one")


@scenario()
def cancel_of_what_is_scheduled(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    id = lay_job(place, "scheduled/9000000000000-fle-{}-name")
    queue = open()
    yield
    assert queue.cancel(id)
    tell("returned", "one")


@scenario()
def cancel_of_what_was_tried_before(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    id = tried(queue)
    yield
    assert queue.cancel(id)
    tell("returned", "one")


@scenario()
def stats(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    lay_job(place, "scheduled/9000000000000-raw-{}", "two")
    queue = open()
    yield
    found = queue.stats()
    assert (found.queued, found.scheduled, found.processing) == (1, 1, 0)


@scenario()
def looks(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    id = lay_job(place, "success/fle-{}-name", "two")
    queue = open()
    yield
    assert queue.status(id) is Status.SUCCESS
    assert queue.is_success(id)
    assert queue.count_all() == 2
    assert [job.id for job in queue.jobs(Status.SUCCESS)] == [id]
    assert queue.history(id) == []


@scenario()
def a_claim_from_an_event_loop(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "queued/raw-{}")
    queue = open()
    yield
    listener = _core.Listener()
    claim = None
    while claim is None:  # who waits looks again after an error
        listener.heard()
        claim, _ = queue._core.glance(listener, None, True, True, True)
    tell("handling", "one", False)
    claim.begin()
    claim.succeed()
    assert queue._core.glance(listener, None, True, True, True)[0] is None
    tell("returned", "one")


@scenario()
def closing(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    queue.send_data(CONTENT["one"])
    yield
    queue.close()


# An undisturbed run


@dataclass
class Course:
    """What an operation does when nothing goes wrong."""

    calls: list[str] = field(default_factory=list)
    seen: list[Where] = field(default_factory=list)
    """Where the jobs were at each of the moments."""
    moments: dict[int, Shape] = field(default_factory=dict)
    """The calls before which something was there, or was told, that was not before the call before; and the shape then.

    A death before any other call leaves what the death before the call before that one leaves. The moment after the
    last call has the number after that call's.
    """

    def ways(self, job: str) -> set[tuple[str, ...]]:
        return {where[job] for where in self.seen}

    def before(self, job: str) -> tuple[str, ...]:
        return self.seen[0][job]

    def after(self, job: str) -> tuple[str, ...]:
        return self.seen[-1][job]


def opener(scenario: Scenario, place: Place, *, durable: bool | None = None) -> Open:
    durable = scenario.durable if durable is None else durable
    return partial(Pacchettino, place.base, scenario.keep, durable=durable, fifo=True)


def undisturbed(scenario: Scenario, place: Place, *, durable: bool | None = None) -> Course:
    return observe(partial(scenario.steps, place, opener(scenario, place, durable=durable)), place)


def observe(program: Program, place: Place) -> Course:
    """Run a program, and look before each of its calls at what it has done to that place."""
    course, facts, last = Course(), 0, None

    def look(number: int, call: str = "") -> None:
        nonlocal last
        now = (place.contents(), facts)
        if now != last:
            course.seen.append(place.where())
            course.moments[number] = place.shape()
        last = now

    def listen(*fact: Any) -> None:
        nonlocal facts
        facts += 1

    course.calls = trap(program, look, listen)
    look(len(course.calls) + 1)
    return course


# A death


def consumer_looks(place: Place, keep: KeepPolicy) -> None:
    """Let a fresh consumer look after the dead, and see that it tidies up behind them."""
    with Pacchettino(place.base, keep) as queue:
        assert not queue.requeue(new_id())
        grow_old(place.base)
        assert not queue.requeue(new_id())
    assert place.leftovers() == {}


def check_after_deaths(place: Place, scenario: Scenario, course: Course, facts: list[Any]) -> None:
    """Check what is left, first after a fresh consumer looked, then after it handled what waits."""
    beside = len(place.left_beside())
    consumer_looks(place, scenario.keep)
    assert [path.rpartition(b".left-")[2] for path in place.left_beside()] == [b"1/beside"] * beside
    settled = place.where()
    returned = {job for what, *jobs in facts if what == "returned" for job in jobs}
    begun = {job for what, job, *_ in facts if what == "handling"}
    for job, found in settled.items():
        allowed = recovered(course.ways(job), scenario.keep)
        if job in returned:
            allowed = {course.after(job)}
        elif job in begun and course.before(job) != course.after(job):
            allowed -= {course.before(job)}
        assert found in allowed, f"{job} is {found}, not {allowed}"
    handled: list[str] = []
    with Pacchettino(place.base) as queue:
        queue.resume()
        handle(queue, lambda what, job, again: handled.append(job)).receive()
    assert sorted(handled) == sorted(job for job, found in settled.items() if "queued" in found)
    assert place.leftovers() == {}


def recovered(ways: set[tuple[str, ...]], keep: KeepPolicy) -> set[tuple[str, ...]]:
    """Tell what becomes of jobs whose consumer may have died."""
    rest = ("interrupted",) if keep & KeepPolicy.INTERRUPTED else ()
    return {rest if states == ("processing",) else states for states in ways}
