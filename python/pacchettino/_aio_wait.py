"""Waiting for jobs in an event loop, where no thread may sleep."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pacchettino import _core

T = TypeVar("T")


@dataclass(frozen=True)
class Glance(Generic[T]):
    """What a look came to: a job; or after how many seconds to look again; or, with neither, that the wait is over."""

    found: T | None
    pause: float | None


class _Line:
    """Those who wait for the same kinds of jobs. The first of them looks for all."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.news = asyncio.Event()


class Waits:
    """Those who wait in one event loop for the jobs of one queue.

    The loop watches the descriptor of a listener while anybody waits. That is ready when something happened since the
    listener was enlisted, which the core does at the beginning of each look, and it stays ready until `heard`. Then all
    who look or sleep are told, and look again: so nothing that happens between a look and the sleep is slept through.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listener = _core.Listener()
        # Kept by those who stand in them: who waited in a loop that was closed is to be dropped, with what it holds.
        self._lines: weakref.WeakValueDictionary[tuple[bool, bool], _Line] = weakref.WeakValueDictionary()
        self._waiting = 0

    @staticmethod
    def here(known: dict[asyncio.AbstractEventLoop, Waits]) -> Waits:
        """Give those of the running loop. Loops that are closed are forgotten."""
        loop = asyncio.get_running_loop()
        waits = known.get(loop)
        if waits is None:
            for closed in [other for other in tuple(known) if other.is_closed()]:
                known.pop(closed, None)
            waits = known[loop] = Waits(loop)
        return waits

    async def next(
        self,
        look: Callable[[_core.Listener, float | None], Awaitable[Glance[T]]],
        kinds: tuple[bool, bool],
        wait: float | None,
    ) -> T | None:
        """Look until something is found, for so many seconds, for ever if that is `None`."""
        if wait is not None and wait <= 0:
            return (await look(self._listener, 0.0)).found
        end = None if wait is None or wait == math.inf else self._loop.time() + wait
        line = self._lines.get(kinds)
        if line is None:
            line = self._lines[kinds] = _Line()
        if not line.turn.locked():
            # While there are jobs, any number look at once, and a durable queue's flushes are shared.
            glance = await look(self._listener, wait)
            if glance.found is not None or glance.pause is None:
                return glance.found
        try:
            async with asyncio.timeout_at(end):
                await line.turn.acquire()
        except TimeoutError:
            return None
        try:
            with self._listening():
                while True:
                    line.news.clear()
                    # Not zero: that would be another kind of look, of who does not wait.
                    left = None if end is None else max(end - self._loop.time(), 1e-9)
                    glance = await look(self._listener, left)
                    if glance.found is not None or glance.pause is None:
                        return glance.found
                    with suppress(TimeoutError):
                        async with asyncio.timeout(glance.pause):
                            await line.news.wait()
        finally:
            line.turn.release()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        descriptor = self._listener.descriptor
        if descriptor is not None and self._waiting == 0:
            self._loop.add_reader(descriptor, self._on_readable)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if descriptor is not None and self._waiting == 0 and not self._loop.is_closed():
                self._loop.remove_reader(descriptor)

    def _on_readable(self) -> None:
        if self._listener.heard():
            for line in tuple(self._lines.values()):
                line.news.set()


async def ended(waiting: asyncio.Future[Any]) -> None:
    """Wait for a call in a thread, in a task that is cancelled, however often."""
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # asyncio logs an error that nobody has looked at
