"""What the processes of `test_many.py` do. Those that are spawned import this, and not the tests."""

from __future__ import annotations

import threading
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from helpers import Ledger
from pacchettino import CrashDetection, Pacchettino


def receive_all(queue: Pacchettino) -> None:
    """Handle jobs, a listing at a time, until there are none."""
    while queue.receive():
        pass


def receive_each(queue: Pacchettino) -> None:
    """Handle jobs one by one until there are none."""
    while queue.receive_one():
        pass


def receive_each_in_order(queue: Pacchettino) -> None:
    """Handle jobs one by one, oldest first, so that all want the same one, until there are none."""
    while queue.receive_one(fifo=True):
        pass


WAYS = [receive_all, receive_each, receive_each_in_order]


def run_together(threads: list[threading.Thread], patience: float = 60) -> None:
    """Start threads, and see that all end."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
        assert not thread.is_alive()


def work(
    base: Path,
    ledger: Ledger,
    way: int,
    detection: CrashDetection,
    threads: int,
    shared: bool = True,
    patience: float = 60,
    start: Barrier | None = None,
) -> None:
    """Be a process of some threads that handle jobs until there are none; they share an instance or have their own.

    It begins when all are there who wait at `start`.
    """

    def instance() -> Pacchettino:
        queue = Pacchettino(base, crash_detection=detection)
        queue.on_data_received(lambda id, data: ledger.add(id))
        return queue

    queue = instance()
    if start is not None:
        start.wait(60)
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            WAYS[way](queue if shared else instance())
        except BaseException as failure:
            failures.append(failure)
            raise

    run_together([threading.Thread(target=loop) for _ in range(threads)], patience)
    assert failures == []


def send(base: Path, ledger: Ledger, number: int) -> None:
    """Be a process of two threads that send one by one and many at once."""
    queue = Pacchettino(base)

    def one_by_one() -> None:
        for _ in range(number):
            ledger.add(queue.send_data(b"payload", delay=0.0001))

    def at_once() -> None:
        for _ in range(number // 50):
            ledger.add(*queue.send_many([b"payload"] * 50))

    run_together([threading.Thread(target=one_by_one), threading.Thread(target=at_once)])


def work_until(base: Path, ledger: Ledger, detection: CrashDetection, over: Event) -> None:
    """Be a process of three threads that handle jobs until all have been sent and there are none."""
    queue = Pacchettino(base, crash_detection=detection)
    queue.on_data_received(lambda id, data: ledger.add(id))

    def loop() -> None:
        while True:
            last = over.is_set()
            if not queue.receive_one(timeout=0.05) and last:
                return

    run_together([threading.Thread(target=loop) for _ in range(3)])


def recover_until(base: Path, over: Event) -> None:
    """Be a process that recovers and lists in two threads, as fast as it can, and takes no job."""

    def loop(queue: Pacchettino) -> None:
        while not over.is_set():
            assert queue.claim(kind="file") is None
            queue.count_all()

    run_together([threading.Thread(target=loop, args=(Pacchettino(base),)) for _ in range(2)])
