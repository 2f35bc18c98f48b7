"""What a job costs from Python, beside the bare system calls that it can't do without.

    python benches/throughput.py [DIR]

The jobs go through DIR; without it, through memory where there is /dev/shm, since a disk hides what is to be seen.
The bare calls are done by benches/bare.rs, in turns with ours, so that whatever else the machine does hits both.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pacchettino import Pacchettino

JOBS = 2_000
ROUNDS = 5
PAYLOAD = b"x" * 256
BARE = ["cargo", "bench", "--quiet", "--locked", "--bench", "bare", "--", "--json"]


def send_one_by_one(queue: Pacchettino) -> None:
    for _ in range(JOBS):
        queue.send_data(PAYLOAD)


def send_many(queue: Pacchettino) -> None:
    queue.send_many([PAYLOAD] * JOBS)


def receive(queue: Pacchettino) -> None:
    queue.receive()


def receive_one_by_one(queue: Pacchettino) -> None:
    while queue.receive_one():
        pass


# What is measured, and which of the bare sequences it is compared with. What one sends the next receives.
OPERATIONS: dict[str, tuple[Callable[[Pacchettino], None], str]] = {
    "send_data": (send_one_by_one, "send"),
    "receive": (receive, "receive"),
    "send_many": (send_many, "send"),
    "receive_one": (receive_one_by_one, "receive"),
}


def main() -> None:
    memory = Path("/dev/shm")
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else memory if memory.is_dir() else Path(tempfile.gettempdir())
    ours, bare = defaultdict(list), defaultdict(list)
    with (
        # Nothing in it is deleted before the end: on some filesystems that slows down what comes after.
        tempfile.TemporaryDirectory(prefix="pacchettino-bench-", dir=parent) as home,
        subprocess.Popen(
            BARE,
            cwd=Path(__file__).parent,
            env=os.environ | {"PACCHETTINO_BENCH_DIR": str(Path(home).absolute())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as yardstick,
    ):
        assert yardstick.stdin is not None
        assert yardstick.stdout is not None
        for number in range(ROUNDS):
            queue = Pacchettino(Path(home, str(number)))
            queue.on_data_received(lambda id, data: None)
            for operation, (work, sequence) in OPERATIONS.items():
                if sequence == "send":
                    print(JOBS, file=yardstick.stdin, flush=True)
                    rates = json.loads(yardstick.stdout.readline())
                bare[operation].append(rates[sequence])

                start = time.perf_counter()
                work(queue)
                ours[operation].append(JOBS / (time.perf_counter() - start))
            assert queue.count_successful() == queue.count_all() == 2 * JOBS

    print(f"{rates['filesystem']}, {JOBS} jobs of {len(PAYLOAD)} bytes, median of {ROUNDS} rounds\n")
    print("| operation | jobs/s | bare jobs/s | ratio |")
    print("| --- | ---: | ---: | ---: |")
    for operation in OPERATIONS:
        rate, bare_rate = median(ours[operation]), median(bare[operation])
        print(f"| `{operation}` | {rate:.0f} | {bare_rate:.0f} | {rate / bare_rate:.2f} |")


if __name__ == "__main__":
    main()
