"""`work`: what stops it, and what becomes of the jobs in hand, of child processes, and of other people's signals."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import zipapp
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from conftest import finish_thread
from helpers import PATIENCE, has_ended, until
from pacchettino import Pacchettino, Result, Status, _core, current_job
from pacchettino._children import PAUSE
from pacchettino._work import Threads

BEGIN = """
import fcntl, os, signal, sys, threading, time
from pathlib import Path
from pacchettino import Pacchettino
import pacchettino._work

base = sys.argv[1]
"""

HANDLE = """
queue = Pacchettino(base, **eval(sys.argv[3]))


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


def wait_at_the_gate():
    with Path(base, "..", "gate").open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)


stopping = threading.RLock()


def stop(self, stop=pacchettino._work.Work.stop):
    with stopping:
        is_first = not self.token.is_set
        stop(self)
        if is_first:
            say("stops")


def run(self, run=pacchettino._work.Threads._run):
    say("runs")
    run(self)
    with stopping:  # it is not over before that is said
        pass


pacchettino._work.Work.stop = stop
pacchettino._work.Threads._run = run


@queue.on_data_received
def handle(id, data):
    what = data.decode()
    say("began", what, os.getpid())
    if what.startswith("wait"):
        wait_at_the_gate()
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        raise SystemExit(3)
    elif what == "stubborn":
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                say("went on")
    say("ended", what)
"""

MAIN = """
if __name__ == "__main__":
    say("returned", queue.work(**eval(sys.argv[2])))
"""


class Worker:
    """A program that works on a queue, what it said so far, and the gate at which jobs called "wait" are held."""

    def __init__(self, process: subprocess.Popen[str], gate: BinaryIO) -> None:
        self.process = process
        self.pid = process.pid
        self._gate = gate

    def hear(self, *beginnings: str, ignored: str = "") -> list[str]:
        """Wait until it has said lines that begin like that, in any order; gives them in that order."""
        heard: list[str | None] = [None] * len(beginnings)
        while None in heard:
            assert self.process.stdout is not None
            line = self.process.stdout.readline().rstrip("\n")
            if line in ("runs", ignored) and line and line not in beginnings:
                continue
            places = [n for n, word in enumerate(beginnings) if heard[n] is None and line and line.startswith(word)]
            assert places, f"it said {line!r}, and before {heard}, instead of {beginnings}"
            heard[places[0]] = line
        return [line for line in heard if line is not None]

    def settle_down(self) -> None:
        """Wait until its main thread sleeps: Python does not notice a signal that comes on the way there."""
        seen: list[list[str]] = []

        def sleeps() -> bool:
            status = Path(f"/proc/{self.pid}/task/{self.pid}/status").read_text()
            seen.append(re.findall(r"^(?:State|voluntary_ctxt_switches):\t(.*)$", status, re.MULTILINE))
            return len(seen) > 1 and seen[-1] == seen[-2] and seen[-1][0].startswith("S")

        until(sleeps)

    def signal(self, number: int) -> None:
        self.settle_down()
        os.kill(self.pid, number)

    def open_gate(self) -> None:
        """Let go on who waits, now and later."""
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit status, what it said since, and what it said on stderr."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        output, errors = self.process.stdout.read(), self.process.stderr.read()
        self.process.wait(PATIENCE)
        return self.process.returncode, output.replace("runs\n", ""), errors


@contextmanager
def worker(
    base: Path, settings: str = "{}", options: str = "{}", *, program: str = "", main: str = MAIN
) -> Iterator[Worker]:
    """Start a program that calls `work` with these settings."""
    script = base.parent / "worker.py"
    script.write_text(BEGIN + HANDLE + textwrap.dedent(program) + main)
    command = [sys.executable, "-W", "error", str(script), str(base), settings, options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, stdin=subprocess.DEVNULL
    )
    try:
        with (base.parent / "gate").open("wb") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
            yield Worker(process, gate)
    finally:
        with suppress(ProcessLookupError):  # also children that outlive the program
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


ELSEWHERE = """
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
"""
"""Lets the kernel choose another thread than the main one for a signal."""

QUICK = """
import pacchettino._children
pacchettino._work.SLICE = pacchettino._children.SLICE = 0.05
"""
"""In a program: what no event tells of is looked for more often."""

HOWS = ["{}", "{'threads': 2}", "{'threads': 2, 'processes': 2}"]
HOW = pytest.mark.parametrize("how", HOWS)


def options(how: str, **more: object) -> str:
    return str({**eval(how), **more})


def has_children(how: str) -> bool:
    return "processes" in how or "max_jobs" in how


def runs(how: str) -> list[str]:
    """Tell what is said when all processes run that are to handle jobs."""
    return ["runs"] * eval(how).get("processes", 1)


def stops(how: str) -> list[str]:
    """Tell what is said by all that stop: the work itself, and that of each child."""
    return ["stops"] * (1 + (len(runs(how)) if has_children(how) else 0))


# Until no job waits


@HOW
def test_with_drain_each_job_is_handled_once_and_work_returns(queue: Pacchettino, queue_dir: Path, how: str) -> None:
    ids = queue.send_many([f"job{number}" for number in range(50)])
    queue.send_data("later", delay=1000)
    with worker(queue_dir, options(how, drain=True)) as work:
        code, output, errors = work.end()
    assert (code, errors) == (0, "")
    said = Counter(line.split()[1] for line in output.splitlines() if line.startswith("ended"))
    assert said == {f"job{number}": 1 for number in range(50)}
    assert "returned 50\n" in output
    assert all(queue.is_success(id) for id in ids)
    assert queue.count_scheduled() == 1


def test_work_returns_when_its_last_child_ends_and_does_not_look_again(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("one")
    main = QUICK.replace("0.05", "1000")
    with worker(queue_dir, "{'processes': 2, 'drain': True}", main=guarded(main)) as work:
        work.hear("began one", "ended one", "returned 1")


def test_with_drain_and_nothing_to_do_it_returns_at_once(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir)
    queue.on_data_received(lambda id, data: None)
    assert queue.work(drain=True) == queue.work(threads=3, drain=True) == 0
    # It can work again.
    queue.send_many(["one", "two"])
    assert queue.work(threads=2, drain=True) == 2


def test_with_drain_no_thread_ends_while_another_may_send_jobs(queue: Pacchettino) -> None:
    both = threading.Barrier(2)

    @queue.on_data_received
    def handle(id: str, data: bytes) -> None:
        if data == b"first":
            queue.send_many(["second", "second"])
        else:
            both.wait(PATIENCE)  # two threads are still there

    queue.send_data("first")
    assert queue.work(threads=2, drain=True) == 3


def send_the_next(queue: Pacchettino, length: int) -> None:
    """Have each job send the next, up to that length, when it is done but for its verdict."""

    @queue.on_data_received
    def handle(id: str, data: bytes) -> None:
        if int(data) < length:
            queue.send_data(str(int(data) + 1))


@pytest.mark.parametrize("threads", [2, 4])
def test_with_drain_no_job_is_left_that_another_one_sent_last(quick_dir: Path, threads: int) -> None:
    queue = Pacchettino(quick_dir)
    send_the_next(queue, 10)
    for _ in range(150):
        queue.send_data("1")
        assert queue.work(threads=threads, drain=True) == 10
        assert queue.count_queued() == 0


def test_a_process_that_has_done_its_jobs_leaves_those_it_sent_to_the_next(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("1")
    program = """
        @queue.on_data_received
        def handle(id, data):
            if int(data) < 8:
                queue.send_data(str(int(data) + 1))
    """
    with worker(queue_dir, "{'threads': 2, 'max_jobs': 3, 'drain': True}", program=program) as work:
        assert work.end() == (0, "returned 8\n", "")


class ReturnsLate:
    """The core of a queue: a wait that claimed a job returns once the other thread has looked twice and found none."""

    def __init__(self, core: _core.Queue) -> None:
        self._core = core
        self._looks = threading.Semaphore(0)
        self.waits = threading.Event()
        self.has_claimed = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def next(self, consumer: _core.Consumer, timeout: float | None, *others: Any) -> tuple[_core.Claim | None, bool]:
        if timeout is None:
            self.waits.set()
        claim, is_done = self._core.next(consumer, timeout, *others)
        if timeout is None and claim is not None:
            self.has_claimed.set()
            assert self._looks.acquire(timeout=PATIENCE)
            assert self._looks.acquire(timeout=PATIENCE)
        elif timeout == 0 and claim is None and self.has_claimed.is_set():
            self._looks.release()
        return claim, is_done


def test_a_process_whose_last_job_sent_another_has_not_drained_the_queue(queue: Pacchettino) -> None:
    core = queue._core = ReturnsLate(queue._core)

    @queue.on_data_received
    def handle(id: str, data: bytes) -> None:
        assert core.waits.wait(PATIENCE)
        queue.send_data(str(int(data) + 1))
        assert core.has_claimed.wait(PATIENCE)

    queue.send_data("1")
    work = Threads(queue, 2, drain=True, max_jobs=3)
    work.run()
    assert (work.counts[1:], queue.count_queued()) == ([1, 1], 1)
    assert not work.is_drained


def test_with_drain_a_job_that_is_to_be_tried_again_at_once_is(queue: Pacchettino) -> None:
    attempts: list[int] = []

    @queue.on_data_received
    def handle(id: str, data: bytes) -> Result:
        attempts.append(current_job().attempt)
        return Result.RETRY if len(attempts) < 3 else Result.SUCCESS

    queue.send_data("one")
    assert queue.work(threads=2, drain=True) == 3
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("how", [{}, {"max_jobs": 9}])
def test_with_drain_a_paused_queue_is_told(
    queue: Pacchettino, caplog: pytest.LogCaptureFixture, how: dict[str, int]
) -> None:
    queue.on_data_received(print)
    queue.send_data("one")
    queue.pause()
    assert queue.work(drain=True, **how) == 0
    assert [record.getMessage() for record in caplog.records] == [f"{queue.base_dir} is paused: what waits was left"]


# The first signal


@HOW
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_the_jobs_in_hand_be_finished(
    queue: Pacchettino, queue_dir: Path, how: str, number: signal.Signals
) -> None:
    first = queue.send_data("wait one")
    with worker(queue_dir, options(how)) as work:
        work.hear(*runs(how), "began wait one")
        work.settle_down()
        os.killpg(work.pid, number)  # to all of its processes, as a terminal and systemd do
        work.hear(*stops(how))
        second = queue.send_data("two")
        work.open_gate()
        code, output, errors = work.end()
    assert (code, output, errors) == (0, "ended wait one\nreturned 1\n", "")
    assert queue.status(first) is Status.SUCCESS
    assert queue.status(second) is Status.QUEUED


def test_threads_of_a_process_that_has_done_its_jobs_do_not_wait_for_each_other(
    queue: Pacchettino, queue_dir: Path
) -> None:
    queue.send_many(map(str, range(5)))
    with worker(queue_dir, "{'threads': 3, 'max_jobs': 2, 'drain': True}") as work:
        code, output, errors = work.end()
    assert (code, errors) == (0, "")
    assert "returned 5\n" in output


@HOW
def test_a_signal_ends_an_idle_worker(queue: Pacchettino, queue_dir: Path, how: str) -> None:
    queue.send_data("one")
    with worker(queue_dir, options(how)) as work:
        work.hear(*runs(how), "began one", "ended one")
        work.signal(signal.SIGTERM)
        work.hear(*stops(how))
        assert work.end() == (0, "returned 1\n", "")


@HOW
def test_a_signal_that_wakes_another_thread_ends_an_idle_worker_too(
    queue: Pacchettino, queue_dir: Path, how: str
) -> None:
    queue.send_data("one")
    with worker(queue_dir, options(how), main=guarded(QUICK + ELSEWHERE)) as work:
        work.hear(*runs(how), "began one", "ended one")
        work.signal(signal.SIGTERM)
        work.hear(*stops(how))
        assert work.end() == (0, "returned 1\n", "")


def test_a_child_that_is_told_to_end_finishes_its_job_and_is_replaced(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("wait one")
    with worker(queue_dir, "{'processes': 1, 'max_jobs': 1000}") as work:
        (began,) = work.hear("began wait one")
        first = int(began.split()[-1])
        os.kill(first, signal.SIGTERM)
        work.hear("stops")
        work.open_gate()
        work.hear("ended wait one")
        queue.send_data("two")
        (began, _) = work.hear("began two", "ended two")
        assert int(began.split()[-1]) != first
        work.signal(signal.SIGTERM)
        work.hear("stops", "stops")
        assert work.end() == (0, "returned 2\n", "")


# The second


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGTERM, HOWS[0]), (signal.SIGINT, HOWS[0]), (signal.SIGTERM, HOWS[1]), (signal.SIGINT, HOWS[2])],
)
def test_a_second_signal_leaves_the_jobs_in_hand(
    queue: Pacchettino, queue_dir: Path, how: str, number: signal.Signals
) -> None:
    id = queue.send_data("wait one")
    with worker(queue_dir, options(how)) as work:
        work.hear(*runs(how), "began wait one")
        work.signal(number)
        work.hear(*stops(how))
        work.signal(number)
        code, output, errors = work.end()
    assert (code, output) == (143 if number == signal.SIGTERM else -signal.SIGINT, "")
    said = f"{number.name} came while the jobs in hand were to be finished"
    assert f"{said}; the jobs in hand are left\n" in errors
    assert (f"KeyboardInterrupt: {said}" in errors) == (number == signal.SIGINT)
    assert_interrupted(queue, id, how, f"{number.name} came while the jobs in hand were to be finished")


@HOW
def test_the_end_of_the_grace_leaves_the_jobs_in_hand(queue: Pacchettino, queue_dir: Path, how: str) -> None:
    id = queue.send_data("wait one")
    with worker(queue_dir, options(how, grace=0.2)) as work:
        work.hear(*runs(how), "began wait one")
        work.signal(signal.SIGTERM)
        work.hear(*stops(how))
        code, output, _ = work.end()
    assert (code, output) == (143, "")
    assert_interrupted(queue, id, how, "the grace of 0.2 s was over")


def assert_interrupted(queue: Pacchettino, id: str, how: str, reason: str) -> None:
    """Check that a job was interrupted at once, with the reason: asking for its status recovers nothing."""
    assert queue.status(id) is Status.INTERRUPTED
    (attempt,) = queue.history(id)
    assert attempt.reason is not None
    assert attempt.settled
    expected = f"{reason}; its process was killed" if has_children(how) else reason
    assert attempt.traceback is None
    assert attempt.reason == expected


def test_further_signals_do_not_come_between_the_children_and_their_end(queue: Pacchettino, queue_dir: Path) -> None:
    ids = queue.send_many(["wait one", "wait two"])
    with worker(queue_dir, "{'processes': 2}") as work:
        began = work.hear("began wait one", "began wait two")
        work.signal(signal.SIGINT)
        work.hear("stops", "stops", "stops")
        with suppress(ProcessLookupError):
            while work.process.poll() is None:
                os.kill(work.pid, signal.SIGINT)
        work.process.wait(PATIENCE)
    assert all(has_ended(int(line.split()[-1])) for line in began)
    queue.requeue_all()
    assert [queue.status(id) for id in ids] == [Status.QUEUED] * 2
    assert all(queue.history(id)[0].ended == "interrupted" for id in ids)


def test_further_signals_do_not_come_between_a_job_and_its_end(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("wait one")
    program = """
        def interrupt(self, *args, interrupt=Pacchettino._interrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            interrupt(self, *args)


        Pacchettino._interrupt = interrupt
    """
    with worker(queue_dir, program=program) as work:
        work.hear("began wait one")
        work.signal(signal.SIGTERM)
        work.hear("stops")
        work.signal(signal.SIGTERM)
        code, output, _ = work.end()
    assert (code, output) == (143, "")
    assert_interrupted(queue, id, "{}", "SIGTERM came while the jobs in hand were to be finished")


def test_no_child_outlives_work_though_signal_handlers_of_the_application_raise(
    queue: Pacchettino, queue_dir: Path
) -> None:
    ids = queue.send_many(["wait one", "wait two"])
    main = """
def theirs(*_):
    raise LookupError("theirs")
signal.signal(signal.SIGINT, theirs)
"""
    with worker(queue_dir, "{'processes': 2}", main=guarded(main)) as work:
        began = work.hear("began wait one", "began wait two")
        with suppress(ProcessLookupError):
            while work.process.poll() is None:
                os.kill(work.pid, signal.SIGINT)
        work.process.wait(PATIENCE)
        assert all(has_ended(int(line.split()[-1])) for line in began)
    reasons = {queue.history(id)[0].reason for id in ids}
    assert reasons == {"its worker ended: LookupError: theirs; its process was killed"}


def test_no_child_outlives_work_though_signals_come_while_it_starts(queue: Pacchettino, queue_dir: Path) -> None:
    main = """
from multiprocessing.context import SpawnProcess
def start(self, start=SpawnProcess.start):
    start(self)
    say("started", self.pid)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
SpawnProcess.start = start
"""
    with worker(queue_dir, "{'processes': 3}", main=guarded(main)) as work:
        code, output, _ = work.end()
        started = re.findall(r"^started (\d+)$", output, re.MULTILINE)
        assert code in (143, -signal.SIGINT)  # whichever is noticed first
        assert started
        assert all(has_ended(int(pid)) for pid in started)


def test_a_child_whose_parent_dies_while_it_starts_ends_in_silence(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("one")
    program = """
        if __name__ != "__main__":
            say("starts")
            wait_at_the_gate()
    """
    with worker(queue_dir, "{'processes': 2}", program=program) as work:
        work.hear("starts", "starts")
        os.kill(work.pid, signal.SIGKILL)
        work.process.wait(PATIENCE)
        work.open_gate()
        assert work.end() == (-signal.SIGKILL, "", "")
    assert queue.count_queued() == 1


def test_a_grace_may_be_longer_than_any_wait(queue: Pacchettino) -> None:
    queue.on_data_received(lambda id, data: queue.stop())
    queue.send_data("one")
    assert queue.work(grace=1e10) == 1


def test_within_the_grace_a_job_is_finished(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("wait one")
    with worker(queue_dir, "{'grace': 1000}") as work:
        work.hear("began wait one")
        work.signal(signal.SIGTERM)
        work.hear("stops")
        work.open_gate()
        assert work.end() == (0, "ended wait one\nreturned 1\n", "")


def test_a_handler_that_does_not_let_go_is_ended_with_its_process(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("stubborn")
    with worker(queue_dir, "{'grace': 0.1}", program="pacchettino._work.LAST_SECONDS = 0.1") as work:
        work.hear("began stubborn")
        work.signal(signal.SIGTERM)
        assert work.end() == (-signal.SIGKILL, "stops\nwent on\n", "")
    assert queue.requeue(id)


# stop()


def test_stop_ends_every_wait_and_all_work_of_its_instance(queue: Pacchettino) -> None:
    began, go_on = threading.Event(), threading.Event()

    @queue.on_data_received
    def handle(id: str, data: bytes) -> None:
        began.set()
        assert go_on.wait(PATIENCE)

    results: dict[str, object] = {}
    calls = {
        "work": lambda: queue.work(grace=1000),
        "work in threads": lambda: queue.work(threads=3),
        "receive_one": lambda: queue.receive_one(timeout=None),
        "claim": lambda: queue.claim(timeout=None, kind="file"),
    }
    threads = [
        threading.Thread(target=lambda name=name, call=call: results.update({name: call()}))
        for name, call in calls.items()
    ]
    for thread in threads:
        thread.start()
    queue.send_data("one")
    assert began.wait(PATIENCE)
    queue.stop()
    id = queue.send_data("two")
    go_on.set()
    for thread in threads:
        finish_thread(thread)
    assert results.pop("claim") is None
    assert sorted(map(int, results.values())) == [0, 0, 1]
    # For good.
    assert queue.receive_one(timeout=None) is False
    assert queue.receive() == queue.work() == queue.work(threads=2, drain=True) == 0
    assert queue.status(id) is Status.QUEUED
    with Pacchettino(queue.base_dir) as other:
        other.on_data_received(lambda id, data: None)
        assert other.receive_one()


def test_stop_in_a_handler_ends_receive_after_its_job(queue: Pacchettino) -> None:
    queue.send_many(["one", "two", "three"])
    queue.on_data_received(lambda id, data: queue.stop())
    assert queue.receive() == 1
    assert queue.count_queued() == 2


def test_close_ends_work(queue: Pacchettino) -> None:
    queue.send_many(["one", "two", "three"])
    queue.on_data_received(lambda id, data: queue.close())
    assert queue.work(drain=True) == 1
    with Pacchettino(queue.base_dir) as other:
        assert (other.count_queued(), other.count_successful()) == (2, 1)


def stopped_when_it_begins(queue: Pacchettino) -> threading.Event:
    """Have a handler that ends when the event is set, and the queue stopped when it has begun."""
    began, go_on = threading.Event(), threading.Event()

    @queue.on_data_received
    def handle(id: str, data: bytes) -> None:
        began.set()
        assert go_on.wait(PATIENCE)

    def stop() -> None:
        assert began.wait(PATIENCE)
        queue.stop()

    threading.Thread(target=stop).start()
    return go_on


def thread_ends(number: int) -> None:
    for thread in threading.enumerate():
        if thread.name == f"pacchettino-{number}":
            finish_thread(thread)


def test_jobs_that_threads_leave_a_grace_after_stop_are_interrupted_at_once(queue: Pacchettino) -> None:
    settled: list[str] = []
    queue.on_settled(lambda job, outcome, seconds: settled.append(outcome))
    id = queue.send_data("one")
    go_on = stopped_when_it_begins(queue)
    with pytest.raises(TimeoutError, match=r"0\.1 s after stop\(\)"):
        queue.work(threads=2, grace=0.1)
    assert queue.status(id) is Status.INTERRUPTED
    (attempt,) = queue.history(id)
    assert (attempt.reason, attempt.traceback) == ("the grace of 0.1 s was over", None)
    go_on.set()  # the handler returns, and its result counts no more
    thread_ends(1)
    thread_ends(2)
    assert queue.status(id) is Status.INTERRUPTED
    assert settled == ["interrupted"]


def test_a_job_that_is_to_be_put_back_stays_claimed_until_its_thread_is_through(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, interrupted_attempts=1)
    id = queue.send_data("one")
    go_on = stopped_when_it_begins(queue)
    with pytest.raises(TimeoutError):
        queue.work(threads=2, grace=0.1)
    assert queue.status(id) is Status.PROCESSING
    go_on.set()
    until(lambda: queue.status(id) is Status.SUCCESS)


@pytest.mark.parametrize("interrupted_attempts", [0, 1])
def test_a_job_that_no_handler_has_begun_with_goes_back_when_its_thread_is_left(
    queue_dir: Path, monkeypatch: pytest.MonkeyPatch, interrupted_attempts: int
) -> None:
    queue = Pacchettino(queue_dir, interrupted_attempts=interrupted_attempts)
    read, go_on, begun = Pacchettino._read, threading.Event(), []

    def read_slowly(self: Pacchettino, handling: Any) -> Any:
        data = read(self, handling)
        queue.stop()
        assert go_on.wait(PATIENCE)
        return data

    monkeypatch.setattr(Pacchettino, "_read", read_slowly)
    queue.on_data_received(lambda id, data: begun.append(data))
    id = queue.send_data("one")
    with pytest.raises(TimeoutError):
        queue.work(threads=2, grace=0.1)
    assert queue.status(id) is Status.QUEUED
    go_on.set()
    thread_ends(1)
    thread_ends(2)
    assert begun == []
    assert queue.status(id) is Status.QUEUED
    assert queue.history(id) == []


def test_a_handler_in_the_main_thread_is_interrupted_a_grace_after_stop(queue: Pacchettino) -> None:
    id = queue.send_data("one")
    stopped_when_it_begins(queue)
    with pytest.raises(TimeoutError, match=r"0\.1 s after stop\(\)"):
        queue.work(grace=0.1)
    assert queue.status(id) is Status.INTERRUPTED
    (attempt,) = queue.history(id)
    assert attempt.reason == "the grace of 0.1 s was over"


# Children


def test_a_child_that_dies_is_replaced_and_its_job_interrupted(queue: Pacchettino, queue_dir: Path) -> None:
    dead = queue.send_data("die")
    with worker(queue_dir, "{'processes': 2}") as work:
        work.hear("began die")
        until(lambda: queue.status(dead) is Status.INTERRUPTED)
        ids = queue.send_many(["wait one", "wait two"])
        work.hear("began wait one", "began wait two")  # so both run
        work.open_gate()
        work.hear("ended wait one", "ended wait two")
        work.signal(signal.SIGTERM)
        work.hear("stops", "stops", "stops")
        code, output, errors = work.end()
    assert (code, output) == (0, "returned 2\n")
    assert re.search(r"worker process \d+ died \(signal 9, Killed\); another takes its place\n", errors)
    assert all(queue.is_success(id) for id in ids)


def test_children_that_keep_dying_are_replaced_after_a_pause(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_many(["die", "die", "die"])
    program = """
        import pacchettino._children
        pause = pacchettino._children.PAUSE
        pacchettino._children.PAUSE = lambda deaths: pause(deaths) / 100
    """
    with worker(queue_dir, "{'processes': 1, 'max_jobs': 1000, 'drain': True}", program=program) as work:
        code, output, errors = work.end()
    assert (code, output.splitlines()[-1]) == (0, "returned 0")
    assert re.findall(r"takes its place(.*)", errors) == ["", " in 0.01 s", " in 0.02 s"]
    assert [PAUSE(deaths) for deaths in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_children_that_die_between_jobs_that_are_handled_are_replaced_at_once(
    queue: Pacchettino, queue_dir: Path
) -> None:
    queue.send_many(["die", "one", "die", "two", "die"])
    with worker(queue_dir, "{'max_jobs': 1, 'drain': True}", "{'fifo': True}") as work:
        code, output, errors = work.end()
    assert (code, output.splitlines()[-1]) == (0, "returned 2")
    assert re.findall(r"takes its place(.*)", errors) == ["", "", ""]


def test_a_job_that_kills_its_process_is_tried_again_as_often_as_is_said(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("die")
    settings = "{'interrupted_attempts': 2}"
    quick = "import pacchettino._children; pacchettino._children.PAUSE = lambda deaths: 0"
    with worker(queue_dir, "{'max_jobs': 1000, 'drain': True}", settings, program=quick) as work:
        code, output, _ = work.end()
    assert code == 0
    assert len(re.findall(r"^began die", output, re.MULTILINE)) == 3
    assert queue.status(id) is Status.INTERRUPTED


def test_a_process_is_replaced_after_so_many_jobs(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_many(map(str, range(5)))
    with worker(queue_dir, "{'max_jobs': 2, 'drain': True}") as work:
        code, output, errors = work.end()
    assert (code, errors) == (0, "")
    assert sorted(Counter(re.findall(r"^began \d+ (\d+)$", output, re.MULTILINE)).values()) == [1, 2, 2]
    assert "returned 5\n" in output


def test_a_handler_that_takes_too_long_is_killed(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("wait one")
    with worker(queue_dir, "{'job_timeout': 0.5, 'drain': True}") as work:
        code, output, errors = work.end()
    assert (code, output.splitlines()[-1]) == (0, "returned 0")
    assert re.search(r"worker process \d+: it took longer than 0\.5 s; its process was killed\n", errors)
    (attempt,) = queue.history(id)
    assert (attempt.ended, attempt.settled) == ("interrupted", True)
    assert attempt.reason == "it took longer than 0.5 s; its process was killed"
    assert queue.status(id) is Status.INTERRUPTED


def test_a_job_that_took_too_long_is_tried_again_as_often_as_is_said(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("wait one")
    how, settings = "{'job_timeout': 0.5, 'drain': True}", "{'interrupted_attempts': 1, 'keep_policy': 3}"
    with worker(queue_dir, how, settings) as work:
        code, output, _ = work.end()
    assert code == 0
    assert len(re.findall(r"^began wait one", output, re.MULTILINE)) == 2
    assert queue.status(id) is Status.UNKNOWN


def test_children_end_in_order_when_their_parent_dies(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("wait one")
    with worker(queue_dir, "{'processes': 2}") as work:
        *_, began = work.hear("runs", "runs", "began wait one")
        child = int(began.split()[-1])
        os.kill(work.pid, signal.SIGKILL)
        work.hear("stops", "stops")
        work.open_gate()
        work.hear("ended wait one")
        until(lambda: has_ended(child) or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z")
    assert queue.status(id) is Status.SUCCESS


@pytest.mark.parametrize(
    "main",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n",
        "signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))\n",
    ],
    ids=["ignored", "reaped"],
)
def test_children_that_somebody_else_waits_for_are_missed_by_nobody(
    queue: Pacchettino, queue_dir: Path, main: str
) -> None:
    queue.send_data("one")
    with worker(queue_dir, "{'processes': 2, 'drain': True}", main=guarded(main)) as work:
        code, output, errors = work.end()
    assert (code, errors) == (0, "")
    assert output.splitlines()[-1] == "returned 1"


def guarded(main: str) -> str:
    """Have it done in the parent only."""
    return MAIN.replace("    say(", textwrap.indent(f"{main}\n", "    ") + "    say(")


def test_a_child_that_closes_all_its_descriptors_is_waited_for(queue: Pacchettino, queue_dir: Path) -> None:
    id = queue.send_data("close")
    program = """
        @queue.on_data_received
        def handle(id, data):
            os.closerange(3, 1024)
            wait_at_the_gate()


        from pacchettino._children import Child


        def see_end(self, see_end=Child.see_end):
            see_end(self)
            if self.is_deaf:
                say("deaf")


        Child.see_end = see_end
    """
    with worker(queue_dir, "{'max_jobs': 1000, 'drain': True}", program=program, main=guarded(QUICK)) as work:
        # The child may find meanwhile that it hears its parent no more, and stop.
        work.hear("deaf", ignored="stops")
        work.open_gate()
        code, output, _ = work.end()
    assert (code, output.removeprefix("stops\n")) == (0, "returned 1\n")
    assert queue.status(id) is Status.SUCCESS


def test_a_child_that_closes_all_its_descriptors_writes_into_no_file_that_it_opens_then(
    queue: Pacchettino, queue_dir: Path
) -> None:
    id = queue.send_data("close")
    program = """
        @queue.on_data_received
        def handle(id, data):
            os.closerange(3, 1024)
            handle.files = [open(os.path.join(base, "..", f"file{number}"), "wb") for number in range(20)]
    """
    with worker(queue_dir, "{'max_jobs': 1000, 'drain': True}", program=program, main=guarded(QUICK)) as work:
        code, output, _ = work.end()
    assert (code, output.removeprefix("stops\n")) == (0, "returned 1\n")
    assert queue.status(id) is Status.SUCCESS
    assert [(queue_dir.parent / f"file{number}").stat().st_size for number in range(20)] == [0] * 20


def test_children_end_though_somebody_holds_their_dead_parent_s_descriptors(
    queue: Pacchettino, queue_dir: Path
) -> None:
    queue.send_data("wait one")
    with worker(queue_dir, "{'processes': 1, 'max_jobs': 1000}", program=FORKS_LATER) as work:
        *_, began = work.hear("forked", "began wait one")
        child = int(began.split()[-1])
        os.kill(work.pid, signal.SIGKILL)
        work.hear("stops")
        work.open_gate()
        work.hear("ended wait one")
        until(lambda: has_ended(child) or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z")


FORKS_LATER = """
    import pacchettino._children
    listen = pacchettino._children.Child.listen


    def fork_once(self):
        listen(self)
        if self.owner is not None and not getattr(pacchettino, "has_forked", False):
            pacchettino.has_forked = True
            if os.fork() == 0:
                say("forked")
                wait_at_the_gate()
                os._exit(0)


    pacchettino._children.Child.listen = fork_once
"""


def test_threads_that_could_not_all_be_started_take_no_jobs(
    queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, []

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    queue.on_data_received(print)
    with pytest.raises(RuntimeError, match="can't start"):
        queue.work(threads=5)
    for thread in started:
        finish_thread(thread)


def test_what_can_not_be_imported_by_a_child_is_a_type_error(queue: Pacchettino, queue_dir: Path) -> None:
    queue.on_data_received(lambda id, data: None)
    with pytest.raises(TypeError, match=r"<lambda> can't be imported by a worker process .* or use threads"):
        queue.work(processes=2)
    with pytest.raises(ValueError, match="threads=1"):
        queue.work(threads=2, job_timeout=1)
    with pytest.raises(ValueError, match="more than 0"):
        queue.work(job_timeout=0)
    queue.on_data_received = print
    queue.retry_delay = lambda attempt: 1
    with pytest.raises(TypeError, match=r"<lambda> can't be imported"):
        queue.work(max_jobs=1)
    program = f"""
from pacchettino import Pacchettino
queue = Pacchettino({os.fspath(queue_dir)!r})
@queue.on_data_received
def handle(id, data): pass
queue.work(processes=2)
"""
    typed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "TypeError: handle can't be imported by a worker process (it was typed at a prompt)" in typed.stderr
    with pytest.raises(RuntimeError, match="no handler"):
        Pacchettino(queue_dir).work(processes=2)


HANDLE_IN_MAIN = """
import sys
from pacchettino import Pacchettino, Retry

class Again(Exception):
    pass

queue = Pacchettino(sys.argv[1], retry_on=Again, retry_delay=0)

@queue.on_data_received
def handle(id, data):
    if data == b"again" and not queue.history(id):
        raise Again

@queue.on_settled
def settled(job, outcome, seconds):
    print(outcome, flush=True)
"""

WORK_IN_MAIN = """
if __name__ == "__main__":
    print("handled", queue.work(processes=2, drain=True))
"""


def run_main(arguments: list[str | Path], base: Path, **options: Any) -> tuple[list[str], str]:
    command = [sys.executable, "-W", "error", *map(str, arguments), str(base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    return sorted(done.stdout.splitlines()), done.stderr.strip().rpartition("\n")[2]


def test_children_import_handlers_in_the_main_module_of_a_package(queue: Pacchettino, tmp_path: Path) -> None:
    queue.send_many(["one", "again"])
    package = tmp_path / "app"
    package.mkdir()
    (package / "__main__.py").write_text(HANDLE_IN_MAIN + WORK_IN_MAIN)
    printed, logged = run_main(["-m", "app"], queue.base_dir, cwd=tmp_path)
    assert printed == ["handled 3", "retry", "success", "success"]
    assert logged.endswith("is to be tried again in 0 s: app.__main__.Again")


def test_children_do_not_run_a_main_module_that_they_need_nothing_of(queue: Pacchettino, tmp_path: Path) -> None:
    queue.send_data("one")
    package = tmp_path / "app"
    package.mkdir()
    (package / "tasks.py").write_text(HANDLE_IN_MAIN)
    (package / "__main__.py").write_text("from app.tasks import queue\nprint(queue.work(max_jobs=9, drain=True))\n")
    assert run_main(["-m", "app"], queue.base_dir, cwd=tmp_path) == (["1", "success"], "")


def test_handlers_in_a_main_module_that_children_can_not_import_are_a_type_error(
    queue: Pacchettino, tmp_path: Path
) -> None:
    program = HANDLE_IN_MAIN + WORK_IN_MAIN
    directory, script = tmp_path / "directory", tmp_path / "script.py"
    directory.mkdir()
    (directory / "__main__.py").write_text(program)
    script.write_text("import os\nos.unlink(__file__)\n" + program)
    zipapp.create_archive(directory, tmp_path / "app.pyz")
    begin, end = (
        "TypeError: handle can't be imported by a worker process (",
        "; define it at the top level of a module, or",
    )
    no_name = "the __main__ of a directory or an archive has no name to import it by"
    for arguments, options, reason in (
        ([directory], {}, no_name),
        ([tmp_path / "app.pyz"], {}, no_name),
        (["-"], {"input": program}, "it was read from <stdin>, which cannot be read again"),
        (["-c", program], {}, "it was typed at a prompt"),
        ([script], {}, f"it was read from {script}, which cannot be read again"),
    ):
        printed, error = run_main(arguments, queue.base_dir, **options)
        assert printed == []
        assert error.startswith(f"{begin}{reason}){end}")


def test_work_whose_working_directory_is_gone_ends_with_an_error_that_names_it(
    queue: Pacchettino, queue_dir: Path, tmp_path: Path
) -> None:
    queue.send_many(["gone", "gone"])
    here = tmp_path / "here"
    here.mkdir()
    program = f"""
        os.chdir({str(here)!r})


        @queue.on_data_received
        def handle(id, data):
            os.rmdir({str(here)!r})
    """
    with worker(queue_dir, "{'max_jobs': 1}", program=program) as work:
        code, output, errors = work.end()
    assert (code, output) == (1, "stops\n")
    last = errors.splitlines()[-1]
    assert last == f"RuntimeError: the working directory {here} is gone; start the worker in one that exists"
    assert (queue.count_queued(), queue.count_successful()) == (1, 1)


def test_who_forgets_to_guard_the_main_module_is_told(queue: Pacchettino, queue_dir: Path) -> None:
    with worker(queue_dir, "{'processes': 2}", main="queue.work(**eval(sys.argv[2]))\n") as work:
        code, output, errors = work.end()
    assert (code, output) == (1, "")
    assert errors.splitlines()[-1].startswith("RuntimeError: a worker process ended before it began (exit status 1)")
    assert "if __name__ == '__main__':" in errors


# Other people's signals


@contextmanager
def dispositions(sigterm: Any, sigint: Any) -> Iterator[None]:
    """Set what this process does with two signals, and restore it."""
    before = signal.signal(signal.SIGTERM, sigterm), signal.signal(signal.SIGINT, sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def signal_handlers_in_a_handler(queue: Pacchettino, how: dict[str, Any]) -> tuple[Any, Any]:
    """Handle a job; return what was set for SIGTERM and SIGINT meanwhile. All is as before when `work` returns."""
    during: list[tuple[Any, Any]] = []
    queue.on_data_received(lambda id, data: during.append(handlers()))

    def handlers() -> tuple[Any, Any]:
        return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    before = handlers()
    queue.send_data("one")
    assert queue.work(drain=True, **how) == 1
    assert handlers() == before
    return during[0]


@pytest.mark.parametrize("how", [{}, {"threads": 2}, {"grace": 1000}])
def test_default_signal_handlers_are_replaced_and_restored(queue: Pacchettino, how: dict[str, Any]) -> None:
    with dispositions(signal.SIG_DFL, signal.default_int_handler):
        sigterm, sigint = signal_handlers_in_a_handler(queue, how)
    assert signal.SIG_DFL not in (sigterm, sigint)
    assert sigint not in (signal.default_int_handler, None)
    assert sigterm is not None


@pytest.mark.parametrize("how", [{}, {"threads": 2}, {"grace": 1000}])
def test_signal_handlers_of_the_application_stay(queue: Pacchettino, how: dict[str, Any]) -> None:
    def theirs(number: int, _: object) -> None:
        pass

    with dispositions(theirs, signal.SIG_IGN):
        assert signal_handlers_in_a_handler(queue, how) == (theirs, signal.SIG_IGN)
    with dispositions(signal.SIG_IGN, theirs):
        assert signal_handlers_in_a_handler(queue, how) == (signal.SIG_IGN, theirs)


@pytest.mark.parametrize("how", [{}, {"threads": 2}, {"grace": 1000}])
def test_without_signals_default_signal_handlers_stay_too(queue: Pacchettino, how: dict[str, Any]) -> None:
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    with dispositions(*defaults):
        assert signal_handlers_in_a_handler(queue, {"signals": False, **how}) == defaults


@pytest.mark.parametrize("how", ["{}", "{'processes': 2}"])
def test_an_application_stops_work_by_its_own_signal_handler(queue: Pacchettino, queue_dir: Path, how: str) -> None:
    queue.send_data("wait one")
    main = "signal.signal(signal.SIGTERM, lambda *_: queue.stop())\n"
    with worker(queue_dir, how, main=guarded(main)) as work:
        work.hear(*runs(how), "began wait one")
        work.signal(signal.SIGTERM)
        work.hear(*stops(how))
        work.signal(signal.SIGTERM)  # leaves nothing: it is not for `work`
        work.open_gate()
        assert work.end() == (0, "ended wait one\nreturned 1\n", "")


@pytest.mark.parametrize("how", ["{}", "{'processes': 2}"])
def test_without_signals_a_program_ends_as_it_does_by_default(queue: Pacchettino, queue_dir: Path, how: str) -> None:
    id = queue.send_data("wait one")
    with worker(queue_dir, options(how, signals=False)) as work:
        work.hear(*runs(how), "began wait one")
        work.signal(signal.SIGTERM)
        if has_children(how):  # they find that their parent died, and finish
            work.hear("stops", "stops")
            work.open_gate()
        code, _, errors = work.end()
    assert (code, errors) == (-signal.SIGTERM, "")
    if not has_children(how):
        queue.requeue_all()
        assert [attempt.ended for attempt in queue.history(id)] == ["interrupted", "requeued"]
    else:
        until(lambda: queue.status(id) is Status.SUCCESS)


NESTED = """
    inner = Pacchettino(base + ".inner")
    inner.on_data_received(handle)


    @queue.on_data_received
    def handle(id, data):
        say("inner returned", inner.work(drain=True))
"""


def test_a_signal_stops_both_where_a_handler_calls_work(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_many(["one", "two"])
    inner = Pacchettino(f"{queue_dir}.inner")
    inner.send_many(["wait one", "wait two"])
    with worker(queue_dir, program=NESTED) as work:
        work.hear("began wait")
        work.signal(signal.SIGTERM)
        work.hear("stops", "stops")
        work.open_gate()
        code, output, errors = work.end()
    assert (code, errors) == (0, "")
    assert output.splitlines()[1:] == ["inner returned 1", "returned 1"]
    assert (inner.count_queued(), queue.count_queued()) == (1, 1)
    assert (inner.count_successful(), queue.count_successful()) == (1, 1)


def test_a_second_signal_interrupts_both_where_a_handler_calls_work(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("one")
    inner = Pacchettino(f"{queue_dir}.inner")
    inner.send_data("wait one")
    with worker(queue_dir, program=NESTED) as work:
        work.hear("began wait one")
        work.signal(signal.SIGTERM)
        work.hear("stops", "stops")
        work.signal(signal.SIGINT)
        code, output, _ = work.end()
    assert (code, output) == (143, "")
    assert (inner.count_interrupted(), queue.count_interrupted()) == (1, 1)


def test_what_is_ignored_stays_ignored(queue: Pacchettino, queue_dir: Path) -> None:
    queue.send_data("wait one")
    main = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + MAIN
    with worker(queue_dir, main=main) as work:
        work.hear("began wait one")
        for _ in range(3):
            work.signal(signal.SIGINT)
        work.signal(signal.SIGTERM)
        work.hear("stops")
        work.open_gate()
        assert work.end() == (0, "ended wait one\nreturned 1\n", "")


def test_a_handler_that_others_set_meanwhile_stays(queue: Pacchettino) -> None:
    def theirs(number: int, _: object) -> None:
        pass

    before = signal.getsignal(signal.SIGTERM)
    try:
        queue.on_data_received(lambda id, data: signal.signal(signal.SIGTERM, theirs) and None)
        queue.send_data("one")
        assert queue.work(drain=True) == 1
        assert signal.getsignal(signal.SIGTERM) == theirs
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("how", ["{'drain': True}", "{'drain': True, 'max_jobs': 1000}"])
def test_a_process_that_a_handler_forks_ends_by_a_signal_as_ever(queue: Pacchettino, queue_dir: Path, how: str) -> None:
    queue.send_data("fork")
    program = """
        from multiprocessing import get_context


        def sleep(told):
            told.send("up")
            time.sleep(1000)


        @queue.on_data_received
        def handle(id, data):
            ours, theirs = get_context("fork").Pipe()
            child = get_context("fork").Process(target=sleep, args=(theirs,))
            child.start()
            ours.recv()  # a signal that comes while Python is still forking is lost, says CPython
            child.terminate()
            child.join()
            say("ended by", child.exitcode)
    """
    with worker(queue_dir, how, program=program) as work:
        assert work.end() == (0, "ended by -15\nreturned 1\n", "")


# Greenlets


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_work_needs_threads_that_are_no_greenlets(queue: Pacchettino, library: str) -> None:
    patch, claim = {
        "gevent": (
            "from gevent import monkey; monkey.patch_all()",
            "gevent.get_hub().threadpool.apply(queue.claim, (None,))",
        ),
        "eventlet": ("import eventlet; eventlet.monkey_patch()", "eventlet.tpool.execute(queue.claim, None)"),
    }[library]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"NOT TESTED: needs {library}")
    queue.send_many(["one", "two"])
    program = f"""
import warnings
warnings.simplefilter("ignore")
{patch}
import sys
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1])
queue.on_data_received(print)
for how in ({{"threads": 2}}, {{"processes": 2}}, {{"max_jobs": 1}}, {{"job_timeout": 1}}, {{"grace": 1}}):
    try:
        queue.work(drain=True, **how)
    except RuntimeError as error:
        print(str(error).removeprefix(f"work() with {{next(iter(how))}} needs "))
print(queue.work(drain=True))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, queue.base_dir], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    *said, one, two, handled = done.stdout.splitlines()
    assert len(said) == 5
    for line in said:
        assert line.startswith(f"threads of the system, and {library} has replaced those of this program")
        assert f"call work() in a program without {library}'s patches" in line
        assert line.endswith(f"handle in greenlets what {claim} returns")
    assert sorted(line.split()[-1] for line in (one, two)) == ["b'one'", "b'two'"]
    assert handled == "2"


# What handlers raise


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_that_wants_to_exit_ends_work(queue: Pacchettino, queue_dir: Path, threads: int) -> None:
    id = queue.send_data("exit")
    with worker(queue_dir, str({"threads": threads})) as work:
        code, output, errors = work.end()
    assert (code, errors) == (3, "")
    assert output.startswith("began exit")
    assert queue.status(id) is Status.INTERRUPTED


def test_the_others_finish_when_one_thread_ends_by_an_error(queue: Pacchettino, queue_dir: Path) -> None:
    first = queue.send_data("wait one")
    with worker(queue_dir, "{'threads': 2}") as work:
        work.hear("began wait one")
        second = queue.send_data("exit")
        work.hear("began exit", "stops")
        work.open_gate()
        assert work.end() == (3, "ended wait one\n", "")
    assert queue.status(first) is Status.SUCCESS
    assert queue.status(second) is Status.INTERRUPTED


def test_numbers_are_checked(queue: Pacchettino) -> None:
    queue.on_data_received(lambda id, data: None)
    for wrong in ({"threads": 0}, {"processes": 0}, {"max_jobs": 0}, {"grace": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            queue.work(**wrong)  # type: ignore[arg-type]
    for wrong in ({"threads": True}, {"processes": 1.5}, {"grace": "1"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            queue.work(**wrong)  # type: ignore[arg-type]
