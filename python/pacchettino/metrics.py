"""A queue's figures for Prometheus; `pip install pacchettino[prometheus]`.

```python
from prometheus_client import start_http_server
from pacchettino import Pacchettino
from pacchettino.metrics import QueueCollector

queue = Pacchettino("uploads")
QueueCollector().add(queue, "uploads")
start_http_server(9000)
```

All have the label `queue`. What is in the directories is the same for all processes, so it is enough to look at it from
one, which need be no consumer:

| metric | type | tells |
| --- | --- | --- |
| `pacchettino_jobs` | gauge | how many jobs are in each `state` |
| `pacchettino_oldest_job_age_seconds` | gauge | how long ago the oldest job that waits was sent; 0 if none does |
| `pacchettino_next_due_timestamp_seconds` | gauge | when the next scheduled job is due; absent if there is none |
| `pacchettino_consumers` | gauge | how many living processes hold jobs; those that wait for one are not seen |
| `pacchettino_held_jobs` | gauge | how many jobs they hold |
| `pacchettino_paused` | gauge | 1 while the queue is paused |
| `pacchettino_up` | gauge | 0 if the queue can't be read; the others above are absent then |
| `pacchettino_figures_age_seconds` | gauge | how old the figures above are |

What a process has done only that process counts, from when the queue was added: each worker is to be scraped by itself.

| metric | type | tells |
| --- | --- | --- |
| `pacchettino_job_duration_seconds` | histogram | how long jobs were in hand, by `outcome`; `_count` is how many |

Jobs of a consumer that died are in no process's histogram. They are seen as `pacchettino_jobs{state="interrupted"}`.

With the worker processes of `Pacchettino.work(processes=...)` set `PROMETHEUS_MULTIPROC_DIR` before the start, as
prometheus_client's documentation tells. The histogram then adds up what all of them did, and comes from its
`MultiProcessCollector`; without that, what is done in worker processes is not seen here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric
except ModuleNotFoundError:
    raise ImportError("pacchettino.metrics needs prometheus_client: pip install pacchettino[prometheus]") from None

from pacchettino import Job, Pacchettino, Stats
from pacchettino._telling import logger
from pacchettino._types import Duration, finite_seconds

__all__ = ["QueueCollector"]

REST = 20
"""Figures that took a second to read are left alone for so many: of a directory of a million jobs."""

_DURATIONS = Histogram(
    "pacchettino_job_duration_seconds",
    "How long jobs were in hand, until their verdict in this process.",
    ["queue", "outcome"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600),
    registry=None,
)


@dataclass(frozen=True)
class _Observe:
    """Counts a queue's jobs in the process in which it is called, to which it may be sent."""

    queue: str

    def __call__(self, job: Job, outcome: str, seconds: float) -> None:
        _DURATIONS.labels(self.queue, outcome).observe(seconds)


@dataclass
class _Figures:
    """What a queue's directories held when they were last read."""

    queue: Pacchettino
    stats: Stats | None = None
    is_paused: bool = False
    at: float = -float("inf")
    took: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, max_age: float) -> None:
        with self.lock:
            start = time.monotonic()
            if start - self.at < max(max_age, REST * self.took):
                return
            try:
                self.stats, self.is_paused = self.queue.stats(), self.queue.paused
            except (OSError, ValueError) as error:
                self.stats = None
                logger.warning("%s: its figures can't be read: %s", self.queue.base_dir, error)
            self.at = time.monotonic()
            self.took = self.at - start


class QueueCollector:
    """Shows queues to Prometheus. One is enough for all of a process's queues.

    To read the figures all directories of a queue are listed. So what was read is shown again for `max_age`, and for
    twenty times as long as reading it took.

    Args:
        registry: Where it registers itself; `None` leaves that to the caller.
        max_age: How old figures may be: seconds, or a `timedelta`.
    """

    def __init__(self, *, registry: CollectorRegistry | None = REGISTRY, max_age: Duration = 5) -> None:
        self._max_age = finite_seconds(max_age, "max_age")
        self._queues: dict[str, _Figures] = {}
        if registry is not None:
            registry.register(self)

    def add(self, queue: Pacchettino, name: str | None = None) -> None:
        """Show a queue, with that name as its label; without one with its directory.

        From now on the jobs are counted that get their verdict through this instance; other instances of the same
        queue may be added under the same name. `ValueError` if another queue has that name.
        """
        name = str(queue.base_dir) if name is None else name
        # Prometheus takes UTF-8: one label with other bytes of a path would break the scrapes of all queues.
        name = name.encode("utf-8", "backslashreplace").decode()
        figures = self._queues.get(name, _Figures(queue))
        if figures.queue.base_dir != queue.base_dir:
            raise ValueError(f"{name!r} is another queue already: {figures.queue.base_dir}")
        self._queues = {**self._queues, name: figures}
        if _Observe(name) not in queue._hooks:
            queue.on_settled(_Observe(name))

    def describe(self) -> Iterator[Metric]:
        """The metrics, without their figures."""
        yield from _gauges()
        yield from _durations()

    def collect(self) -> Iterator[Metric]:
        """The metrics with their figures."""
        jobs, oldest, due, consumers, held, paused, up, age = gauges = _gauges()
        for name, figures in self._queues.items():
            figures.refresh(self._max_age)
            stats = figures.stats
            up.add_metric([name], stats is not None)
            if stats is None:
                continue
            for state in ("scheduled", "queued", "processing", "success", "failed", "interrupted"):
                jobs.add_metric([name, state], getattr(stats, state))
            oldest.add_metric([name], 0 if stats.oldest is None else stats.oldest.total_seconds())
            if stats.next_due is not None:
                due.add_metric([name], stats.next_due.timestamp())
            consumers.add_metric([name], len(stats.consumers))
            held.add_metric([name], sum(len(consumer.holds) for consumer in stats.consumers))
            paused.add_metric([name], figures.is_paused)
            age.add_metric([name], time.monotonic() - figures.at)
        yield from gauges
        yield from _durations()


def _gauges() -> tuple[GaugeMetricFamily, ...]:
    def gauge(name: str, tells: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"pacchettino_{name}", tells, labels=["queue", *labels])

    return (
        gauge("jobs", "How many jobs are in that state.", "state"),
        gauge("oldest_job_age_seconds", "How long ago the oldest job that waits was sent; 0 if none does."),
        gauge("next_due_timestamp_seconds", "When the next scheduled job is due."),
        gauge("consumers", "How many living processes hold jobs."),
        gauge("held_jobs", "How many jobs living processes hold."),
        gauge("paused", "Whether the queue is paused."),
        gauge("up", "Whether the queue can be read."),
        gauge("figures_age_seconds", "How old the other gauges' figures are."),
    )


def _durations() -> Iterator[Metric]:
    """The histogram, unless prometheus_client adds up what many processes have done, and shows that itself."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        yield from _DURATIONS.collect()
