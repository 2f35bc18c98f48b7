"""Makes an OpenTelemetry span of each job that a consumer handles; `pip install opentelemetry-sdk`.

The span begins when the job was taken and ends with its verdict.
"""

import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer
from pacchettino import Job, Pacchettino


def spans_of(tracer: Tracer, name: str) -> Callable[[Job, str, float], None]:
    """A hook that makes the spans of a queue's jobs."""

    def make_span(job: Job, outcome: str, seconds: float) -> None:
        end = time.time_ns()
        span = tracer.start_span(
            f"process {name}",
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": "pacchettino",
                "messaging.destination.name": name,
                "messaging.message.id": job.id,
                "pacchettino.kind": job.kind,
                "pacchettino.attempt": job.attempt,
                "pacchettino.outcome": outcome,
            },
            start_time=end - int(seconds * 1e9),
        )
        if outcome != "success":
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(end)

    return make_span


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))  # or to your collector
    trace.set_tracer_provider(provider)

    queue = Pacchettino("queue")
    queue.on_settled(spans_of(trace.get_tracer("consumer"), "queue"))

    @queue.on_data_received
    def handle(id: str, data: bytes) -> None:
        print("data:", data.decode())

    print(queue.receive(), "jobs handled")
    provider.shutdown()
