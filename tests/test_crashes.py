"""A death before each system call of each operation, a second one in the recovery, and each call failing once."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
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
    opener,
    recovered,
    undisturbed,
)
from syscalls import DEATH, Fate, Tell, needs_traps, trap

pytestmark = needs_traps

every_scenario = pytest.mark.parametrize("name", SCENARIOS)


@pytest.fixture
def new_place(quick_dir: Path, tmp_path: Path) -> Callable[[], Place]:
    """Makes places."""
    if quick_dir.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("NOT TESTED: there is no second filesystem")
    return partial(Place.make, quick_dir, tmp_path)


SHARES = os.cpu_count() or 1


def share_out(work: Callable[[int], None]) -> None:
    """Do a part of the work in a process for each processor; its argument is the number of the share, from 1 on."""
    ends = []
    for share in range(1, SHARES + 1):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            wrong = "it was ended"
            try:
                work(share)
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


def deaths(name: str, new_place: Callable[[], Place], share: int) -> Iterator[tuple[Place, Course, list[Any]]]:
    """Let an operation die before each of its calls. Deaths that leave the same, and told the same, are given once."""
    scenario, course = SCENARIOS[name], undisturbed(SCENARIOS[name], new_place())
    met = set()
    for last in count(share, SHARES):
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
    def work(share: int) -> None:
        for place, course, facts in deaths(name, new_place, share):
            check_after_deaths(place, SCENARIOS[name], course, facts)

    share_out(work)


CHANGES_NOTHING = {"close", "fsync", "getdents64", "newfstatat", "read", "statx", "uname"}
"""Calls after which a dying process leaves what it would have left before them."""


@pytest.mark.timeout(900)
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

    def work(share: int) -> None:
        for place, course, facts in deaths(name, new_place, share):
            met = set()
            calls = trap(partial(look, place.copied()))
            for last in range(1, len(calls) + 1):
                if last > 1 and calls[last - 2] in CHANGES_NOTHING:
                    continue  # a death here leaves what one before that call does
                copy = place.copied()
                trap(partial(look, copy), lambda number, call, last=last: DEATH if number == last else None)
                if copy.shape() not in met:
                    met.add(copy.shape())
                    for job, found in copy.where().items():
                        assert found in course.ways(job) | recovered(course.ways(job), scenario.keep)
                    check_after_deaths(copy, scenario, course, facts)
                copy.remove()

    share_out(work)


@pytest.mark.parametrize("durable", [False, True])
def test_a_death_between_the_record_of_an_attempt_and_its_settle_leaves_one_attempt(
    quick_dir: Path, durable: bool
) -> None:
    met = set()
    for last in count(1):
        base = quick_dir / str(last)

        def program(tell: Tell, base: Path = base) -> Iterator[None]:
            queue = Pacchettino(base, durable=durable, retry_delay=3600)
            queue.send_data("work")
            job = queue.claim()
            assert job is not None
            yield
            job.retry()

        calls = trap(program, lambda number, call, last=last: DEATH if number == last else None)
        with Pacchettino(base) as queue:
            assert queue.claim() is None  # it looks after the dead
            (job,) = [*queue.jobs(Status.INTERRUPTED), *queue.jobs(Status.SCHEDULED)]
            history = queue.history(job.id)
            met.add((job.status, *((attempt.ended, attempt.settled) for attempt in history)))
            assert {attempt.attempt for attempt in history} == {1}
            job.path.rename(base / "queued" / job.entry)
            with queue.claim() as again:  # type: ignore[union-attr]
                assert again.attempt == 2
        if len(calls) < last:
            break
    assert met == {
        (Status.INTERRUPTED, ("interrupted", True)),
        (Status.INTERRUPTED, ("retry", False), ("interrupted", True)),
        (Status.SCHEDULED, ("retry", False)),
        (Status.SCHEDULED, ("retry", True)),
    }


# An error


PATHS = "mkdir mkdirat newfstatat openat renameat2 statx unlink unlinkat"
SPACE = "copy_file_range fsync mkdir mkdirat openat renameat2 write"
WATCH = "eventfd2 inotify_add_watch inotify_init1"

CAN_FAIL = {
    errno.EIO: f"{PATHS} close copy_file_range fsync getdents64 read statfs write",
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
            queue.resume()
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("all_errors", [False, pytest.param(True, marks=pytest.mark.torture)], ids=["one", "all"])
@every_scenario
def test_a_call_that_fails_once_leaves_what_was_or_what_should_be_and_the_process_goes_on(
    name: str, all_errors: bool, new_place: Callable[[], Place]
) -> None:
    scenario = SCENARIOS[name]

    def work(share: int) -> None:
        course, peaceful = undisturbed(scenario, new_place()), run(scenario, new_place())
        for number, call in islice(enumerate(course.calls[: peaceful.number], 1), share - 1, None, SHARES):
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

    share_out(work)


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
