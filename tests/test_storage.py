"""Full and failing storage: what each operation does while a condition lasts, and after it.

A condition is one entry of `CONDITIONS`; all tests go over all of them. The queue is used by another process, which
file modes bind even where it is root's; the test looks on from outside.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from helpers import DIRECTORIES, Peer, claims, cpu_seconds, entries, everything, new_id, sleeps_on_the_watch, until
from pacchettino import Pacchettino, SendError, Status

# The storage that there is. Each gives a directory, below which the queue is made.

Storage: TypeAlias = Callable[[Path], AbstractContextManager[None]]


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


def run_or_skip(*command: str | Path) -> None:
    try:
        run(*command)
    except FileNotFoundError:
        pytest.skip(f"NOT TESTED: there is no {command[0]}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"NOT TESTED: {' '.join(map(str, command))}: {error.stderr.decode().strip()}")


@contextmanager
def the_tests_own(place: Path) -> Iterator[None]:
    yield


@contextmanager
def mounted(place: Path, *arguments: str | Path) -> Iterator[None]:
    run_or_skip("mount", *arguments, place)
    try:
        yield
    finally:
        if place.is_mount():
            run("umount", "--lazy", place)  # a process of the test may have it open


def tmpfs(options: str) -> Storage:
    return lambda place: mounted(place, "-t", "tmpfs", "-o", options, "tmpfs")


def image(size: int, *make: str) -> Storage:
    """Make a filesystem of so many bytes in a file and mount that."""

    @contextmanager
    def storage(place: Path) -> Iterator[None]:
        with tempfile.NamedTemporaryFile(prefix="pacchettino-test-", dir=place.parent) as file:
            file.truncate(size)
            run_or_skip(*make, file.name)
            with mounted(place, "-o", "loop", file.name):
                yield

    return storage


# Of a small block, and without an index, so that a directory takes names until its block is full. Nothing is root's.
MAKE_EXT4 = ("mkfs.ext4", "-q", "-b", "1024", "-m", "0", "-O", "^dir_index")
ext4 = image(4 << 20, *MAKE_EXT4)


@contextmanager
def btrfs_with_quota(place: Path) -> Iterator[None]:
    """btrfs, where quotas are its own: the kernel needs no support for them beside."""
    with image(120 << 20, "mkfs.btrfs", "-q")(place):
        run("btrfs", "quota", "enable", place)
        run("btrfs", "subvolume", "create", place / "home")
        yield


# What happens to it


def fill_blocks(base: Path) -> None:
    """Use up all blocks, by a file beside the queue."""
    ballast = os.open(base.parent / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 16, 1 << 10, 1 << 10):
        with suppress(OSError):
            while True:
                os.write(ballast, bytes(size))
        os.fsync(ballast)  # only now does the disk know how much it took
    os.close(ballast)


def empty_blocks(base: Path) -> None:
    (base.parent / "ballast").unlink()


def fill_directories(base: Path) -> None:
    """Use up all blocks, and then the room that the directories have left in theirs."""
    fill_blocks(base)
    for directory in ("queued", "success", "failed", "interrupted"):
        with suppress(OSError):
            while True:
                (base / directory / f"fle-{new_id()}-a").touch()
    with suppress(OSError):
        while True:
            (base / "scheduled" / f"9000000000000-fle-{new_id()}-a").touch()


def fill_inodes(base: Path) -> None:
    (base.parent / "ballast").mkdir()
    with suppress(OSError):
        for number in range(1 << 20):
            (base.parent / f"ballast/{number}").touch()


def empty_inodes(base: Path) -> None:
    shutil.rmtree(base.parent / "ballast")


def limit(base: Path) -> None:
    run("btrfs", "qgroup", "limit", "16k", base.parent)


def lift_limit(base: Path) -> None:
    # Of the subvolume, by its number: through its own directory that is a change which its quota refuses.
    run("btrfs", "qgroup", "limit", "none", "0/256", base.parent.parent)


def remount(*options: str) -> Callable[[Path], None]:
    return lambda base: run("mount", "-o", f"remount,{','.join(options)}", base.parent)


def chmod(directory: str, mode: int) -> Callable[[Path], None]:
    return lambda base: (base / directory).chmod(mode)


def aside(base: Path) -> Path:
    return base.with_name("aside")


def move_away(base: Path) -> None:
    base.rename(aside(base))


def move_back(base: Path) -> None:
    aside(base).rename(base)


def delete(base: Path) -> None:
    shutil.rmtree(base)


def delete_one(directory: str) -> Callable[[Path], None]:
    return lambda base: shutil.rmtree(base / directory)


def make(base: Path) -> None:
    Pacchettino(base).close()


def nothing(base: Path) -> None:
    pass


def replace_by_dangling_link(base: Path) -> None:
    move_away(base)
    base.symlink_to("nowhere")


def put_back(base: Path) -> None:
    base.unlink()
    move_back(base)


def replace_by_link_to_another(base: Path) -> None:
    move_away(base)
    make(base.with_name("another"))
    base.symlink_to("another")


def unmount(base: Path) -> None:
    """Take the filesystem away under the queue, as far as paths lead."""
    device = subprocess.check_output(["findmnt", "-n", "-o", "SOURCE", base.parent], text=True).strip()
    base.parent.with_name("device").symlink_to(device)
    run("umount", "--lazy", base.parent)


def mount_again(base: Path) -> None:
    run("mount", base.parent.with_name("device"), base.parent)


# The table

STATES = frozenset({"queued", "scheduled", "success", "failed", "interrupted"})
DELETED = frozenset({""})
"""Where a verdict leads that keeps nothing."""


@dataclass(frozen=True)
class Condition:
    """One way for storage to fail. What it refuses is its `error`; what it does not refuse works."""

    storage: Storage
    begin: Callable[[Path], None]
    end: Callable[[Path], None]
    error: int = 0
    sends: frozenset[str] = frozenset()
    """The ways of sending that are refused."""
    claims: bool = False
    """Whether claims are refused."""
    looks: bool = False
    """Whether it is refused to look for more where no job can be claimed."""
    verdicts: frozenset[str] = frozenset()
    """Where no verdict can lead."""
    deletes: frozenset[str] = frozenset()
    """Which directories are replaced by others, and their jobs gone."""


WRITTEN = frozenset({"data", "many", "copy", "across"})
MOVED = frozenset({"move"})
DELAYED = frozenset({"delayed"})
NONE: frozenset[str] = frozenset()
ALL = frozenset(DIRECTORIES)
ALL_SENDS = WRITTEN | MOVED | DELAYED

CONDITIONS = {
    "tmpfs without blocks": Condition(
        tmpfs("size=1m"), fill_blocks, empty_blocks, errno.ENOSPC, sends=WRITTEN | DELAYED
    ),
    "tmpfs without inodes": Condition(
        tmpfs("nr_inodes=150"), fill_inodes, empty_inodes, errno.ENOSPC, sends=WRITTEN | DELAYED, claims=True
    ),
    "ext4 without blocks": Condition(
        ext4, fill_directories, empty_blocks, errno.ENOSPC, sends=ALL_SENDS, claims=True, verdicts=STATES
    ),
    "ext4 without inodes": Condition(
        ext4, fill_inodes, empty_inodes, errno.ENOSPC, sends=WRITTEN | DELAYED, claims=True
    ),
    "a quota": Condition(
        btrfs_with_quota, limit, lift_limit, errno.EDQUOT, sends=ALL_SENDS, claims=True, verdicts=STATES
    ),
    **{
        f"{name} read-only": Condition(
            storage,
            remount("ro"),
            remount("rw"),
            errno.EROFS,
            sends=ALL_SENDS,
            claims=True,
            verdicts=STATES | DELETED,
        )
        for name, storage in {"tmpfs": tmpfs("size=1m"), "ext4": ext4}.items()
    },
    "the queue closed": Condition(
        the_tests_own, chmod(".", 0), chmod(".", 0o755), errno.EACCES, sends=ALL_SENDS, claims=True, looks=True
    ),
    **{
        f"{directory} {how}": Condition(
            the_tests_own, chmod(directory, mode), chmod(directory, 0o755), errno.EACCES, *refused
        )
        for how, mode in {"read-only": 0o555, "closed": 0}.items()
        for directory, refused in {
            "queued": (WRITTEN | MOVED, True, mode == 0, frozenset({"queued"})),
            "scheduled": (DELAYED, False, mode == 0, frozenset({"scheduled"})),
            "processing": (NONE, True, mode == 0, STATES | DELETED),
            "success": (NONE, False, False, frozenset({"success"})),
            "failed": (NONE, False, False, frozenset({"failed"})),
            "interrupted": (NONE, False, False, frozenset({"interrupted"})),
            "tmp": (WRITTEN | DELAYED, False, mode == 0),
            "owners": (NONE, False, mode == 0),
        }.items()
    },
    "the queue deleted": Condition(
        the_tests_own, delete, make, errno.ENOENT, sends=ALL_SENDS, claims=True, looks=True, deletes=ALL
    ),
    "the queue renamed": Condition(
        the_tests_own, move_away, move_back, errno.ENOENT, sends=ALL_SENDS, claims=True, looks=True
    ),
    "the queue renamed and made anew": Condition(
        the_tests_own, move_away, make, errno.ENOENT, sends=ALL_SENDS, claims=True, looks=True, deletes=ALL
    ),
    "a dangling link": Condition(
        the_tests_own, replace_by_dangling_link, put_back, errno.ENOENT, sends=ALL_SENDS, claims=True, looks=True
    ),
    "the filesystem unmounted": Condition(
        ext4, unmount, mount_again, errno.ENOENT, sends=ALL_SENDS, claims=True, looks=True
    ),
    "a link to another queue": Condition(the_tests_own, replace_by_link_to_another, nothing, deletes=ALL),
    **{
        f"{directory} deleted": Condition(
            the_tests_own,
            delete_one(directory),
            nothing,
            errno.ENOENT,
            verdicts=STATES & {directory},
            deletes=frozenset({directory}),
        )
        for directory in DIRECTORIES
    },
}


class Scene:
    """A condition in a place of its own, and another process that uses the queue there."""

    SETUP = """
        import logging

        signal.signal(signal.SIGTERM, lambda *_: queue.close())

        bind_by_modes()
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("pacchettino").addHandler(handler)
        handled = []
        queue.on_data_received(lambda id, data: handled.append(id))

        def refusal(act):
            try:
                act()
            except OSError as error:
                return error

        # It has its lock file then: to take one can be refused as well.
        queue.send_data("first")
        queue.receive_one()
    """

    def __init__(self, name: str, directory: Path, stack: ExitStack) -> None:
        self.name = name
        self.condition = CONDITIONS[name]
        self.place = directory / name / "place"
        self.place.mkdir(parents=True)
        stack.enter_context(self.condition.storage(self.place))
        home = self.place / "home"
        self.base = (home if home.exists() else self.place) / "queue"
        self.peer = stack.enter_context(Peer(self.base))
        self.peer(self.SETUP)
        (self.first,) = self.peer("handled")

    def begin(self) -> None:
        self.condition.begin(self.base)

    def end(self) -> None:
        self.condition.end(self.base)

    def attempt(self, code: str, *sources: Path) -> OSError | None:
        """Let the process try something that may be refused; check what with."""
        error = self.peer(f"refusal(lambda: {code})")
        if error is not None:
            assert not isinstance(error, SendError), (self.name, code)
            assert error.errno == self.condition.error, (self.name, code, error)
            named = Path(error.filename)
            assert named.is_relative_to(self.base) or named in sources, (self.name, code, named)
            assert os.strerror(error.errno) in str(error)
        return error

    def lay_down_jobs(self) -> dict[str, str]:
        """Let jobs wait, some be due, and some be left by a dead consumer; tell where those that stay will end."""
        deleted = self.condition.deletes
        ends = dict.fromkeys(
            self.peer(f"queue.send_many(['work'] * {JOBS})") if "queued" not in deleted else [], "success"
        )
        for number in range(3):
            due, dead = new_id(), new_id()
            if "scheduled" not in deleted:
                (self.base / f"scheduled/000000000000{number}-raw-{due}").write_text("due")
                ends[due] = "success"
            # Where it can be put right, its directory goes, and there is room for a claim.
            if "processing" not in deleted and (not self.condition.claims or "interrupted" in self.condition.verdicts):
                directory = self.base / f"processing/raw-{dead}.{'a' * 10}"
                directory.mkdir()
                (directory / "raw").write_text("left")
                ends[dead] = "interrupted"
        return ends

    def has_all(self, jobs: dict[str, str], base: Path | None = None) -> bool:
        """Whether all have come there; in `scheduled/` the due time is before a job's name."""
        return all(list(((base or self.base) / state).glob(f"*raw-{id}")) for id, state in jobs.items())

    def lines(self, *, with_jobs: bool) -> int:
        """Give the number of lines that a consumer logs that waits: one, and one for each verdict not taken."""
        condition = self.condition
        if not with_jobs:
            return int(condition.looks)
        if not condition.claims and "success" in condition.verdicts:
            return 9
        refuses = condition.claims or condition.looks or condition.verdicts & {"queued", "scheduled", "interrupted"}
        # Two directories are met: jobs can be neither taken from `queued/` nor put there; `processing/` can neither be
        # listed nor take a name.
        twice = self.name in ("queued read-only", "queued closed", "processing closed")
        return 2 if twice else int(bool(refuses))

    def data_jobs(self, base: Path | None = None) -> dict[str, str]:
        """Give the state of each data job; each has one."""
        states: dict[str, str] = {}
        for path, (kind, _) in everything(base or self.base).items():
            state, *rest = os.fsdecode(path).split("/")
            if kind == "file" and "raw" in rest[0] and state not in ("tmp", "history"):
                id = rest[0].split(".")[0].partition("raw-")[2]
                assert id not in states, (self.name, id, state, states[id])
                states[id] = state
        return states


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


EXEMPLARY = {
    *[name for name, condition in CONDITIONS.items() if condition.storage is not the_tests_own],
    "the queue closed",
    "queued read-only",
    "success read-only",
    "the queue deleted",
    "the queue renamed",
    "a link to another queue",
    "owners deleted",
}
"""Those that are tried in all ways for every change."""


@pytest.fixture(
    params=[name if name in EXEMPLARY else pytest.param(name, marks=pytest.mark.torture) for name in CONDITIONS]
)
def scene(request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack) -> Scene:
    return Scene(request.param, tmp_path, stack)


SENDS = {
    "data": 'queue.send_data("work")',
    "delayed": 'queue.send_data("work", delay=3600)',
    "many": 'queue.send_many(["work"] * 3)',
    "copy": "queue.send_file(elsewhere)",
    "across": "queue.send_file(elsewhere, copy=False)",
    "move": "queue.send_file(beside, copy=False)",
}


def test_a_send_is_refused_with_the_right_error_and_leaves_nothing_or_is_done(scene: Scene, quick_dir: Path) -> None:
    elsewhere, beside = quick_dir / "file", scene.base.with_name("file")
    beside.write_text("file")
    scene.peer(f"elsewhere, beside = {str(elsewhere)!r}, {str(beside)!r}")
    scene.begin()
    for way, code in SENDS.items():
        elsewhere.write_text("file")
        before = everything(scene.place), elsewhere.exists()
        refused = scene.attempt(code, elsewhere, beside) is not None
        assert refused == (way in scene.condition.sends), way
        assert (everything(scene.place), elsewhere.exists()) == before or not refused, way
    scene.end()
    for code in SENDS.values():
        elsewhere.write_text("file")
        beside.write_text("file")
        assert scene.attempt(code) is None
    assert entries(scene.base / "tmp") == []


MOST = 0.05
"""The part of a core that a process may use which waits. It uses up to two hundredths."""

JOBS = 40

WORK = """
    while queue.receive_one(timeout=None):
        pass
"""


@pytest.mark.parametrize("beside", ["nothing", "jobs"])
def test_who_waits_says_so_once_does_not_spin_and_goes_on_when_it_ends(
    beside: str, tmp_path: Path, stack: ExitStack
) -> None:
    # All at the same time, or it would take a minute.
    scenes = [Scene(name, tmp_path, stack) for name in CONDITIONS]
    ends: dict[str, dict[str, str]] = {}
    for scene in scenes:
        ends[scene.name] = scene.lay_down_jobs() if beside == "jobs" else {}
        if beside == "nothing":
            scene.peer.begin(WORK)
            until(partial(sleeps_on_the_watch, scene.peer))
        scene.begin()
        if beside == "jobs":
            scene.peer.begin(WORK)
    before = [(time.monotonic(), cpu_seconds(scene.peer.pid)) for scene in scenes]
    time.sleep(2)  # the time that is measured
    for scene, (then, used) in zip(scenes, before, strict=True):
        assert cpu_seconds(scene.peer.pid) - used < MOST * (time.monotonic() - then), scene.name
    for scene in scenes:
        scene.end()
        with Pacchettino(scene.base) as queue:
            ends[scene.name][queue.send_data("last")] = "success"
    for scene in scenes:
        jobs = ends[scene.name]
        until(partial(scene.has_all, jobs))
        os.kill(scene.peer.pid, signal.SIGTERM)
        scene.peer.end()
        found = scene.data_jobs()
        found.pop(scene.first, None)
        assert found == jobs, scene.name
        told = [line for line in scene.peer("lines") if not re.search("was interrupted|inotify", line)]
        beyond_records = [line for line in told if "not in its history" not in line]
        if scene.condition.deletes and not scene.condition.looks:
            assert len(told) <= 9, (scene.name, told)  # that it was deleted is noticed within a second
        else:
            # A disk's trouble is told once, by the record that it does not take where that comes first.
            lines = scene.lines(with_jobs=beside == "jobs")
            assert lines in (len(told), len(beyond_records)), (scene.name, told)
            assert len(told) <= lines + 1, (scene.name, told)


VERDICTS = {
    "success": "job.succeed()",
    "failed": "job.fail()",
    "queued": "job.retry(0)",
    "scheduled": "job.retry(3600)",
    "interrupted": "interrupt(job)",
    "": "job.succeed()",
}
"""How a job comes to each directory; or to none, where the policy keeps none."""


def test_a_verdict_given_meanwhile_is_taken_or_kept_and_done_when_it_ends(scene: Scene) -> None:
    scene.peer("""
        def interrupt(job):
            try:
                with job:
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass

        forgetful = Pacchettino(queue.base_dir, KeepPolicy.NONE)
    """)
    held = {}
    for target in VERDICTS:
        held[target] = scene.peer("queue.send_data('work')")
        scene.peer(
            f"held = globals().get('held', {{}}); held[{target!r}] = {'queue' if target else 'forgetful'}.claim()"
        )
    condition = scene.condition
    scene.begin()
    for target, code in VERDICTS.items():
        id = held[target]
        scene.peer(f"job = held[{target!r}]")
        refused = scene.attempt(code)
        if target == "interrupted":  # the exception that interrupts it goes on; that it could not be settled is logged
            refused = any(id in line and "could not be settled" in line for line in scene.peer("lines")) or None
        assert (refused is not None) == (target in condition.verdicts), (target, refused)
        if refused and "processing" not in scene.name:
            assert scene.data_jobs()[id] == "processing", target
        with pytest.raises(RuntimeError):
            scene.peer("job.succeed()")
    # Who has given its verdicts goes on with its loop.
    scene.peer.begin("""
        while (job := queue.claim(timeout=None, kind="file")).name != "last":
            refusal(job.succeed)  # what was deleted made room for a claim, perhaps, but for no more
        job.succeed()
    """)
    scene.end()
    old = aside(scene.base) if aside(scene.base).exists() else scene.base
    ends = {id: target for target, id in held.items() if target}
    if "processing" in condition.deletes and old == scene.base:
        ends = {}
    until(lambda: all((old / directory).is_dir() for directory in DIRECTORIES))
    until(lambda: scene.has_all(ends, old) and claims(old) == [])
    file = scene.base.with_name("last")
    file.touch()
    with Pacchettino(scene.base) as queue:
        queue.send_file(file)
    scene.peer.end()
    # One state each, and what was to be deleted is nowhere.
    assert {id: state for id, state in scene.data_jobs(old).items() if id in held.values()} == ends


LOOKS = [
    *["queue.receive_one()"] * 3,
    "queue.receive()",
    "queue.claim()",
    "queue.status(first)",
    "queue.count_all()",
    *[f"list(queue.jobs(Status.{status.name}))" for status in Status if status is not Status.UNKNOWN],
    "queue.requeue(first)",
    "queue.requeue_all(KeepPolicy.ALL)",
    "Pacchettino(queue.base_dir).close()",
    "queue.cleanup(older_than=3600)",
]


def test_what_looks_at_once_does_its_work_or_raises_the_right_error_each_time_and_changes_nothing(scene: Scene) -> None:
    scene.peer(f"first = {scene.first!r}")
    sent = {scene.first, *scene.peer("queue.send_many(['work'] * 9)")}
    scene.begin()
    for code in LOOKS:
        if "Pacchettino" in code and scene.condition.error == errno.ENOENT:
            continue  # that makes the queue anew
        before = everything(scene.place)
        refused = scene.attempt(code)
        assert refused is None or everything(scene.place) == before or "success" in scene.condition.verdicts, code
        if "receive_one" in code:
            assert (refused is not None) == scene.condition.claims, code
    scene.end()
    scene.peer("queue.receive()")
    if not scene.condition.deletes:
        assert set(scene.data_jobs()) == sent
        assert scene.peer("queue.requeue_all(KeepPolicy.ALL) >= 10 and queue.receive()") == 10
        assert scene.peer("queue.cleanup()") == 10


@pytest.mark.parametrize("scene", ["ext4 without blocks"], indirect=True)
def test_send_many_names_those_that_are_sent_when_the_directory_can_take_no_more(scene: Scene) -> None:
    scene.begin()
    for name in entries(scene.base / "queued")[:3]:
        (scene.base / "queued" / os.fsdecode(name)).unlink()
    # Nothing is in them: they need a name in the directory, and no block of their own.
    error = scene.peer("refusal(lambda: queue.send_many([''] * 5))")
    assert isinstance(error, SendError)
    assert (error.errno, len(error.sent)) == (errno.ENOSPC, 3)
    assert "3 job(s) had been sent" in str(error)
    assert scene.data_jobs() == {scene.first: "success", **dict.fromkeys(error.sent, "queued")}
    assert entries(scene.base / "tmp") == []


@pytest.mark.xfail(strict=True, reason="a claim needs a directory of its own, and there is no room for the first one")
def test_a_queue_that_fills_its_storage_by_itself_can_be_worked_off(small_filesystem: Path) -> None:
    run("mount", "-o", "remount,nr_inodes=60", small_filesystem)
    with Peer(small_filesystem / "queue") as sender, pytest.raises(OSError, match="space"):
        sender("while True: queue.send_data('work')")
    with Pacchettino(small_filesystem / "queue") as queue:
        queue.on_data_received(lambda id, data: None)
        assert queue.receive() == queue.count_successful() > 30
