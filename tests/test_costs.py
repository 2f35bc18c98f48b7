"""What a job costs, in system calls: exact numbers, since time tells little on a busy machine.

Those of one job are in a table of ARCHITECTURE.md that these tests read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import PATIENCE, lay_down, new_id
from pacchettino import KeepPolicy, Pacchettino, Result, Status
from syscalls import Tell, needs_traps, trap

pytestmark = needs_traps

TABLE = Path(__file__).parent.parent / "ARCHITECTURE.md"

JOBS = 12
"""How many are handled in a row: what is done in a loop begins after a few of them."""

Run = Callable[[Pacchettino, Tell], object]
"""What does an operation some times in a row, and tells when the next one begins."""


def each(operation: Callable[[Pacchettino], object]) -> Run:
    def run(queue: Pacchettino, tell: Tell) -> None:
        for _ in range(JOBS):
            tell("next")
            operation(queue)

    return run


def send_data(queue: Pacchettino) -> Run:
    return each(lambda queue: queue.send_data(b"x" * 256))


def send_many(queue: Pacchettino) -> Run:
    return each(lambda queue: queue.send_many([b"x" * 256] * 10))


def handled(queue: Pacchettino) -> None:
    queue.send_many([b"x" * 256] * JOBS)
    queue.on_data_received = lambda id, data: None


def receive(queue: Pacchettino) -> Run:
    handled(queue)

    def run(queue: Pacchettino, tell: Tell) -> None:
        queue.on_data_received = lambda id, data: tell("next")
        queue.receive()

    return run


def work(queue: Pacchettino) -> Run:
    handled(queue)

    def run(queue: Pacchettino, tell: Tell) -> None:
        queue.on_data_received = lambda id, data: tell("next")
        queue.work(drain=True)

    return run


def files(queue: Pacchettino) -> None:
    for _ in range(JOBS):
        queue.send_file(__file__)


def work_file(queue: Pacchettino) -> Run:
    files(queue)

    def run(queue: Pacchettino, tell: Tell) -> None:
        queue.on_file_received(lambda id, name, path: tell("next"))
        queue.work(drain=True)

    return run


def receive_with_hook(queue: Pacchettino) -> Run:
    queue.on_settled(lambda job, outcome, seconds: None)
    return receive(queue)


def receive_one(queue: Pacchettino) -> Run:
    handled(queue)
    return each(lambda queue: queue.receive_one())


def receive_one_file(queue: Pacchettino) -> Run:
    files(queue)
    queue.on_file_received(lambda id, name, path: None)
    return each(lambda queue: queue.receive_one())


def claim(queue: Pacchettino) -> Run:
    handled(queue)
    return each(lambda queue: queue.claim().succeed())


def status(queue: Pacchettino) -> Run:
    id = queue.send_data(b"x")
    return each(lambda queue: queue.status(id))


OPERATIONS = {
    "`send_data`": (send_data, "", 1),
    "`send_data`, durable": (send_data, "durable", 1),
    "`send_data`, `max_queued` and `min_free`": (send_data, "limited", 1),
    "`send_many` of ten, for each": (send_many, "", 10),
    "`send_many` of ten, durable, for each": (send_many, "durable", 10),
    "`receive` of data, for each": (receive, "", 1),
    "`receive` of data, for each, nothing kept": (receive, "none", 1),
    "`receive` of data, durable, for each": (receive, "durable", 1),
    "`receive` of data with a hook, for each": (receive_with_hook, "", 1),
    "`receive` of data with a hook, durable, for each": (receive_with_hook, "durable", 1),
    "`work` of data, for each": (work, "", 1),
    "`work` of data, durable, for each": (work, "durable", 1),
    "`work` of files, for each": (work_file, "", 1),
    "`receive_one` of data, in a loop": (receive_one, "", 1),
    "`receive_one` of data, in a loop, nothing kept": (receive_one, "none", 1),
    "`receive_one` of data, durable": (receive_one, "durable", 1),
    "`receive_one` of a file": (receive_one_file, "", 1),
    "`claim` and `succeed`, unread": (claim, "", 1),
    "`status` of a data job that waits": (status, "", 1),
}


def measured(prepare: Callable[[Pacchettino], Run], setting: str, base: Path) -> Counter[str]:
    """Count the calls of an operation in a loop: the least of several times, since now and then more is done."""
    counts: list[Counter[str]] = [Counter()]

    def steps(tell: Tell) -> Iterator[None]:
        keep = KeepPolicy.NONE if setting == "none" else KeepPolicy.ALL
        limits: dict[str, Any] = {"max_queued": 1000, "min_free": 1} if setting == "limited" else {}
        queue = Pacchettino(base, keep, durable=setting == "durable", fifo=True, **limits)
        run = prepare(queue)
        yield
        run(queue, tell)
        tell("next")

    def decide(number: int, call: str) -> None:
        counts[-1]["newfstatat" if call == "fstat" else call] += 1  # the table has the kernel's names

    trap(steps, decide, lambda what: counts.append(Counter()))
    return min(counts[JOBS // 2 : JOBS], key=Counter.total)  # the last of a `receive` is handled by its end


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_makes_the_system_calls_that_the_table_says(name: str, quick_dir: Path) -> None:
    prepare, setting, jobs = OPERATIONS[name]
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (\d+(?:\.\d+)?) \| (.*) \|$", TABLE.read_text(), re.M)
    found = measured(prepare, setting, quick_dir / "queue")
    calls = ", ".join(f"{call} {count}" for call, count in sorted(found.items()))
    assert row == (f"{found.total() / jobs:g}", calls)


def test_few_sends_of_a_limited_queue_read_its_directories(quick_dir: Path) -> None:
    def program(tell: Tell) -> Iterator[None]:
        queue = Pacchettino(quick_dir / "queue", max_queued=16_000)
        yield
        for _ in range(1_500):
            queue.send_data("a")

    calls = Counter(trap(program))
    assert calls["renameat2"] == 1_501  # and one of the lock file
    assert calls["getdents64"] <= 2 * 2 * 3  # two directories, each read to its end, with the first job and the 1,001st


def test_a_job_that_never_failed_costs_the_same_beside_others_that_did(quick_dir: Path) -> None:
    def failed(queue: Pacchettino) -> Run:
        queue.send_many(["x"] * 10)
        queue.on_data_received(lambda id, data: Result.RETRY if queue.keep_policy is KeepPolicy.NONE else Result.FAILED)
        for _ in range(10):
            queue.receive_one()
        for job in (queue.base_dir / "queued").iterdir():
            job.rename(queue.base_dir / "failed" / job.name)
        assert len([*(queue.base_dir / "history").iterdir()]) == 10
        return receive_one(queue)

    for setting in ("", "none"):
        alone, beside = (
            measured(run, setting, quick_dir / f"{run.__name__}{setting}") for run in (receive_one, failed)
        )
        assert beside == alone


# Bulk


Bulk = Callable[[Pacchettino], int]


def calls_of(base: Path, state: str, jobs: int, operation: Bulk) -> Counter[str]:
    """Count the calls that an operation makes on so many jobs in a state."""
    lay_down(base, {f"{state}/raw-{new_id()}".encode(): b"data" for _ in range(jobs)})

    def program(tell: Tell) -> Iterator[None]:
        queue = Pacchettino(base)
        yield
        tell("done", operation(queue))

    done: list[int] = []
    calls = Counter(trap(program, listen=lambda what, number: done.append(number)))
    assert done == [jobs]
    return calls


@pytest.mark.parametrize(
    ("state", "operation", "expected"),
    [
        ("queued", lambda queue: queue.count_queued(), {}),
        ("queued", lambda queue: len({job.path for job in queue.jobs(Status.QUEUED)}), {}),
        ("failed", lambda queue: queue.requeue_all(), {"renameat2": 1}),
        ("failed", lambda queue: queue.cleanup(KeepPolicy.FAILED), {"unlinkat": 1}),
        (
            "failed",
            lambda queue: queue.cleanup(KeepPolicy.FAILED, older_than=1e-6),
            {"newfstatat": 1, "unlinkat": 1},
        ),
    ],
    ids=["count", "jobs", "requeue_all", "cleanup", "cleanup older_than"],
)
def test_a_bulk_operation_makes_no_call_for_a_job_but_the_one_that_changes_it(
    quick_dir: Path, state: str, operation: Bulk, expected: dict[str, int]
) -> None:
    few, many = (calls_of(quick_dir / str(jobs), state, jobs, operation) for jobs in (100, 300))
    assert {call: number / 200 for call, number in (many - few).items()} == expected


DRAIN = """
import sys
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1], fifo=sys.argv[2] == "fifo")
handled = []
queue.on_data_received(lambda id, data: handled.append(id))
if sys.argv[3] == "receive":
    queue.receive()
else:
    while queue.receive_one():
        pass
assert len(handled) == 10_000
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="NOT TESTED: to count listings needs strace")
@pytest.mark.parametrize("order", ["fifo", "random"])
@pytest.mark.parametrize("way", ["receive", "receive_one"])
def test_a_drain_of_ten_thousand_jobs_reads_the_queue_a_few_times(quick_dir: Path, order: str, way: str) -> None:
    base = quick_dir / "queue"
    lay_down(base, {})
    Pacchettino(base).send_many([b"data"] * 10_000)
    log = quick_dir / "calls"
    options = ["-f", "-y", "--seccomp-bpf", "-e", "trace=openat", "-o", os.fspath(log)]
    program = [sys.executable, "-c", DRAIN, os.fspath(base), order, way]
    done = subprocess.run(["strace", *options, *program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    listed = [line for line in log.read_text().splitlines() if '/queued>, ".", ' in line]
    assert 1 <= len(listed) <= 2
