"""A death before each system call of each operation, a second one in the recovery, and each call failing once."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import quick_directory
from helpers import entries, new_id
from pacchettino import KeepPolicy, Pacchettino, Status
from scenarios import (
    CONTENT,
    SCENARIOS,
    SENDER,
    Course,
    Place,
    Scenario,
    Where,
    check_after_deaths,
    consumer_looks,
    handle,
    observe,
    opener,
    recovered,
    undisturbed,
)
from syscalls import DEATH, Fate, Program, Tell, needs_traps, trap

pytestmark = needs_traps

every_scenario = pytest.mark.parametrize("name", SCENARIOS)


@pytest.fixture(scope="module")
def new_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Place]]:
    """Makes places."""
    quick, other = quick_directory(), tmp_path_factory.mktemp("elsewhere")
    try:
        if quick.stat().st_dev == other.stat().st_dev:
            pytest.skip("NOT TESTED: there is no second filesystem")
        yield partial(Place.make, quick, other)
    finally:
        shutil.rmtree(quick)


@pytest.fixture(scope="module")
def course(new_place: Callable[[], Place]) -> Callable[[str], Course]:
    """Gives the undisturbed course of a scenario."""
    return cache(lambda name: undisturbed(SCENARIOS[name], new_place()))


def share_out(numbers: Iterable[int], work: Callable[[int], None]) -> None:
    """Do the work for each number, in a process for each processor."""
    shares, ends = os.cpu_count() or 1, []
    for share in range(shares):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            wrong = "it was ended"
            try:
                for number in islice(numbers, share, None, shares):
                    work(number)
                wrong = ""
            except BaseException:
                wrong = traceback.format_exc()
            finally:
                theirs.send(wrong)
                os._exit(0)
        theirs.close()
        ends.append((pid, ours))
    wrongs = []
    for pid, end in ends:
        with end:
            wrongs.append(end.recv())
        os.waitpid(pid, 0)
    assert not any(wrongs), "in processes of this test:\n" + "\n".join(wrongs)


# A death


def die(program: Program, number: int) -> list[Any]:
    """Let a program die before that call; gives what it told."""
    facts: list[Any] = []
    trap(program, lambda met, call: DEATH if met == number else None, lambda *fact: facts.append(fact))
    return facts


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "each_call", [False, pytest.param(True, marks=pytest.mark.torture)], ids=["each change", "each call"]
)
@every_scenario
def test_a_death_before_any_call_loses_nothing_and_repeats_nothing(
    name: str, each_call: bool, course: Callable[[str], Course], new_place: Callable[[], Place]
) -> None:
    scenario, undisturbed = SCENARIOS[name], course(name)

    def work(number: int) -> None:
        place = new_place()
        facts = die(partial(scenario.steps, place, opener(scenario, place)), number)
        with noting(f"after a death before call {number} of {undisturbed.calls}, which had told {facts}"):
            assert (
                place.shape() == undisturbed.moments[max(moment for moment in undisturbed.moments if moment <= number)]
            )
            check_after_deaths(place, scenario, undisturbed, facts)
        place.remove()

    share_out(range(1, len(undisturbed.calls) + 2) if each_call else undisturbed.moments, work)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in {"success", "recovery"} else pytest.mark.torture) for name in SCENARIOS],
)
def test_a_second_death_before_any_call_of_the_recovery_changes_nothing_of_that(
    name: str, course: Callable[[str], Course], new_place: Callable[[], Place]
) -> None:
    scenario, undisturbed = SCENARIOS[name], course(name)

    def look(place: Place, tell: Tell) -> Iterator[None]:
        yield
        Pacchettino(place.base, scenario.keep, durable=True).requeue(new_id())

    def work(number: int) -> None:
        place = new_place()
        facts = die(partial(scenario.steps, place, opener(scenario, place)), number)
        copy = place.copied()
        recovery = observe(partial(look, copy), copy)
        for second, shape in recovery.moments.items():
            copy = place.copied()
            die(partial(look, copy), second)
            with noting(f"after deaths before call {number} of {undisturbed.calls}, and {second} of {recovery.calls}"):
                assert copy.shape() == shape
                for job, found in copy.where().items():
                    assert found in undisturbed.ways(job) | recovered(undisturbed.ways(job), scenario.keep)
                check_after_deaths(copy, scenario, undisturbed, facts)
            copy.remove()
        place.remove()

    share_out(undisturbed.moments, work)


@contextmanager
def noting(note: str) -> Iterator[None]:
    """Say with an error when it came."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


@pytest.mark.parametrize("durable", [False, True])
def test_a_death_between_the_record_of_an_attempt_and_its_settle_leaves_one_attempt(
    new_place: Callable[[], Place], durable: bool
) -> None:
    def program(place: Place, tell: Tell) -> Iterator[None]:
        queue = Pacchettino(place.base, durable=durable, retry_delay=3600)
        queue.send_data(CONTENT["one"])
        job = queue.claim()
        assert job is not None
        yield
        job.retry()

    place, met = new_place(), set()
    for number in observe(partial(program, place), place).moments:
        place = new_place()
        die(partial(program, place), number)
        with Pacchettino(place.base, interrupted_attempts=1) as queue:
            assert not queue.requeue(new_id())  # it looks after the dead
            (job,) = [*queue.jobs(Status.QUEUED), *queue.jobs(Status.SCHEDULED)]
            history = queue.history(job.id)
            met.add((job.status, *((attempt.ended, attempt.settled) for attempt in history)))
            assert {attempt.attempt for attempt in history} == {1}
            if job.status is Status.SCHEDULED:
                job.path.rename(place.base / "queued" / job.entry)
            with queue.claim() as again:  # type: ignore[union-attr]
                assert again.attempt == 2
    assert met == {
        (Status.QUEUED, ("interrupted", True)),
        (Status.QUEUED, ("retry", False), ("interrupted", True)),
        (Status.SCHEDULED, ("retry", False)),
        (Status.SCHEDULED, ("retry", True)),
    }


# An error


PATHS = "mkdir mkdirat newfstatat openat renameat2 statx unlink unlinkat"
FILES = "fstat fstatfs fsync getdents64 statfs"
SPACE = "copy_file_range fsync mkdir mkdirat openat renameat2 write"
SYNC = "sync_file_range syncfs"
WATCH = "epoll_create1 epoll_ctl eventfd2 inotify_add_watch inotify_init1"

CAN_FAIL = {
    errno.EIO: f"{PATHS} {FILES} close copy_file_range faccessat2 read sendfile {SYNC} write",
    errno.ENOSPC: f"{SPACE} {SYNC} epoll_ctl inotify_add_watch",
    errno.EDQUOT: SPACE,
    errno.EMFILE: "epoll_create1 eventfd2 inotify_init1 openat",
    errno.ENFILE: "epoll_create1 eventfd2 inotify_init1 openat",
    errno.EACCES: f"{PATHS} faccessat2 inotify_add_watch",
    errno.EROFS: "mkdir mkdirat openat renameat2 unlink unlinkat",
    errno.EINTR: "close copy_file_range flock fstatfs fsync openat read statfs write",
    errno.ESTALE: f"{PATHS} {FILES} read write",
    errno.EXDEV: "copy_file_range renameat2",
    errno.ENOMEM: f"{PATHS} {WATCH} faccessat2 flock fstat fstatfs getdents64 sendfile statfs {SYNC}",
}
"""Which calls fail how, as their man pages have it."""

CONTEXT = 8
"""How many calls, up to and with a call itself, tell it from other calls of the core.

`make test` lets a call fail once, in the first scenario that makes it after the same calls. So each kind of call fails
wherever the core makes it, in a ninth of the time that all calls of all scenarios take. Ten whole scenarios would take
twice as long and leave out two fifths of these calls.
"""


@dataclass
class Ending:
    """How an operation ended, and what its process did then."""

    calls: list[str] = field(default_factory=list)
    """What it called before it ended."""
    facts: list[Any] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    raised: list[Any] = field(default_factory=list)
    where: Where = field(default_factory=dict)
    drafts: list[bytes] = field(default_factory=list)
    descriptors: int = 0
    """How many it has open then and did not have open before."""


def open_descriptors() -> int:
    return len(entries(Path("/proc/self/fd")))


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
        before = open_descriptors()
        kept: dict[str, Any] = {}

        def open(**settings: Any) -> Pacchettino:
            kept.update((name, value) for name, value in settings.items() if name == "interrupted_attempts")
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
        with handle(open(**kept), tell) as queue:
            queue.send_data(CONTENT["later"])
            queue.resume()
            queue.receive()
            tell("went on", open_descriptors() - before)
        for queue in queues:
            queue.close()

    def decide(number: int, call: str) -> Fate | None:
        if ending.where:
            return None
        ending.calls.append(call)
        return Fate(error) if number == failing and call in CAN_FAIL[error].split() else None

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


@pytest.fixture(scope="module")
def peaceful(new_place: Callable[[], Place]) -> dict[str, Ending]:
    """How each scenario ends when no call fails."""
    return {name: run(scenario, new_place()) for name, scenario in SCENARIOS.items()}


@pytest.fixture(scope="module")
def new_calls(peaceful: dict[str, Ending]) -> dict[str, list[int]]:
    """The numbers of the calls of each scenario that none of those before it makes."""
    met: set[tuple[str, ...]] = set()
    numbers: dict[str, list[int]] = {name: [] for name in peaceful}
    for name, ending in peaceful.items():
        for number in range(1, len(ending.calls) + 1):
            context = tuple(ending.calls[max(0, number - CONTEXT) : number])
            if context not in met:
                met.add(context)
                numbers[name].append(number)
    return numbers


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "each_error", [False, pytest.param(True, marks=pytest.mark.torture)], ids=["each call", "each error"]
)
@every_scenario
def test_a_call_that_fails_once_leaves_what_was_or_what_should_be_and_the_process_goes_on(
    name: str,
    each_error: bool,
    course: Callable[[str], Course],
    peaceful: dict[str, Ending],
    new_calls: dict[str, list[int]],
    new_place: Callable[[], Place],
) -> None:
    scenario, undisturbed, calls = SCENARIOS[name], course(name), peaceful[name].calls

    def work(number: int) -> None:
        call = calls[number - 1]
        errors = [error for error, failing in CAN_FAIL.items() if call in failing.split()]
        for error in errors if each_error else errors[number % len(errors or [0]) :][:1]:
            place = new_place()
            ending = run(scenario, place, number, error)
            with noting(f"after {errno.errorcode[error]} of call {number}, {call}: {ending}"):
                check_after_an_error(ending, undisturbed, scenario.keep, error)
                # The number of a file whose close fails here stays in use, and a descriptor that the system can't tell
                # from others is not closed.
                assert ending.descriptors <= peaceful[name].descriptors + (call in {"close", "fstat"})
                consumer_looks(place, scenario.keep)
                ending.where["later"] = ("queued",)
                for job, found in place.where().items():
                    allowed = final(ending.where[job], undisturbed.after(job), scenario.keep)
                    assert found in allowed, f"{job} is {found}"
                begun = Counter(job for what, job, *_ in ending.facts if what == "handling")
                again = Counter(job for what, job, *verdict in ending.facts if what == "handling" and verdict[0])
                assert all(times <= 1 + again[job] for job, times in begun.items())
            place.remove()

    share_out(range(1, len(calls) + 1) if each_error else new_calls[name], work)


def check_after_an_error(ending: Ending, course: Course, keep: KeepPolicy, error: int) -> None:
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
    handled = {job for what, job, *_ in ending.facts if what == "handling"}
    for job, found in ending.where.items():
        allowed = {course.after(job)}
        if said:
            allowed |= course.ways(job)
            if course.before(job) == course.after(job) == ("queued",) and job in handled:
                allowed.add(("success",))  # in place of one before it, which could not be taken
        if "is not in its history" in said:
            allowed.add(("interrupted",))  # it would be put back without an end
        if "the verdict is kept" not in said and course.before(job) != ("processing",):
            allowed.discard(("processing",))
        if "can't be read" in said or "Traceback" in said:
            allowed.add(("failed",) if keep & KeepPolicy.FAILED else ())
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
