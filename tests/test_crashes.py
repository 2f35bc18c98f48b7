"""A death before each system call of each operation, a second one in the recovery, and each call failing once.

A scenario is one operation on jobs that are told apart by their content. What its calls are and by which states it
leads the jobs is not written down but seen when it runs undisturbed: a new operation is one scenario more.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers import DUE, ID, STATES, TOKEN, entries, everything, lay_down, new_id
from pacchettino import CrashDetection, KeepPolicy, Pacchettino, Result, Status
from syscalls import DEATH, Fate, Tell, needs_traps, trap

pytestmark = needs_traps

CONTENT = {name: f"{name} ".encode() * 1000 for name in ("one", "two", "three", "later")}
"""Long enough for a part of it to be told from all of it."""

NAMES = {content: name for name, content in CONTENT.items()}

SENDER = "with its sender"

DEAD = b"dead000000"
"""The token of a consumer that died."""

Where = dict[str, tuple[str, ...]]
"""Where each job is."""


# What is looked at


@dataclass(frozen=True)
class Place:
    """A queue, and two directories that are none of it: one on its filesystem and one on another."""

    base: Path
    beside: Path
    elsewhere: Path

    def where(self) -> Where:
        """Find the jobs. No file in a state's directory is less than a job, and no job is in two states."""
        found: dict[str, list[str]] = {name: [] for name in CONTENT}
        ids = []
        for path, (kind, content) in everything(self.base).items():
            state, *_ = path.decode().split("/")
            if kind == "file" and state in STATES:
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

    def leftovers(self) -> dict[str, list[bytes]]:
        """List what is in the directories that are empty when nobody is at work."""
        directories = [self.base / name for name in ("tmp", "processing", "owners")]
        found = {directory.name: entries(directory) for directory in directories if directory.exists()}
        return {name: names for name, names in found.items() if names}

    def copied(self) -> Place:
        """Make another place like this one."""
        copy = Place(*(Path(tempfile.mkdtemp(dir=path.parent)) for path in astuple(self)))
        for ours, theirs in zip(astuple(self), astuple(copy), strict=True):
            shutil.copytree(ours, theirs, dirs_exist_ok=True)
        return copy

    def shape(self) -> frozenset[tuple[bytes, tuple[str, bytes]]]:
        """Tell what is in it, whatever the ids, tokens and times."""
        names = re.compile(rb"(?P<id>%b)|(?<=[-./])(?P<token>%b)(?=$|/)|(?P<due>%b)-" % (ID, TOKEN, DUE))
        return frozenset(
            (names.sub(lambda name: f"<{name.lastgroup}>".encode(), path), what)
            for directory in astuple(self)
            for path, what in everything(directory).items()
        )

    def remove(self) -> None:
        for directory in astuple(self):
            shutil.rmtree(directory)


@pytest.fixture
def new_place(quick_dir: Path, tmp_path: Path) -> Callable[[], Place]:
    """Makes places."""
    if quick_dir.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("NOT TESTED: there is no second filesystem")
    where = (quick_dir, quick_dir, tmp_path)
    return lambda: Place(*(Path(tempfile.mkdtemp(dir=directory)) for directory in where))


# The operations

Open = Callable[..., Pacchettino]
Steps = Callable[[Place, Open, Tell], Iterator[None]]


@dataclass(frozen=True)
class Scenario:
    """An operation: what comes before its `yield` is preparation."""

    steps: Steps
    keep: KeepPolicy


SCENARIOS: dict[str, Scenario] = {}


def scenario(keep: KeepPolicy = KeepPolicy.ALL) -> Callable[[Steps], Steps]:
    def register(steps: Steps) -> Steps:
        SCENARIOS[steps.__name__] = Scenario(steps, keep)
        return steps

    return register


def handle(queue: Pacchettino, tell: Tell, *verdicts: Result | Exception) -> Pacchettino:
    """Have jobs handled so that the test hears of it; the first ones with these verdicts, the others with success."""
    rest = list(verdicts)

    def handler(content: bytes) -> Result:
        verdict = rest.pop(0) if rest else Result.SUCCESS
        tell("handling", NAMES[content], verdict is Result.RETRY)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    queue.on_data_received(lambda id, data: handler(data))
    queue.on_file_received(lambda id, name, path: handler(path.read_bytes()))
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
    queue = handle(open(), tell, Result.FAILED, Result.RETRY)
    yield
    queue.receive()
    tell("returned", "one", "two", "three")


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


@scenario(KeepPolicy.SUCCESS)
def recovery_that_removes(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, f"processing/raw-{{}}.{DEAD.decode()}/raw")
    return looking(place, open)


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
def cleanup(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    lay_job(place, "failed/raw-{}")
    lay_job(place, "success/fle-{}-name", "two")
    queue = open()
    yield
    queue.cleanup()
    tell("returned", "one", "two")


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


@scenario()
def closing(place: Place, open: Open, tell: Tell) -> Iterator[None]:
    queue = open()
    queue.send_data(CONTENT["one"])
    yield
    queue.close()


every_scenario = pytest.mark.parametrize("name", SCENARIOS)


# An undisturbed run


@dataclass
class Course:
    """What an operation does when nothing goes wrong."""

    calls: list[str]
    seen: list[Where]
    """Where the jobs were before each call, and at the end."""

    def ways(self, job: str) -> set[tuple[str, ...]]:
        return {where[job] for where in self.seen}

    def before(self, job: str) -> tuple[str, ...]:
        return self.seen[0][job]

    def after(self, job: str) -> tuple[str, ...]:
        return self.seen[-1][job]


def opener(scenario: Scenario, place: Place) -> Open:
    return partial(Pacchettino, place.base, scenario.keep, durable=True, fifo=True)


def undisturbed(scenario: Scenario, place: Place) -> Course:
    seen: list[Where] = []

    def look(number: int, call: str) -> None:
        seen.append(place.where())

    calls = trap(partial(scenario.steps, place, opener(scenario, place)), look)
    seen.append(place.where())
    return Course(calls, seen)


# A death


def consumer_looks(place: Place, keep: KeepPolicy) -> None:
    """Let a fresh consumer look after the dead, and see that it tidies up behind them."""
    with Pacchettino(place.base, keep) as queue:
        assert not queue.requeue(new_id())
        # A lock file may be just being made, a draft's writer live in another container; once old, they are dead.
        for left in (place.base / "tmp").iterdir():
            os.utime(left, (0, 0))
        assert not queue.requeue(new_id())
    assert place.leftovers() == {}


def check_after_deaths(place: Place, scenario: Scenario, course: Course, facts: list[Any]) -> None:
    """Check what is left, first after a fresh consumer looked, then after it handled what waits."""
    consumer_looks(place, scenario.keep)
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
        handle(queue, lambda what, job, again: handled.append(job)).receive()
    assert sorted(handled) == sorted(job for job, found in settled.items() if "queued" in found)
    assert place.leftovers() == {}


def recovered(ways: set[tuple[str, ...]], keep: KeepPolicy) -> set[tuple[str, ...]]:
    """Tell what becomes of jobs whose consumer may have died."""
    rest = ("interrupted",) if keep & KeepPolicy.INTERRUPTED else ()
    return {rest if states == ("processing",) else states for states in ways}


def deaths(name: str, new_place: Callable[[], Place]) -> Iterator[tuple[Place, Course, list[Any]]]:
    """Let an operation die before each of its calls. Deaths that leave the same, and told the same, are given once."""
    scenario, course = SCENARIOS[name], undisturbed(SCENARIOS[name], new_place())
    met = set()
    for last in count(1):
        place, facts = new_place(), []
        calls = trap(
            partial(scenario.steps, place, opener(scenario, place)),
            lambda number, call, last=last: DEATH if number == last else None,
            lambda *fact, facts=facts: facts.append(fact),
        )
        for job, found in place.where().items():
            assert found in course.ways(job), f"{job} is {found}, where it never should be"
        shape = (place.shape(), frozenset(facts))
        if shape not in met:
            met.add(shape)
            try:
                yield place, course, facts
            except BaseException as error:
                error.add_note(f"after {calls}, which had told {facts}")
                raise
        place.remove()
        if len(calls) < last:  # it came to its end
            return


@every_scenario
def test_a_death_before_any_call_loses_nothing_and_repeats_nothing(name: str, new_place: Callable[[], Place]) -> None:
    for place, course, facts in deaths(name, new_place):
        check_after_deaths(place, SCENARIOS[name], course, facts)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in {"success", "recovery"} else pytest.mark.torture) for name in SCENARIOS],
)
def test_a_second_death_before_any_call_of_the_recovery_changes_nothing_of_that(
    name: str, new_place: Callable[[], Place]
) -> None:
    scenario = SCENARIOS[name]

    def look(place: Place, tell: Tell) -> Iterator[None]:
        yield
        Pacchettino(place.base, scenario.keep, durable=True).requeue(new_id())

    for place, course, facts in deaths(name, new_place):
        met = set()
        calls = trap(partial(look, place.copied()))
        for last in range(1, len(calls) + 1):
            copy = place.copied()
            trap(partial(look, copy), lambda number, call, last=last: DEATH if number == last else None)
            if copy.shape() not in met:
                met.add(copy.shape())
                for job, found in copy.where().items():
                    assert found in course.ways(job) | recovered(course.ways(job), scenario.keep)
                check_after_deaths(copy, scenario, course, facts)
            copy.remove()


# An error


PATHS = "mkdir mkdirat newfstatat openat renameat2 statx unlink unlinkat"
SPACE = "copy_file_range fsync mkdir mkdirat openat renameat2 write"
WATCH = "eventfd2 inotify_add_watch inotify_init1"

CAN_FAIL = {
    errno.EIO: f"{PATHS} close copy_file_range fsync getdents64 read write",
    errno.ENOSPC: f"{SPACE} inotify_add_watch",
    errno.EDQUOT: SPACE,
    errno.EMFILE: "eventfd2 inotify_init1 openat",
    errno.ENFILE: "eventfd2 inotify_init1 openat",
    errno.EACCES: f"{PATHS} inotify_add_watch",
    errno.EROFS: "mkdir mkdirat openat renameat2 unlink unlinkat",
    errno.EINTR: "close copy_file_range flock fsync openat read write",
    errno.ESTALE: f"{PATHS} fsync getdents64 read write",
    errno.EXDEV: "copy_file_range renameat2",
    errno.ENOMEM: f"{PATHS} {WATCH} flock getdents64",
}
"""Which calls fail how, as their man pages have it."""


@dataclass
class Ending:
    """How an operation ended, and what its process did then."""

    number: int = 0
    """How many calls it came to."""
    facts: list[Any] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    raised: list[Any] = field(default_factory=list)
    where: Where = field(default_factory=dict)
    drafts: list[bytes] = field(default_factory=list)
    descriptors: int = 0


class Told(logging.Handler):
    """Tells the test what is logged."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell("log", self.format(record))


def run(scenario: Scenario, place: Place, failing: int = 0, error: int = 0) -> Ending:
    """Run an operation of which one call may fail. Then its process goes on: sends, handles what waits, closes."""
    ending = Ending()

    def steps(tell: Tell) -> Iterator[None]:
        queues: list[Pacchettino] = []

        def open(**settings: Any) -> Pacchettino:
            queues.append(opener(scenario, place)(**settings))
            return queues[-1]

        logging.getLogger("pacchettino").addHandler(Told(tell))
        operation = scenario.steps(place, open, tell)
        next(operation)
        yield
        try:
            next(operation, None)
        except Exception as raised:
            number = raised.errno if isinstance(raised, OSError) else None
            tell("raised", type(raised).__name__, number, str(raised), getattr(raised, "sent", None))
        tell("ended")
        with handle(open(), tell) as queue:
            queue.send_data(CONTENT["later"])
            queue.receive()
            tell("went on", len(entries(Path("/proc/self/fd"))))
        for queue in queues:
            queue.close()

    def decide(number: int, call: str) -> Fate | None:
        if not ending.where:
            ending.number = number

    def listen(what: str, *facts: Any) -> None:
        match what:
            case "log":
                ending.log += facts
            case "raised":
                ending.raised = list(facts)
            case "ended":
                ending.where, ending.drafts = place.where(), place.leftovers().get("tmp", [])
            case "went on":
                (ending.descriptors,) = facts
            case _:
                ending.facts.append((what, *facts))

    trap(steps, decide, listen)
    return ending


@pytest.mark.parametrize("all_errors", [False, pytest.param(True, marks=pytest.mark.torture)], ids=["one", "all"])
@every_scenario
def test_a_call_that_fails_once_leaves_what_was_or_what_should_be_and_the_process_goes_on(
    name: str, all_errors: bool, new_place: Callable[[], Place]
) -> None:
    scenario = SCENARIOS[name]
    course, peaceful = undisturbed(scenario, new_place()), run(scenario, new_place())
    for number, call in enumerate(course.calls[: peaceful.number], 1):
        errors = [error for error, calls in CAN_FAIL.items() if call in calls.split()]
        for error in errors if all_errors else errors[number % len(errors or [0]) :][:1]:
            place = new_place()
            ending = run(scenario, place, number, error)
            try:
                check_after_an_error(ending, course, error)
                # A call that fails here is not made: where it is a close, the descriptor stays open.
                assert ending.descriptors <= peaceful.descriptors + (call == "close")
                consumer_looks(place, scenario.keep)
                ending.where["later"] = ("queued",)
                for job, found in place.where().items():
                    assert found in final(ending.where[job], course.after(job), scenario.keep), f"{job} is {found}"
                begun = Counter(job for what, job, *_ in ending.facts if what == "handling")
                again = Counter(job for what, job, *verdict in ending.facts if what == "handling" and verdict[0])
                assert all(times <= 1 + again[job] for job, times in begun.items())
            except BaseException as wrong:
                wrong.add_note(f"after {errno.errorcode[error]} of call {number}, {call}: {ending}")
                raise
            place.remove()


def check_after_an_error(ending: Ending, course: Course, error: int) -> None:
    """Check where the jobs are when an operation has ended of which one call failed, and what was said."""
    said = "\n".join([*ending.log, *map(str, ending.raised)])
    moved = [job for job in CONTENT if course.before(job) != course.after(job)]
    if ending.raised:
        _, number, _, sent = ending.raised
        assert number == error
        if sent is not None:
            assert len(sent) == sum(ending.where[job] != course.before(job) for job in moved)
        elif moved and all({*course.before(job)} <= {SENDER} for job in moved):
            assert (ending.where, ending.drafts) == (course.seen[0], [])  # what was to be sent was not
    for job, found in ending.where.items():
        allowed = {course.after(job)}
        if said:
            allowed |= course.ways(job)
        if "the verdict is kept" not in said and course.before(job) != ("processing",):
            allowed.discard(("processing",))
        if "can't be read" in said or "Traceback" in said:
            allowed.add(("failed",) if course.after(job) else ())
        assert found in allowed, f"{job} is {found}, not {allowed}"


def final(found: tuple[str, ...], after: tuple[str, ...], keep: KeepPolicy) -> set[tuple[str, ...]]:
    """Tell where a job may be when its process has gone on, handled what waited and closed the queue."""
    handled = ("success",) if keep & KeepPolicy.SUCCESS else ()
    match found:
        case ("processing",):
            return final(after, after, keep)
        case ("queued", *rest):
            return {(*handled, *rest)}
        case ("scheduled",):
            return {found, handled}
    return {found}
