"""The queue for asyncio: the same names, to be awaited.

```python
import asyncio
from pacchettino.aio import AsyncPacchettino

queue = AsyncPacchettino("/var/spool/mail-out")

@queue.on_data_received
async def handle(id, data):
    await asyncio.sleep(1)

asyncio.run(queue.work(concurrency=10))
```
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from pacchettino import (
    Attempt,
    CrashDetection,
    JobInfo,
    KeepPolicy,
    Pacchettino,
    QueueFull,
    Stats,
    Status,
    _core,
    _types,
)
from pacchettino._aio_wait import Glance, Waits, ended
from pacchettino._aio_work import Run
from pacchettino._job import Handling, Hook, Job, current, warn_of_drop
from pacchettino._limits import next_look, wait_for_room
from pacchettino._queue import (
    D,
    DataHandler,
    F,
    FileHandler,
    SetsDataHandler,
    SetsFileHandler,
    assignable,
    check_arguments,
    timeout_seconds,
)
from pacchettino._retry import NOT_GIVEN, RetryDelay, Verdict, ends_work
from pacchettino._telling import about, is_a, logger, tell_taken
from pacchettino._types import Duration, finite_seconds, whole_number
from pacchettino._work import warn_if_children_are_ignored

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from 3.12 on

__all__ = ["AsyncJob", "AsyncPacchettino"]

H = TypeVar("H", bound=Hook)
T = TypeVar("T")

# How many calls of one instance may be in the kernel at a time. Calls that flush share their flushes: on a disk a
# durable queue does with sixteen what takes one ten times as long.
THREADS = 16


class AsyncPacchettino:
    """A queue for asyncio: `Pacchettino` with methods to be awaited, and `async def` handlers.

    A few threads read and write the disk, the event loop never does. For this reason the constructor makes no directory
    where an event loop runs in its thread: the first call makes them, and raises what `Pacchettino` raises. A call that
    has begun cannot be stopped: if its task is cancelled, the task waits for the call all the same, and nothing goes on
    behind its back. A wait uses no thread: where the kernel reports new jobs (Linux), the loop watches a descriptor,
    elsewhere it looks every 50 ms.

    Any number of tasks may use one instance, also those of other event loops in other threads. After a fork the child
    can use it in a loop of its own.

    Args: as for `Pacchettino`.
    """

    KeepPolicy: TypeAlias = _types.KeepPolicy
    Result: TypeAlias = _types.Result
    Status: TypeAlias = _types.Status
    CrashDetection: TypeAlias = _types.CrashDetection

    def __init__(
        self,
        base_dir: str | os.PathLike[str],
        keep_policy: KeepPolicy = KeepPolicy.ALL,
        *,
        durable: bool = False,
        crash_detection: CrashDetection = CrashDetection.LOCK_FILE,
        retry_delay: RetryDelay = NOT_GIVEN,
        fifo: bool = False,
        max_attempts: int | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        interrupted_attempts: int = 0,
        max_queued: int | None = None,
        min_free: int = 0,
    ) -> None:
        self._queue = _Blocking(
            base_dir,
            keep_policy,
            durable=durable,
            crash_detection=crash_detection,
            retry_delay=retry_delay,
            fifo=fifo,
            max_attempts=max_attempts,
            retry_on=retry_on,
            interrupted_attempts=interrupted_attempts,
            max_queued=max_queued,
            min_free=min_free,
        )
        self._on_data: DataHandler | None = None
        self._on_file: FileHandler | None = None
        self._threads: dict[int, ThreadPoolExecutor] = {}
        self._waits: dict[asyncio.AbstractEventLoop, Waits] = {}
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()

    # Settings

    @property
    def base_dir(self) -> Path:
        """The queue's directory, absolute."""
        return self._queue.base_dir

    @property
    def keep_policy(self) -> KeepPolicy:
        """Which finished jobs stay on disk where this instance settles or recovers them."""
        return self._queue.keep_policy

    @property
    def fifo(self) -> bool:
        """Whether jobs are taken oldest first."""
        return self._queue.fifo

    @property
    def durable(self) -> bool:
        """Whether every change of state is flushed to the disk before a call returns. Can be set, for later calls."""
        return self._queue.durable

    @durable.setter
    def durable(self, value: bool) -> None:
        self._queue.durable = value

    @property
    def crash_detection(self) -> CrashDetection:
        """How others notice that this process died. Can be set, for the claims from then on."""
        return self._queue.crash_detection

    @crash_detection.setter
    def crash_detection(self, value: CrashDetection) -> None:
        self._queue.crash_detection = value

    @property
    def retry_delay(self) -> RetryDelay:
        """How long a job waits that is to be tried again. Can be set."""
        return self._queue.retry_delay

    @retry_delay.setter
    def retry_delay(self, value: RetryDelay) -> None:
        self._queue.retry_delay = value

    @property
    def max_attempts(self) -> int | None:
        """After how many attempts a job that is to be tried again fails instead."""
        return self._queue.max_attempts

    @property
    def retry_on(self) -> tuple[type[BaseException], ...]:
        """Types of exceptions of a handler that mean "again"."""
        return self._queue.retry_on

    @property
    def interrupted_attempts(self) -> int:
        """How many times a job whose consumer died is put back by itself."""
        return self._queue.interrupted_attempts

    @property
    def max_queued(self) -> int | None:
        """How many jobs may wait before this instance sends no more; `None` is no limit."""
        return self._queue.max_queued

    @property
    def min_free(self) -> int:
        """How many bytes must be free on the disk for this instance to send."""
        return self._queue.min_free

    # Sending

    async def send_data(self, data: str | Buffer, *, delay: Duration = 0, block: Duration | None = 0) -> str:
        """Send bytes, as `Pacchettino.send_data`. Cancelled while it is being sent, the job is sent or not."""
        return await self._with_room(partial(self._queue.send_data, data, delay=delay), block)

    async def send_file(
        self,
        path: str | os.PathLike[str],
        *,
        copy: bool = True,
        name: str | None = None,
        delay: Duration = 0,
        block: Duration | None = 0,
    ) -> str:
        """Send a file, as `Pacchettino.send_file`."""
        return await self._with_room(partial(self._queue.send_file, path, copy=copy, name=name, delay=delay), block)

    async def send_many(
        self, items: Iterable[str | Buffer], *, delay: Duration = 0, block: Duration | None = 0
    ) -> list[str]:
        """Send many data jobs, in order, as `Pacchettino.send_many`."""
        # What makes them is not to run in another thread.
        jobs = items if isinstance(items, str | bytes | bytearray | memoryview) else list(items)
        return await self._with_room(partial(self._queue.send_many, jobs, delay=delay), block)

    async def _with_room(self, send: Callable[[], T], block: Duration | None) -> T:
        end = wait_for_room(block)
        while True:
            began = time.monotonic()
            try:
                return await self._in_thread(send)
            except QueueFull:
                pause = next_look(began, end)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    # Handling

    @assignable[SetsDataHandler, DataHandler]
    def on_data_received(self, handler: D) -> D:
        """Set the handler of data jobs: `async def handler(id, data)`. Otherwise as `Pacchettino.on_data_received`.

        A plain function is run in a thread of its own.
        """
        _check_handler(handler, "(id, data)")
        return handler

    @assignable[SetsFileHandler, FileHandler]
    def on_file_received(self, handler: F) -> F:
        """Set the handler of file jobs: `async def handler(id, name, path)`. Otherwise as `on_data_received`."""
        _check_handler(handler, "(id, name, path)")
        return handler

    def on_settled(self, hook: H) -> H:
        """Call `hook(job, outcome, seconds)` for each job that gets its verdict, as `Pacchettino.on_settled`.

        It is a plain function, gets a plain `Job`, and is called in the thread that wrote the verdict.
        """
        return self._queue.on_settled(hook)

    async def receive(self, *, fifo: bool | None = None) -> int:
        """Handle the jobs that wait now, one after the other, each at most once. Returns how many were handled."""
        data, file = self._handled_kinds()
        waiting = await self._in_thread(partial(self._start_pass, fifo, data, file))
        handled = 0
        try:
            while True:
                claimed = await self._in_thread(partial(self._claim_next, waiting), undo=self._put_back)
                if claimed is None:
                    return handled
                await self._handle(claimed)
                handled += 1
        except (Exception, asyncio.CancelledError):
            # A durable queue's last verdict waits for its flush.
            await self._in_thread(waiting.end)
            raise

    async def receive_one(self, timeout: Duration | None = 0, *, fifo: bool | None = None) -> bool:
        """Handle one job if there is one, or comes within `timeout`. Returns whether there was one.

        A timeout of 0 only looks, `None` waits for ever. `close` and `stop` end the wait. A wait that is cancelled
        takes no job; if the handler is cancelled, its job is interrupted.
        """
        claimed = await self._next(timeout_seconds(timeout), fifo, *self._handled_kinds(), self._with_arguments)
        if claimed is None:
            return False
        await self._handle(claimed)
        return True

    async def claim(
        self, timeout: Duration | None = 0, *, fifo: bool | None = None, kind: Literal["data", "file"] | None = None
    ) -> AsyncJob | None:
        """Take a job without a handler, of any kind or only `"data"` or `"file"`. Otherwise as `receive_one`."""
        claimed = await self._next(timeout_seconds(timeout), fifo, *_kinds(kind), self._with_data)
        return None if claimed is None else AsyncJob(claimed, self)

    def stream(
        self,
        concurrency: int = 10,
        *,
        fifo: bool | None = None,
        kind: Literal["data", "file"] | None = None,
        drain: bool = False,
    ) -> AsyncIterator[AsyncJob]:
        """Give jobs as they come: `async for job in queue.stream()`, until `close` or `stop`.

        No more than `concurrency` of them are without a verdict at a time: the next is taken when one of them has got
        it. Between two jobs nothing is held, so the loop can be left at any time. With `drain` it ends when no job
        waits.
        """
        data, file = _kinds(kind)
        take = partial(self._next, 0.0 if drain else None, fifo, data, file, self._with_data)
        return _Stream(self, _count(concurrency), take)

    async def work(
        self,
        concurrency: int = 10,
        *,
        drain: bool = False,
        grace: Duration | None = None,
        signals: bool = True,
    ) -> int:
        """Run handlers, up to `concurrency` at a time, until stopped; with `drain` until no job waits.

        Returns how many ran. There are three ways to stop it:

        - The first SIGTERM or SIGINT. This works in the main thread, for a signal that has the default handler of
          Python or of the system. Where the application has a handler of its own, as each web server has, that handler
          stays; the application then calls `stop` or cancels the task. `signals=False` leaves all handlers alone.
        - `stop`.
        - Cancellation of the task.

        After the first two the jobs in progress are finished, and no other job is claimed. After a second signal, after
        `grace` seconds, and at once if the task is cancelled, handlers are cancelled and their jobs are interrupted. A
        plain function cannot be cancelled and goes on in its thread. Its job is interrupted all the same; but with
        `interrupted_attempts` the job stays claimed until the function returns, and is settled by its result then: so
        it never runs twice at the same time. The handlers of signals are restored at the end.

        Raises:
            RuntimeError: There is no handler.
            KeyboardInterrupt: After a second signal, or `grace`, if the first was SIGINT.
            SystemExit: The same where the first was SIGTERM; its code is 143.
            TimeoutError: Jobs were left `grace` after a `stop`.
            OSError: The queue can't be read. The handlers have come to their end.
        """
        data, file = self._handled_kinds()
        many = _count(concurrency)
        run = Run(None if grace is None else finite_seconds(grace, "grace"))
        warn_if_children_are_ignored()
        self._runs.add(run)
        try:
            with run.signals() if signals else nullcontext():
                return await run.all(partial(self._work, run, bool(drain), data, file), many)
        finally:
            self._runs.discard(run)

    def stop(self) -> None:
        """Take no more jobs, for good. From any thread or signal handler.

        Every wait of this instance ends at once (`receive_one` gives `False`, `claim` `None`, `stream` ends); `work`
        and `receive` end after the jobs in hand. Sending and looking go on.
        """
        self._queue.stop()
        for run in self._running():
            run.end()

    async def _next(
        self,
        wait: float | None,
        fifo: bool | None,
        data: bool,
        file: bool,
        claimed: Callable[[_core.Claim], _Claimed],
    ) -> _Claimed | None:
        order = self._queue._order(fifo)

        async def look(listener: _core.Listener, left: float | None) -> Glance[_Claimed]:
            return await self._in_thread(
                partial(self._glance, listener, left, (order, data, file), claimed), undo=self._put_back_glanced
            )

        return await Waits.here(self._waits).next(look, (data, file), wait)

    async def _handle(self, claimed: _Claimed) -> None:
        """Run the handler of a claimed job and settle the job by its result."""
        if claimed.arguments is None:
            return  # it could not be read, and is settled
        outer = current.get()
        try:
            settle = await self._run(claimed.claim, claimed.arguments)
        finally:
            current.set(outer)
        await self._in_thread(settle, is_sure=True)

    async def _run(self, claim: _core.Claim, arguments: tuple[Any, ...]) -> Callable[[], None]:
        """Run the handler. Returns what settles the job by its result: that is for a thread, since it uses the disk."""
        queue, handler = self._queue, self._on_data if claim.name is None else self._on_file
        assert handler is not None
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        handling: Handling = [claim, queue]
        current.set(handling)
        settle = partial(self._settle, handling, handler)
        in_thread: Future[object] | None = None
        try:
            claim.begin()
            if _is_async(handler):
                returned: object = handler(*arguments)
            else:
                in_thread = _in_a_thread_of_its_own(partial(handler, *arguments))
                returned = await asyncio.wrap_future(in_thread)
            if _is_awaitable(returned):
                returned = await cast(Awaitable[object], returned)
            return partial(contextvars.copy_context().run, settle, returned, None)
        except BaseException as error:
            # A library raises CancelledError as well, where something was cancelled that the handler awaited.
            is_cancelled = is_a(error, asyncio.CancelledError) and task.cancelling() > cancelled
            if not is_cancelled and not ends_work(error):
                return partial(contextvars.copy_context().run, settle, None, error)
            if in_thread is not None and not in_thread.done() and queue.interrupted_attempts:
                # The function goes on in its thread. If its job was put back now, it would run twice at the same time.
                in_thread.add_done_callback(partial(self._settle_left, handling, handler))
            elif not is_a(error, GeneratorExit):
                await self._in_thread(partial(queue._interrupt, handling, error), is_sure=True)
            # Else the loop is gone, and nothing can be awaited: the claim is dropped, and interrupts its job.
            raise

    async def _work(self, run: Run, drain: bool, data: bool, file: bool) -> None:
        """Handle one job after the other. To drain is over when no worker has a job in hand, which may send others."""
        while not run.is_ending:
            try:
                with run.waiting():
                    claimed = await self._next(0.0 if drain else None, None, data, file, self._with_arguments)
                    if claimed is None and drain and not (run.is_drained or run.is_ending):
                        with run.idle():
                            claimed = await self._next(None, None, data, file, self._with_arguments)
                if claimed is None:
                    return
                await self._handle(claimed)
            except asyncio.CancelledError:
                run.go_on()  # unless it is all that is cancelled, and not this handler
            else:
                run.handled += 1

    # Looking

    async def status(self, id: str) -> Status:
        """Where a job is, as `Pacchettino.status`."""
        return await self._in_thread(partial(self._queue.status, id))

    @staticmethod
    def sent_at(id: str) -> datetime:
        """When the job with this id was sent, as its sender's clock had it; UTC. `ValueError` for what is no id."""
        return Pacchettino.sent_at(id)

    async def is_scheduled(self, id: str) -> bool:
        """Whether the job's delay is not over, or nobody looked since."""
        return await self._in_thread(partial(self._queue.is_scheduled, id))

    async def is_queued(self, id: str) -> bool:
        """Whether the job waits."""
        return await self._in_thread(partial(self._queue.is_queued, id))

    async def is_processing(self, id: str) -> bool:
        """Whether somebody has claimed the job."""
        return await self._in_thread(partial(self._queue.is_processing, id))

    async def is_success(self, id: str) -> bool:
        """Whether the job succeeded. `NotKeptError` if this instance does not keep those."""
        return await self._in_thread(partial(self._queue.is_success, id))

    async def is_failed(self, id: str) -> bool:
        """Whether the job failed. `NotKeptError` if this instance does not keep those."""
        return await self._in_thread(partial(self._queue.is_failed, id))

    async def is_interrupted(self, id: str) -> bool:
        """Whether the job's consumer died or gave up. `NotKeptError` if this instance does not keep those."""
        return await self._in_thread(partial(self._queue.is_interrupted, id))

    async def count_scheduled(self) -> int:
        """Count the jobs whose delay is not over."""
        return await self._in_thread(self._queue.count_scheduled)

    async def count_queued(self) -> int:
        """Count the jobs that wait."""
        return await self._in_thread(self._queue.count_queued)

    async def count_processing(self) -> int:
        """Count the jobs that somebody has claimed."""
        return await self._in_thread(self._queue.count_processing)

    async def count_successful(self) -> int:
        """Count the jobs that succeeded. `NotKeptError` if this instance does not keep those."""
        return await self._in_thread(self._queue.count_successful)

    async def count_failed(self) -> int:
        """Count the jobs that failed. `NotKeptError` if this instance does not keep those."""
        return await self._in_thread(self._queue.count_failed)

    async def count_interrupted(self) -> int:
        """Count the jobs whose consumer died or gave up. `NotKeptError` if this instance does not keep those."""
        return await self._in_thread(self._queue.count_interrupted)

    async def count_all(self) -> int:
        """Count the jobs that are scheduled, waiting, claimed, or in a state that this instance keeps."""
        return await self._in_thread(self._queue.count_all)

    async def jobs(self, status: Status | str) -> AsyncIterator[JobInfo]:
        """List the jobs that are in a state now, oldest first: `async for job in queue.jobs(Status.FAILED)`."""
        for job in await self._in_thread(partial(self._queue.jobs, status)):
            yield job

    async def history(self, id: str) -> list[Attempt]:
        """Tell of a job's attempts that did not simply succeed, as `Pacchettino.history`."""
        return await self._in_thread(partial(self._queue.history, id))

    async def stats(self) -> Stats:
        """The queue in a few figures, as `Pacchettino.stats`."""
        return await self._in_thread(self._queue.stats)

    # Operating

    async def pause(self) -> None:
        """Have no more jobs taken, by any process, until `resume`, as `Pacchettino.pause`."""
        await self._in_thread(self._queue.pause)

    async def resume(self) -> None:
        """End a pause."""
        await self._in_thread(self._queue.resume)

    async def is_paused(self) -> bool:
        """Return whether the queue is paused at this moment, by any process."""
        return await self._in_thread(self._queue.is_paused)

    @property
    def paused(self) -> NoReturn:
        """Not available: the answer is on the disk. Use `await queue.is_paused()`."""
        raise AttributeError("AsyncPacchettino has no `paused`; use `await queue.is_paused()`")

    async def cancel(self, id: str) -> bool:
        """Delete a job that waits or is scheduled, as `Pacchettino.cancel`. Returns whether there was one."""
        return await self._in_thread(partial(self._queue.cancel, id))

    # Tidying

    async def requeue(self, id: str) -> bool:
        """Put a finished job back into the queue, as `Pacchettino.requeue`. Returns whether there was one."""
        return await self._in_thread(partial(self._queue.requeue, id))

    async def requeue_all(self, which: KeepPolicy = KeepPolicy.FAILED | KeepPolicy.INTERRUPTED) -> int:
        """Put all jobs that are in these states now back into the queue. Returns how many there were."""
        return await self._in_thread(partial(self._queue.requeue_all, which))

    async def cleanup(self, which: KeepPolicy = KeepPolicy.ALL, *, older_than: Duration = 0) -> int:
        """Delete the jobs that are in these states now, as `Pacchettino.cleanup`. Returns how many there were."""
        return await self._in_thread(partial(self._queue.cleanup, which, older_than=older_than))

    async def close(self) -> None:
        """End the waits of this instance and let go of what it holds, as `Pacchettino.close`.

        Jobs in progress can be finished, also those of event loops in other threads. Not needed for safety.
        """
        for run in self._running():
            run.end()
        await self._in_thread(self._queue.close)
        threads = self._threads.pop(os.getpid(), None)
        if threads is not None:
            threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncPacchettino:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if kind is not GeneratorExit:  # nothing can be awaited then
            await self.close()

    def __repr__(self) -> str:
        return f"Async{self._queue!r}"

    def __reduce__(self) -> tuple[Any, ...]:
        reopen, (_, settings) = self._queue.__reduce__()
        return reopen, (type(self), settings)

    # Threads

    def _running(self) -> tuple[Run, ...]:
        while True:
            with suppress(RuntimeError):  # one begins or ends just now in another thread
                return tuple(self._runs)

    async def _in_thread(
        self, call: Callable[[], T], undo: Callable[[T], None] | None = None, *, is_sure: bool = False
    ) -> T:
        """Make a blocking call in a thread. Cancelled after it has begun, it is waited for all the same, and undone.

        A sure one, such as a verdict, is waited for also if it had not begun.
        """
        running = self._start(call)
        waiting = asyncio.wrap_future(running)
        try:
            if not is_sure:
                return await waiting
            await asyncio.wait([waiting])  # whose cancellation does not reach the call
            return waiting.result()
        except asyncio.CancelledError as cancelled:
            if waiting.cancelled():
                waiting = asyncio.wrap_future(running)
            await ended(waiting)
            error = None if waiting.cancelled() else waiting.exception()
            if error is not None:
                raise cancelled from error
            if undo is not None and not waiting.cancelled():
                await ended(asyncio.wrap_future(self._start(partial(undo, waiting.result()))))
            raise

    def _start(self, call: Callable[[], T]) -> Future[T]:
        if not self._queue._is_prepared:
            call = partial(self._prepared, call)
        process = os.getpid()  # in a forked child there are no threads
        while True:
            threads = self._threads.get(process)
            if threads is None:
                threads = self._threads.setdefault(process, ThreadPoolExecutor(THREADS, "pacchettino"))
            try:
                return threads.submit(call)
            except RuntimeError:
                # Another thread has closed the queue in between. Jobs in progress must still be settled.
                if self._threads.get(process) is threads:
                    raise  # the interpreter ends

    def _drop(self, job: Job, room: _Room | None) -> None:
        """Have a thread interrupt a job that was dropped."""

        def interrupt() -> None:
            job._interrupt_dropped()
            if room is not None:
                room.release_anywhere()

        with suppress(RuntimeError):  # the interpreter ends: `Job` does it
            self._start(interrupt)

    # In a thread

    def _prepared(self, call: Callable[[], T]) -> T:
        self._queue._prepare()
        return call()

    @contextmanager
    def _logging(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._queue._core.has_notices:
                self._queue._log_notices()

    def _settle(self, handling: Handling, handler: object, returned: object, error: BaseException | None) -> None:
        """Settle a job by what its handler returned or raised."""
        queue, claim = self._queue, handling[0]
        verdict = Verdict.of_return(handler, returned) if error is None else Verdict.of_error(error, queue.retry_on)
        queue._settle(handling, partial(queue._settle_by, claim, verdict))

    def _settle_left(self, handling: Handling, handler: object, done: Future[object]) -> None:
        """Settle the job of a function that has gone on in its thread after its task was cancelled."""
        error = done.exception()
        returned = None if error is not None else done.result()
        if _is_awaitable(returned):
            if type(returned) is types.CoroutineType:
                returned.close()
            error = asyncio.CancelledError("there is no task any more that could await what the handler returned")
            self._queue._interrupt(handling, error)
        elif error is not None and ends_work(error):
            self._queue._interrupt(handling, error)
        else:
            self._settle(handling, handler, returned, error)

    def _start_pass(self, fifo: bool | None, data: bool, file: bool) -> _core.Consumer:
        with self._logging():
            return self._queue._core.start_pass(self._queue._order(fifo), data, file)

    def _claim_next(self, waiting: _core.Consumer) -> _Claimed | None:
        with self._logging():
            claim = self._queue._core.claim_next(waiting)
        return None if claim is None else self._with_arguments(claim)

    def _glance(
        self,
        listener: _core.Listener,
        left: float | None,
        wanted: tuple[bool, bool, bool],
        claimed: Callable[[_core.Claim], _Claimed],
    ) -> Glance[_Claimed]:
        with self._logging():
            claim, pause = self._queue._core.glance(listener, left, *wanted)
        return Glance(None if claim is None else claimed(claim), pause)

    def _with_arguments(self, claim: _core.Claim) -> _Claimed:
        self._tell_taken(claim)
        name = claim.name
        if name is not None:
            return _Claimed(claim, (claim.id, name, Path(claim.path)))
        return _Claimed(claim, self._queue._read([claim, self._queue]))

    def _with_data(self, claim: _core.Claim) -> _Claimed:
        """Read a data job while this thread is at it: another way to a thread costs more. An error is for who asks."""
        self._queue._look_who_watches()
        self._tell_taken(claim)
        if claim.name is None:
            with suppress(OSError, MemoryError):
                return _Claimed(claim, (claim.read(),))
        return _Claimed(claim, ())

    def _tell_taken(self, claim: _core.Claim) -> None:
        if self._queue._is_watched:
            tell_taken(claim)

    def _put_back_glanced(self, glance: Glance[_Claimed]) -> None:
        self._put_back(glance.found)

    def _put_back(self, claimed: _Claimed | None) -> None:
        if claimed is None or claimed.claim.is_settled:
            return
        try:
            with self._logging():
                claimed.claim.put_back()
        except OSError as error:  # it is kept, and tried again
            logger.warning("job %s could not be put back yet: %s", claimed.claim.id, error, extra=about(claimed.claim))

    def _handled_kinds(self) -> tuple[bool, bool]:
        self._queue._look_who_watches()
        data, file = self._on_data is not None, self._on_file is not None
        if not data and not file:
            raise RuntimeError("there is no handler: set one with on_data_received or on_file_received, or use claim()")
        return data, file


class _Blocking(Pacchettino):
    """The queue below. In an event loop, its constructor and its settings leave the disk to the next call."""

    def _open(self, durable: bool) -> None:
        if not _is_in_loop():
            self._core.ensure_open()
        self.durable = durable

    @property
    def durable(self) -> bool:
        return self._wanted_durable

    @durable.setter
    def durable(self, value: bool) -> None:
        if not _is_in_loop():
            self._core.durable = bool(value)
        self._wanted_durable = bool(value)

    @property
    def _is_prepared(self) -> bool:
        return self._core.durable is self._wanted_durable

    def _prepare(self) -> None:
        """Do what a setting has left undone: the queue's directories may have to be flushed."""
        self._core.durable = self._wanted_durable


class AsyncJob:
    """A job that this process has claimed: `Job` with verdicts to be awaited, and `async with`.

    Also its `data` and `attempt` are awaited. Cancelled, an `async with` interrupts the job.
    """

    __slots__ = ("_job", "_loop", "_queue", "_room")

    def __init__(self, claimed: _Claimed, queue: AsyncPacchettino, room: _Room | None = None) -> None:
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._queue = queue
        self._job = Job(claimed.claim, queue._queue)
        if claimed.arguments:
            (self._job._data,) = claimed.arguments

    @property
    def id(self) -> str:
        """The job's UUID, as `send_*` returned it."""
        return self._job.id

    @property
    def entry(self) -> str:
        """The name of its file in the other states: `raw-<uuid>` or `fle-<uuid>-<name>`."""
        return self._job.entry

    @property
    def kind(self) -> Literal["data", "file"]:
        """`"data"` or `"file"`."""
        return self._job.kind

    @property
    def name(self) -> str | None:
        """The base name of a file job, `None` for a data job."""
        return self._job.name

    @property
    def path(self) -> Path:
        """Where the job's file is until the verdict. It must not be moved or deleted."""
        return self._job.path

    @property
    def data(self) -> Awaitable[bytes]:
        """The job's bytes, a file's too: `await job.data`. Otherwise as `Job.data`."""
        return _Awaited("data", self._read)

    @property
    def attempt(self) -> Awaitable[int]:
        """Which attempt at the job this is, from 1: `await job.attempt`. Otherwise as `Job.attempt`."""
        return _Awaited("attempt", lambda: self._queue._in_thread(lambda: self._job.attempt))

    @property
    def sent_at(self) -> datetime:
        """When it was sent, UTC."""
        return self._job.sent_at

    async def succeed(self) -> None:
        """The job is done, as `Job.succeed`. Cancelled after it has begun, the verdict stands; so with the others."""
        await self._settle(self._job.succeed)

    async def fail(self, reason: str | None = None) -> None:
        """The job can't be done, as `Job.fail`."""
        await self._settle(partial(self._job.fail, reason))

    async def retry(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Once more, as `Job.retry`."""
        await self._settle(partial(self._job.retry, delay, reason))

    async def __aenter__(self) -> AsyncJob:
        self._job.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> bool:
        self._job._leave()
        if isinstance(error, GeneratorExit):  # nothing can be awaited then
            return self._job._end(error)
        return await self._settle(partial(self._job._end, error))

    async def _read(self) -> bytes:
        data = self._job._data
        return await self._queue._in_thread(lambda: self._job.data) if data is None else data

    async def _settle(self, settle: Callable[[], T]) -> T:
        try:
            return await self._queue._in_thread(settle, is_sure=True)
        finally:
            if self._room is not None and self._job._claim.is_settled:
                self._room.release()
                self._room = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncJob can't be copied or pickled: it is this process's claim")

    def __del__(self) -> None:
        job: Job | None = getattr(self, "_job", None)
        if job is None:
            return
        if job._is_unsettled():
            # By the loop, since the garbage collector may be here in the middle of a call to the pool of threads.
            with suppress(RuntimeError):  # the loop is closed: `Job` does it
                self._loop.call_soon_threadsafe(self._queue._drop, job, self._room)
                warn_of_drop(self, job.id)
        elif self._room is not None:
            self._room.release_anywhere()

    def __repr__(self) -> str:
        return f"<AsyncJob {self.entry!r}>"


class _Awaited(Awaitable[T]):
    """A property that reads the disk. It raises where it is used without `await`: it would pass for its value there."""

    def __init__(self, name: str, read: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._name = name
        self._read = read

    def __await__(self) -> Generator[Any, Any, T]:
        return self._read().__await__()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"`job.{self._name}` must be awaited: write `await job.{self._name}`")

    __bool__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __str__ = __format__ = _refuse
    __hash__ = object.__hash__  # `asyncio.gather` needs it


class _Claimed(NamedTuple):
    """A claim, and what its handler is called with: `None` if it could not be read, and has its verdict."""

    claim: _core.Claim
    arguments: tuple[Any, ...] | None


class _Room(asyncio.Semaphore):
    """How many jobs of a stream may be without a verdict."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._at = asyncio.get_running_loop()

    def release_anywhere(self) -> None:
        """Release it from whatever thread drops a job."""
        with suppress(RuntimeError):  # the loop is closed
            self._at.call_soon_threadsafe(self.release)


class _Stream:
    """Jobs as they come. Between two nothing is held."""

    def __init__(
        self, queue: AsyncPacchettino, concurrency: int, take: Callable[[], Awaitable[_Claimed | None]]
    ) -> None:
        self._queue = queue
        self._take = take
        self._concurrency = concurrency
        self._room: _Room | None = None

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> AsyncJob:
        room = self._room = self._room or _Room(self._concurrency)
        await room.acquire()
        claimed = None
        try:
            claimed = await self._take()
        finally:
            if claimed is None:
                room.release()
        if claimed is None:
            raise StopAsyncIteration
        return AsyncJob(claimed, self._queue, room)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_async(handler: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _in_a_thread_of_its_own(call: Callable[[], object]) -> Future[object]:
    """Run a function that may take long and that nobody can stop. It delays no other call, nor the program's end."""
    done: Future[object] = Future()
    done.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(call))
        except StopIteration as error:  # no future can hold one
            done.set_exception(RuntimeError(f"a handler raised {error!r}"))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="pacchettino handler", daemon=True).start()
    return done


def _is_awaitable(value: object) -> bool:
    """Return whether a value can be awaited, by its type: its `__class__` may raise."""
    return issubclass(type(value), Awaitable) or (type(value) is types.GeneratorType and inspect.isawaitable(value))


def _kinds(kind: object) -> tuple[bool, bool]:
    if kind not in (None, "data", "file"):
        raise ValueError(f"kind must be 'data', 'file' or None, not {kind!r}")
    return kind != "file", kind != "data"


def _count(concurrency: object) -> int:
    return whole_number(concurrency, "concurrency", 1)


def _check_handler(handler: Any, arguments: str) -> None:
    if not callable(handler):
        raise TypeError(f"a handler must be callable, not {type(handler).__name__}")
    if any(inspect.isasyncgenfunction(f) for f in (handler, type(handler).__call__)):
        raise TypeError("a handler must not yield: it would be called and never run")
    check_arguments(handler, "a handler", arguments)
