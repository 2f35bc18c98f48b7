"""What a job costs: its system calls are exact numbers, in the table of ARCHITECTURE.md that these tests read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pacchettino import KeepPolicy, Pacchettino
from syscalls import Tell, needs_traps, trap

pytestmark = needs_traps

TABLE = Path(__file__).parent.parent / "ARCHITECTURE.md"

JOBS = 8
"""How many are handled in a row: the last ones cost what all cost in a loop."""

Operation = Callable[[Pacchettino], object]


def send_data(queue: Pacchettino) -> Operation:
    return lambda queue: queue.send_data(b"x" * 256)


def send_many(queue: Pacchettino) -> Operation:
    return lambda queue: queue.send_many([b"x" * 256] * 10)


def handled(queue: Pacchettino) -> None:
    queue.send_many([b"x" * 256] * JOBS)
    queue.on_data_received(lambda id, data: None)


def receive_one(queue: Pacchettino) -> Operation:
    handled(queue)
    return lambda queue: queue.receive_one()


def receive_one_file(queue: Pacchettino) -> Operation:
    for _ in range(JOBS):
        queue.send_file(__file__)
    queue.on_file_received(lambda id, name, path: None)
    return lambda queue: queue.receive_one()


def claim(queue: Pacchettino) -> Operation:
    handled(queue)
    return lambda queue: queue.claim().succeed()


def status(queue: Pacchettino) -> Operation:
    id = queue.send_data(b"x")
    return lambda queue: queue.status(id)


OPERATIONS = {
    "`send_data`": (send_data, "", 1),
    "`send_data`, durable": (send_data, "durable", 1),
    "`send_many` of ten, for each": (send_many, "", 10),
    "`send_many` of ten, durable, for each": (send_many, "durable", 10),
    "`receive_one` of data, in a loop": (receive_one, "", 1),
    "`receive_one` of data, in a loop, nothing kept": (receive_one, "none", 1),
    "`receive_one` of data, durable": (receive_one, "durable", 1),
    "`receive_one` of a file": (receive_one_file, "", 1),
    "`claim` and `succeed`, unread": (claim, "", 1),
    "`status` of a data job that waits": (status, "", 1),
}


def measured(prepare: Callable[[Pacchettino], Operation], setting: str, base: Path) -> Counter[str]:
    """Count the calls of an operation in a loop: the least of several times, since now and then more is done."""
    counts: list[Counter[str]] = [Counter()]

    def steps(tell: Tell) -> Iterator[None]:
        keep = KeepPolicy.NONE if setting == "none" else KeepPolicy.ALL
        queue = Pacchettino(base, keep, durable=setting == "durable", fifo=True)
        operation = prepare(queue)
        yield
        for _ in range(JOBS):
            tell("next")
            operation(queue)
        tell("next")

    def decide(number: int, call: str) -> None:
        counts[-1][call] += 1

    trap(steps, decide, lambda what: counts.append(Counter()))
    return min(counts[1:-1], key=Counter.total)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_makes_the_system_calls_that_the_table_says(name: str, quick_dir: Path) -> None:
    prepare, setting, jobs = OPERATIONS[name]
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (\d+(?:\.\d+)?) \| (.*) \|$", TABLE.read_text(), re.M)
    found = measured(prepare, setting, quick_dir / "queue")
    calls = ", ".join(f"{call} {count}" for call, count in sorted(found.items()))
    assert row == (f"{found.total() / jobs:g}", calls)
