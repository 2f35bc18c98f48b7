"""The first process of a container, where that would be the worker: it starts the worker and reaps what has ended."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def split_off_init() -> None:
    """Go on in a child if this is the first process of a container. Does nothing elsewhere.

    The system makes the first process the parent of all that lose theirs, and they stay zombies until it waits for
    them. A worker must not: somebody else in it may wait for the same process, and would not learn how that ended.
    """
    if sys.platform == "win32" or os.getpid() != 1:
        return
    passed_on = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on | {signal.SIGCHLD})
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        info = signal.sigwaitinfo(passed_on | {signal.SIGCHLD})
        if info.si_signo == signal.SIGCHLD:
            reap(worker)
        elif info.si_code <= 0:  # a terminal's Ctrl-C reaches the worker as well
            os.kill(worker, info.si_signo)


def reap(worker: int) -> None:
    """Wait for all that have ended. When the worker has, this process ends like it."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == worker:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
