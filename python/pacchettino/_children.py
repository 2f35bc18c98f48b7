"""Running handlers in child processes, which are replaced when they die and killed when a job takes too long."""

from __future__ import annotations

import importlib
import io
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from pacchettino import _core
from pacchettino._job import Hook
from pacchettino._retry import Backoff, Left, name_of, summary
from pacchettino._telling import work_logger as logger
from pacchettino._work import SLICE, Signals, Threads, Work, heed_children, missing_directory

if TYPE_CHECKING:
    from ctypes import Array, c_double

    from pacchettino._queue import Pacchettino

Handlers: TypeAlias = tuple[
    Callable[..., Any] | None, Callable[..., Any] | None, Callable[..., Any] | None, tuple[Hook, ...]
]
"""Of data jobs, of file jobs, of claims, and the hooks."""

# How often it is looked whether a child lives, for those whose own children keep its end from being told.
TICK = 1.0

# How long a process may take from closing its descriptors to its end.
MOMENT = 0.1

# How long the place of a child stays empty that died without having handled a job.
PAUSE = Backoff(1, maximum=30, jitter=0)

# How often it is checked whether the command of a child that was killed is gone, and for how long.
COMMAND_TICK = 0.02
COMMAND_PATIENCE = 5.0

SPAWN = multiprocessing.get_context("spawn")


class Child:
    """A child process."""

    def __init__(
        self,
        main: _Main,
        queue: Pacchettino,
        handlers: Handlers,
        threads: int,
        drain: bool,
        max_jobs: int | None,
    ) -> None:
        self.counts: Array[c_double] = RawArray("d", 1 + threads)
        self.line, far_end = SPAWN.Pipe()
        self.owner: str | None = None
        self.is_drained: bool | None = None
        """Whether it ended since no job waited; `None` as long as it did not end in order."""
        self.was_told = False
        self.is_deaf = False
        """Whether it closed what would tell of its end."""
        self.why: str | None = None
        """Why it was killed by us."""
        told = (main, queue, handlers, threads, drain, max_jobs, self.counts, far_end)
        self.process = SPAWN.Process(target=_serve, args=told, name="pacchettino")
        _keep_signals_out()
        with far_end:
            self.process.start()

    @property
    def handled(self) -> int:
        """How many jobs it handled."""
        return int(sum(self.counts[1:]))

    def has_ended(self) -> bool:
        """Whether it is gone, also if somebody else has waited for it."""
        if self.process.exitcode is not None:
            return True
        if sys.platform == "win32" or self.process.pid is None:
            return False
        try:
            os.kill(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def see_end(self) -> None:
        """Its sentinel was closed: wait the moment that its end takes, unless it lives and has closed all it had."""
        end = time.monotonic() + MOMENT
        while not self.has_ended():
            if time.monotonic() >= end:
                self.is_deaf = True
                return
            time.sleep(0.001)

    def listen(self) -> None:
        """Take what it says."""
        try:
            while not self.line.closed and self.line.poll():
                word, value = self.line.recv()
                if word == "ready":
                    self.owner = value
                else:
                    self.is_drained = value
        except (EOFError, OSError):
            self.line.close()

    def tell_to_stop(self) -> None:
        """Have it finish what it has in hand, and end."""
        if not self.was_told:
            self.was_told = True
            with suppress(OSError):
                self.line.send_bytes(b"stop")

    def kill(self, why: str) -> None:
        """Kill it; its jobs end with that reason."""
        self.process.kill()
        self.why = f"{why}; its process was killed"

    def end(self) -> str:
        """Clear away what is left of it. Returns how it ended."""
        code = self.process.exitcode
        self.line.close()
        with suppress(ValueError):  # somebody else has waited for it
            self.process.close()
        if code is not None and code < 0:
            return f"signal {-code}, {signal.strsignal(-code)}"
        if code is None:
            return "somebody else waited for it"
        return f"exit status {code}"


class Place:
    """The place of a child, in which another one follows when it has ended."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.is_over = False
        self.empty_until = 0.0
        self.deaths = 0
        """How many children in a row died here without having handled a job."""


class Children(Work):
    """Handlers run in child processes.

    A thread of its own attends to the children. Signal handlers run in the main thread, so nothing that they raise can
    come between the start of a child and the note of it, or between two children that are to be killed.
    """

    def __init__(
        self,
        queue: Pacchettino,
        threads: int,
        processes: int,
        *,
        drain: bool,
        grace: float | None,
        signals: bool,
        max_jobs: int | None,
        job_timeout: float | None,
    ) -> None:
        super().__init__(queue, grace, signals)
        self.handled = 0
        handlers = queue._on_data, queue._on_file, queue._on_claim, queue._hooks
        main = _check_importable(queue, handlers)
        self._new_child = partial(Child, main, queue, handlers, threads, drain, max_jobs)
        self._places = [Place() for _ in range(processes)]
        self._job_timeout = job_timeout
        self._killed: list[tuple[str, str]] = []
        """The owners that were killed, with the reasons, until their jobs are recovered."""
        self._failure: str | None = None
        """Why there can be no more children."""
        self._was_ready = False
        self._signalled: SimpleQueue[int] = SimpleQueue()
        """Signals that were not heeded yet."""
        self._raised: BaseException | None = None
        """What a signal handler of the application raised."""
        self._ended_by: BaseException | None = None
        # Never closed while somebody may use them: the descriptors go with this object.
        self._woken, self._waker = SPAWN.Pipe(duplex=False)
        self._is_woken = False

    def tell(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._waker.send_bytes(b"")

    def _on_signal(self, number: int) -> None:
        self._signalled.put(number)
        self.tell()

    def _on_raise(self, error: BaseException) -> None:
        if self._raised is None:
            self._raised = error
        self.tell()

    def _run(self) -> None:
        may_begin, is_over = threading.Lock(), threading.Lock()
        may_begin.acquire()
        is_over.acquire()
        # It begins only when its end is waited for: until then a signal's handler may break this off.
        attend = partial(self._attend_to_all, may_begin, is_over)
        threading.Thread(target=attend, name="pacchettino-children", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            _core.outlast(may_begin.release, partial(is_over.acquire, timeout=SLICE), self._on_raise)
        else:
            may_begin.release()
            is_over.acquire()
        error = self._ended_by or self._raised
        self._ended_by = self._raised = None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame

    def _attend_to_all(self, may_begin: threading.Lock, is_over: threading.Lock) -> None:
        may_begin.acquire()
        try:
            self._attend_until_over()
        except BaseException as error:
            self._ended_by = error
        finally:
            is_over.release()

    def _attend_until_over(self) -> None:
        try:
            while True:
                for place in self._places:
                    self._heed_all()
                    self._attend(place)
                if self._killed:
                    self._recover([])
                if all(place.is_over for place in self._places):
                    break
                self._sleep()
            self._recover_all()
            if self._failure is not None:
                raise RuntimeError(self._failure)
        except BaseException as error:
            self._kill_all(summary(error) if isinstance(error, Left) else f"its worker ended: {summary(error)}")
            raise

    def _heed_all(self) -> None:
        """Do what signals say that came meanwhile. Only here it shows what their handlers noted."""
        with suppress(Empty):
            while True:
                self._heed(self._signalled.get_nowait())
        if self._raised is not None:
            raise self._raised

    def _attend(self, place: Place) -> None:
        child = place.child
        if child is None:
            if self.token.is_set:
                place.is_over = True
            elif not place.is_over and time.monotonic() >= place.empty_until:
                self._fill(place)
            return
        ended = child.has_ended()
        child.listen()
        self._was_ready |= child.owner is not None
        if ended:
            place.child = None
            self._follow(place, child)
            return
        if self.token.is_set:
            child.tell_to_stop()
        began = child.counts[0]
        if self._job_timeout is not None and began and time.monotonic() >= began + self._job_timeout:
            child.kill(f"it took longer than {self._job_timeout} s")

    def _fill(self, place: Place) -> None:
        try:
            place.child = self._new_child()
        except OSError as error:
            gone = missing_directory()
            if gone is not None:
                self._failure = gone
                self.stop()
                return
            if not self._was_ready:
                raise
            logger.error("no worker process could be started%s: %s", self._leave_empty(place), error)

    def _leave_empty(self, place: Place) -> str:
        place.deaths += 1
        pause = PAUSE(place.deaths - 1) if place.deaths > 1 else 0.0
        place.empty_until = time.monotonic() + pause
        return f" in {pause:.3g} s" if pause else ""

    def _follow(self, place: Place, child: Child) -> None:
        """Decide what comes after a child that ended."""
        pid = child.process.pid
        how = child.end()
        self.handled += child.handled
        if child.handled:
            place.deaths = 0
        if child.is_drained is not None:
            place.is_over = child.is_drained or self.token.is_set
            return
        self._recover([child])
        if child.why is not None:
            logger.error("worker process %s: %s", pid, child.why)
            return
        if not self._was_ready and not self.token.is_set:
            raise RuntimeError(
                f"a worker process ended before it began ({how}); what it said is above. It imports the handlers: have "
                "them at the top level of a module, and call work() below `if __name__ == '__main__':`"
            )
        if self.token.is_set:
            logger.error("worker process %s died (%s)", pid, how)
        else:
            logger.error("worker process %s died (%s); another takes its place%s", pid, how, self._leave_empty(place))

    def _sleep(self) -> None:
        now = time.monotonic()
        pause = min(self.leave_if_late(), COMMAND_TICK if self._killed else SLICE)
        heard: list[Any] = [self._woken]
        for place in self._places:
            child = place.child
            if child is None:
                pause = min(pause, math.inf if place.is_over else place.empty_until - now)
                continue
            if not child.is_deaf:
                heard.append(child.process.sentinel)
            if not child.line.closed:
                heard.append(child.line)
            if self._job_timeout is not None and child.counts[0]:
                pause = min(pause, child.counts[0] + self._job_timeout - now)
            elif self._job_timeout is not None:
                pause = min(pause, self._job_timeout)
        ready = connection.wait(heard, max(0.0, pause))
        if self._woken in ready:
            self._woken.recv_bytes()
            self._is_woken = False
        for place in self._places:
            if place.child is not None and not place.child.is_deaf and place.child.process.sentinel in ready:
                place.child.see_end()

    def _kill_all(self, why: str) -> None:
        children = [place.child for place in self._places if place.child is not None]
        for child in children:
            child.kill(why)
        for child in children:
            child.process.join()
            child.listen()
            child.end()
            self.handled += child.handled
        self._recover(children)
        self._recover_all()

    def _recover(self, dead: list[Child]) -> None:
        """Have the jobs of dead children interrupted, and told why, before others notice.

        A child whose command goes on counts as alive for as long.
        """
        self._killed += [
            (child.owner, child.why) for child in dead if child.owner is not None and child.why is not None
        ]
        try:
            living = self.queue._core.recover(self._killed)
            self._killed = [(owner, why) for owner, why in self._killed if owner in living]
        except (OSError, ValueError) as error:  # the next who looks does it; ValueError: the queue is closed
            logger.warning("the jobs of worker processes that ended can't be looked after: %s", error)
            self._killed = []
        finally:
            self.queue._log_notices()

    def _recover_all(self) -> None:
        """Wait for the commands of children that were killed."""
        end = time.monotonic() + COMMAND_PATIENCE
        while self._killed and time.monotonic() < end:
            time.sleep(COMMAND_TICK)
            self._recover([])


def _serve(
    _: None,  # of `_Main`, which comes first: what follows may refer to the main module
    queue: Pacchettino,
    handlers: Handlers,
    threads: int,
    drain: bool,
    max_jobs: int | None,
    counts: Array[c_double],
    line: connection.Connection,
) -> None:
    """Work in a child process. Its parent says when to stop, also by its death; a SIGTERM does as well."""
    heed_children()
    queue._on_data, queue._on_file, queue._on_claim, queue._hooks = handlers
    work = Threads(queue, threads, drain=drain, max_jobs=max_jobs, counts=counts)

    def stop_on(number: int) -> None:
        if number == signal.SIGTERM:  # a terminal's Ctrl-C goes to all, and the parent decides
            work.stop()

    parent = os.getppid()
    before = None if sys.platform == "win32" else os.fstat(line.fileno())

    def obey() -> None:
        with suppress(EOFError, OSError):
            # A process that the parent forked may hold the other end, so that its death does not close it.
            while not line.poll(TICK) and os.getppid() == parent:
                pass
        work.stop()

    with Signals(stop_on, is_worker=True):
        _let_signals_in()
        try:
            line.send(("ready", queue._core.owner()))
        except BrokenPipeError:
            return  # its parent died while this process started
        threading.Thread(target=obey, name="pacchettino-parent", daemon=True).start()
        work._run()
        with suppress(OSError):  # nobody is there to hear it
            # A handler may have closed it with all descriptors, and its number may be some file's now.
            if before is None or os.path.samestat(before, os.fstat(line.fileno())):
                line.send(("ended", work.is_drained))


class _Main:
    """The main module, which unpickling imports by its real name and makes the main one.

    `multiprocessing` runs a script anew in a child process, but not the `__main__` of a package.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str | None]]:
        return _import_main, (self._name,)


def _import_main(name: str | None) -> None:
    if name is not None:
        sys.modules["__main__"] = importlib.import_module(name)


def _check_importable(queue: Pacchettino, handlers: Handlers) -> _Main:
    """Raise a `TypeError` for what a child process can't get. Return what it needs to get the rest."""
    on_data, on_file, on_claim, hooks = handlers
    name = None
    for what in (on_data, on_file, on_claim, *hooks, queue.retry_delay, *queue.retry_on, queue):
        try:
            pickler = _Pickler(io.BytesIO())
            pickler.dump(what)
            if pickler.refers_to_main:
                name = _name_of_main()
        except Exception as error:
            raise TypeError(
                f"{name_of(what)} can't be imported by a worker process ({error}); define it at the top level of a "
                "module, or use threads"
            ) from error
    return _Main(name)


class _Pickler(pickle.Pickler):
    """Finds out whether something refers to the main module."""

    refers_to_main = False

    def reducer_override(self, what: object) -> Any:
        self.refers_to_main |= getattr(what, "__module__", None) == "__main__"
        return NotImplemented


def _name_of_main() -> str | None:
    """Return the real name of the main module, or `None` if `multiprocessing` runs it anew.

    Raises:
        pickle.PicklingError: A child process can't import it.
    """
    main = sys.modules["__main__"]
    name: str | None = getattr(getattr(main, "__spec__", None), "name", None)
    if name == "__main__":
        raise pickle.PicklingError("the __main__ of a directory or an archive has no name to import it by")
    if name is not None:
        return name if name.endswith(".__main__") else None
    file = getattr(main, "__file__", None)
    if getattr(sys, "frozen", False):
        return None
    if file is None:
        raise pickle.PicklingError("it was typed at a prompt")
    if not Path(file).is_file():
        raise pickle.PicklingError(f"it was read from {file}, which cannot be read again")
    return None


def _keep_signals_out() -> None:
    """Have a child begin with signals that wait until it can take them: it inherits what its parent's thread blocks."""
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # which lets them in when it starts
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def _let_signals_in() -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
