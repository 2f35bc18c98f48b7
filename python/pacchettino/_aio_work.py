"""A `work` of an event loop: its workers, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pacchettino._work import Signals


class Run:
    """Workers that go on until they are told to end: first those that wait, in time those that handle a job."""

    def __init__(self, grace: float | None) -> None:
        self.handled = 0
        self.is_ending = False
        self.is_drained = False
        self._is_leaving = False
        self._grace = grace
        self._timer: asyncio.TimerHandle | None = None
        self._signal: int | None = None
        self._loop = asyncio.get_running_loop()
        self._workers: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._idle = 0

    async def all(self, work: Callable[[], Coroutine[Any, Any, None]], workers: int) -> int:
        """Run so many workers to their end. Returns how many jobs they handled."""
        self._workers = {self._loop.create_task(work()) for _ in range(workers)}
        try:
            running = self._workers
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if any(_raised(worker) for worker in done):
                    self._end()
        except asyncio.CancelledError:
            self._leave()
            while not all(worker.done() for worker in self._workers):
                with suppress(asyncio.CancelledError):
                    await asyncio.wait(self._workers)
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        for error in map(_raised, self._workers):
            if error is not None:
                raise error
        if not self._is_leaving:
            return self.handled
        if self._signal is None:
            raise TimeoutError(f"jobs were still being handled {self._grace} s after stop()")
        raise KeyboardInterrupt if self._signal == signal.SIGINT else SystemExit(128 + self._signal)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For a worker: it waits, and can be ended."""
        worker: asyncio.Task[None] | None = asyncio.current_task()
        assert worker is not None
        self._waiting.add(worker)
        try:
            yield
        finally:
            self._waiting.discard(worker)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """For a worker that finds no job. When all are idle, that is the end."""
        self._idle += 1
        if self._idle == len(self._workers):
            # One may be on its way back with a job, which it puts back: so each looks once more.
            self.is_drained = True
            for worker in self._waiting:
                worker.cancel()
        try:
            yield
        finally:
            self._idle -= 1

    def go_on(self) -> None:
        """For a worker that was cancelled: it was to be ended, or only its handler."""
        worker = asyncio.current_task()
        assert worker is not None
        while worker.uncancel():
            pass
        self.is_ending |= self._is_leaving

    def end(self) -> None:
        """Have it end after the jobs in hand; from any thread, and from a signal handler."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self.is_ending:
            return
        self.is_ending = True
        for worker in self._waiting:
            worker.cancel()
        if self._grace is not None:
            self._timer = self._loop.call_later(self._grace, self._leave)

    def _leave(self) -> None:
        self.is_ending = self._is_leaving = True
        _disconnect(self)
        for worker in self._workers:
            worker.cancel()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """End it when a signal arrives meanwhile. Only the main thread gets signals."""
        if threading.current_thread() is threading.main_thread():
            _connect(self)
        try:
            yield
        finally:
            _disconnect(self)

    def signalled(self, number: int) -> bool:
        """Take a signal, within its handler. Says whether somebody is there to take it: the loop may have been left."""
        if not self._loop.is_running():
            return False
        self._loop.call_soon_threadsafe(self._take_signal, number)
        return True

    def _take_signal(self, number: int) -> None:
        if self._signal is None:
            self._signal = number
            self._end()
        else:
            self._leave()


def _raised(worker: asyncio.Task[None]) -> BaseException | None:
    """Return what a worker raised. One that was cancelled before it began, by a second signal, raised nothing."""
    return None if worker.cancelled() else worker.exception()


# Not `loop.add_signal_handler`: it would replace the handler that the application has set in this way, which cannot be
# read, and so not be put back. A handler of `signal.signal` wakes the loop as well, and several runs can share it.

_signalled: weakref.WeakSet[Run] = weakref.WeakSet()
_signals: Signals | None = None
_process = 0


def _connect(run: Run) -> None:
    global _signals, _process
    if _signals is None or os.getpid() != _process:
        _signalled.clear()  # in a forked child they are copies
        _process = os.getpid()
        _signals = Signals(_hand_on)
    _signals.take()  # also for a second run: the application may have given up its own handlers since the first
    _signalled.add(run)


def _disconnect(run: Run) -> None:
    _signalled.discard(run)
    if not _signalled:
        _let_go()


def _let_go() -> None:
    global _signals
    if _signals is not None:
        # A run was left in the middle, and is dropped in another thread: the next signal does it.
        with suppress(ValueError):
            _signals.__exit__()
        _signals = None


def _hand_on(number: int) -> None:
    taken = [run.signalled(number) for run in tuple(_signalled)]
    if not any(taken):  # a loop was left in the middle
        _let_go()
        signal.raise_signal(number)
