"""The queue: settings, sending, and the loop that runs handlers."""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from logging import INFO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

from pacchettino import _core, _types
from pacchettino._job import Handling, Hook, Job, current, job_of
from pacchettino._limits import checked_limit, with_room
from pacchettino._retry import (
    ENDS,
    NOT_GIVEN,
    SUCCESS,
    Attempts,
    RetryDelay,
    Verdict,
    checked_delay,
    count,
    ends_work,
    fail,
    name_of,
    summary,
    told_at_length,
)
from pacchettino._telling import about, clean, logger, tell_moved, tell_settled, tell_taken
from pacchettino._types import (
    LAST_MILLISECOND,
    CrashDetection,
    Duration,
    KeepPolicy,
    NotKeptError,
    Result,
    Status,
    finite_seconds,
    from_milliseconds,
    seconds,
    whole_number,
)
from pacchettino._views import Attempt, JobInfo, Stats
from pacchettino._work import Threads, Work, is_limit, refuse_greenlets

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from 3.12 on

DataHandler: TypeAlias = Callable[[str, bytes], object]
FileHandler: TypeAlias = Callable[[str, str, Path], object]
OnClaim: TypeAlias = Callable[[_core.Claim, Path], float | None]
D = TypeVar("D", bound=DataHandler)
F = TypeVar("F", bound=FileHandler)
H = TypeVar("H", bound=Hook)
T = TypeVar("T")
Setter = TypeVar("Setter", covariant=True)
Handler = TypeVar("Handler", contravariant=True)


class SetsDataHandler(Protocol):
    """The method `on_data_received`."""

    def __call__(self, handler: D) -> D: ...


class SetsFileHandler(Protocol):
    """The method `on_file_received`."""

    def __call__(self, handler: F) -> F: ...


class assignable(Generic[Setter, Handler]):
    """Makes a method that checks a handler one that sets it. A handler can also be assigned to it, as in the D library.

    A second call, for another function, is most likely a mistake, and warned of. An assignment says what it does.
    """

    def __init__(self, check: Callable[[Any, Any], object]) -> None:
        @functools.wraps(check)
        def call(queue: object, handler: Any) -> Any:
            check(queue, handler)
            _warn_if_replaced(getattr(queue, self._attribute), handler, check.__name__)
            setattr(queue, self._attribute, handler)
            return handler

        self._check = check
        self._call = call
        self.__doc__ = check.__doc__

    def __set_name__(self, kind: type, name: str) -> None:
        self._attribute = "_" + name.removesuffix("_received")

    @overload
    def __get__(self, queue: None, kind: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, queue: object, kind: type) -> Setter: ...
    def __get__(self, queue: object, kind: type) -> object:
        return self._call if queue is None else types.MethodType(self._call, queue)

    def __set__(self, queue: object, handler: Handler) -> None:
        self._check(queue, handler)
        setattr(queue, self._attribute, handler)


class Pacchettino:
    """A queue of jobs in the directory `base_dir`, which is made if it is missing, with those in it.

    Any number of instances, threads and processes may use one directory, and one instance may be shared by threads.
    It survives `fork`, and can be pickled (settings travel, handlers do not). What is claimed by a process that
    dies becomes `interrupted` as soon as another consumer looks.

    Args:
        base_dir: Made absolute at once.
        keep_policy: Which finished jobs stay on disk where this instance settles or recovers them.
        durable: Flush every change of state to the disk (`fsync` of file and directory) before anybody is told of
            it. A power cut then undoes nothing that a call returned from.
        crash_detection: How others notice that this process died.
        retry_delay: How long a job waits that is to be tried again: seconds, a `timedelta`, or what a callable makes of
            the number of the attempt that just ended, such as a `Backoff`. If it is not given, a `Result.RETRY` goes
            back at once, and a job whose handler raised waits for `Backoff(1, maximum=60)`.
        fifo: Take jobs oldest first instead of in random order. With `Result.RETRY` and no delay one job can then
            keep the others waiting.
        max_attempts: After how many attempts a job that is to be tried again fails instead; `None`: never.
        retry_on: Types of exceptions that mean "again" when a handler raises them, instead of "failed".
        interrupted_attempts: How many times a job that is interrupted, since its consumer died or left it, is put back
            by itself, at once, before it stays `interrupted`. After `max_attempts` attempts it stays so in any case.
            Who notices that a consumer died decides by its own setting: give all instances the same.
        max_queued: How many jobs may wait, scheduled ones included, before this instance sends no more (`QueueFull`).
            It counts only now and then: each other process that sends may be over it by a sixteenth.
        min_free: How many bytes must be free on the disk for a job to be sent.

    Raises:
        NotADirectoryError: `base_dir` is a file.
        OSError: It can't be made or opened.
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
        self._keep_policy = _keep_policy(keep_policy)
        self._fifo = bool(fifo)
        most = None if max_attempts is None else count(max_attempts, "max_attempts", 1)
        self._attempts = Attempts(most, checked_delay(retry_delay))
        self._retry_on = _exceptions(retry_on)
        self._interrupted_attempts = count(interrupted_attempts, "interrupted_attempts", 0)
        self._on_data: DataHandler | None = None
        self._on_file: FileHandler | None = None
        self._on_claim: OnClaim | None = None
        self._hooks: tuple[Hook, ...] = ()
        self._is_watched = False
        by_pid = _by_pid(crash_detection)
        self._max_queued = None if max_queued is None else checked_limit(max_queued, "max_queued", 1)
        self._min_free = checked_limit(min_free, "min_free", 0)
        self._core = _core.Queue(
            _path(base_dir, "base_dir"),
            int(self._keep_policy),
            by_pid,
            self._max_queued,
            self._min_free,
        )
        self._core.set_put_back(self._interrupted_attempts, _NO_LIMIT if most is None else most)
        self._works: set[Work] = set()
        self._open(bool(durable))

    def _open(self, durable: bool) -> None:
        self._core.ensure_open()
        self._core.durable = durable

    # Settings

    @property
    def base_dir(self) -> Path:
        """The queue's directory, absolute."""
        return Path(self._core.base)

    @property
    def keep_policy(self) -> KeepPolicy:
        """Which finished jobs stay on disk where this instance settles or recovers them."""
        return self._keep_policy

    @property
    def fifo(self) -> bool:
        """Whether jobs are taken oldest first."""
        return self._fifo

    @property
    def durable(self) -> bool:
        """Whether every change of state is flushed to the disk before anybody is told of it. Can be set."""
        return self._core.durable

    @durable.setter
    def durable(self, value: bool) -> None:
        self._core.durable = bool(value)

    @property
    def crash_detection(self) -> CrashDetection:
        """How others notice that this process died. Can be set, for the claims from then on."""
        return CrashDetection.PID if self._core.by_pid else CrashDetection.LOCK_FILE

    @crash_detection.setter
    def crash_detection(self, value: CrashDetection) -> None:
        self._core.by_pid = _by_pid(value)

    @property
    def retry_delay(self) -> RetryDelay:
        """How long a job waits that is to be tried again. Can be set."""
        return self._attempts.delay

    @retry_delay.setter
    def retry_delay(self, value: RetryDelay) -> None:
        self._attempts = Attempts(self._attempts.most, checked_delay(value))

    @property
    def max_attempts(self) -> int | None:
        """After how many attempts a job that is to be tried again fails instead."""
        return self._attempts.most

    @property
    def retry_on(self) -> tuple[type[BaseException], ...]:
        """Types of exceptions of a handler that mean "again"."""
        return self._retry_on

    @property
    def interrupted_attempts(self) -> int:
        """How many times a job that is interrupted is put back by itself."""
        return self._interrupted_attempts

    @property
    def max_queued(self) -> int | None:
        """How many jobs may wait before this instance sends no more; `None` is no limit."""
        return self._max_queued

    @property
    def min_free(self) -> int:
        """How many bytes must be free on the disk for this instance to send."""
        return self._min_free

    # Sending

    def send_data(self, data: str | Buffer, *, delay: Duration = 0, block: Duration | None = 0) -> str:
        """Send bytes (a `str` goes as UTF-8), to be handled now or after `delay`. Returns the job's id.

        When this returns, the job survives the death of every process, with `durable` also a power cut. Where
        `max_queued` or `min_free` leaves no room, it waits up to `block` for some, for ever if that is `None`.

        Raises:
            TypeError: `data` is neither `str` nor bytes-like.
            ValueError: `delay` is NaN, infinite, or ends after the year 2286.
            QueueFull: There is no room, and none came. The job was not sent.
            OSError: The job was not sent, and nothing is left of it.
            SendError: The job exists (`sent` holds its id), but with `durable` a power cut may undo it.
        """
        wait = finite_seconds(delay, "delay")
        return with_room(lambda: self._core.send(data, wait), block)

    def send_file(
        self,
        path: str | os.PathLike[str],
        *,
        copy: bool = True,
        name: str | None = None,
        delay: Duration = 0,
        block: Duration | None = 0,
    ) -> str:
        """Send a file, to be handled now or after `delay`. Returns the job's id.

        A copy follows a symlink and keeps the link's name; the umask decides who can read it. With `copy=False` the
        file itself is moved, by a single rename where queue and file are on one filesystem, else by a copy after
        whose publishing the file is removed. `name` is another base name than the path's, of at most 200 bytes.

        Raises:
            FileNotFoundError: There is no such file. Other `OSError` as they come.
            IsADirectoryError: It is a directory.
            OSError: With `errno.EINVAL` if it is no regular file, or a symlink that is to be moved.
            ValueError: The name is longer than 200 bytes or has a separator in it; `delay` as in `send_data`.
            QueueFull: As in `send_data`.
            SendError: The job exists (`sent` holds its id), but the file could not be removed after a copy, or with
                `durable` a power cut may undo it.
        """
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be str, not {type(name).__name__}")
        source, wait = _path(path, "path"), finite_seconds(delay, "delay")
        return with_room(lambda: self._core.send_file(source, bool(copy), name, wait), block)

    def send_many(self, items: Iterable[str | Buffer], *, delay: Duration = 0, block: Duration | None = 0) -> list[str]:
        """Send many data jobs, in order; cheaper than a loop, far cheaper when `durable`. Returns their ids.

        All items are checked, then all are written, then all are published. Where there is no room for all of them,
        none is sent; `block` as in `send_data`.

        Raises:
            TypeError: `items` is itself `str` or bytes-like, or holds something that is neither.
            ValueError: They are more than `max_queued`; `delay` as in `send_data`.
            QueueFull: As in `send_data`.
            SendError: Some were sent (`sent` holds their ids), then something failed.
            OSError: None was sent.
        """
        if isinstance(items, str | bytes | bytearray | memoryview):
            raise TypeError("items must be an iterable of str or bytes-like objects; to send one, use send_data")
        # A list, so that no Python code runs below the core.
        jobs, wait = list(items), finite_seconds(delay, "delay")
        return with_room(lambda: self._core.send_many(jobs, wait), block)

    # Handling

    @assignable[SetsDataHandler, DataHandler]
    def on_data_received(self, handler: D) -> D:
        """Set the handler of data jobs, which is called as `handler(id, data)`. It is returned.

        Use it as a decorator, or call it, or assign to it: `queue.on_data_received = handler`. A queue has one handler
        for each kind. So a second decorator or call warns (`UserWarning`), unless it is for the same function defined
        again. An assignment replaces a handler without a warning.

        A handler says by `Result.SUCCESS`, `Result.FAILED` or `Result.RETRY` what became of its job, or raises `Retry`
        or `Fail`. `None` means success, and so does any other value, but for those that hint at a mistake: a `bool`, a
        `Status`, and what must still be awaited or iterated over fail the job, and the log says what was returned.

        Any other exception fails the job, with the traceback logged, or has it tried again if it is one of `retry_on`.
        `KeyboardInterrupt`, `SystemExit` and `GeneratorExit` go on to the caller, and the job is interrupted.
        `pacchettino.current_job()` is the job.
        """
        _check_handler(handler)
        return handler

    @assignable[SetsFileHandler, FileHandler]
    def on_file_received(self, handler: F) -> F:
        """Set the handler of file jobs, which is called as `handler(id, name, path)`. It is returned.

        The handler must not move or delete the file. Otherwise as `on_data_received`.
        """
        _check_handler(handler, arguments="(id, name, path)")
        return handler

    def on_settled(self, hook: H) -> H:
        """Call `hook(job, outcome, seconds)` for each job that gets its verdict in this process through this instance.

        A decorator or a plain call; there may be several. `outcome` is `"success"`, `"failed"`, `"retry"` or
        `"interrupted"`, as it came to be: a retry too many is `"failed"`. `seconds` is how long the job was in hand,
        until the verdict. The job knows its `id`, `kind`, `name` and `attempt`; its `data` can't be read any more.

        It is called once, after the verdict, in the thread that gave it. The job has left `processing/` by then, and
        with `durable` its result is on the disk. Only where the disk does not take the verdict, the hook is called all
        the same: the verdict is kept then, and if the process ends before the disk takes it, the job is interrupted
        after all. Nobody is called for jobs of consumers
        that died. The worker processes of `work` call the hooks that were set before it. What a hook raises is logged
        and goes no further, `SystemExit` included. Only Ctrl-C, and what a handler of a signal raises, does.
        """
        _check_handler(hook, "a hook", "(job, outcome, seconds)")
        self._hooks += (hook,)
        self._is_watched = True
        return hook

    def receive(self, *, fifo: bool | None = None) -> int:
        """Handle the jobs that wait now, each at most once. Returns how many were handled, whatever the verdict.

        Jobs whose delay is over join first, and the jobs of dead consumers become `interrupted`.

        Raises:
            RuntimeError: There is no handler.
            OSError: The queue can't be read.
        """
        data, file = self._handled_kinds()
        handled = 0
        try:
            waiting = self._core.start_pass(self._order(fifo), data, file)
        finally:
            self._log_notices()
        try:
            while True:
                claim = self._core.claim_next(waiting)
                if self._core.has_notices:
                    self._log_notices()
                if claim is None:
                    return handled
                if claim.is_ours:
                    self._handle(claim)
                    handled += 1
        except BaseException:
            # A durable queue's last verdict waits for its flush, and the last claim's directory for the next claim.
            waiting.end()
            self._log_notices()
            raise

    def receive_one(self, timeout: Duration | None = 0, *, fifo: bool | None = None) -> bool:
        """Handle one job if there is one, or comes within `timeout`. Returns whether there was one.

        A timeout of 0 returns at once, `None` waits for ever. The wait also ends when another thread calls `close`.

        Raises:
            RuntimeError: There is no handler.
            KeyboardInterrupt: Within 100 ms of Ctrl-C in the main thread; a wait then ends with no job taken. If it
                comes just as a job is handed to its handler, or later, that job is interrupted.
        """
        wait = timeout_seconds(timeout)
        data, file = self._handled_kinds()
        claim = self._claim(wait, fifo, data, file)
        if claim is None:
            return False
        self._handle(claim)
        return True

    def work(
        self,
        threads: int = 1,
        processes: int = 1,
        *,
        drain: bool = False,
        grace: Duration | None = None,
        max_jobs: int | None = None,
        job_timeout: Duration | None = None,
        signals: bool = True,
    ) -> int:
        """Handle jobs until SIGTERM, SIGINT (Ctrl-C) or `stop`. Returns how many were handled.

        Each of these stops it in order: the jobs in progress are finished, and no other job is claimed. A second
        signal, or the end of `grace`, interrupts them. A job that is retried is counted again.

        Signals stop it only if it runs in the main thread, and only those that have the default handler of Python or of
        the system. If the application has set a handler of its own, or ignores the signal, that stays so; such a
        handler calls `stop`. If a handler of a job calls `work` for another queue, a signal stops both.

        With one thread and one process the handlers run in the calling thread. More threads are of this process; those
        that are left go on until their handlers return or the process ends. Their jobs are interrupted at once all the
        same; but with `interrupted_attempts` such a job stays claimed for as long, so that it never runs twice at the
        same time. More processes are new ones (of the kind
        "spawn" of `multiprocessing`) with so many threads each; they import the handlers, so call this below
        `if __name__ == "__main__":`, and configure above it what they need, such as logging. One that dies is replaced:
        at once, but with a pause of up to 30 s where they die one after the other without having handled a job. If this
        process dies, they finish what they have in hand and end. They never outlive a `work` that ends otherwise.

        A handler that runs programs needs SIGCHLD. Where this process ignores it, `subprocess` reports 0 for every
        program: that is logged as a warning, and child processes do not ignore it.

        A job that this process cannot read for want of descriptors or memory is released and waits. So does the worker.

        Args:
            threads: How many jobs are handled at a time, in each process.
            processes: How many processes do that.
            drain: Return when no job waits. A job that is scheduled, or is to be tried again later, is left.
            grace: How long jobs in hand may take after the first signal or `stop`; `None`: as long as they need. A
                handler in the calling thread that is still there five seconds later is ended with its process.
            max_jobs: After so many jobs a process is replaced by a new one.
            job_timeout: How long a handler may take; the process of one that takes longer is killed, and its job
                interrupted, with that reason. With either of these two the handlers run in a child process, also if it
                is only one.
            signals: Whether signals stop it. With `False` it changes no signal handler.

        Raises:
            TypeError: There are to be child processes, and a handler, hook or `retry_delay` can't be imported by them.
            ValueError: `job_timeout` with more than one thread in a process: they would be killed together.
            RuntimeError: There is no handler, or the first worker process ended before it began, or it needs threads,
                which gevent or eventlet has replaced.
            KeyboardInterrupt: After a second signal, if the first was SIGINT, or where `grace` ended it.
            SystemExit: The same where the first was SIGTERM; its code is 143.
            TimeoutError: Jobs were left `grace` after a `stop`.
        """
        threads, processes = whole_number(threads, "threads", 1), whole_number(processes, "processes", 1)
        max_jobs = None if max_jobs is None else whole_number(max_jobs, "max_jobs", 1)
        longest = None if job_timeout is None else finite_seconds(job_timeout, "job_timeout")
        patience = None if grace is None else finite_seconds(grace, "grace")
        if longest == 0:
            raise ValueError("job_timeout must be more than 0")
        if longest is not None and threads > 1:
            raise ValueError("job_timeout kills the process of a job, so it needs threads=1; use more processes")
        self._handled_kinds()
        refuse_greenlets(
            threads=threads > 1,
            processes=processes > 1,
            max_jobs=max_jobs is not None,
            job_timeout=longest is not None,
            grace=patience is not None,
        )
        if processes == 1 and max_jobs is None and longest is None:
            here = Threads(self, threads, drain=bool(drain), grace=patience, signals=signals)
            here.run()
            self._tell_if_paused(drain)
            return int(sum(here.counts[1:]))
        # It takes a while to import, and only who has children needs it.
        from pacchettino._children import Children

        children = Children(
            self,
            threads,
            processes,
            drain=bool(drain),
            grace=patience,
            signals=signals,
            max_jobs=max_jobs,
            job_timeout=longest,
        )
        children.run()
        self._tell_if_paused(drain)
        return children.handled

    def _tell_if_paused(self, drain: bool) -> None:
        """Tell why there may be jobs that wait although none was found."""
        with suppress(OSError, ValueError):  # it is gone, or closed
            if drain and self.paused:
                logger.warning("%s is paused: what waits was left", self.base_dir)

    def stop(self) -> None:
        """Take no more jobs through this instance, for good. From any thread, or a signal's handler.

        `work` returns after the jobs in hand, `receive` after the one in hand, and every wait ends at once:
        `receive_one` with `False`, `claim` with `None`. Sending and looking go on. To take jobs again, make another
        instance.
        """
        self._core.stop()
        for work in tuple(self._works):
            work.stop()

    def claim(
        self, timeout: Duration | None = 0, *, fifo: bool | None = None, kind: Literal["data", "file"] | None = None
    ) -> Job | None:
        """Take a job without a handler, of any kind or only `"data"` or `"file"`. Otherwise as `receive_one`."""
        if kind not in (None, "data", "file"):
            raise ValueError(f"kind must be 'data', 'file' or None, not {kind!r}")
        claim = self._claim(timeout_seconds(timeout), fifo, kind != "file", kind != "data")
        if claim is None:
            return None
        self._look_who_watches()
        if self._is_watched:
            tell_taken(claim)
        return Job(claim, self)

    # Looking

    def status(self, id: str) -> Status:
        """Where a job is, by its id or its entry name (for a file job the faster one).

        `UNKNOWN` if it is nowhere, also for what is no id; only after a second look, since a job may move between
        looks.
        """
        found = self._core.status(id)
        return Status.UNKNOWN if found is None else Status(found)

    @staticmethod
    def sent_at(id: str) -> datetime:
        """When the job with this id was sent, as its sender's clock had it; UTC. `ValueError` for what is no id."""
        sent = _core.sent_at(id)
        if sent is None:
            raise ValueError(f"not a job's id: {id!r}")
        if sent > LAST_MILLISECOND:
            raise ValueError(f"sent after the year 9999, which no datetime can tell: {id!r}")
        return from_milliseconds(sent)

    def is_scheduled(self, id: str) -> bool:
        """Whether the job's delay is not over, or nobody looked since."""
        return self._core.is_in("scheduled", id)

    def is_queued(self, id: str) -> bool:
        """Whether the job waits."""
        return self._core.is_in("queued", id)

    def is_processing(self, id: str) -> bool:
        """Whether somebody has claimed the job."""
        return self._core.is_in("processing", id)

    def is_success(self, id: str) -> bool:
        """Whether the job succeeded. `NotKeptError` if this instance does not keep those."""
        return self._core.is_in(self._kept(KeepPolicy.SUCCESS), id)

    def is_failed(self, id: str) -> bool:
        """Whether the job failed. `NotKeptError` if this instance does not keep those."""
        return self._core.is_in(self._kept(KeepPolicy.FAILED), id)

    def is_interrupted(self, id: str) -> bool:
        """Whether the job's consumer died or gave up. `NotKeptError` if this instance does not keep those."""
        return self._core.is_in(self._kept(KeepPolicy.INTERRUPTED), id)

    def count_scheduled(self) -> int:
        """Count the jobs whose delay is not over."""
        return self._core.count("scheduled")

    def count_queued(self) -> int:
        """Count the jobs that wait."""
        return self._core.count("queued")

    def count_processing(self) -> int:
        """Count the jobs that somebody has claimed."""
        return self._core.count("processing")

    def count_successful(self) -> int:
        """Count the jobs that succeeded. `NotKeptError` if this instance does not keep those."""
        return self._core.count(self._kept(KeepPolicy.SUCCESS))

    def count_failed(self) -> int:
        """Count the jobs that failed. `NotKeptError` if this instance does not keep those."""
        return self._core.count(self._kept(KeepPolicy.FAILED))

    def count_interrupted(self) -> int:
        """Count the jobs whose consumer died or gave up. `NotKeptError` if this instance does not keep those."""
        return self._core.count(self._kept(KeepPolicy.INTERRUPTED))

    def count_all(self) -> int:
        """Count the jobs that are scheduled, waiting, claimed, or in a state that this instance keeps."""
        kept = [_STATE_OF[policy] for policy in KeepPolicy if policy in self._keep_policy]
        return sum(self._core.count(state) for state in ["scheduled", "queued", "processing", *kept])

    def jobs(self, status: Status | str) -> Iterator[JobInfo]:
        """List the jobs that are in a state now, oldest first, whatever the keep policy.

        The state is a `Status`, or its value, such as `"failed"`.
        """
        if not isinstance(status, str):
            raise TypeError(f"status must be a Status or its value, not {type(status).__name__}")
        if status not in _LISTED:
            raise ValueError(f"status must be one of {', '.join(_LISTED)}, not {str(status)!r}")
        return map(JobInfo._of, self._core.jobs(status))

    def history(self, id: str) -> list[Attempt]:
        """Tell of a job's attempts that did not simply succeed, oldest first, the last hundred of them.

        By its id or its entry name (for a file job the faster one). It goes with the job.
        """
        return [Attempt._of(record) for record in self._core.history(id)]

    def stats(self) -> Stats:
        """The queue in a few figures: counts, the oldest job that waits, the next that is due, who holds what.

        All directories are read; whatever the keep policy, what is there is counted.
        """
        return Stats._of(self._core)

    # Operating

    def pause(self) -> None:
        """Have no more jobs taken, by any process, until `resume`; also after a restart.

        Who holds a job finishes it, and its `receive` ends then; who waits goes on waiting. In this process no job is
        taken once this has returned, in others at the latest a second after. Sending goes on, and programs that
        know nothing of pauses (those built on the D library) go on taking jobs.
        """
        self._core.pause()
        logger.info("%s: paused", self.base_dir)

    def resume(self) -> None:
        """End a pause. Who waits goes on at once where the kernel tells (Linux), elsewhere within 50 ms."""
        self._core.resume()
        logger.info("%s: resumed", self.base_dir)

    def is_paused(self) -> bool:
        """Return whether the queue is paused at this moment, by any process."""
        return self._core.is_paused()

    @property
    def paused(self) -> bool:
        """The same as `is_paused()`."""
        return self.is_paused()

    def cancel(self, id: str) -> bool:
        """Delete a job that waits or is scheduled. Returns whether there was one.

        A job that somebody has claimed is not taken away: of a claim and a `cancel` at the same moment one succeeds.
        """
        return tell_moved(id, "cancelled", self._noticing(partial(self._core.cancel, id)))

    # Tidying

    def requeue(self, id: str) -> bool:
        """Put a failed, interrupted or successful job back into the queue. Returns whether there was one.

        Looks first whether consumers have died, whose jobs are then interrupted. Its attempts are counted anew; its
        history stays.
        """
        return tell_moved(id, "put back", self._noticing(partial(self._core.requeue, id)))

    def requeue_all(self, which: KeepPolicy = KeepPolicy.FAILED | KeepPolicy.INTERRUPTED) -> int:
        """Put all jobs that are in these states now back into the queue. Returns how many there were.

        Looks first whether consumers have died, whose jobs are then interrupted.
        """
        done = self._noticing(partial(self._core.requeue_all, int(_which(which))))
        logger.info("%s: %d jobs put back", self.base_dir, done)
        return done

    def cleanup(self, which: KeepPolicy = KeepPolicy.ALL, *, older_than: Duration = 0) -> int:
        """Delete the jobs that are in these states now and were settled at least `older_than` ago.

        Returns how many there were. The age counts from when the job got its verdict (the file's change time, `ctime`),
        not from the times that its sender's file had.
        """
        done = self._noticing(partial(self._core.cleanup, int(_which(which)), seconds(older_than, "older_than")))
        logger.info("%s: %d jobs deleted", self.base_dir, done)
        return done

    def close(self) -> None:
        """End the waits of this instance in other threads and let go of what it holds. Not needed for safety.

        A `receive_one` or `claim` that would wait then returns `False` or `None`, so that a loop ends; all other calls
        raise `ValueError`. Called in a signal handler, it lets the job in hand be finished.
        """
        for work in tuple(self._works):
            work.stop()
        self._core.close()

    def __enter__(self) -> Pacchettino:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        kinds = "".join(f"{kind.__name__}, " for kind in self.retry_on)[:-1]
        return (
            f"Pacchettino({str(self.base_dir)!r}, KeepPolicy.{self.keep_policy.name}, durable={self.durable}, "
            f"crash_detection={self.crash_detection!s}, retry_delay={self.retry_delay!r}, fifo={self.fifo}, "
            f"max_attempts={self.max_attempts}, retry_on=({kinds}), "
            f"interrupted_attempts={self.interrupted_attempts}, max_queued={self.max_queued}, min_free={self.min_free})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (
            os.fsencode(self._core.base),  # the other process may have another locale
            self.keep_policy,
            self.durable,
            self.crash_detection,
            self.retry_delay,
            self.fifo,
            self.max_attempts,
            self.retry_on,
            self.interrupted_attempts,
            self.max_queued,
            self.min_free,
        )
        return _reopen, (type(self), settings)

    # The loop

    def _next(self, consumer: _core.Consumer, wait: float | None, stop: _core.Stop) -> _core.Claim | None:
        """Claim the consumer's next job for a handler, unless `stop` is set."""
        data, file = self._handled_kinds()
        claim = self._wait_for(wait, lambda wait, slice: self._core.next(consumer, wait, slice, data, file, stop), stop)
        if claim is not None and stop.is_set:
            claim.put_back()
            return None
        return claim

    def _claim(self, wait: float | None, fifo: bool | None, data: bool, file: bool) -> _core.Claim | None:
        order = self._order(fifo)
        return self._wait_for(wait, lambda wait, slice: self._core.claim(wait, slice, order, data, file))

    def _wait_for(
        self,
        wait: float | None,
        claim_within: Callable[[float | None, float], tuple[_core.Claim | None, bool]],
        stop: _core.Stop | None = None,
    ) -> _core.Claim | None:
        """Claim a job within `wait` seconds, unless `stop` is set. Log the notices of the core on the way."""
        # Only the main thread gets signals, and has to look for them: Ctrl-C is to end its wait within 100 ms.
        slice = 0.08 if wait != 0 and threading.current_thread() is threading.main_thread() else math.inf
        end = time.monotonic() + wait if wait else None
        while True:
            try:
                claim, is_done = claim_within(wait, slice)
            finally:
                if self._core.has_notices:
                    self._log_notices()
            if is_done and (claim is None or claim.is_ours):
                return claim
            if stop is not None and stop.is_set:
                return None
            # There was something to log, or a signal's handler forked and this is the child: the look goes on.
            if end is not None:
                wait = max(0.0, end - time.monotonic())

    def _handle(self, claim: _core.Claim, settling: Callable[[Callable[[], None]], None] | None = None) -> float | None:
        """Run the handler of a claimed job and settle it by what it says, through `settling` if that is given.

        Returns `None`; or, if the job was released since this process can't begin jobs now, how long to wait.
        """
        if self._is_watched:
            tell_taken(claim)
        handling, outer = [claim, self], current.get()
        try:
            current.set(handling)
            if self._on_claim is not None:
                return self._hand_over(handling, self._on_claim, settling)
            name = claim.name
            handler: Callable[..., object] | None
            arguments: tuple[Any, ...] | None
            if name is None:
                handler, arguments = self._on_data, self._read(handling)
            else:
                handler, arguments = self._on_file, (claim.id, name, Path(claim.path))
            if arguments is None:
                return None
            assert handler is not None
            # Up to here a signal puts the job back as if nothing had been. From here on nobody can tell whether the
            # handler was entered, is in the middle, or has just returned.
            if not claim.begin():
                return None  # a signal's handler forked just now, and this is the child; or its worker has just left it
            try:
                returned = handler(*arguments)
                verdict = SUCCESS if returned is None else Verdict.of_return(handler, returned)
            except BaseException as error:
                verdict = self._judge(error)
            self._conclude(handling, verdict, settling)
            return None
        except BaseException as error:
            self._interrupt(handling, error)
            raise
        finally:
            current.set(outer)

    def _hand_over(
        self,
        handling: Handling,
        on_claim: OnClaim,
        settling: Callable[[Callable[[], None]], None] | None,
    ) -> float | None:
        """The same with a handler that reads the job, begins with it, or releases it itself."""
        claim: _core.Claim = handling[0]
        try:
            pause = on_claim(claim, self.base_dir)
            if pause is not None:
                return pause
            verdict = SUCCESS
        except BaseException as error:
            verdict = self._judge(error)
        self._conclude(handling, verdict, settling)
        return None

    def _judge(self, error: BaseException) -> Verdict:
        """Judge an attempt by what its handler raised, in the `except` that caught it. What ends the work goes on."""
        if ends_work(error):
            raise
        return Verdict.of_error(error, self._retry_on)

    def _conclude(
        self, handling: Handling, verdict: Verdict, settling: Callable[[Callable[[], None]], None] | None
    ) -> None:
        claim: _core.Claim = handling[0]
        give = claim.succeed if verdict is SUCCESS else partial(self._settle_by, claim, verdict)
        self._settle(handling, give if settling is None else partial(settling, give))

    def _interrupt(self, handling: Handling, error: BaseException) -> None:
        """Settle a job whose handler was stopped."""
        claim: _core.Claim = handling[0]
        if claim.has_begun and not claim.is_settled:
            self._settle(handling, partial(claim.interrupt, summary(error), told_at_length(error)))

    def _leave(self, claim: _core.Claim, error: BaseException) -> None:
        """Settle the job of another thread, which goes on with it although its worker leaves.

        With `interrupted_attempts` the job stays claimed until its handler returns: put back, it would run twice at the
        same time. So does the job of a command, which is ended later.
        """
        if self._on_claim is not None:
            return
        try:
            claim.put_back_unless_begun()
        except OSError as failed:
            logger.error("job %s could not be settled: %s", claim.id, failed, extra=about(claim))
        if not self._interrupted_attempts:
            self._interrupt([claim, self], error)

    def _settle_by(self, claim: _core.Claim, verdict: Verdict) -> None:
        if verdict.result is Result.SUCCESS:
            claim.succeed()
        elif verdict.result is Result.FAILED:
            fail(claim, verdict)
        else:
            self._attempts.retry(claim, verdict)

    def _read(self, handling: Handling) -> tuple[str, bytes] | None:
        """Read a data job for its handler. One that can't be read fails, unless it is this process that can't."""
        claim: _core.Claim = handling[0]
        try:
            return claim.id, claim.read()
        except MemoryError:
            size = Path(claim.path).stat().st_size
            if size < _memory():
                claim.put_back()
                raise
            reason = f"its {size} bytes are more than the memory"
        except RuntimeError:
            if claim.is_ours:
                raise
            return None  # as in `_handle`
        except OSError as error:
            if is_limit(error):
                claim.put_back()
                raise
            reason = f"it can't be read: {error}"
        self._settle(handling, partial(fail, claim, Verdict(Result.FAILED, clean(reason))))
        return None

    def _settle(self, handling: Handling, give: Callable[[], None]) -> None:
        """Give the verdict, unless the handler has given one, and tell of it."""
        claim: _core.Claim = handling[0]
        if self._hooks:  # they may take their time
            claim.settle_fully()
        try:
            give()
        except OSError as error:
            logger.error("job %s could not be settled: %s", claim.id, error, extra=about(claim))
        except ValueError as error:  # a retry in a year that no name can hold
            reason = f"it could not be settled: {error}"
            self._settle(handling, partial(claim.interrupt, reason))
            logger.error("job %s: %s", claim.id, reason, extra=about(claim))
        except RuntimeError:
            if not claim.is_ours:
                text = "job %s is the parent process's: its handler forked, and the child came back"
                logger.warning(text, claim.id, extra=about(claim))
            elif not claim.is_settled:
                raise
        finally:
            if self._core.has_notices:
                self._log_notices()
            if self._is_watched:
                tell_settled(job_of(handling), self._hooks)

    def _noticing(self, act: Callable[[], T]) -> T:
        """Act on the queue, then log what was noticed on the way, such as that a consumer died."""
        try:
            return act()
        finally:
            self._log_notices()

    def _log_notices(self) -> None:
        """Log what the core has to tell."""
        for notice, job in self._core.take_notices():
            logger.warning("%s", notice, extra={"pacchettino_id": job})

    def _look_who_watches(self) -> None:
        """See whether somebody wants to be told what comes of jobs; the logger is not to be asked for each of them."""
        self._is_watched = True if self._hooks else logger.takes(INFO)

    def _handled_kinds(self) -> tuple[bool, bool]:
        self._look_who_watches()
        if self._on_claim is not None:
            return True, True
        data, file = self._on_data is not None, self._on_file is not None
        if not data and not file:
            raise RuntimeError("there is no handler: set one with on_data_received or on_file_received, or use claim()")
        return data, file

    def _order(self, fifo: bool | None) -> bool:
        return self._fifo if fifo is None else bool(fifo)

    def _kept(self, state: KeepPolicy) -> str:
        if state not in self._keep_policy:
            raise NotKeptError(
                f"this queue does not keep {_STATE_OF[state]} jobs (keep_policy=KeepPolicy.{self._keep_policy.name}); "
                "jobs() and cleanup() act on what is there all the same"
            )
        return _STATE_OF[state]


_STATE_OF = {
    KeepPolicy.SUCCESS: "success",
    KeepPolicy.FAILED: "failed",
    KeepPolicy.INTERRUPTED: "interrupted",
}

_LISTED = [status.value for status in Status if status is not Status.UNKNOWN]

_NO_LIMIT = 2**32 - 1


def _memory() -> float:
    """How many bytes of memory the machine has; without end where it does not tell."""
    if sys.platform == "win32":
        import ctypes

        kilobytes = ctypes.c_ulonglong()
        told = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value * 1024.0 if told else math.inf
    return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")


def _reopen(kind: type[Pacchettino], settings: tuple[Any, ...]) -> Pacchettino:
    base, keep_policy, durable, crash_detection, retry_delay, fifo, *later = settings
    max_attempts, retry_on, interrupted_attempts, max_queued, min_free = later
    return kind(
        os.fsdecode(base),
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


def timeout_seconds(value: Duration | None) -> float | None:
    """A timeout as seconds; `None` has no end."""
    return None if value is None else seconds(value, "timeout")


def _path(path: str | os.PathLike[str], what: str) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{what} must be str or os.PathLike, not {type(path).__name__}")
    path = os.fsdecode(path)
    if "\0" in path:
        raise ValueError(f"{what} holds a NUL character: {path!r}")
    return path


def _keep_policy(value: KeepPolicy) -> KeepPolicy:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"a KeepPolicy is needed, such as KeepPolicy.ALL, not {type(value).__name__}")
    return KeepPolicy(value)


def _which(value: KeepPolicy) -> KeepPolicy:
    """Take no plain number: `cleanup(7)` is not seven days."""
    policy = _keep_policy(value)
    if not isinstance(value, KeepPolicy):
        raise TypeError(f"which must be a KeepPolicy, not {type(value).__name__}; an age is given as older_than=")
    return policy


def _by_pid(value: CrashDetection) -> bool:
    if not isinstance(value, CrashDetection):
        raise TypeError(f"crash_detection must be a CrashDetection, not {type(value).__name__}")
    return value is CrashDetection.PID


def _exceptions(value: object) -> tuple[type[BaseException], ...]:
    kinds = tuple(value) if isinstance(value, tuple | list) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"retry_on must be types of exceptions, such as (ConnectionError,), not {value!r}")
        if issubclass(kind, ENDS):
            raise TypeError(f"retry_on can't hold {kind.__name__}, which ends the worker and interrupts the job")
    return kinds


def _check_handler(handler: Any, what: str = "a handler", arguments: str = "(id, data)") -> None:
    if not callable(handler):
        raise TypeError(f"{what} must be callable, not {type(handler).__name__}")
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (handler, type(handler).__call__)):
        raise TypeError(
            f"an async def can't be {what}: it would return before its work is done; "
            "pacchettino.aio.AsyncPacchettino takes such handlers"
        )
    check_arguments(handler, what, arguments)


def check_arguments(handler: Callable[..., object], what: str, arguments: str) -> None:
    """Refuse at once what would fail with each job."""
    try:
        signature = inspect.signature(handler)
    except (ValueError, TypeError):  # some built-in functions don't tell
        return
    try:
        signature.bind(*arguments.split(","))
    except TypeError as error:
        name = getattr(handler, "__qualname__", handler)
        raise TypeError(f"{what} is called with {arguments}, which {name} does not take: {error}") from None


def _warn_if_replaced(before: object, handler: object, method: str) -> None:
    """Warn of a handler in whose place another function is set, unless that is the same one, defined again."""
    if before is None or before is handler or _definition(before) == _definition(handler) is not None:
        return
    names = [f"{getattr(one, '__module__', None)}.{name_of(one)}" for one in (handler, before)]
    text = f"{method}: {names[0]} replaces {names[1]}, which is called no more; a queue has one handler for each kind"
    warnings.warn(text, UserWarning, stacklevel=_depth_of_caller())


def _definition(function: object) -> tuple[object, ...] | None:
    """Return what a function has in common with the same one that is defined again, `None` if it has no name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    is_lambda = getattr(function, "__name__", None) == "<lambda>"
    return None if name is None else (module, name, getattr(function, "__code__", None) if is_lambda else None)


def _depth_of_caller() -> int:
    """Return the `stacklevel` of the code that called this package."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "pacchettino":
        depth, frame = depth + 1, frame.f_back
    return depth
