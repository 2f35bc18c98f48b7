"""How many system calls the bulk operations and a drain take: counted, since time tells little on a busy machine."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import PATIENCE, lay_down, new_id
from pacchettino import KeepPolicy, Pacchettino, Status
from syscalls import Tell, needs_traps, trap

Operation = Callable[[Pacchettino], int]


def calls_of(base: Path, state: str, jobs: int, operation: Operation) -> Counter[str]:
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


@needs_traps
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
    quick_dir: Path, state: str, operation: Operation, expected: dict[str, int]
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
