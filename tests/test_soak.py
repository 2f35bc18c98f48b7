"""The soak of `soak.py`, short; `make soak` runs it as long as one likes."""

from __future__ import annotations

import pytest
from soak import soak


@pytest.mark.torture
@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_done_twice_in_mixed_work_under_kills_forks_and_clock_steps() -> None:
    soak(100)
