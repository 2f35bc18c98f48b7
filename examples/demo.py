"""A queue at work: a process sends jobs, two others do them, one of these is killed, and its job is not lost.

`make demo` runs it. Everything happens in a temporary directory; every line says which process wrote it.
"""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

from pacchettino import Pacchettino

JOBS = 7  # three letters, two files, a reminder, a report


def produce(directory: Path) -> None:
    """Send jobs and end. Whether anybody is there to do them does not matter."""
    with Pacchettino(directory) as queue:
        for number in (1, 2, 3):
            queue.send_data(f"letter {number}")
        say("producer", "sent three letters, as bytes")

        with tempfile.TemporaryDirectory() as desk:
            for name in ("photo.jpg", "with spaces.txt"):
                file = Path(desk, name)
                file.write_text("what is in the file")
                queue.send_file(file)  # the queue gets a copy: ours can go
        say("producer", "sent two files")

        queue.send_data("reminder", delay=2)
        say("producer", "sent a reminder, for in two seconds")

        queue.send_data("report")
        say("producer", "sent a report, which is long")


def work(name: str, directory: Path, demo: Connection) -> None:
    """Do jobs until told to stop."""
    # The queue logs what a person should know of, such as the death of another worker.
    logging.basicConfig(stream=sys.stdout, format=f"{name:<8} | log: %(message)s", force=True)

    # Oldest first, so that the demo always goes the same way.
    queue = Pacchettino(directory, fifo=True)

    @queue.on_data_received
    def do_data(id: str, data: bytes) -> None:
        say(name, f"does {data.decode()!r}")
        if data == b"report":
            say(name, "is in the middle of it")
            demo.send((name, id))
            demo.recv()  # goes on when the demo says so, which the first worker does not live to see
            say(name, "got to the end of it")
        time.sleep(0.2)  # work takes time: the other worker has its share

    @queue.on_file_received
    def do_file(id: str, file_name: str, path: Path) -> None:
        say(name, f"does {file_name!r}, {path.stat().st_size} bytes")
        time.sleep(0.2)

    queue.work()  # until SIGTERM; the job in hand is finished first
    say(name, "stops")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pacchettino-demo-") as home:
        directory = Path(home, "queue")
        queue = Pacchettino(directory)
        say("demo", f"the queue is {directory}")

        producer = Process(target=produce, args=[directory])
        producer.start()
        producer.join()
        show(directory, "nobody works yet: the jobs wait")

        here, there = Pipe()
        workers = {name: Process(target=work, args=[name, directory, there]) for name in ("anna", "bruno")}
        try:
            for worker in workers.values():
                worker.start()

            # A worker tells when it is in the middle of the report. SIGKILL leaves it no time for last words.
            expect("a worker in the middle of the report", lambda: here.poll())
            name, id = here.recv()
            show(directory, f"{name} is in the middle of the report")
            victim = workers.pop(name)
            victim.kill()
            victim.join()
            say("demo", f"killed {name}")

            # The other worker notices. Nobody knows how far the job came, so it is not simply done once more.
            expect("the report in interrupted/", lambda: queue.is_interrupted(id))
            show(directory, "the report is kept, for somebody to decide")
            say("demo", "decides: the report is to be done again")
            queue.requeue(id)
            here.send("go on")

            expect(f"{JOBS} successful jobs", lambda: queue.count_successful() >= JOBS)
            for worker in workers.values():
                worker.terminate()
                worker.join(10)
            show(directory, "all is done, the reminder too")
        finally:
            for worker in workers.values():
                worker.kill()  # nothing is left running if something went wrong

        check("workers that stopped as told", sum(worker.exitcode == 0 for worker in workers.values()), 1)
        check("successful jobs", queue.count_successful(), JOBS)
        check("failed jobs", queue.count_failed(), 0)
        check("interrupted jobs", queue.count_interrupted(), 0)
        check("jobs in all", queue.count_all(), JOBS)


def say(name: str, text: str) -> None:
    print(f"{name:<8} | {text}", flush=True)


def show(directory: Path, why: str) -> None:
    """List the files of the queue. There is nothing else to it; in `owners/` is a lock file of each live worker."""
    say("demo", f"-- {why}:")
    for folder, _, files in sorted(os.walk(directory)):
        for file in sorted(files):
            say("demo", f"     {Path(folder, file).relative_to(directory)}")


def expect(what: str, happened: Callable[[], bool]) -> None:
    """Wait for something that must happen soon."""
    end = time.monotonic() + 10
    while not happened():
        if time.monotonic() > end:
            sys.exit(f"FAILED: waited in vain for: {what}")
        time.sleep(0.01)


def check(what: str, count: int, right: int) -> None:
    say("demo", f"{what}: {count}")
    if count != right:
        sys.exit(f"FAILED: {what}: {count} instead of {right}")


if __name__ == "__main__":
    main()
