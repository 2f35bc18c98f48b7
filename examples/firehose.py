"""A producer at full rate, which its consumers slow down: python examples/firehose.py [DIR].

The producer of this program is always faster than its consumers. Without a limit the jobs would fill the disk; with
`max_queued` no more than 1,000 wait, and the producer waits for room. DIR is a temporary directory unless you say so.
"""

import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from pacchettino import KeepPolicy, Pacchettino

SECONDS = 3


def handle(id: str, data: bytes) -> None:
    time.sleep(0.001)  # work takes time


def consume(directory: Path) -> None:
    queue = Pacchettino(directory, KeepPolicy.NONE)  # at this rate, what is done had better go
    queue.on_data_received(handle)
    print(f"handled {queue.work():,}", flush=True)


def main(directory: Path) -> None:
    spawn = get_context("spawn")
    consumers = [spawn.Process(target=consume, args=[directory]) for _ in range(2)]
    for consumer in consumers:
        consumer.start()

    queue = Pacchettino(directory, KeepPolicy.NONE, max_queued=1_000)
    sent = 0
    for _ in range(SECONDS):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            # A hundred at a time cost less than one by one. Where there is no room, `block=None` waits for it; without
            # `block` there would be QueueFull, for a producer that has something better to do.
            sent += len(queue.send_many((b"%d" % number for number in range(sent, sent + 100)), block=None))
        print(f"sent {sent:,}, of which {queue.count_queued():,} wait", flush=True)

    for consumer in consumers:
        consumer.terminate()  # SIGTERM: the job in hand is finished
        consumer.join()
    queue.on_data_received(handle)
    print(f"handled {queue.work(drain=True):,} that were left")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="firehose-") as home:
            main(Path(home))
