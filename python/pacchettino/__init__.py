"""A job queue made of plain directories: no server, no database, no job lost when its worker dies.

```python
from pacchettino import Pacchettino

queue = Pacchettino("/var/spool/mail-out")
queue.send_data("hello")            # in one program

@queue.on_data_received             # in another
def handle(id, data):
    print(id, data)

if __name__ == "__main__":
    queue.work()                   # until Ctrl-C or SIGTERM
```
"""

import atexit
from typing import TYPE_CHECKING, Any

from pacchettino import _core

if TYPE_CHECKING:
    from pacchettino._job import Job, current_job
    from pacchettino._queue import Pacchettino
    from pacchettino._retry import Backoff, Fail, Retry
    from pacchettino._types import (
        CrashDetection,
        KeepPolicy,
        NotKeptError,
        PacchettinoError,
        QueueFull,
        Result,
        SendError,
        Status,
    )
    from pacchettino._views import Attempt, Consumer, HeldJob, JobInfo, Stats

__all__ = [
    "Attempt",
    "Backoff",
    "Consumer",
    "CrashDetection",
    "Fail",
    "HeldJob",
    "Job",
    "JobInfo",
    "KeepPolicy",
    "NotKeptError",
    "Pacchettino",
    "PacchettinoError",
    "QueueFull",
    "Result",
    "Retry",
    "SendError",
    "Stats",
    "Status",
    "current_job",
]

# Daemon threads stay out of an interpreter that ends. Lock files of a process that ends in order go with it; those of
# one that dies are noticed by their lock.
atexit.register(_core.release_all)


def __getattr__(name: str) -> Any:
    """Import everything when a program first uses something. The command does not, and starts in half the time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    from pacchettino import _job, _queue, _retry, _types, _views

    for public in __all__:
        found = next(
            vars(module)[public] for module in (_types, _views, _retry, _job, _queue) if public in vars(module)
        )
        # Users see one module: in errors, in `help()`, in pickles.
        found.__module__ = __name__
        globals()[public] = found
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
