"""A soak of mixed work under kills, stops, signals, forks and clock steps, checked by a record outside the queue.

    python tests/soak.py --seconds 120 [--seed N]     # or: make soak SECONDS=120

Processes send, handle, requeue and clean up in one directory, each in another way, and write down what they are about
to do and what came of it. Some are killed, stopped and interrupted at random moments, some live as long as the soak.
Meanwhile and at the end what they wrote is compared with itself and with the directory (`story.py`).
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import itertools
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from helpers import PATIENCE, Clock, Ledger, lay_down
from pacchettino import CrashDetection, KeepPolicy, Pacchettino, Result, Status
from story import Account, Wrong

CRASHED = 77
"""The exit code of a process that ends itself in the middle of a job."""

MOST_WAITING = 2000
"""With so many jobs waiting, producers wait."""

HOUR, YEAR = 3600, 365 * 24 * 3600


_PR_SET_PDEATHSIG = 1


class Planned(Exception):
    """What a handler raises to fail its job."""


# A process at work


class Worker:
    """A process of the soak: what all kinds have in common."""

    def __init__(self, base: Path, name: str, seed: int, steady: bool) -> None:
        self.base = base
        self.name = name
        self.steady = steady
        self.chance = random.Random(seed)
        self.ledger = Ledger(base.parent / "ledger")
        self.over = False
        self.interruptible = False
        self.numbers = itertools.count(1)
        logger = logging.getLogger("pacchettino")
        logger.addHandler(Complaints())
        logger.propagate = False
        sys.unraisablehook = complain
        signal.signal(signal.SIGTERM, self.leave)
        signal.signal(signal.SIGINT, self.interrupt)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def open(self, **settings: Any) -> Pacchettino:
        """Open the queue, with settings of chance where none are given."""
        chance = self.chance
        self.queue = Pacchettino(
            self.base,
            **{
                "durable": chance.random() < 0.3,
                "crash_detection": chance.choice([*CrashDetection]),
                "retry_delay": chance.choice([0, 0.01, 0.3]),
                "fifo": chance.random() < 0.4,
                **settings,
            },
        )
        return self.queue

    def leave(self, *_: object) -> None:
        self.over = True

    def interrupt(self, *_: object) -> None:
        if self.interruptible:
            self.interruptible = False
            self.ledger.add(f"broke {self.name}")
            raise KeyboardInterrupt

    def number(self) -> str:
        """Give a name for something that this process does."""
        return f"{self.name}/{next(self.numbers)}"

    def rest(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def run(self) -> None:
        raise NotImplementedError


class Complaints(logging.Handler):
    """Says on stderr, where nothing may be in the end, what was not to be logged."""

    EXPECTED = ("was interrupted: its consumer", "is the parent process's: its handler forked", "written to for a day")

    def emit(self, record: logging.LogRecord) -> None:
        planned = record.exc_info is not None and record.exc_info[0] is Planned
        text = record.getMessage()
        if not planned and not any(expected in text for expected in self.EXPECTED):
            print(text, record.exc_info, file=sys.stderr, flush=True)


def complain(unraisable: sys.UnraisableHookArgs) -> None:
    """Say what was raised where nothing can be: but for an interrupt, which may come there as well and is ignored."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)


class Producer(Worker):
    """Sends in every way."""

    def run(self) -> None:
        self.open()
        self.ledger.add(f"born {self.name}")
        self.drafts = Path(tempfile.mkdtemp(dir=self.base.parent / "drafts"))
        while not self.over:
            self.send()
            self.rest(self.chance.random() * 0.04)
            if self.chance.random() < 0.05:
                while self.queue.count_queued() > MOST_WAITING and not self.over:
                    self.rest(0.2)

    def send(self) -> None:
        chance = self.chance
        delay = chance.choice([0, 0, 0, 0, 0.001, 0.05, 0.5])
        way = chance.random()
        if way < 0.15:
            numbers = [self.number() for _ in range(chance.randrange(1, 20))]
            self.ledger.add(*(f"intend {number}" for number in numbers))
            ids = self.queue.send_many([payload(number, chance.randrange(200)) for number in numbers], delay=delay)
            self.ledger.add(*(f"sent {number} {id}" for number, id in zip(numbers, ids, strict=True)))
            return
        number = self.number()
        data = payload(number, chance.choice([0, 10, 1000, 1000, 30_000, 200_000]))
        self.ledger.add(f"intend {number}")
        if way < 0.4:
            draft = self.drafts / chance.choice(["a", "b.tar.gz", "with space", "new\nline", "c.12345", "-"])
            draft.write_bytes(data)
            id = self.queue.send_file(draft, copy=chance.random() < 0.5, delay=delay)
        else:
            id = self.queue.send_data(data, delay=delay)
        self.ledger.add(f"sent {number} {id}")


def payload(number: str, size: int) -> bytes:
    """Make what a job carries: its number, and by what one sees whether it is whole."""
    body = (number * (size // len(number) + 1)).encode()[:size]
    return f"{number} {hashlib.sha256(body).hexdigest()} ".encode() + body


class Consumer(Worker):
    """Handles jobs, and gives every verdict."""

    interrupts = True

    def run(self) -> None:
        self.prepare()
        while not self.over:
            try:
                self.interruptible = True
                self.once()
            except KeyboardInterrupt:
                pass
            except ValueError:
                if not self.over:
                    raise

    def prepare(self, **settings: Any) -> None:
        queue = self.open(**settings)
        queue.on_data_received(lambda id, data: self.handle(id, data))
        queue.on_file_received(lambda id, name, path: self.handle(id, path.read_bytes()))
        self.ledger.add(f"born {self.name}")

    def leave(self, *_: object) -> None:
        self.over = True
        self.queue.close()

    def once(self) -> None:
        raise NotImplementedError

    def handle(self, id: str, data: bytes) -> Result:
        """Do a job."""
        number, digest, body = data.split(b" ", 2)
        if hashlib.sha256(body).hexdigest().encode() != digest:
            self.ledger.add(f"torn {number.decode()}")
        run = self.number()
        self.ledger.add(f"start {number.decode()} {id} {run}")
        self.work()
        return self.verdict(number.decode(), run)

    def work(self) -> None:
        what = self.chance.random()
        if what < 0.1:
            self.rest(self.chance.random() * 0.03)
        elif what < 0.102 and not self.steady:
            self.crash()
        elif what < 0.11:
            self.fork()

    def crash(self) -> NoReturn:
        self.ledger.add(f"exiting {self.name}")
        os._exit(CRASHED)

    def fork(self) -> None:
        """Fork in a handler. The child leaves at once, or sends a job first, or comes back from the handler."""
        # A child of another thread has only that one, which would come back into a loop that does not end.
        what = self.chance.randrange(3 if threading.current_thread() is threading.main_thread() else 2)
        name = self.number().replace("/", "~")
        self.ledger.add(f"forking {name}")
        if os.fork():
            return
        try:
            self.name, self.numbers, self.steady = name, itertools.count(1), True
            if what == 1:
                number = self.number()
                self.ledger.add(f"intend {number}")
                self.ledger.add(f"sent {number} {self.queue.send_data(payload(number, 10))}")
            elif what == 2:
                raise CameBack
        except CameBack:
            self.after(3)
            raise Planned from None
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(0)

    def after(self, jobs: int) -> None:
        """Have this forked child leave after so many jobs, or when it would wait."""
        ledger, left = self.ledger, jobs

        def verdict(number: str, run: str) -> Result:
            nonlocal left
            left -= 1
            ledger.add(f"verdict {number} {run} success")
            return Result.SUCCESS

        def once() -> None:
            if left <= 0 or not self.queue.receive_one():
                os._exit(0)

        self.verdict, self.once, self.fork = verdict, once, lambda: None  # type: ignore[method-assign]

    def verdict(self, number: str, run: str) -> Result:
        what = self.chance.random()
        if what < 0.80:
            verdict = Result.SUCCESS
        elif what < 0.90:
            verdict = Result.RETRY
        else:
            verdict = Result.FAILED
        self.ledger.add(f"verdict {number} {run} {verdict.value}")
        if what > 0.98:
            raise Planned
        return verdict


class CameBack(Exception):
    """A forked child is about to come back from the handler in which it was forked."""


class Receiver(Consumer):
    """Takes what waits, then waits."""

    def once(self) -> None:
        self.queue.receive()
        self.queue.receive_one(timeout=self.chance.choice([0, 0.01, 0.5]))


class Waiter(Consumer):
    """Takes one job at a time, and waits for ever."""

    def once(self) -> None:
        self.queue.receive_one(timeout=None)


class Claimer(Consumer):
    """Takes jobs without a handler."""

    def once(self) -> None:
        job = self.queue.claim(timeout=1, kind=self.chance.choice([None, "data", "file"]))
        if job is None:
            return
        try:
            with job:
                verdict = self.handle(job.id, job.data)
                if verdict is Result.RETRY:
                    job.retry(self.chance.choice([None, 0, 0.02]))
                elif verdict is Result.FAILED:
                    job.fail()
                elif self.chance.random() < 0.5:
                    job.succeed()
        except Planned:
            pass


class Crew(Consumer):
    """Handles jobs in threads, with one instance for all."""

    interrupts = False

    def run(self) -> None:
        self.prepare()
        threads = [threading.Thread(target=self.loop, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def loop(self, number: int) -> None:
        while not self.over:
            try:
                if number == 0:
                    self.queue.receive()
                self.queue.receive_one(timeout=0.5)
            except ValueError:
                if not self.over:
                    raise


class Janitor(Worker):
    """Looks, requeues and cleans up."""

    def run(self) -> None:
        self.open(crash_detection=CrashDetection.LOCK_FILE)
        self.ledger.add(f"born {self.name}")
        while not self.over:
            self.chance.choice([self.look, self.requeue, self.requeue, self.requeue_all, self.cleanup])()
            self.rest(self.chance.random() * (1.5 if self.steady else 0.5))

    def look(self) -> None:
        self.queue.count_all()
        for job in [*self.queue.jobs(self.chance.choice([*Status][1:]))][:5]:
            self.queue.status(job.id)

    def requeue(self) -> None:
        jobs = [*self.queue.jobs(self.chance.choice([Status.SUCCESS, Status.FAILED, Status.INTERRUPTED]))]
        for job in self.chance.sample(jobs, min(len(jobs), 10)):
            self.ledger.add(f"requeue {self.name} {job.id}")
            requeued = self.queue.requeue(self.chance.choice([job.id, job.entry]))
            self.ledger.add(f"requeued {self.name} {int(requeued)}")

    def requeue_all(self) -> None:
        self.ledger.add(f"requeue-all {self.name}")
        self.ledger.add(f"requeued-all {self.name} {self.queue.requeue_all()}")

    def cleanup(self) -> None:
        if self.steady and self.queue.cleanup(older_than=24 * HOUR):
            self.ledger.add(f"wrong {self.name} deleted what is not a day old")
        self.ledger.add(f"cleanup {self.name}")
        self.ledger.add(f"cleaned {self.name} {self.queue.cleanup(KeepPolicy.SUCCESS)}")


class Last(Consumer):
    """Brings all jobs to a good end when the others have left."""

    def run(self) -> None:
        self.prepare(crash_detection=CrashDetection.LOCK_FILE)
        while True:
            self.ledger.add(f"requeue-all {self.name}")
            requeued = self.queue.requeue_all()
            self.ledger.add(f"requeued-all {self.name} {requeued}")
            if not requeued + self.queue.receive() + self.queue.receive_one() and not self.queue.count_scheduled():
                return

    def work(self) -> None:
        pass

    def verdict(self, number: str, run: str) -> Result:
        self.ledger.add(f"verdict {number} {run} success")
        return Result.SUCCESS


KINDS: dict[str, type[Worker]] = {
    kind.__name__: kind for kind in (Producer, Receiver, Waiter, Claimer, Crew, Janitor, Last)
}


# The soak


@dataclass
class Post:
    """A place that is always taken by a process of some kind."""

    kinds: list[str]
    steady: bool = False
    clock: int | None = None
    """Which of the clocks that are set it has; `None` is the right one."""
    process: subprocess.Popen[bytes] = field(init=False)
    name: str = field(init=False)
    kind: str = field(init=False)
    is_leaving: bool = field(init=False)

    def leave(self) -> None:
        """Tell it to leave, once: an interpreter that ends handles no signals any more."""
        if not self.is_leaving:
            self.is_leaving = True
            self.process.terminate()


POSTS = [
    Post(["Producer"], steady=True),
    Post(["Crew"], steady=True),
    Post(["Waiter"], steady=True, clock=0),
    Post(["Janitor"], steady=True),
    Post(["Producer"]),
    Post(["Producer"], clock=0),
    Post(["Receiver", "Waiter", "Claimer", "Crew"]),
    Post(["Receiver", "Waiter", "Claimer", "Crew"], clock=0),
    Post(["Receiver", "Waiter", "Claimer", "Crew"], clock=1),
    Post(["Janitor"], clock=1),
]


class Soak:
    """All processes of a soak, and who watches them."""

    def __init__(self, home: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.home = home
        self.base = home / "queue"
        self.seed = seed
        self.say = say
        self.chance = random.Random(seed)
        self.ledger = Ledger(home / "ledger")
        self.account = Account(home / "ledger", self.base)
        self.counts: Counter[str] = Counter()
        self.started = self.handled = 0
        self.stopped: dict[int, tuple[float, Post]] = {}
        self.samples: dict[str, list[tuple[int, int]]] = {}
        lay_down(self.base, {})
        for directory in ("drafts", "logs"):
            (home / directory).mkdir()
        self.clocks = [Clock(home / f"clock {number}") for number in range(2)]
        self.posts = [Post(post.kinds, post.steady, post.clock) for post in POSTS]

    def run(self, seconds: float) -> None:
        """Run, and raise `Wrong` at the first thing that is not as it should be."""
        start = time.monotonic()
        next_action = next_look = next_report = start
        try:
            for post in self.posts:
                self.start(post)
            while (now := time.monotonic()) < start + seconds:
                if now >= next_action:
                    next_action = now + self.chance.uniform(0.05, 0.5)
                    self.act(now)
                if now >= next_look:
                    next_look = now + 1
                    self.look()
                if now >= next_report:
                    next_report = now + 10
                    self.report(now - start)
                self.go_on(now)
                self.account.read()
                time.sleep(0.02)
            self.end()
        finally:
            self.account.close()
            self.ledger.close()
            for clock in self.clocks:
                clock.close()
            for post in self.posts:
                if hasattr(post, "process") and post.process.poll() is None:
                    post.process.kill()
                    post.process.wait()
        self.table(time.monotonic() - start)

    def start(self, post: Post) -> None:
        self.started += 1
        post.kind = self.chance.choice(post.kinds)
        post.name = f"{post.kind}-{self.started}"
        post.is_leaving = False
        post.process = self.spawn(
            post.kind, post.name, post.steady, self.clocks[post.clock] if post.clock is not None else None
        )

    def spawn(self, kind: str, name: str, steady: bool, clock: Clock | None) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", __file__, "--work", kind]
        arguments = [str(self.base), name, str(self.chance.randrange(1 << 32)), str(int(steady))]
        with (self.home / "logs" / name).open("wb") as log:
            return subprocess.Popen(
                [*program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(clock.environment if clock else {})},
            )

    # What is done to them

    def act(self, now: float) -> None:
        post = self.chance.choice([post for post in self.posts if not post.steady])
        what = self.chance.random()
        if what < 0.15:
            self.step()
        elif post.process.pid in self.stopped:
            pass
        elif what < 0.60:
            self.kill(post)
        elif what < 0.75:
            self.counts["stops"] += 1
            post.process.send_signal(signal.SIGSTOP)
            self.stopped[post.process.pid] = (now + self.chance.random(), post)
        elif post.name not in self.account.born or post.is_leaving:
            pass
        elif what < 0.85:
            self.counts["told to leave"] += 1
            post.leave()
        elif issubclass(KINDS[post.kind], Consumer) and KINDS[post.kind].interrupts:  # type: ignore[attr-defined]
            self.counts["interrupts"] += 1
            post.process.send_signal(signal.SIGINT)

    def step(self) -> None:
        self.counts["clock steps"] += 1
        clock = self.chance.choice(self.clocks)
        how = self.chance.randrange(4)
        if how == 0:
            clock.step(-HOUR)
        elif how == 1 and clock.offset < 50 * YEAR:
            clock.step(10 * YEAR)
        elif how == 2:
            clock.set(self.chance.randrange(HOUR))  # as at boot, on a board without a battery
        else:
            clock.step(-clock.offset)

    def kill(self, post: Post) -> None:
        self.counts["kills"] += 1
        self.ledger.add(f"killing {post.name}")
        post.process.kill()
        code = post.process.wait()
        self.ledger.add(f"gone {post.name}")
        if code not in (-signal.SIGKILL, CRASHED, 0):
            raise Wrong(f"{post.name} ended with {code}: {self.log(post.name)}")
        self.start(post)

    def go_on(self, now: float) -> None:
        """Let go on those whose stop is over, some to be killed at once; replace those that left."""
        for pid, (until, post) in [*self.stopped.items()]:
            if until <= now:
                del self.stopped[pid]
                if self.chance.random() < 0.3:
                    self.kill(post)
                else:
                    post.process.send_signal(signal.SIGCONT)
        for post in self.posts:
            if (code := post.process.poll()) is not None:
                if post.steady or code not in (CRASHED, 0):
                    raise Wrong(f"{post.name} ended with {code}: {self.log(post.name)}")
                self.counts["crashes in a handler" if code else "left"] += 1
                self.ledger.add(f"gone {post.name}")
                self.start(post)

    # How they do

    def look(self) -> None:
        self.account.read()
        self.account.look()
        for post in self.posts:
            if post.steady:
                self.samples.setdefault(post.name, []).append(resources(post.process.pid))
        self.look_at_logs()

    def look_at_logs(self) -> None:
        for log in (self.home / "logs").iterdir():
            if log.stat().st_size:
                raise Wrong(f"{log.name} says: {self.log(log.name)}")

    def log(self, name: str) -> str:
        return (self.home / "logs" / name).read_text(errors="replace")[-3000:]

    def report(self, seconds: float) -> None:
        """Tell how far it is, and see that it gets on."""
        counts = self.account.counts
        if seconds > 1 and counts["start"] == self.handled:
            raise Wrong(f"no job was handled in the last seconds before {seconds:.0f} s")
        self.handled = counts["start"]
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        self.say(f"{seconds:6.0f} s: {counts['sent']} sent, {self.handled} handled, {len(self.account)} there; {done}")

    def end(self) -> None:
        """Let all leave, see that each job is where it should be, and bring all to a good end."""
        for _, post in self.stopped.values():
            post.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        while not {post.name for post in self.posts} <= self.account.born:
            self.account.read()
            if time.monotonic() > deadline:
                raise Wrong("not all processes begin")
            time.sleep(0.02)
        for post in self.posts:
            post.leave()
        for post in self.posts:
            if (code := post.process.wait(PATIENCE)) not in (0, CRASHED):
                raise Wrong(f"{post.name} ended with {code}: {self.log(post.name)}")
            self.ledger.add(f"gone {post.name}")
        self.wait_for_forked()
        self.account.read()
        self.account.look_at_rest()
        self.clocks.append(future := Clock(self.home / "clock of the end"))
        future.step(100 * YEAR)  # all delays are over
        if code := self.spawn("Last", "Last-1", True, future).wait(120):
            raise Wrong(f"the last one ended with {code}: {self.log('Last-1')}")
        self.account.read()
        self.account.look_at_the_end()
        self.look_at_logs()
        self.look_at_resources()

    def wait_for_forked(self) -> None:
        """Wait for the forked children of workers, which leave by themselves."""
        deadline = time.monotonic() + PATIENCE
        while True:
            commands = []
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"\0--work\0" in command and os.fsencode(self.base) in command:
                    commands.append(process.name)
            if not commands:
                return
            if time.monotonic() > deadline:
                raise Wrong(f"forked children do not end: {commands}")
            time.sleep(0.05)

    def look_at_resources(self) -> None:
        """See that who lived as long as the soak has no more memory and descriptors in the end than early on."""
        for name, samples in self.samples.items():
            early, late = samples[len(samples) // 5 : len(samples) // 2], samples[-len(samples) // 4 :]
            if len(early) < 10:
                continue
            memory, descriptors = (
                tuple(median([sample[what] for sample in part]) for part in (early, late)) for what in range(2)
            )
            if memory[1] > memory[0] * 1.1 + 4096 or descriptors[1] > descriptors[0] + 3:
                raise Wrong(f"{name}: {memory} KiB, {descriptors} descriptors")

    def table(self, seconds: float) -> None:
        counts = Counter(self.account.counts) + self.counts
        rows: list[tuple[str, object]] = [
            ("seed", self.seed),
            ("seconds", round(seconds)),
            ("processes started", self.started),
            *((name, counts[name]) for name in sorted(counts)),
            ("jobs sent per second", round(counts["sent"] / seconds)),
            ("jobs handled per second", round(counts["start"] / seconds)),
        ]
        for name, samples in self.samples.items():
            memory, descriptors = zip(*samples, strict=True)
            rows.append((f"{name}: KiB first, median, last", f"{memory[0]}, {median([*memory])}, {memory[-1]}"))
            rows.append((f"{name}: descriptors", f"{descriptors[0]}, {median([*descriptors])}, {descriptors[-1]}"))
        for what, value in rows:
            self.say(f"{what:40} {value}")


def resources(pid: int) -> tuple[int, int]:
    """Give how many KiB a process has in memory, and how many descriptors."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]), len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


def median(numbers: list[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]


def soak(seconds: float, seed: int | None = None, say: Callable[[str], None] = print) -> None:
    """Soak in a directory that is kept if anything is wrong."""
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    home = Path(tempfile.mkdtemp(prefix="pacchettino-soak-"))
    say(f"seed {seed}, in {home}")
    Soak(home, seed, say).run(seconds)
    shutil.rmtree(home)


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        _, _, kind, base, name, seed, steady = sys.argv
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        KINDS[kind](Path(base), name, int(seed), steady == "1").run()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    soak(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    main()
