"""What a job costs, beside the bare system calls that it can't do without.

    python benches/measure.py           measures everything and writes benches/results/
    python benches/measure.py --quick   the everyday figures, to the terminal
    python benches/measure.py NAME ...  these measures alone, to the terminal

A measure is a generator of `Figure`s. What is compared is done in turns, so that whatever else the machine does hits
both; of all figures for one case the median counts, and of all their ratios.
"""

import argparse
import inspect
import multiprocessing
import os
import random
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pacchettino import KeepPolicy, Pacchettino, Status
from peers import PEERS, durability
from place import FILESYSTEMS, HERE, Bare, Lab, filesystem, run
from report import Figure, Row, circumstances, plot, rows, table

PAYLOAD = b"x" * 256
SHORT = 5  # times as many rounds, of so few jobs that on a busy machine, too, most are not interrupted
MEASURES: dict[str, Callable[[Lab], Iterator[Figure]]] = {}
FORK = multiprocessing.get_context("fork")

# What a claim and its settling take at least: with a directory of its own, with one that goes from job to job (the
# least that the layout allows), and without.
CLAIMS = {"a directory each": "claim", "one directory": "claim-reused", "no directory": "claim-without"}


def measure(function: Callable[[Lab], Iterator[Figure]]) -> Callable[[Lab], Iterator[Figure]]:
    """Measure it, too; the first line of its docstring is its title."""
    MEASURES[function.__name__] = function
    return function


def seconds(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def rate(jobs: int, work: Callable[..., object], *arguments: object) -> float:
    return jobs / seconds(work, *arguments)


def queue_in(directory: Path, keep: KeepPolicy = KeepPolicy.ALL, **settings: Any) -> Pacchettino:
    queue = Pacchettino(directory, keep, **settings)
    queue.on_data_received(lambda id, data: None)
    return queue


def send_loop(queue: Pacchettino, jobs: int, payload: bytes = PAYLOAD) -> None:
    for _ in range(jobs):
        queue.send_data(payload)


def receive_loop(queue: Pacchettino, jobs: int) -> None:
    for _ in range(jobs):
        assert queue.receive_one()


def bare_send(lab: Lab, jobs: int, sequence: str = "send", processes: int = 1, size: int = 256) -> dict[str, float]:
    return {"send": lab.bare.rate(sequence, lab.directory(), jobs, processes=processes, size=size)}


def bare_claims(lab: Lab, jobs: int, *, size: int = 256, suffix: str = "") -> dict[str, float]:
    """The rates of the sequences that claim and settle."""
    rates = {}
    for name, sequence in CLAIMS.items():
        directory = lab.directory()
        lab.bare.rate("send", directory, jobs, size=size)
        rates[name] = lab.bare.rate(sequence + suffix, directory, jobs, size=size)
    return rates


@measure
def everyday(lab: Lab) -> Iterator[Figure]:
    """Jobs of 256 bytes, one process.

    *core* is the Rust crate without Python. `durable` on tmpfs flushes nothing. The bare sequence beside a durable
    `send_data` flushes each file and each rename; that beside a durable `send_many` writes all, flushes the filesystem
    once, renames all and flushes the directory.
    """
    jobs, durable_jobs = 400, 100
    for _ in range(SHORT * lab.rounds):
        queue, bare, core = queue_in(lab.directory()), lab.directory(), lab.directory()
        sent = {"send": lab.bare.rate("send", bare, jobs), "core": lab.bare.rate("core-send", core, jobs)}
        yield Figure("send_data", rate(jobs, send_loop, queue, jobs), sent)
        core_rate = lab.bare.rate("core-receive", core, jobs)
        claimed = bare_claims(lab, jobs) | {"core": core_rate}
        yield Figure("receive", rate(jobs, queue.receive), claimed)
        sent = bare_send(lab, jobs)
        yield Figure("send_many", rate(jobs, queue.send_many, [PAYLOAD] * jobs), sent)
        yield Figure("receive_one in a loop", rate(jobs, receive_loop, queue, jobs), claimed)
        assert queue.count_successful() == queue.count_all() == 2 * jobs

        queue = queue_in(lab.directory(), KeepPolicy.NONE)
        queue.send_many([PAYLOAD] * jobs)
        claimed = bare_claims(lab, jobs, suffix="-delete")
        yield Figure("receive, KeepPolicy.NONE", rate(jobs, queue.receive), claimed)
        queue.send_many([PAYLOAD] * jobs)
        yield Figure("receive_one in a loop, KeepPolicy.NONE", rate(jobs, receive_loop, queue, jobs), claimed)

        queue, bare = queue_in(lab.directory(), durable=True), lab.directory()
        sent = {"send": lab.bare.rate("send-durable", bare, durable_jobs)}
        yield Figure("send_data, durable", rate(durable_jobs, send_loop, queue, durable_jobs), sent)
        claimed = {"a directory each": lab.bare.rate("claim-durable", bare, durable_jobs)}
        yield Figure("receive, durable", rate(durable_jobs, queue.receive), claimed)
        sent = bare_send(lab, 1_000, "send-durable-together")
        yield Figure("send_many of 1,000, durable", rate(1_000, queue.send_many, [PAYLOAD] * 1_000), sent)
        yield Figure("receive_one in a loop, durable", rate(durable_jobs, receive_loop, queue, durable_jobs), claimed)


@measure
def peers(lab: Lab) -> Iterator[Figure]:
    """Other queues, with their defaults: 256 bytes are sent, taken, and said to be done."""
    jobs = 500
    for _ in range(lab.rounds):
        for peer in PEERS:
            bare = lab.directory()
            sent = {"bare": lab.bare.rate("send", bare, jobs)}
            claimed = {"bare": lab.bare.rate("claim", bare, jobs)}
            with ExitStack() as stack:
                try:
                    calls = stack.enter_context(peer.open(lab.directory()))
                except (ImportError, FileNotFoundError) as error:
                    print(f"NOT MEASURED: {peer.name}: {error}", file=sys.stderr)
                    continue
                calls.send(PAYLOAD)
                calls.receive()  # what is made at the first use is there now
                yield Figure(f"send: {peer.name}", rate(jobs, repeat, jobs, calls.send, PAYLOAD), sent)
                yield Figure(f"receive: {peer.name}", rate(jobs, repeat, jobs, calls.receive), claimed)
                if calls.send_many is not None:
                    figure = rate(jobs, calls.send_many, [PAYLOAD] * jobs)
                    yield Figure(f"send a batch of {jobs}: {peer.name}", figure, sent)


def repeat(times: int, call: Callable[..., object], *arguments: object) -> None:
    for _ in range(times):
        call(*arguments)


@measure
def durable(lab: Lab) -> Iterator[Figure]:
    """What is flushed to the disk, by one and by many; on tmpfs nothing is.

    Eight threads and four processes stand beside bare calls of as many processes, one flush for each file and rename.
    """
    jobs = 400
    for _ in range(lab.rounds):
        queue = queue_in(lab.directory(), durable=True)
        sent = bare_send(lab, jobs, "send-durable")
        yield Figure("send_data", rate(jobs, send_loop, queue, jobs), sent)
        sent = bare_send(lab, 1_000, "send-durable-together")
        yield Figure("send_many of 1,000", rate(1_000, queue.send_many, [PAYLOAD] * 1_000), sent)
        sent = bare_send(lab, jobs, "send-durable", 8)
        yield Figure("send_data, 8 threads", together(8, jobs, threading, send_loop, queue, jobs // 8), sent)
        sent = bare_send(lab, jobs, "send-durable", 4)
        yield Figure("send_data, 4 processes", together(4, jobs, FORK, send_loop, queue, jobs // 4), sent)


def together(count: int, jobs: int, kind: Any, work: Callable[..., object], *arguments: object) -> float:
    """Jobs per second of that many processes or threads, from the first one's begin to the last one's end."""
    barrier, times = kind.Barrier(count), [FORK.Pipe(duplex=False) for _ in range(count)]

    def body(told: Any) -> None:
        barrier.wait()
        start = time.perf_counter()
        work(*arguments)
        told.send((start, time.perf_counter()))

    start_one = threading.Thread if kind is threading else FORK.Process
    workers = [start_one(target=body, args=(told,)) for _, told in times]
    for worker in workers:
        worker.start()
    starts, ends = zip(*(answer(listen) for listen, _ in times), strict=True)
    for worker in workers:
        worker.join()
    took: float = max(ends) - min(starts)
    return jobs / took


def in_a_process(work: Callable[..., Any], *arguments: object) -> Any:
    """What a child of this process makes of it."""
    listen, told = FORK.Pipe(duplex=False)
    child = FORK.Process(target=lambda: told.send(work(*arguments)))
    child.start()
    result = answer(listen)
    child.join()
    return result


def answer(listen: Connection) -> Any:
    """What a worker tells, unless it died."""
    if not listen.poll(timeout=300):
        raise TimeoutError("a worker told nothing in five minutes")
    return listen.recv()


@measure
def latency(lab: Lab) -> Iterator[Figure]:
    """From the return of `send_data` to the first line of the handler, in a process that slept; less is better.

    The bare sequence is a thread that sleeps in inotify, claims with a directory, and reads. *Due* is how late a
    delayed job comes to its handler.
    """
    jobs = 100
    for _ in range(lab.rounds):
        queue = queue_in(lab.directory())
        with consumer(queue.base_dir) as next_time:
            ours = []
            for _ in range(jobs):
                time.sleep(random.uniform(0.003, 0.006))  # the consumer sleeps again
                queue.send_data(PAYLOAD)
                sent = time.time()
                ours.append(max(0.0, next_time() - sent))
            bare = lab.bare.times("wake", lab.directory(), jobs)
            for name, part in (("half", 0.5), ("90 %", 0.9), ("99 %", 0.99)):
                yield Figure(
                    f"send to handler: {name} of the jobs within",
                    1e6 * quantile(ours, part),
                    {"inotify": 1e6 * quantile(bare, part)},
                    unit="µs",
                )
            late = []
            for _ in range(10):
                queue.send_data(PAYLOAD, delay=random.uniform(0.1, 0.2))
                (job,) = queue.jobs(Status.SCHEDULED)
                assert job.due is not None
                late.append(next_time() - job.due.timestamp())
            for name, part in (("half", 0.5), ("all", 1)):
                yield Figure(f"due: {name} of the jobs within", 1e6 * quantile(late, part), unit="µs")


@measure
def idle(lab: Lab) -> Iterator[Figure]:
    """A consumer that waits and gets nothing; less is better."""
    for _ in range(lab.rounds):
        cpu, wakes = in_a_process(rest, lab.directory())
        yield Figure("processor time", 100 * cpu, unit="% of a core")
        yield Figure("wake-ups", wakes, unit="per second")


def rest(directory: Path) -> tuple[float, float]:
    """The part of the time that a consumer which waits is busy, and how often it wakes up in a second."""
    queue, period = queue_in(directory), 3
    queue.receive_one(timeout=0.5)
    used, wakes = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    queue.receive_one(timeout=period)
    used, wakes = time.process_time() - used, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - wakes
    return used / period, wakes / period


@contextmanager
def consumer(directory: Path) -> Iterator[Callable[[], float]]:
    """A process that waits for jobs; what is yielded waits for the next one's time."""
    listen, told = os.pipe()

    def consume() -> None:
        queue = Pacchettino(directory)

        @queue.on_data_received
        def tell(id: str, data: bytes) -> None:
            os.write(told, struct.pack("d", time.time()))

        while queue.receive_one(timeout=None):
            pass

    process = FORK.Process(target=consume)
    process.start()
    try:
        time.sleep(0.5)  # it has begun to wait
        yield lambda: struct.unpack("d", os.read(listen, 8))[0]
    finally:
        process.kill()
        process.join()
        os.close(listen)
        os.close(told)


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


@measure
def files(lab: Lab) -> Iterator[Figure]:
    """A file of 1 GB, sent by copy beside `cp`, and by move beside a rename; less is better."""
    directory = lab.directory()
    source, other = directory / "source", directory / "other"
    with source.open("wb") as file:
        for _ in range(1024):
            file.write(os.urandom(1 << 20))
    queue = Pacchettino(lab.directory())
    for _ in range(lab.rounds):
        copied = seconds(run, "cp", source, other)
        other.unlink()
        ours = seconds(queue.send_file, source)
        next(queue.jobs(Status.QUEUED)).path.unlink()
        yield Figure("copy of 1 GB", 1e3 * ours, {"cp": 1e3 * copied}, unit="ms")

        moved = seconds(source.rename, other)
        ours = seconds(lambda: queue.send_file(other, copy=False))
        next(queue.jobs(Status.QUEUED)).path.rename(source)
        yield Figure("move of 1 GB", 1e3 * ours, {"rename": 1e3 * moved}, unit="ms")


@measure
def sizes(lab: Lab) -> Iterator[Figure]:
    """Jobs of other sizes."""
    for _ in range(SHORT * lab.rounds):
        for name, size, jobs in (
            ("0 bytes", 0, 400),
            ("256 bytes", 256, 400),
            ("4 KB", 4 << 10, 400),
            ("64 KB", 64 << 10, 100),
            ("1 MB", 1 << 20, 10),
        ):
            queue, payload = queue_in(lab.directory()), b"x" * size
            sent = bare_send(lab, jobs, size=size)
            yield Figure(f"send_data: {name}", rate(jobs, send_loop, queue, jobs, payload), sent)
            claimed = bare_claims(lab, jobs, size=size)
            yield Figure(f"receive: {name}", rate(jobs, queue.receive), claimed)
            deleting = queue_in(queue.base_dir, KeepPolicy.NONE)
            send_loop(queue, jobs, payload)
            claimed = bare_claims(lab, jobs, size=size, suffix="-delete")
            yield Figure(f"receive, KeepPolicy.NONE: {name}", rate(jobs, deleting.receive), claimed)


@measure
def crowds(lab: Lab) -> Iterator[Figure]:
    """Several producers, then several consumers of what they sent.

    In bare calls each has its own share, and nobody is in another's way.
    """
    jobs = 2_000
    for _ in range(lab.rounds):
        for fifo, order in ((False, "any order"), (True, "FIFO")):
            for crowd in (1, 2, 4, 8):
                queue, bare = queue_in(lab.directory(), fifo=fifo), lab.directory()
                name = f"{crowd} process{'es' if crowd > 1 else ''}"
                sent = {"send": lab.bare.rate("send", bare, jobs, processes=crowd)}
                yield Figure(f"send_data: {name}", together(crowd, jobs, FORK, send_loop, queue, jobs // crowd), sent)
                claimed = {"a directory each": lab.bare.rate("claim", bare, jobs, processes=crowd)}
                figure = together(crowd, jobs, FORK, queue.receive)
                yield Figure(f"receive, {order}: {name}", figure, claimed)
            queue = queue_in(lab.directory(), fifo=fifo)
            queue.send_many([PAYLOAD] * jobs)
            yield Figure(f"receive, {order}: 8 threads", together(8, jobs, threading, queue.receive))


@measure
def backlog(lab: Lab) -> Iterator[Figure]:
    """With 10 to 1,000,000 jobs waiting, empty ones; the first job is that of a process that has just begun."""
    for waiting in filter(lab.largest.__ge__, (10, 1_000, 100_000, 1_000_000)):
        jobs, name = min(waiting, 1_000), f"{waiting:,} waiting"
        queue, bare = queue_in(lab.directory()), lab.directory()
        done = queue.send_data("")
        receive_loop(queue, 1)
        for directory in (queue.base_dir, bare):
            lab.bare.rate("send", directory, waiting, size=0)

        for _ in range(lab.rounds):
            took, megabytes = in_a_process(first_job, queue.base_dir)
            yield Figure(f"first job: {name}", 1e3 * took, unit="ms")
            yield Figure(f"peak memory: {name}", megabytes, unit="MB")

        send_loop(queue, 1, b"")
        receive_loop(queue, 1)  # from here on the jobs are listed
        for number in range(lab.rounds):
            first = waiting + number * jobs
            sent = {"send": lab.bare.rate("send", bare, jobs, first=first, size=0)}
            yield Figure(f"send_data: {name}", rate(jobs, send_loop, queue, jobs, b""), sent)
            claimed = {"a directory each": lab.bare.rate("claim", bare, jobs, first=number * jobs, size=0)}
            yield Figure(f"receive_one in a loop: {name}", rate(jobs, receive_loop, queue, jobs), claimed)
            yield Figure(f"status: {name}", rate(1_000, repeat, 1_000, queue.status, done))


def first_job(directory: Path) -> tuple[float, float]:
    """Seconds from opening a queue to a job of it, and the megabytes that the process had at most."""
    start = time.perf_counter()
    job = Pacchettino(directory).claim()
    took = time.perf_counter() - start
    assert job is not None
    with job:
        return took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@measure
def bulk(lab: Lab) -> Iterator[Figure]:
    """All jobs at once, empty ones.

    Beside loops of getdents alone, with rename (what `requeue_all` moved goes back) and with unlink.
    """
    for jobs in (100_000, 1_000_000):
        for _ in range(lab.rounds if jobs <= lab.largest else 0):
            queue, bare, name = queue_in(lab.directory()), lab.directory(), f"{jobs:,} jobs"
            for directory in (queue.base_dir, bare):
                lab.bare.rate("fill", directory, jobs, size=0)
            listed = {"the bare loop": lab.bare.rate("list", bare, jobs)}
            yield Figure(f"count_successful: {name}", rate(jobs, queue.count_successful), listed)
            yield Figure(f"jobs: {name}", rate(jobs, list_jobs, queue), listed)
            requeued = rate(jobs, queue.requeue_all, KeepPolicy.SUCCESS)
            moved = {"the bare loop": lab.bare.rate("put-back", queue.base_dir, jobs)}
            yield Figure(f"requeue_all: {name}", requeued, moved)
            deleted = {"the bare loop": lab.bare.rate("cleanup", bare, jobs)}
            yield Figure(f"cleanup: {name}", rate(jobs, queue.cleanup), deleted)


def list_jobs(queue: Pacchettino) -> None:
    for _ in queue.jobs(Status.SUCCESS):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the everyday figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=1_000_000, help="jobs in a backlog; %(default)s take long")
    parser.add_argument("measures", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that what is mounted goes
    names = ["everyday"] if arguments.quick else arguments.measures or list(MEASURES)

    if "ext4" not in FILESYSTEMS:
        print("NOT MEASURED: ext4, whose image only root can mount", file=sys.stderr)
    sections = []
    with closing(Bare()) as bare:
        for name in names:
            found: dict[str, list[Figure]] = {}
            for kind in FILESYSTEMS:
                print(f"{time.strftime('%X')} {name} on {kind}", file=sys.stderr)
                with filesystem(kind) as home:
                    found[kind] = list(MEASURES[name](Lab(home, bare, arguments.rounds, arguments.largest)))
            if not any(found.values()):
                continue  # all of it is larger than `--largest`
            title, _, remarks = inspect.cleandoc(MEASURES[name].__doc__ or "").partition("\n\n")
            sections.append((name, title.rstrip("."), remarks, rows(found)))
            print(f"\n{title}\n\n{table(sections[-1][-1])}\n")
            if not arguments.quick and not arguments.measures:
                write(sections, arguments.rounds)


def write(sections: list[tuple[str, str, str, list[Row]]], rounds: int) -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    text = [
        "# What a job costs",
        "Written by `make bench`. Jobs per second where no unit is named; medians of "
        f"{rounds} rounds or more. In parentheses: how many times as fast "
        "as that what was measured is, the median of the rounds' ratios.",
        circumstances(sorted({peer.package for peer in PEERS})),
    ]
    for name, title, remarks, found in sections:
        (results / f"{name}.svg").write_text(plot(title, found))
        text += [f"## {title}", *filter(None, [remarks]), table(found), f"![{title}]({name}.svg)"]
        if name == "peers":
            text.append(durability(PEERS))
    (results / "README.md").write_text("\n\n".join(text) + "\n")


if __name__ == "__main__":
    main()
