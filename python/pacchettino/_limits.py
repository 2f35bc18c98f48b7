"""How much may wait, and how full the disk may be: settings, and waiting for room."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from pacchettino._types import Duration, QueueFull, seconds, whole_number

T = TypeVar("T")

# How often who waits for room looks again; less often where a look takes so long that this would be all that it did.
POLL = 0.05
REST = 10


def checked_limit(value: object, what: str, least: int) -> int:
    """A limit as it was given, if it is one."""
    limit = whole_number(value, what, least)
    if limit >= 2**63:
        raise ValueError(f"{what} must be less than 2**63, not {limit}")
    return limit


def with_room(send: Callable[[], T], block: Duration | None) -> T:
    """Send once there is room; `QueueFull` if there is none within `block`."""
    if type(block) is int and block == 0:
        return send()
    end = wait_for_room(block)
    while True:
        began = time.monotonic()
        try:
            return send()
        except QueueFull:
            pause = next_look(began, end)
            if pause is None:
                raise
        time.sleep(pause)


def wait_for_room(block: Duration | None) -> float:
    """Tell until when to wait for room."""
    return time.monotonic() + (math.inf if block is None else seconds(block, "block"))


def next_look(began: float, end: float) -> float | None:
    """Tell how long to rest after a look that began then and found no room; `None` if it was the last."""
    now = time.monotonic()
    return None if now >= end else min(max(POLL, REST * (now - began)), end - now)
