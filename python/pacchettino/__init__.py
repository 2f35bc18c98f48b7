"""A job queue made of plain directories: no server, no database, each job taken once, and none lost with its taker.

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

from pacchettino._job import Job, current_job
from pacchettino._queue import Pacchettino
from pacchettino._retry import Backoff, Fail, Retry
from pacchettino._stats import Consumer, HeldJob, Stats
from pacchettino._types import (
    Attempt,
    CrashDetection,
    JobInfo,
    KeepPolicy,
    NotKeptError,
    PacchettinoError,
    QueueFull,
    Result,
    SendError,
    Status,
)

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

# Users see one module: in errors, in `help()`, in pickles.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
