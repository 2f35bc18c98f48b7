"""Many threads and processes on one directory: each job once, none lost, whoever is killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from crowd import WAYS, receive_all, recover_until, run_together, send, work, work_until
from helpers import DIRECTORIES, STATES, Ledger, entries, files, grow_old, lay_down, new_id
from pacchettino import CrashDetection, KeepPolicy, Pacchettino, Result

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(autouse=True)
def bare_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes that are spawned not import the test runner, which is this process's program."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__")


def assert_each_once(base: Path, ledger: Ledger, ids: list[str]) -> None:
    """See that each job was handled once and succeeded, and that no trace is left of the handling."""
    counted = Counter(ledger.lines())
    assert {id: times for id, times in counted.items() if times != 1} == {}
    assert counted.keys() == set(ids)
    assert {directory: len(entries(base / directory)) for directory in (*STATES, "tmp")} == {
        "queued": 0,
        "scheduled": 0,
        "processing": 0,
        "success": len(ids),
        "failed": 0,
        "interrupted": 0,
        "tmp": 0,
    }


def end_all(processes: list[BaseProcess], patience: float) -> None:
    """See that all come to a good end; kill those that come to none."""
    deadline = time.monotonic() + patience
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()
    assert codes == [0] * len(processes)


def run_all(processes: list[BaseProcess], patience: float = 100) -> None:
    """Start processes, and see that all come to a good end."""
    for process in processes:
        process.start()
    end_all(processes, patience)


@contextmanager
def beside(processes: list[BaseProcess], over: Event) -> Iterator[None]:
    """Have processes run beside what the block does, until they are told that it is over."""
    for process in processes:
        process.start()
    try:
        yield
    finally:
        over.set()
        end_all(processes, 60)


@pytest.mark.parametrize("detection", CrashDetection)
@pytest.mark.parametrize("shared", [True, False], ids=["one instance", "an instance each"])
@pytest.mark.parametrize("way", range(len(WAYS)), ids=[way.__name__ for way in WAYS])
def test_threads_handle_each_job_once(quick_dir: Path, way: int, shared: bool, detection: CrashDetection) -> None:
    queue_dir = quick_dir / "queue"
    ids = Pacchettino(queue_dir).send_many([b"payload"] * 1_000)
    ledger = Ledger(quick_dir / "ledger")
    work(queue_dir, ledger, way, detection, threads=8, shared=shared)
    assert_each_once(queue_dir, ledger, ids)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=[way.__name__ for way in WAYS])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.needs("appends that are whole")
def test_processes_handle_each_job_once(quick_dir: Path, method: str, way: int) -> None:
    queue_dir = quick_dir / "queue"
    context = multiprocessing.get_context(method)
    ids = Pacchettino(queue_dir).send_many([b"payload"] * 400)
    ledger = Ledger(quick_dir / "ledger")
    start = context.Barrier(4)
    run_all(
        [
            context.Process(target=work, args=(queue_dir, ledger, way, detection, 2), kwargs={"start": start})
            for detection in [*CrashDetection] * 2
        ]
    )
    assert_each_once(queue_dir, ledger, ids)


@pytest.mark.needs("appends that are whole")
def test_processes_of_every_kind_handle_each_job_once_together(queue_dir: Path, tmp_path: Path) -> None:
    ids = Pacchettino(queue_dir).send_many([b"payload"] * 1_500)
    ledger = Ledger(tmp_path / "ledger")
    kinds = [(method, detection) for method in METHODS for detection in CrashDetection]
    start = multiprocessing.get_context("spawn").Barrier(len(kinds))
    run_all(
        [
            multiprocessing.get_context(method).Process(
                target=work, args=(queue_dir, ledger, number % len(WAYS), detection, 2), kwargs={"start": start}
            )
            for number, (method, detection) in enumerate(kinds)
        ]
    )
    assert_each_once(queue_dir, ledger, ids)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.needs("appends that are whole")
def test_what_is_sent_while_others_handle_is_handled_once(quick_dir: Path, method: str) -> None:
    queue_dir = quick_dir / "queue"
    context = multiprocessing.get_context(method)
    sent, handled = Ledger(quick_dir / "sent"), Ledger(quick_dir / "handled")
    over = context.Event()
    consumers = [context.Process(target=work_until, args=(queue_dir, handled, d, over)) for d in CrashDetection]
    with beside(consumers, over):
        run_all([context.Process(target=send, args=(queue_dir, sent, 400)) for _ in range(2)])
    ids = sent.lines()
    assert len(ids) == 1_600
    assert_each_once(queue_dir, handled, ids)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.needs("appends that are whole")
def test_recovery_beside_the_living_takes_the_jobs_of_the_dead_and_no_others(quick_dir: Path, method: str) -> None:
    queue_dir = quick_dir / "queue"
    context = multiprocessing.get_context(method)
    ids = Pacchettino(queue_dir).send_many([b"payload"] * 1_200)
    ledger = Ledger(quick_dir / "ledger")
    over = context.Event()
    dead = [new_id() for _ in range(100)]
    claims = quick_dir / "claims"
    for id in dead:
        (claims / f"raw-{id}.gone000000").mkdir(parents=True)
        (claims / f"raw-{id}.gone000000" / "raw").write_bytes(b"orphan")
    workers = [
        context.Process(target=work, args=(queue_dir, ledger, way, detection, 2))
        for way in (0, 1)
        for detection in CrashDetection
    ]
    with beside([context.Process(target=recover_until, args=(queue_dir, over)) for _ in range(2)], over):
        for claim in claims.iterdir():
            claim.rename(queue_dir / "processing" / claim.name)
        run_all(workers)
    assert entries(queue_dir / "interrupted") == sorted(b"raw-" + id.encode() for id in dead)
    assert Pacchettino(queue_dir).cleanup(KeepPolicy.INTERRUPTED) == 100
    assert_each_once(queue_dir, ledger, ids)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=[way.__name__ for way in WAYS])
@pytest.mark.needs("appends that are whole")
def test_jobs_that_come_back_at_once_are_handled_once_each_time(quick_dir: Path, way: int) -> None:
    """A thread that retries and one that reclaims the job meet under one name."""
    queue_dir = quick_dir / "queue"
    ids = Pacchettino(queue_dir).send_many([b"payload"] * 30)
    ledger = Ledger(quick_dir / "ledger")
    left = Counter(dict.fromkeys(ids, 20))
    working: Counter[str] = Counter()
    lock = threading.Lock()
    queue = Pacchettino(queue_dir, crash_detection=CrashDetection.PID)

    @queue.on_data_received
    def handle(id: str, data: bytes) -> Result:
        with lock:
            working[id] += 1
            assert working[id] == 1
        ledger.add(id)
        with lock:
            working[id] -= 1
            left[id] -= 1
            return Result.RETRY if left[id] else Result.SUCCESS

    run_together([threading.Thread(target=WAYS[way], args=(queue,)) for _ in range(6)])
    receive_all(queue)
    assert Counter(ledger.lines()) == Counter(dict.fromkeys(ids, 20))
    assert entries(queue_dir / "success") == sorted(b"raw-" + id.encode() for id in ids)
    assert entries(queue_dir / "interrupted") == entries(queue_dir / "failed") == []
    assert entries(queue_dir / "processing") == []


@pytest.mark.needs("appends that are whole")
def test_processes_made_by_multiprocessing_leave_no_lock_file(quick_dir: Path) -> None:
    queue_dir = quick_dir / "queue"
    ids = Pacchettino(queue_dir).send_many([b"payload"] * 100)
    ledger = Ledger(quick_dir / "ledger")
    lock_file = CrashDetection.LOCK_FILE
    run_all(
        [
            multiprocessing.get_context(method).Process(target=work, args=(queue_dir, ledger, 0, lock_file, 2))
            for method in METHODS
        ]
    )
    assert_each_once(queue_dir, ledger, ids)
    sender = entries(queue_dir / "owners")
    assert len(sender) <= 1  # this process sent
    Pacchettino(queue_dir).claim()
    assert entries(queue_dir / "owners") == sender


@pytest.mark.timeout(300)
@pytest.mark.needs("fork")
@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.torture)])
def test_eight_processes_of_four_threads_handle_a_crowd_of_jobs_once_each(quick_dir: Path, many: int) -> None:
    base = quick_dir / "queue"
    with Pacchettino(base, crash_detection=CrashDetection.PID) as queue:
        ids = [id for _ in range(10) for id in queue.send_many([b"payload"] * (many // 10))]
        assert queue.count_queued() == len(set(ids)) == many
        ledger = Ledger(quick_dir / "ledger")
        context = multiprocessing.get_context("spawn")
        arguments = (base, ledger, WAYS.index(receive_all), CrashDetection.LOCK_FILE, 4, True, 280)
        run_all([context.Process(target=work, args=arguments) for _ in range(8)], patience=280)
        assert_each_once(base, ledger, ids)
        assert queue.count_successful() == queue.count_all() == many
        assert entries(base / "owners") == []


# Kills at random moments


def produce(base: Path, ledger: Ledger, seed: int, detection: CrashDetection, ready: int) -> None:
    """Be a sender that writes down what it sent once the call has returned, until it is killed."""
    chance = random.Random(seed)
    queue = Pacchettino(base, crash_detection=detection)
    drafts = Path(tempfile.mkdtemp(dir=base.parent))
    os.write(ready, b"x")
    for number in range(60):
        payload = f"{seed} {number} " + "x" * chance.choice([0, 100, 20_000])
        delay = chance.choice([0, 0, 0, 0.001, 0.05])
        if chance.random() < 0.3:
            draft = drafts / f"{seed}-{number}.dat"
            draft.write_text(payload)
            sent = [queue.send_file(draft, copy=chance.random() < 0.5, delay=delay)]
        elif chance.random() < 0.2:
            sent = queue.send_many([payload] * 8, delay=delay)
        else:
            sent = [queue.send_data(payload, delay=delay)]
        ledger.add(*(f"{id} {payload[:40]}" for id in sent))
    signal.pause()


def consume(base: Path, seed: int, detection: CrashDetection, ready: int) -> None:
    """Be a consumer with every kind of verdict, until it is killed."""
    chance = random.Random(seed)
    queue = Pacchettino(base, crash_detection=detection, retry_delay=chance.choice([0, 0.02]))

    def handle(*job: object) -> Result:
        return chance.choice([Result.SUCCESS, Result.SUCCESS, Result.FAILED, Result.RETRY])

    queue.on_data_received(handle)
    queue.on_file_received(handle)
    os.write(ready, b"x")
    while True:
        if chance.random() < 0.5:
            queue.receive()
        else:
            queue.receive_one(timeout=1)
        if chance.random() < 0.2:
            queue.requeue_all()


class Victim:
    """A forked process that is killed in the end."""

    def __init__(self, base: Path, ledger: Ledger, seed: int) -> None:
        chance = random.Random(seed)
        detection = chance.choice([*CrashDetection])
        consumes = chance.random() < 0.5
        self.ready, ready = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(ready)
            return
        try:
            os.close(self.ready)
            with (base.parent / "stderr").open("a") as stderr:
                os.dup2(stderr.fileno(), 2)
            if consumes:
                consume(base, seed, detection, ready)
            else:
                produce(base, ledger, seed, detection, ready)
        except BaseException:
            (base.parent / f"failed {seed}").write_text(traceback.format_exc())
        finally:
            os._exit(1)

    def wait_until_ready(self) -> None:
        """Wait until it is at work."""
        select.select([self.ready], [], [], 30)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.ready)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def places(base: Path) -> Counter[str]:
    """Count in how many places each job is."""
    found: Counter[str] = Counter()
    for path in files(base):
        state, _, entry = path.partition(b"/")
        if state == b"scheduled":
            entry = entry[14:]
        if state != b"tmp":
            found[entry[4:40].decode()] += 1
    return found


@pytest.mark.timeout(300)
@pytest.mark.needs("fork")
@pytest.mark.parametrize("kills", [60, pytest.param(200, marks=pytest.mark.torture)])
def test_kills_at_random_moments_lose_and_double_nothing(quick_dir: Path, kills: int) -> None:
    seed = int(os.environ.get("PACCHETTINO_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"PACCHETTINO_SEED={seed}")
    chance = random.Random(seed)
    base = quick_dir / "queue"
    lay_down(base, {})
    ledger = Ledger(quick_dir / "sent")
    seeds = iter(range(seed, seed + 1_000_000))
    victims = [Victim(base, ledger, next(seeds)) for _ in range(6)]
    try:
        for _ in range(kills):
            victim = victims.pop(chance.randrange(len(victims)))
            if chance.random() < 0.9:
                victim.wait_until_ready()
            time.sleep(chance.choice([0, 0.001, 0.02]) * chance.random())
            victim.kill()
            victims.append(Victim(base, ledger, next(seeds)))
    finally:
        for victim in victims:
            with suppress(ProcessLookupError):
                victim.kill()
    assert [path.read_text() for path in quick_dir.glob("failed *")] == []

    sent = dict(line.split(" ", 1) for line in ledger.lines())
    assert len(sent) > 2 * kills
    found = places(base)
    assert {id: found[id] for id in sent if found[id] != 1} == {}
    assert {id: times for id, times in found.items() if times != 1} == {}

    queue = Pacchettino(base)
    queue.on_data_received(lambda id, data: None)
    queue.on_file_received(lambda id, name, path: None)
    while queue.requeue_all() + queue.receive() + queue.receive_one(timeout=0.1) or queue.count_scheduled():
        pass
    grow_old(base)
    queue.receive()
    found = files(base)
    payloads = {path[12:48].decode(): content for path, content in found.items() if path.startswith(b"success/")}
    assert payloads.keys() >= sent.keys()
    assert {id for id, start in sent.items() if payloads[id][:40] != start.encode()} == set()
    states = {directory: entries(base / directory) for directory in DIRECTORIES if directory != "success"}
    lock_files = states.pop("owners")
    assert states == {directory: [] for directory in (*STATES, "tmp") if directory != "success"}
    assert len(lock_files) <= 1
