"""Ends the commands of a worker that is gone: a process of its own, started by `program.py` with nothing but Python.

A command whose worker died would go on, while its job is put back and begun once more. The worker tells of each
command's process group by a pipe: `+123` when it runs, `-123` when it has ended. The pipe ends with the worker.
"""

import os
import signal
import sys
import time

TIME_TO_END = 1.0


def end(groups: set[int], number: int) -> None:
    for group in list(groups):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            groups.discard(group)
        except PermissionError:  # another user's by now
            pass


def main() -> None:
    # Who ends the worker may signal all that belongs to it. This one ends when the worker does.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    end(groups, signal.SIGTERM)
    until = time.monotonic() + TIME_TO_END
    while groups and time.monotonic() < until:
        time.sleep(0.02)
        end(groups, 0)
    end(groups, signal.SIGKILL)


if __name__ == "__main__":
    main()
