"""`pacchettino check`: what is not as it should be is told, a queue at work is not, what is certain is repaired.

Most of it runs in this process, where the looks are closer together.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from helpers import Clock, Peer, call_main, claims, dead_pid, everything, files, lay_down, lock_file, new_id, until
from pacchettino import KeepPolicy, Pacchettino, _core
from pacchettino._command import check as looking
from test_odd_entries import ODD, outside

__all__ = ["outside"]

NOBODY = 65534
LONG_AGO = 1_600_000_000
LATER = "9000000000000"

CLOCK_NANOSLEEP = {"230", "115"}
"""As x86_64 and aarch64 number it."""

Found = set[tuple[str, str]]


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the looks of this process close together."""
    monkeypatch.setattr(looking, "SECOND_LOOK", 0.01)
    monkeypatch.setattr(looking, "APART", 0.02)


@pytest.fixture
def queue_dir(quick_dir: Path) -> Path:
    """What is looked at does not depend on the disk."""
    return quick_dir / "queue"


def run(base: Path, *options: str, under: tuple[str, ...] = (), clock: Clock | None = None) -> tuple[int, str, str]:
    """Run the command; give its exit status and what it printed. For another user and another time it is a process."""
    if not under and clock is None:
        status, printed, said = call_main("check", base, *options)
        return status, printed.decode(), said.decode()
    command = [*under, sys.executable, "-W", "error", "-m", "pacchettino", "check", str(base), *options]
    environment = {**os.environ, **(clock.environment if clock else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    return done.returncode, done.stdout, done.stderr


def check(
    base: Path, *options: str, under: tuple[str, ...] = (), clock: Clock | None = None
) -> tuple[int, Found, Found]:
    """Give the exit status, what was found and is left, and what was repaired, by kind and by path below the queue."""
    status, output, errors = run(base, *options, "--json", under=under, clock=clock)
    assert errors == ""
    told = [json.loads(line) for line in output.splitlines()]
    assert all(finding["what"] and finding["advice"] for finding in told)
    rows = [(finding["fault"], os.path.relpath(finding["path"], base), finding["repaired"]) for finding in told]
    assert len(set(rows)) == len(rows)
    return status, {row[:2] for row in rows if not row[2]}, {row[:2] for row in rows if row[2]}


class Disorder:
    """A queue with all that is not as it should be, and with what looks odd and is as it should be."""

    def __init__(self, base: Path) -> None:
        self.base = base
        lay_down(base, {})
        (base / "history").mkdir()
        self.wrong: Found = set()
        """What is left to a person."""
        self.certain: Found = set()
        """What can be repaired."""
        self.lock = lock_file(base / "owners" / "alive00000")
        self._what_is_right()
        self._what_is_wrong()
        self._what_is_certain()

    def _file(self, path: str, *, old: bool = False) -> str:
        file = self.base / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(path.encode())
        if old:
            os.utime(file, (LONG_AGO, LONG_AGO))
        return path

    def _directory(self, path: str, *, old: bool = False) -> str:
        (self.base / path).mkdir()
        if old:
            os.utime(self.base / path, (LONG_AGO, LONG_AGO))
        return path

    def _what_is_right(self) -> None:
        for state in ("queued", "success", "failed", "interrupted"):
            self._file(f"{state}/raw-{new_id()}")
            self._file(f"{state}/fle-{new_id()}-notes.txt")
        self._file(f"scheduled/{LATER}-raw-{new_id()}")
        self._file(f"processing/raw-{new_id()}.alive00000/raw")
        # Another process: this one would know that it has no such claim.
        self._file(f"processing/fle-{new_id()}-a.b.{os.getppid()}/a.b")
        self._directory(f"processing/raw-{new_id()}.alive00000")  # its job is just coming, or just gone
        self._directory("processing/spare-alive00000-1", old=True)
        self._file(f"tmp/{new_id()}-alive00000", old=True)
        self._file(f"tmp/{new_id()}-{dead_pid()}")  # perhaps of another container
        self._file("tmp/owner-gone000009")
        self._file(f"tmp/{new_id()}")
        held = f"raw-{new_id()}"
        self._file(f"processing/{held}.alive00000/raw")
        self._file(f"history/{held}/1")
        self._file("notes beside the directories")

    def _what_is_wrong(self) -> None:
        copied, held = f"raw-{new_id()}", f"raw-{new_id()}.alive00000"
        found = {
            "stranger": [
                f"{place}/notes\x1b[2J.txt" for place in ("queued", "success", "processing", "tmp", "history")
            ],
            "almost-job": [
                "queued/raw-notauuid",
                f"queued/RAW-{new_id()}",
                f"scheduled/raw-{new_id()}",
                f"failed/{LATER}-raw-{new_id()}",
                f"interrupted/fle-{new_id()}",
            ],
            "no-file": [f"processing/raw-{new_id()}.alive00000", f"history/raw-{new_id()}"],
            "twice": [f"failed/{copied}", f"queued/{copied}"],
            "future": [f"queued/raw-{new_id(time.time_ns() // 1_000_000 + 3_600_000)}"],
            "unknown-owner": ["owners/notes.txt"],
        }
        for fault, paths in found.items():
            self.wrong |= {(fault, self._file(path)) for path in paths}
        self.wrong |= {
            ("no-file", self._directory(f"success/raw-{new_id()}")),
            ("no-file", self._directory("owners/directory0")),
            ("no-file", self._directory(f"tmp/{new_id()}-alive00000")),
            ("leftover", self._directory(f"processing/raw-{new_id()}.left-12")),
            ("unknown-owner", self._directory(f"processing/raw-{new_id()}.left-x")),
            ("unknown-owner", self._directory(f"processing/raw-{new_id()}.Gone")),
            ("empty-claim", self._directory(f"processing/raw-{new_id()}.alive00000", old=True)),
            ("forgotten", self._file(f"tmp/{new_id()}", old=True)),
            ("crowded-claim", f"processing/{held}"),
            ("stranger", "processing/spare-gone000004-2"),
            ("paused", self._file("paused")),
        }
        self._file(f"processing/{held}/raw")
        self._file(f"processing/{held}/notes.txt")
        self._file("processing/spare-gone000004-2/notes.txt")

    def _what_is_certain(self) -> None:
        self.held, self.crowded = f"raw-{new_id()}", f"fle-{new_id()}-a.b"
        crowded = f"processing/{self.crowded}.gone000000"
        for path in (f"processing/{self.held}.gone000000/raw", f"{crowded}/a.b", f"{crowded}/notes.txt"):
            self._file(path)
        self._file(f"history/{self.held}/1")
        gone = f"history/raw-{new_id()}"
        self._file(f"{gone}/1.settled")
        self.wrong.add(("crowded-claim", crowded))
        self.certain = {
            ("orphan", f"processing/{self.held}.gone000000"),
            ("orphan", crowded),
            ("orphan", self._directory(f"processing/raw-{new_id()}.{dead_pid()}")),
            ("abandoned", self._file(f"tmp/{new_id()}-gone000000")),
            ("abandoned", self._file(f"tmp/{new_id()}-{dead_pid()}", old=True)),
            ("abandoned", self._file("tmp/owner-gone000001", old=True)),
            ("abandoned", self._file("owners/gone000002")),
            ("abandoned", self._directory("processing/spare-gone000003-7")),
            ("history", gone),
        }


@pytest.fixture
def disorder(queue_dir: Path) -> Iterator[Disorder]:
    disorder = Disorder(queue_dir)
    yield disorder
    disorder.lock.close()


# Findings


def test_of_a_queue_in_order_nothing_is_told(queue: Pacchettino) -> None:
    queue.send_many(["a"] * 20)
    queue.send_file(__file__, delay=1000)
    for settle in ("succeed", "fail", "retry"):
        job = queue.claim()
        assert job is not None
        getattr(job, settle)()
    held = queue.claim()
    assert held is not None
    before = everything(queue.base_dir)
    assert run(queue.base_dir) == (0, "nothing is wrong; 21 jobs looked at\n", "")
    assert run(queue.base_dir, "--json") == (0, "", "")
    assert everything(queue.base_dir) == before
    held.succeed()


def test_each_thing_that_is_not_as_it_should_be_is_told_and_left_as_it_is(disorder: Disorder) -> None:
    before = everything(disorder.base)
    status, found, repaired = check(disorder.base)
    assert status == 1
    assert found == disorder.wrong | disorder.certain
    assert repaired == set()
    assert everything(disorder.base) == before


def test_people_are_told_what_to_do_about_it(disorder: Disorder) -> None:
    status, output, errors = run(disorder.base)
    assert (status, errors) == (1, "")
    *lines, summary = output.splitlines()
    notes = sum(fault in ("paused", "history") for fault, _ in disorder.wrong | disorder.certain)
    count = len(disorder.wrong | disorder.certain) - notes
    assert summary == f"{count} findings, --repair mends {len(disorder.certain)}; 18 jobs looked at"
    assert output.isascii()
    assert output.replace("\n", "").isprintable()
    headings = [line.partition(": ") for line in lines if not line.startswith("  ")]
    assert {fault for fault, *_ in headings} == {fault for fault, _ in disorder.wrong | disorder.certain}
    assert all(advice for *_, advice in headings)
    told = {line.partition(": ")[0].strip() for line in lines if line.startswith("  ")}
    assert told == {path.replace("\x1b", r"\x1b") for _, path in disorder.wrong | disorder.certain}


def test_repair_does_what_is_certain_and_nothing_else(disorder: Disorder) -> None:
    before = everything(disorder.base)
    status, found, repaired = check(disorder.base, "--repair")
    assert status == 1
    claim, aside = (f"processing/{disorder.crowded}.{suffix}" for suffix in ("gone000000", "left-1"))
    assert found == disorder.wrong - {("crowded-claim", claim)} | {("leftover", aside)}
    assert repaired == disorder.certain
    after = everything(disorder.base)
    held, crowded = (f"interrupted/{job}".encode() for job in (disorder.held, disorder.crowded))
    record = f"history/{disorder.held}/2.settled".encode()
    # Of the crowded claim only the job is taken, and what happened to both is recorded. The rest is set aside.
    new = {
        aside.encode(),
        f"{aside}/notes.txt".encode(),
        held,
        crowded,
        record,
        f"history/{disorder.crowded}".encode(),
        f"history/{disorder.crowded}/1.settled".encode(),
    }
    assert set(after) - set(before) == new
    assert after[held][1] == f"processing/{disorder.held}.gone000000/raw".encode()
    assert after[crowded][1] == f"processing/{disorder.crowded}.gone000000/a.b".encode()
    gone = {path for path in before if path not in after}
    repaired_paths = {path.encode() for _, path in disorder.certain}
    assert {
        path for path in gone if path not in repaired_paths and path.rpartition(b"/")[0] not in repaired_paths
    } == set()
    assert gone >= repaired_paths
    assert after[f"{aside}/notes.txt".encode()] == before[f"{claim}/notes.txt".encode()]
    assert {path: after[path] for path in set(before) & set(after)} == {path: before[path] for path in set(after) - new}


def test_a_queue_with_nothing_but_notes_is_in_order(queue: Pacchettino) -> None:
    queue.pause()
    assert check(queue.base_dir) == (0, {("paused", "paused")}, set())


def test_what_the_d_library_left_is_read_and_repaired_like_any_other(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parent / "data" / "d-library-queue.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    base = tmp_path / "q"
    before = files(base)
    held = {f"processing/{os.fsdecode(name)}" for name in claims(base)}
    orphans = {("orphan", path) for path in held}
    abandoned = {("abandoned", f"owners/{token}") for token in ("bvvpam64u8", "d1d8r8yxy6")}
    status, found, _ = check(base)
    assert (status, found) == (1, orphans | abandoned)
    assert files(base) == before
    status, found, repaired = check(base, "--repair")
    assert (status, found, repaired) == (0, set(), orphans | abandoned)
    assert sorted(files(base).values()) == sorted(before.values())
    assert claims(base) == []


# A queue at work

TRAFFIC = """
    import random
    from pacchettino import Retry
    def handle(id, data):
        if random.random() < 0.3:
            raise Retry(0.01 if random.random() < 0.5 else 0)
        return random.choice([Result.SUCCESS, Result.SUCCESS, Result.FAILED])
    queue.on_data_received(handle)
    queue.on_file_received(lambda id, name, path: None)
    def work(how):
        while True:
            if how == "receive":
                queue.receive()
            elif how == "receive_one":
                queue.receive_one(timeout=1)
            elif how == "claim":
                if (job := queue.claim(timeout=1)):
                    job.retry()
            else:
                queue.send_many(["a"] * 20)
                queue.send_file({file!r}, delay=random.choice([0, 0.01]))
                queue.cancel(queue.send_data("a", delay=1))
                if queue.count_queued() > 300:
                    queue.cleanup()
                    queue.requeue_all()
                    queue.cleanup(older_than=0.5)
"""


def test_a_queue_at_work_has_no_findings(quick_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SECOND_LOOK", 1.0)  # as it is for users
    base = quick_dir / "queue"
    Pacchettino(base).close()
    settings = {
        "receive": "keep_policy=KeepPolicy.FAILED",
        "receive_one": "max_attempts=5",
        "claim": "crash_detection=CrashDetection.PID",
        "send": "",
    }
    dropped = 0
    with ExitStack() as stack:
        workers = {how: stack.enter_context(Peer(base, setting)) for how, setting in settings.items()}
        for how, worker in workers.items():
            worker(TRAFFIC.format(file=__file__))
            worker.begin(f"work({how!r})")
        end = time.monotonic() + 3
        # Until there was something to be seen that must not be told.
        while time.monotonic() < end or not dropped:
            status, found, _ = check(base)
            assert (status, {fault for fault, _ in found} - {"history"}) == (0, set()), found
            for _ in range(20):
                looked = _core.Inspection(base)
                before = len(looked.findings())
                looked.look_again()
                dropped += before - len(looked.findings())
        assert not any(worker.has_answered() for worker in workers.values())


@pytest.mark.needs("/proc")
def test_what_is_over_a_second_later_is_not_told(queue: Pacchettino) -> None:
    queue.send_data("a")
    stranger = queue.base_dir / "queued" / "notes.txt"
    stranger.touch()
    command = [sys.executable, "-W", "error", "-m", "pacchettino", "check", str(queue.base_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        call = Path(f"/proc/{running.pid}/syscall")
        until(lambda: call.read_text().split()[0] in CLOCK_NANOSLEEP)
        stranger.unlink()
        assert running.stdout is not None
        assert running.stdout.read() == "nothing is wrong; 1 job looked at\n"
        assert running.wait() == 0


# Users, mounts, clocks


def as_nobody() -> tuple[str, ...]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("NOT TESTED: to be another user needs root and setpriv")
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that other users can reach."""
    directory = Path("/tmp") / f"pacchettino-test-{new_id()}"
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


def test_what_this_user_may_not_do_is_told(open_dir: Path) -> None:
    nobody = as_nobody()
    lay_down(open_dir, {})
    unread, read = f"raw-{new_id()}", f"raw-{new_id()}"
    for name, mode in ((unread, 0o600), (read, 0o644)):
        (open_dir / "queued" / name).touch(mode)
    for path in (open_dir, *(entry for entry in open_dir.iterdir())):
        path.chmod(0o757)
    assert check(open_dir, under=nobody) == (1, {("access", f"queued/{unread}")}, set())
    assert check(open_dir)[:2] == (0, set())  # who may read all finds nothing
    (open_dir / "success").chmod(0o755)
    (open_dir / "failed").chmod(0o700)
    (open_dir / "queued" / unread).unlink()
    assert check(open_dir, under=nobody) == (1, {("access", "success"), ("access", "failed")}, set())
    open_dir.chmod(0o700)
    assert run(open_dir, under=nobody)[::2] == (2, f"pacchettino: {open_dir}: Permission denied\n")


def test_what_keeps_users_of_a_group_from_each_other_is_told(queue_dir: Path, umask: Callable[[int], int]) -> None:
    lay_down(queue_dir, {})
    for path in queue_dir.iterdir():
        path.chmod(0o2770)
    (queue_dir / "queued" / f"raw-{new_id()}").touch(0o660)
    assert check(queue_dir) == (0, set(), set())
    closed = f"raw-{new_id()}"
    (queue_dir / "queued" / closed).touch(0o600)
    (queue_dir / "success").chmod(0o2750)
    (queue_dir / "failed").chmod(0o770)
    (queue_dir / "tmp").chmod(0o3770)
    expected = {("sharing", path) for path in ("success", "failed", "tmp", f"queued/{closed}")}
    if os.geteuid() == 0:
        os.chown(queue_dir / "owners", -1, NOBODY)
        (queue_dir / "owners").chmod(0o2770)
        expected.add(("sharing", "owners"))
    assert check(queue_dir) == (1, expected, set())


@contextmanager
def mounted(what: str, *arguments: str | Path) -> Iterator[None]:
    """Mount something; the last argument says where. A test that needs it says if it can't be done."""
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"NOT TESTED: {what} needs the right to mount it")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


@pytest.mark.needs("/proc")
def test_directories_on_other_filesystems_and_mounts_are_told(queue_dir: Path, tmp_path: Path) -> None:
    lay_down(queue_dir, {})
    (tmp_path / "elsewhere").mkdir()
    with (
        mounted("another filesystem", "-t", "tmpfs", "tmpfs", queue_dir / "success"),
        mounted("a directory", "--bind", tmp_path / "elsewhere", queue_dir / "failed"),
    ):
        assert check(queue_dir) == (1, {("apart", "success"), ("apart", "failed")}, set())
        with pytest.raises(OSError, match="cross-device"):  # which is why
            (queue_dir / "queued").rename(queue_dir / "failed" / "queued")


@pytest.mark.needs("/proc")
def test_a_filesystem_without_free_inodes_or_space_is_told(queue_dir: Path) -> None:
    queue_dir.mkdir()
    with mounted("a small filesystem", "-t", "tmpfs", "-o", "nr_inodes=30,size=1m", "tmpfs", queue_dir):
        lay_down(queue_dir, {})
        assert check(queue_dir) == (0, set(), set())
        filler = queue_dir / "filler"
        filler.mkdir()
        with pytest.raises(OSError, match="No space left"):
            deque((filler / str(number)).touch() for number in range(30))
        with pytest.raises(OSError, match="No space left"), Pacchettino(queue_dir) as queue:
            queue.send_data("a")  # which is why
        assert check(queue_dir) == (1, {("full", ".")}, set())
        assert "no free inodes" in run(queue_dir)[1]
        shutil.rmtree(filler)
        assert check(queue_dir) == (0, set(), set())
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(2 << 20))
        assert check(queue_dir) == (1, {("full", ".")}, set())
        assert "no free space" in run(queue_dir)[1]


@pytest.mark.needs("/proc")
def test_a_queue_on_an_overlay_or_on_fuse_is_told(tmp_path: Path, quick_dir: Path) -> None:
    lower, upper, work, merged = (quick_dir / name for name in ("lower", "upper", "work", "merged"))
    for directory in (lower, upper, work, merged):
        directory.mkdir()
    lay_down(lower / "queue", {})
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with mounted("an overlay", "-t", "overlay", "overlay", "-o", options, merged):
        assert check(merged / "queue") == (1, {("filesystem", ".")}, set())
    image, fuse = tmp_path / "image", tmp_path / "fuse"
    fuse.mkdir()
    with image.open("xb") as file:
        file.truncate(8 << 20)
    if shutil.which("mkntfs") is None or shutil.which("lowntfs-3g") is None:
        pytest.skip("NOT TESTED: a filesystem by FUSE needs ntfs-3g")
    subprocess.run(["mkntfs", "-q", "-F", "-f", image], check=True, capture_output=True)
    if subprocess.run(["lowntfs-3g", image, fuse], capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: a filesystem by FUSE needs the right to mount one")
    try:
        lay_down(fuse / "queue", {})
        assert ("filesystem", ".") in check(fuse / "queue")[1]
    finally:
        subprocess.run(["umount", "--lazy", fuse], check=True)


@pytest.mark.needs("kernel events")
def test_jobs_and_directories_of_a_clock_that_went_back_are_told(queue_dir: Path, clock: Clock) -> None:
    clock.step(3600)
    with Peer(queue_dir, clock=clock) as peer:
        id = peer("queue.send_data('a')")
    clock.step(-3600)
    found = check(queue_dir, clock=clock)[1]
    assert ("future", f"queued/raw-{id}") in found
    assert ("future", "queued") in found
    clock.step(3600)
    assert ("future", f"queued/raw-{id}") not in check(queue_dir, clock=clock)[1]


# Directories


def test_missing_directories_are_made_and_what_stands_in_their_place_is_told(queue_dir: Path, tmp_path: Path) -> None:
    lay_down(queue_dir, {})
    (queue_dir / "success").rmdir()
    assert check(queue_dir) == (1, {("missing", "success")}, set())
    assert check(queue_dir, "--repair") == (0, set(), {("missing", "success")})
    assert (queue_dir / "success").is_dir()
    (queue_dir / "success").rmdir()
    (queue_dir / "success").symlink_to(tmp_path)
    (queue_dir / "failed").rmdir()
    (queue_dir / "failed").touch()
    wrong = {("no-directory", "success"), ("no-directory", "failed")}
    assert check(queue_dir) == (1, wrong, set())
    (queue_dir / "tmp").rmdir()
    status, output, errors = run(queue_dir, "--repair")
    assert status == 1
    assert "Not a directory" in errors  # it can't be opened, so nothing can be repaired
    assert "3 findings" in output


def test_where_there_is_no_queue_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, why in (
        ("nowhere", "there is no queue here"),
        ("empty", "there is no queue here"),
        ("file", "Not a directory"),
    ):
        for options in ((), ("--repair",)):
            assert run(tmp_path / name, *options) == (2, "", f"pacchettino: {tmp_path / name}: {why}\n")
    assert set(everything(tmp_path)) == {b"empty", b"file"}


def test_nothing_that_is_put_into_the_directories_is_opened_or_followed(tmp_path: Path, outside: Path) -> None:
    queue_dir = tmp_path / "queue"
    lay_down(queue_dir, {})
    (queue_dir / "history").mkdir()
    odd_ones: set[str] = set()
    for directory in ("queued", "scheduled", "processing", "failed", "tmp", "owners", "history"):
        for number, make in enumerate(ODD.values()):
            names = {
                "scheduled": f"{LATER}-raw-{new_id()}",
                "processing": f"raw-{new_id()}.gone00000{number}",
                "tmp": f"{new_id()}-gone00000{number}",
                "owners": f"gone00000{number}",
            }
            path = f"{directory}/{names.get(directory, f'raw-{new_id()}')}"
            make(queue_dir / path, outside)
            is_directory = stat.S_ISDIR((queue_dir / path).lstat().st_mode)
            if not (is_directory and directory in ("processing", "history")):
                odd_ones.add(path)
    before = everything(queue_dir)
    status, found, _ = check(queue_dir)
    assert status == 1
    assert {path for fault, path in found if fault == "no-file"} == odd_ones
    assert everything(queue_dir) == before


def test_a_directory_with_very_many_strangers_is_told_in_short(quick_dir: Path) -> None:
    base = quick_dir / "queue"
    lay_down(base, {})
    for number in range(10_100):
        (base / "queued" / str(number)).touch()
    status, output, errors = run(base)
    assert (status, errors) == (1, "")
    *lines, summary = output.splitlines()
    assert len(lines) == 1 + 20 + 1 + 1
    assert lines[-2:] == [
        "  ... and 9,980 more (--json tells all)",
        "and 100 more things that are not told, in directories with very many of them",
    ]
    assert summary == "10,100 findings; 0 jobs looked at"


def test_what_is_repaired_meanwhile_by_a_consumer_is_no_finding(queue_dir: Path) -> None:
    Pacchettino(queue_dir).close()
    with Peer(queue_dir) as peer:
        peer("queue.send_data('a'); job = queue.claim()")
        peer.kill()
    found = _core.Inspection(queue_dir)
    assert {fault for fault, *_ in found.findings()} == {"orphan", "abandoned"}
    with Pacchettino(queue_dir) as queue:
        assert queue.requeue_all(KeepPolicy.INTERRUPTED) == 1
    found.look_again()
    assert found.findings() == []
