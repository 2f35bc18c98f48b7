"""Running handlers until somebody says stop: in the calling thread, or in several threads of this process."""

from __future__ import annotations

import _thread
import errno
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from pacchettino import _core
from pacchettino._retry import Backoff, Left, summary
from pacchettino._telling import work_logger as logger

if TYPE_CHECKING:
    from ctypes import Array, c_double

    from pacchettino._queue import Pacchettino

# How long a wait in Python goes on before it is looked for signals. On Windows none ends it; elsewhere those do not
# that come just before the call sleeps, or that another thread was given since this one does not let them in.
SLICE = 0.08 if sys.platform == "win32" else 1.0

_LIMITS = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

# How long a handler may go on that was told by an exception that the grace is over.
LAST_SECONDS = 5

# How long further signals do nothing after one that interrupts a handler. They would come between the job and its end.
MOMENT_TO_END = 1.0


class Signals:
    """SIGINT and SIGTERM, taken for a while: `handle` is called with the number of each that this process gets.

    An ignored signal stays ignored, and a handler that the application has set stays in place. In a worker process,
    which has no other purpose, `is_worker` replaces also such a handler. If another `Signals` has a signal already,
    since a handler of one `work` calls another `work`, both get it. Only the main thread can take signals; in any other
    thread none is taken.
    """

    def __init__(self, handle: Callable[[int], None], *, is_worker: bool = False) -> None:
        self._handle: Callable[[int], None] | None = handle
        self._is_worker = is_worker
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()

    @property
    def first(self) -> int | None:
        """One of those that are taken."""
        return next(iter(self._before), None)

    def __enter__(self) -> Signals:
        self.take()
        return self

    def take(self) -> None:
        """Take those that are not taken yet."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if before in (signal.SIG_IGN, None, self._take):
                continue
            if self._is_worker or _is_default(before) or _owner(before) is not None:
                self._before[number] = before
                signal.signal(number, self._take)

    def __exit__(self, *_: object) -> None:
        self._handle = None  # also so that who handles is not kept by what it keeps
        for number, before in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, before)

    def _take(self, number: int, _: FrameType | None) -> None:
        before = self._before[number]
        if self._handle is None or os.getpid() != self._pid:
            # A handler forked, and this is its child, which ends by a signal as it would anywhere else.
            signal.signal(number, before)
            signal.raise_signal(number)
            return
        try:
            self._handle(number)
        finally:
            outer = _owner(before)
            if outer is not None and outer._handle is not None and outer._pid == self._pid:
                outer._take(number, None)


def _is_default(handler: object) -> bool:
    """Return whether a signal's handler comes from the system or from Python, and not from the application.

    The handler that `asyncio.run` sets for SIGINT comes from Python: it cancels the main task.
    """
    method = getattr(handler, "func", None)  # of the `partial` that asyncio makes
    return handler in (signal.SIG_DFL, signal.default_int_handler) or (
        getattr(method, "__module__", None) == "asyncio.runners"
    )


def _owner(handler: object) -> Signals | None:
    """Return the `Signals` that has set this handler of a signal, if there is one."""
    found = getattr(handler, "__self__", None)
    return found if isinstance(found, Signals) else None


def is_limit(error: BaseException) -> bool:
    """Whether this process or its machine can't do more at the moment. Such an error says nothing about the job."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _LIMITS)


class Outage:
    """A worker can't begin jobs at the moment, for want of descriptors, or since its command is being replaced.

    The worker waits; the pauses grow, and are those of all its threads. An outage is logged once, and so is its end.
    An outage that comes again within a minute is not logged.
    """

    _PAUSE = Backoff(0.1, maximum=30)
    _OVER_AFTER = 60.0

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._began: float | None = None
        self._met = -math.inf
        self._is_logged = False
        self._pauses = 0
        self._until = 0.0

    def meet(self, error: Exception) -> float:
        """Note that a job could not be begun. Returns how long to wait."""
        with self._lock:
            now = time.monotonic()
            if now >= self._until:
                self._pauses += 1
                self._until = now + self._PAUSE(self._pauses)
            is_new = self._began is None
            if self._began is None:
                self._began = now
                self._is_logged = now - self._met >= self._OVER_AFTER
            self._met = now
            pause = self._until - now
        if is_new and self._is_logged:
            logger.error(
                "cannot %s: %s; no job is begun, and none fails for that; retrying after pauses of up to 30 s",
                self._what,
                error.strerror if isinstance(error, OSError) else summary(error),
            )
        return pause

    def end(self) -> None:
        """Note that a job could be begun."""
        if self._began is None:
            return
        with self._lock:
            began, self._began = self._began, None
            self._pauses, self._until = 0, 0.0
        if began is not None and self._is_logged:
            logger.warning("can %s again, after %.1f s", self._what, time.monotonic() - began)


def missing_directory() -> str | None:
    """Describe the working directory if it is gone. Programs that are started from there may not be found."""
    try:
        Path.cwd()
    except FileNotFoundError:
        name = os.environ.get("PWD", "")
        with suppress(OSError):
            name = str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)")
        return f"the working directory {name} is gone; start the worker in one that exists"
    return None


def refuse_greenlets(**needed: bool) -> None:
    """Raise a `RuntimeError` if an argument of `work` needs threads of the system, and this program has none."""
    arguments = " and ".join(name for name, is_needed in needed.items() if is_needed)
    if not arguments:
        return
    gevent: Any = sys.modules.get("gevent.monkey")
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        library, claim = "gevent", "gevent.get_hub().threadpool.apply(queue.claim, (None,))"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        library, claim = "eventlet", "eventlet.tpool.execute(queue.claim, None)"
    else:
        return
    raise RuntimeError(
        f"work() with {arguments} needs threads of the system, and {library} has replaced those of this program by "
        "greenlets, which stand still while one of them waits for a job; call work() in a program without "
        f"{library}'s patches, or handle in greenlets what {claim} returns"
    )


def ignores_children() -> bool:
    """Whether this process ignores SIGCHLD. Then nobody learns how its child processes ended."""
    return sys.platform != "win32" and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def heed_children() -> None:
    """Set SIGCHLD to its default where this process ignores it, as it may have inherited."""
    if sys.platform != "win32" and ignores_children():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def warn_if_children_are_ignored() -> None:
    """Log a warning where handlers would take a program that failed for one that succeeded."""
    if ignores_children():
        logger.warning(
            "SIGCHLD is ignored: nobody learns the exit status of a program that a handler runs, and `subprocess` "
            "reports 0; call signal.signal(signal.SIGCHLD, signal.SIG_DFL) before work()"
        )


class Work:
    """One call of `Pacchettino.work`: how it is told to stop, and how it leaves."""

    def __init__(self, queue: Pacchettino, grace: float | None, signals: bool) -> None:
        self.queue = queue
        self.token = _core.Stop()
        self.ends = math.inf
        """Until when the jobs in hand may take."""
        self._grace = grace
        self._signals = Signals(self._on_signal)
        self._takes_signals = signals
        self._signal: int | None = None
        self._left_at = -math.inf

    def stop(self) -> None:
        """Have no more jobs taken. Safe in a signal's handler."""
        if self.token.set():
            if self._grace is not None:
                self.ends = time.monotonic() + self._grace
            self.queue._core.wake()
            self.tell()

    def tell(self) -> None:
        """Wake who runs this."""

    def run(self) -> None:
        """Work until stopped."""
        self.queue._works.add(self)
        try:
            with self._signals if self._takes_signals else nullcontext():
                if self.queue._core.is_stopped:
                    self.stop()
                self._run()
        except Left as left:
            logger.warning("%s; the jobs in hand are left", left)
            if self._signal == signal.SIGINT:
                raise KeyboardInterrupt(str(left)) from None
            if self._signal is not None:
                raise SystemExit(128 + self._signal) from None
            raise TimeoutError(f"jobs were still being handled {self._grace} s after stop()") from None
        finally:
            self.queue._works.discard(self)

    def _run(self) -> None:
        raise NotImplementedError

    def _on_signal(self, number: int) -> None:
        """Take a signal, in its handler."""
        self._heed(number)

    def _heed(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._signal is None:
            self._signal = number
            self.stop()
            logger.info("%s: the jobs in hand are finished, no more are taken; a second signal leaves them", name)
        elif time.monotonic() >= self._left_at + MOMENT_TO_END:
            self.leave(f"{name} came while the jobs in hand were to be finished")

    def leave(self, reason: str) -> NoReturn:
        """Leave the jobs in hand."""
        self._left_at = time.monotonic()
        raise Left(reason)

    def leave_if_late(self) -> float:
        """Leave when the grace is over. Returns how long it still is."""
        left = self.ends - time.monotonic()
        if left <= 0:
            self.leave(f"the grace of {self._grace} s was over")
        return left


class Threads(Work):
    """Handlers run in the calling thread, or in threads of this process.

    `counts` begins with the time at which the handler of a single thread began, 0 if none runs; then come, for each
    thread, the jobs that were handled.
    """

    def __init__(
        self,
        queue: Pacchettino,
        threads: int,
        *,
        drain: bool,
        grace: float | None = None,
        signals: bool = True,
        max_jobs: int | None = None,
        counts: list[float] | Array[c_double] | None = None,
    ) -> None:
        super().__init__(queue, grace, signals)
        self.counts = [0.0] * (1 + threads) if counts is None else counts
        self._handled_before_empty = -1.0
        """How many jobs were handled before the last look that found none."""
        self._threads = threads
        self._drain = drain
        self._drained = _core.Stop()
        self._idle = 0
        self._left = self._max_jobs = max_jobs
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # Of threads that ended, with what they raised; a number means "look up".
        self._news: SimpleQueue[BaseException | int | None] = SimpleQueue()
        self._stops: SimpleQueue[None] = SimpleQueue()
        self._outage = Outage("take jobs")
        self._claims: dict[int, _core.Claim] = {}
        """What the threads have in progress."""
        self._is_over = False
        self._is_late = False

    @property
    def is_drained(self) -> bool:
        """Whether it ended since no job waited, also after the last one that it handled."""
        handled = sum(self.counts[1:])
        is_used_up = self._max_jobs is not None and handled >= self._max_jobs
        return self._drain and self._handled_before_empty == handled and not is_used_up

    def tell(self) -> None:
        self._end_drain()
        self._news.put(0)
        for _ in range(self._threads):
            self._stops.put(None)

    def run(self) -> None:
        warn_if_children_are_ignored()
        super().run()

    def _run(self) -> None:
        # Only in the main thread a handler can be interrupted.
        if self._threads == 1 and (self._grace is None or self._signals.first is not None):
            self._run_here()
        else:
            self._run_threads()

    def _run_here(self) -> None:
        watch = None
        if self._grace is not None:
            watch = threading.Thread(target=self._interrupt_when_late, name="pacchettino-grace", daemon=True)
            watch.start()
        try:
            self._loop(1)
        finally:
            self._is_over = True
            self._news.put(None)
            if watch is not None:
                watch.join()

    def _interrupt_when_late(self) -> None:
        if self._news.get() is None:
            return
        try:
            self._news.get(timeout=min(self._grace or 0, threading.TIMEOUT_MAX))
            return
        except Empty:
            self._is_late = True
        end = time.monotonic() + LAST_SECONDS
        while time.monotonic() < end:
            self._interrupt_main()
            # Python does not notice a signal that comes just before a call sleeps, so there is more than one.
            with suppress(Empty):
                self._news.get(timeout=0.1)
                return
        os.kill(self._pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)

    def _interrupt_main(self) -> None:
        number, main = self._signals.first, threading.main_thread().ident
        assert number is not None
        assert main is not None
        _thread.interrupt_main(signal.Signals(number))  # enough for who does not sleep in a call
        if sys.platform != "win32":
            signal.pthread_kill(main, number)

    def _on_signal(self, number: int) -> None:
        if not self._is_late:
            super()._on_signal(number)
        elif not (self._is_over or self._left_at > 0):
            self.leave(f"the grace of {self._grace} s was over")

    def _run_threads(self) -> None:
        raised: BaseException | None = None
        started = 0
        try:
            try:
                for number in range(1, self._threads + 1):
                    name = f"pacchettino-{number}"
                    threading.Thread(target=self._thread, args=(number,), name=name, daemon=True).start()
                    started += 1
            except RuntimeError as error:  # no more threads to be had
                raised = error
                self.stop()
            for _ in range(started):
                ended_by = self._next_end()
                if ended_by is not None:
                    raised = raised or ended_by
                    self.stop()
        except BaseException as error:
            self.token.set()  # those that are left behind take no more
            self._end_drain()
            left = error if isinstance(error, Left) else Left(f"its worker ended: {summary(error)}")
            for claim in tuple(self._claims.values()):
                self.queue._leave(claim, left)
            raise
        if raised is not None:
            raise raised

    def _next_end(self) -> BaseException | None:
        while True:
            pause = min(self.leave_if_late(), SLICE)
            try:
                news = self._news.get(timeout=pause)
            except Empty:
                continue
            if not isinstance(news, int):
                return news

    def _thread(self, number: int) -> None:
        error = None
        try:
            self._loop(number)
        except BaseException as raised:
            error = raised
        self._be_idle()  # for good
        self._news.put(error)

    def _loop(self, number: int) -> None:
        consumer = self.queue._core.consumer(self.queue.fifo)
        try:
            while not self.token.is_set and self._may_take():
                try:
                    pause = self._take_one(consumer, number)
                except (OSError, MemoryError) as error:
                    if not is_limit(error):
                        raise
                    pause = self._outage.meet(error)
                if pause is None:
                    return
                if pause > 0:  # no job was begun
                    self._rest(pause)
        finally:
            consumer.end()

    def _take_one(self, consumer: _core.Consumer, number: int) -> float | None:
        """Handle one job. Returns how long to wait before the next, or `None` if there is to be no next."""
        claim = self._drain_next(consumer) if self._drain else self.queue._next(consumer, None, self.token)
        if claim is None:
            return None
        counted = self.counts[number]
        self.counts[0] = time.monotonic()
        self._claims[number] = claim
        try:
            if self.token.is_set:  # perhaps those in progress were just left, and this one not seen
                claim.put_back()
                return None
            pause = self.queue._handle(claim, partial(self._settle, number))
        finally:
            self.counts[0] = 0
            del self._claims[number]
        if not claim.is_ours:
            return None  # the handler forked, and the child came back
        if pause is not None:
            return pause
        self._outage.end()
        self.counts[number] = counted + 1  # also one that could not be read
        return 0

    def _settle(self, number: int, give: Callable[[], None]) -> None:
        """Count a job with its verdict. From here on its time is no longer measured: it would be killed in vain."""
        self.counts[0] = 0
        try:
            give()
        finally:
            self.counts[number] += 1

    def _rest(self, seconds: float) -> None:
        """Wait before the next job, unless this is to stop."""
        if self._left is not None:
            with self._lock:
                self._left += 1
        end = time.monotonic() + seconds
        while not self.token.is_set and (left := end - time.monotonic()) > 0:
            with suppress(Empty):
                self._stops.get(timeout=min(left, SLICE))

    def _drain_next(self, consumer: _core.Consumer) -> _core.Claim | None:
        """Take a job if one waits, or if one comes while other threads have jobs in hand, which may send others."""
        claim = self._take_waiting(consumer)
        if claim is not None or self.token.is_set:
            return claim
        self._be_idle()
        try:
            claim = self.queue._next(consumer, None, self._drained)
        finally:
            with self._lock:
                self._idle -= 1
        # The end may have been told while this thread was on its way back with a job (which it then put back), or by
        # one that sent a job last of all.
        return self._take_waiting(consumer) if claim is None else claim

    def _take_waiting(self, consumer: _core.Consumer) -> _core.Claim | None:
        """Take a job if one waits; otherwise note after how many handled jobs there was none."""
        handled = sum(self.counts[1:])
        claim = self.queue._next(consumer, 0, self.token)
        if claim is None:
            with self._lock:
                self._handled_before_empty = max(self._handled_before_empty, handled)
        return claim

    def _be_idle(self) -> None:
        with self._lock:
            self._idle += 1
            if self._idle == self._threads:
                self._end_drain()

    def _end_drain(self) -> None:
        self._drained.set()
        self.queue._core.wake()

    def _may_take(self) -> bool:
        if self._left is None:
            return True
        with self._lock:
            self._left -= 1
            return self._left >= 0
