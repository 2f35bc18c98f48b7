"""The power is cut after each system call of an operation that changed something, or flushed it.

The filesystem is a real one in a loop-mounted image; its shutdown `ioctl` drops what was not flushed, as a power cut
does, with its journal written or not. What that can't show is in TESTING.md.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import quick_directory
from helpers import ID, PATIENCE, STATES, Peer, everything, lay_down, new_id, until
from pacchettino import KeepPolicy, Pacchettino
from scenarios import (
    CONTENT,
    SCENARIOS,
    Course,
    Place,
    check_after_deaths,
    consumer_looks,
    opener,
    recovered,
    undisturbed,
)
from syscalls import DEATH, Fate, Tell, needs_traps, trap

pytestmark = needs_traps

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "64M"],
    "xfs": ["mkfs.xfs", "-q", "300M"],
}
"""How a filesystem is made in a file, and of which size. One that knows the `ioctl` is a line more."""

SHUTDOWN = 0x8004587D
CUTS = {"the journal is written": 1, "the journal is lost": 2}

libc = ctypes.CDLL(None, use_errno=True)


class Disk:
    """A filesystem whose power can be cut."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self.mounted = directory / "mounted"
        self.mounted.mkdir()
        *command, size = MAKE[kind]
        image = directory / "image"
        with image.open("wb") as file:
            file.truncate(int(size[:-1]) << 20)
        run([*command, str(image)])
        self._device = run(["losetup", "--find", "--show", str(image)])
        self._mount()

    def flush(self) -> None:
        """Have all that was done up to now on the disk."""
        directory = os.open(self.mounted, os.O_RDONLY)
        assert libc.syncfs(directory) == 0
        os.close(directory)

    def cut(self, how: str) -> None:
        """Cut the power; nothing can be done with it until it is started again."""
        directory = os.open(self.mounted, os.O_RDONLY)
        fcntl.ioctl(directory, SHUTDOWN, CUTS[how].to_bytes(4, "little"))
        os.close(directory)

    def start(self) -> None:
        """Mount it anew. While another mount namespace still has it, it stays as it was cut off."""
        until(self._is_started)

    def _is_started(self) -> bool:
        self._unmount()
        self._mount()
        try:
            (self.mounted / "started").touch()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        self._unmount()
        run(["losetup", "--detach", self._device])

    # Not by mount(8): that takes longer than the rest of a cut.

    def _mount(self) -> None:
        self._check(libc.mount(self._device.encode(), bytes(self.mounted), self._kind.encode(), 0, None))

    def _unmount(self) -> None:
        self._check(libc.umount2(bytes(self.mounted), 0))

    def _check(self, returned: int) -> None:
        if returned != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.mounted)


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module", params=["ext4", pytest.param("xfs", marks=pytest.mark.torture)])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    program = MAKE[request.param][0]
    if os.geteuid() != 0 or shutil.which(program) is None:
        pytest.skip(f"NOT TESTED: the power of {request.param} can be cut only by root, with {program}")
    directory = quick_directory()
    disk = Disk(request.param, directory)
    yield disk
    disk.remove()
    shutil.rmtree(directory)


QUICK = {
    "a_first_send_data",
    "send_many",
    "success",
    "a_retry_later",
    "a_removal",
    "recovery",
    "promotion_and_success",
    "receive",
}

every_scenario = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.torture) for name in SCENARIOS]
)
durable_scenario = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.torture)
        for name, scenario in SCENARIOS.items()
        if scenario.durable
    ],
)
every_cut = pytest.mark.parametrize("how", CUTS)


def cuts(
    name: str, disk: Disk, how: str, elsewhere: Path, *, durable: bool
) -> Iterator[tuple[Place, Course, list[Any]]]:
    """Cut the power after each call of an operation that changed something, or flushed it."""
    scenario = SCENARIOS[name]
    course = undisturbed(scenario, Place.make(disk.mounted, elsewhere), durable=durable)
    flushed = {number + 1 for number, call in enumerate(course.calls, 1) if "sync" in call}
    for last in sorted(flushed | course.moments.keys()):
        place, facts = Place.make(disk.mounted, elsewhere), []

        def steps(tell: Tell, place: Place = place) -> Iterator[None]:
            operation = scenario.steps(place, opener(scenario, place, durable=durable), tell)
            next(operation)
            disk.flush()
            yield
            next(operation, None)

        def decide(number: int, call: str, last: int = last) -> Fate | None:
            if number < last:
                return None
            disk.cut(how)
            return DEATH

        calls = trap(steps, decide, lambda *fact, facts=facts: facts.append(fact))
        if len(calls) < last:
            disk.cut(how)
        disk.start()
        try:
            yield place, course, facts
        except BaseException as error:
            error.add_note(f"after {calls}, which had told {facts}")
            raise
        place.remove()


@every_cut
@durable_scenario
def test_what_a_durable_queue_has_told_is_on_the_disk(name: str, how: str, disk: Disk, tmp_path: Path) -> None:
    for place, course, facts in cuts(name, disk, how, tmp_path, durable=True):
        check_after_deaths(place, SCENARIOS[name], course, facts)


@every_cut
@every_scenario
def test_without_durable_only_what_was_new_may_be_damaged_and_each_job_is_in_one_state(
    name: str, how: str, disk: Disk, tmp_path: Path
) -> None:
    scenario = SCENARIOS[name]
    for place, course, _ in cuts(name, disk, how, tmp_path, durable=False):
        with Pacchettino(place.base, scenario.keep) as queue:
            queue.requeue(new_id())
        states = jobs_by_content(place)
        for job, content in CONTENT.items():
            if set(course.before(job)) & {*STATES}:
                assert states.pop(content, ()) in recovered(course.ways(job), scenario.keep), job
        handle_whatever_waits(place)


@every_cut
def test_a_durable_pause_and_its_end_outlast_a_power_cut(how: str, disk: Disk, tmp_path: Path) -> None:
    place = Place.make(disk.mounted, tmp_path)
    for change, is_paused in (("pause", True), ("resume", False)):
        with Peer(place.base, "durable=True") as program:
            program("import os; os.sync()")
            program(f"queue.{change}()")
            disk.cut(how)
            program.kill()
        disk.start()
        with Pacchettino(place.base) as queue:
            assert queue.paused is is_paused
    place.remove()


def handle_whatever_waits(place: Place) -> None:
    handled: list[str] = []
    with Pacchettino(place.base) as queue:
        queue.resume()
        queue.on_data_received(lambda id, data: handled.append(id))
        queue.on_file_received(lambda id, name, path: handled.append(id))
        assert queue.receive() == len(set(handled)) == len(handled)
        assert queue.count_queued() == queue.count_processing() == 0


def jobs_by_content(place: Place) -> dict[bytes, tuple[str, ...]]:
    """Find the jobs' files, and see that no job has two; what is in a new one may be anything."""
    found: dict[bytes, tuple[str, ...]] = {}
    ids = []
    for path, (kind, content) in everything(place.base).items():
        state, *_ = path.decode().split("/")
        if kind == "file" and state in STATES:
            found[content] = (*found.get(content, ()), state)
            ids += re.findall(ID, path)
    assert len(set(ids)) == len(ids)
    return found


# A batch that is flushed with its filesystem

BATCH = 8
WORTH_A_FLUSH = 64
"""How many KiB of others' writes are waited for rather than to flush one more file by itself."""

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def send_batch(
    disk: Disk, place: Place, unwritten: int, decide: Callable[[int, str], Fate | None]
) -> tuple[list[str], set[str]]:
    """Send a batch in a process that sees so many KiB unwritten, and give its calls and the jobs that it told of."""
    told: set[str] = set()

    def program(tell: Tell) -> Iterator[None]:
        assert libc.unshare(CLONE_NEWNS) == 0
        assert libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
        seen = place.elsewhere / "meminfo"
        seen.write_text(f"MemTotal: 8000000 kB\nDirty:     {unwritten - 1} kB\nWriteback: 1 kB\n")
        assert libc.mount(bytes(seen), b"/proc/meminfo", None, MS_BIND, None) == 0
        queue = Pacchettino(place.base, durable=True)
        queue.send_data("so that all is there that is made once", delay=3600)
        disk.flush()
        yield
        with suppress(OSError):
            tell(*queue.send_many([CONTENT["one"]] * BATCH))

    return trap(program, decide, lambda *ids: told.update(ids)), told


@every_cut
def test_a_batch_that_is_flushed_with_its_filesystem_is_whole_on_the_disk_before_it_is_jobs(
    how: str, disk: Disk, tmp_path: Path
) -> None:
    last, calls = 0, ["syncfs"]
    while last <= len(calls):
        place = Place.make(disk.mounted, tmp_path)
        flushed = False

        def decide(number: int, call: str, last: int = last) -> Fate | None:
            nonlocal flushed
            flushed |= call == "syncfs"
            if not last or number < last:
                return None
            disk.cut(how)
            return DEATH

        calls, told = send_batch(disk, place, BATCH * WORTH_A_FLUSH, decide)
        if not last:
            assert (calls.count("syncfs"), calls.count("fsync")) == (1, 1)
            last = calls.index("syncfs") + 2  # the first call that is not made after it
        else:
            last += 1
        if len(told) == BATCH:
            disk.cut(how)
        disk.start()
        found = dict(everything(place.base / "queued"))
        assert all(content == CONTENT["one"] for _, content in found.values()), (how, calls)
        assert {f"raw-{id}".encode() for id in told} <= found.keys()
        place.remove()


def test_a_batch_is_flushed_file_by_file_where_others_wrote_more_or_the_whole_can_not_be_flushed(
    disk: Disk, tmp_path: Path
) -> None:
    def flushes(
        unwritten: int, failing: Callable[[list[str], str], bool] = lambda before, call: False
    ) -> tuple[int, int, int]:
        before: list[str] = []

        def decide(number: int, call: str) -> Fate | None:
            fails = failing(before, call)
            before.append(call)
            return Fate(errno.EIO) if fails else None

        place = Place.make(disk.mounted, tmp_path)
        calls, told = send_batch(disk, place, unwritten, decide)
        assert {f"raw-{id}".encode() for id in told} == set(everything(place.base / "queued"))
        place.remove()
        return calls.count("syncfs"), calls.count("fsync"), len(told)

    assert flushes(BATCH * WORTH_A_FLUSH + 1) == (0, BATCH + 1, BATCH)
    assert flushes(1, lambda before, call: call == "syncfs") == (1, BATCH + 1, BATCH)
    assert flushes(1, lambda before, call: call in {"syncfs", "fsync"}) == (1, 1, 0)
    waits = lambda before, call: call == "sync_file_range" and before.count(call) >= BATCH  # noqa: E731
    assert flushes(1, waits) == (0, 0, 0)


THREADS = 8

Work = Callable[[Pacchettino, Callable[[str, str], None]], None]
"""What a thread does with a queue; it tells what it did to which jobs."""


def send(queue: Pacchettino, tell: Callable[[str, str], None]) -> None:
    while True:
        tell("queued", queue.send_data(CONTENT["one"]))
        for id in queue.send_many([CONTENT["one"]] * 5):
            tell("queued", id)


begun = threading.local()
"""The job that a thread handles. All threads have one handler, that of the last one that set it."""


def receive(queue: Pacchettino, tell: Callable[[str, str], None]) -> None:
    def handler(id: str, data: bytes) -> None:
        begun.job = id
        tell("begun", id)

    queue.on_data_received(handler)
    while queue.receive_one():
        tell("success", begun.job)


def receive_in_passes(queue: Pacchettino, tell: Callable[[str, str], None]) -> None:
    """Tell of a job that it is settled as soon as the pass is at the next one."""
    before = threading.local()

    def handler(id: str, data: bytes) -> None:
        if last := getattr(before, "job", None):
            tell("success", last)
        before.job = id
        tell("begun", id)

    queue.on_data_received(handler)
    queue.receive()


def told_by_threads(work: Work, disk: Disk, how: str, base: Path, moment: float) -> list[list[str]]:
    """Have a process work in many threads until the power is cut, and give what they had told by then."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            queue = Pacchettino(base, durable=True)

            def tell(what: str, id: str) -> None:
                os.write(writer, f"{what} {id}\n".encode())

            def run() -> None:
                try:
                    work(queue, tell)
                except OSError:
                    pass  # from the cut on
                except BaseException as error:
                    tell("broken", type(error).__name__)

            threads = [threading.Thread(target=run, daemon=True) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        os._exit(0)
    os.close(writer)
    told = b""
    try:
        assert select.select([reader], [], [], PATIENCE)[0], "the threads hang"
        end = time.monotonic() + moment
        while (left := end - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                told += os.read(reader, 1 << 16)
        # What comes from now on does not count: after this cut, unlike after a real one, the process lives on, and the
        # `fsync` of a directory of xfs says success, since it finds nothing left to be written.
        disk.cut(how)
        os.kill(pid, signal.SIGKILL)
    finally:
        os.waitpid(pid, 0)
        os.close(reader)
    return [line.decode().split() for line in told.splitlines(keepends=True) if line.endswith(b"\n")]


@every_cut
@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.torture)])
@pytest.mark.parametrize("work", [send, receive, receive_in_passes], ids=lambda work: work.__name__)
def test_what_many_threads_of_a_durable_queue_have_told_is_on_the_disk(
    work: Work, times: int, how: str, disk: Disk, tmp_path: Path
) -> None:
    chance = random.Random(times)
    for _ in range(times):
        place = Place.make(disk.mounted, tmp_path)
        with Pacchettino(place.base) as queue:
            sent = set() if work is send else set(queue.send_many([CONTENT["one"]] * 1000))
        disk.flush()
        told = told_by_threads(work, disk, how, place.base, chance.random() * 0.2)
        disk.start()
        consumer_looks(place, KeepPolicy.ALL)
        found: dict[str, str] = {}
        for path, (kind, content) in everything(place.base).items():
            state, *_ = path.decode().split("/")
            if kind == "file" and state in STATES:
                assert content == CONTENT["one"]
                (id,) = re.findall(ID, path)
                assert id.decode() not in found, "a job in two states"
                found[id.decode()] = state
        assert sent <= found.keys()
        for what, id in told:
            assert what != "broken", f"{id} in a thread"
            assert found[id] in {"success", "interrupted"} if what == "begun" else found[id] == what, (what, id)
        place.remove()


DAMAGED = {"empty": b"", "zeroes": bytes(4096), "cut off": b"one one o"}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_job_s_file_that_a_power_cut_damaged_is_handed_over_as_it_is(queue_dir: Path, content: bytes) -> None:
    lay_down(queue_dir, {b"queued/raw-%b" % new_id().encode(): content})
    lay_down(queue_dir, {b"queued/fle-%b-name" % new_id().encode(): content})
    with Pacchettino(queue_dir) as queue:
        handled: list[bytes] = []
        queue.on_data_received(lambda id, data: handled.append(data))
        queue.on_file_received(lambda id, name, path: handled.append(path.read_bytes()))
        assert queue.receive() == 2
        assert handled == [content, content]
        assert queue.count_successful() == 2
