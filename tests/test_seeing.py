"""Who wants to know what comes of jobs is told: by the log's fields, hooks, Prometheus and OpenTelemetry."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pacchettino
import prometheus_client
import pytest
from conftest import start_python
from helpers import handle_all, raiser, until
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pacchettino import Fail, Job, KeepPolicy, Pacchettino, Result, Retry, Status, current_job
from pacchettino.aio import AsyncPacchettino
from pacchettino.metrics import QueueCollector
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture
def tmp_path(quick_dir: Path) -> Path:
    """Give a directory in memory: nothing here depends on the filesystem, and a busy disk takes four times as long."""
    return quick_dir


Told = list[tuple[str, str, int]]
"""Id, outcome and attempt."""


def watch(queue: Pacchettino) -> Told:
    told: Told = []

    @queue.on_settled
    def tell(job: Job, outcome: str, seconds: float) -> None:
        told.append((job.id, outcome, job.attempt))

    return told


# Hooks

ENDINGS = [
    (lambda: None, "success"),
    (lambda: Result.SUCCESS, "success"),
    (lambda: Result.FAILED, "failed"),
    (lambda: Result.RETRY, "retry"),
    (lambda: True, "failed"),
    (lambda: "no verdict", "success"),
    (raiser(ValueError()), "failed"),
    (raiser(TimeoutError()), "retry"),
    (raiser(Retry()), "retry"),
    (raiser(Fail()), "failed"),
    (raiser(KeyboardInterrupt()), "interrupted"),
    (raiser(SystemExit()), "interrupted"),
    (lambda: current_job().succeed(), "success"),
    (lambda: current_job().fail("broken"), "failed"),
    (lambda: current_job().retry(0), "retry"),
]


@pytest.mark.parametrize("policy", [KeepPolicy.ALL, KeepPolicy.NONE])
@pytest.mark.parametrize(("act", "outcome"), ENDINGS)
@pytest.mark.parametrize("way", ["receive", "receive_one", "with job"])
def test_a_hook_is_told_once_of_each_verdict(
    queue_dir: Path, way: str, act: Callable[[], Any], outcome: str, policy: KeepPolicy
) -> None:
    queue = Pacchettino(queue_dir, policy, retry_on=(TimeoutError,), retry_delay=60)
    queue.on_data_received(lambda id, data: act())
    told = watch(queue)
    id = queue.send_data("work")
    with suppress(BaseException):
        if way == "with job":
            with queue.claim() as job:  # type: ignore[union-attr]
                returned = act()
                if isinstance(returned, Result):
                    {Result.SUCCESS: job.succeed, Result.FAILED: job.fail, Result.RETRY: job.retry}[returned]()
                elif returned is True:
                    job.fail()
        else:
            getattr(queue, way)()
    assert told == [(id, outcome, 1)]


def test_hooks_know_the_job_and_how_long_it_was_in_hand(queue: Pacchettino, tmp_path: Path) -> None:
    seen: list[Any] = []
    jobs: list[Job] = []
    go_on = threading.Event()

    @queue.on_settled
    def first(job: Job, outcome: str, seconds: float) -> None:
        seen.append((job.id, job.kind, job.name, job.attempt, outcome, queue.status(job.id)))
        seen.append(seconds)
        assert job is jobs[0]

    queue.on_settled(lambda *_: seen.append("second"))

    def handler(id: str, name: str, path: Path) -> None:
        jobs.append(current_job())
        go_on.wait(0.2)

    queue.on_file_received(handler)
    (tmp_path / "name").write_text("content")
    id = queue.send_file(tmp_path / "name")
    start = time.monotonic()
    queue.receive()
    assert seen[::2] == [(id, "file", "name", 1, "success", Status.SUCCESS), "second"]
    assert 0.2 <= seen[1] <= time.monotonic() - start


def test_a_hook_is_told_of_each_attempt_and_of_the_one_that_was_too_many(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, max_attempts=3)
    queue.on_data_received(lambda id, data: Result.RETRY)
    told = watch(queue)
    id = queue.send_data("work")
    while queue.count_queued() or queue.count_scheduled():
        queue.receive_one(timeout=1)
    assert told == [(id, "retry", 1), (id, "retry", 2), (id, "failed", 3)]


@pytest.mark.filterwarnings("ignore:job .* was dropped:ResourceWarning")
def test_a_hook_is_told_of_a_job_that_is_dropped(queue: Pacchettino) -> None:
    told = watch(queue)
    id = queue.send_data("work")
    job = queue.claim()
    del job
    gc.collect()
    assert told == [(id, "interrupted", 1)]
    assert queue.is_interrupted(id)


def test_a_hook_is_told_of_a_job_that_can_not_be_read(queue: Pacchettino, mode_bound: None) -> None:
    told = watch(queue)
    queue.on_data_received(lambda id, data: None)
    id = queue.send_data("work")
    (queue.base_dir / "queued" / f"raw-{id}").chmod(0)
    queue.receive()
    assert told == [(id, "failed", 1)]


def test_no_hook_is_told_of_what_is_no_verdict(queue: Pacchettino) -> None:
    told = watch(queue)
    id = queue.send_data("work")
    with queue.claim() as job:  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="after the year 2286"):
            job.retry(1e12)
        assert told == []
    with pytest.raises(RuntimeError):
        job.fail()
    assert told == [(id, "success", 1)]


def test_a_verdict_that_the_disk_does_not_take_is_told_when_it_is_given(queue: Pacchettino, mode_bound: None) -> None:
    told = watch(queue)
    queue.on_data_received(lambda id, data: None)
    ids = queue.send_many(["work"] * 2)
    success = queue.base_dir / "success"
    success.chmod(0o500)
    assert queue.receive_one(fifo=True)
    job = queue.claim()
    assert job is not None
    with pytest.raises(PermissionError):
        job.succeed()
    assert told == [(id, "success", 1) for id in ids]
    assert queue.count_processing() == 2
    success.chmod(0o700)
    queue.receive()
    assert queue.count_successful() == 2
    assert len(told) == 2


def test_a_hook_that_raises_is_logged_and_harms_nobody(queue: Pacchettino, caplog: pytest.LogCaptureFixture) -> None:
    queue.on_settled(lambda *_: 1 / 0)
    told = watch(queue)
    queue.on_data_received(lambda id, data: None)
    ids = queue.send_many(["work"] * 2)
    assert queue.receive(fifo=True) == 2
    assert [id for id, *_ in told] == ids
    assert [record.pacchettino_id for record in caplog.records] == ids  # type: ignore[attr-defined]
    assert caplog.text.count("ZeroDivisionError") == 2


class Mine(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise Mine

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise Mine


@pytest.mark.parametrize("way", ["receive", "work", "threads", "with job"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, Mine, Unprintable])
def test_what_a_hook_raises_goes_no_further_whatever_it_is(
    queue: Pacchettino, error: type[BaseException], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.on_settled
    def break_off(*_: object) -> None:
        raise error

    told = watch(queue)
    queue.on_data_received(lambda id, data: None)
    ids = queue.send_many(["work"] * 2)
    if way == "with job":
        for _ in ids:
            with queue.claim(fifo=True):  # type: ignore[union-attr]
                pass
    else:
        ways = {"receive": queue.receive, "work": queue.work, "threads": partial(queue.work, 2)}
        assert ways[way](**({} if way == "receive" else {"drain": True})) == 2
    assert sorted(told) == [(id, "success", 1) for id in ids]
    assert queue.count_successful() == 2
    assert sorted(record.pacchettino_id for record in caplog.records) == ids  # type: ignore[attr-defined]
    assert caplog.text.count("in break_off") == 2


def test_what_a_collector_raises_goes_no_further(
    queue: Pacchettino, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    QueueCollector(registry=None).add(queue)
    full = OSError("the file of the metrics is full")
    monkeypatch.setattr(pacchettino.metrics._DURATIONS, "labels", lambda *_: raiser(full)())
    queue.on_data_received(lambda id, data: None)
    queue.send_many(["work"] * 2)
    assert queue.receive() == 2
    assert queue.count_successful() == 2
    assert caplog.text.count("the file of the metrics is full") == 2


@pytest.mark.needs("signals")
@pytest.mark.parametrize("where", ["a hook", "logging"])
@pytest.mark.parametrize("method", [False, True], ids=["function", "method"])
def test_what_a_handler_of_a_signal_raises_meanwhile_goes_on_and_the_verdict_stands(
    queue: Pacchettino, where: str, method: bool, broken_log: Callable[[Callable[..., object]], None]
) -> None:
    class Application:
        def leave(self, *_: object) -> None:
            sys.exit(3)

    def leave(*_: object) -> None:
        sys.exit(3)

    def be_signalled(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    if where == "a hook":
        queue.on_settled(be_signalled)
    else:
        broken_log(be_signalled)
    queue.on_data_received(lambda id, data: raiser(ValueError())())
    id = queue.send_data("work")
    before = signal.signal(signal.SIGTERM, Application().leave if method else leave)
    try:
        with pytest.raises(SystemExit, match="3"):
            queue.receive()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert queue.is_failed(id)


def test_a_hook_that_is_interrupted_goes_on_as_such_and_the_verdict_stands(queue: Pacchettino) -> None:
    queue.on_settled(lambda *_: raiser(KeyboardInterrupt())())
    queue.on_data_received(lambda id, data: None)
    id = queue.send_data("work")
    with pytest.raises(KeyboardInterrupt):
        queue.receive()
    assert queue.is_success(id)


def test_a_signal_just_after_the_verdict_keeps_no_hook_from_being_told(queue: Pacchettino) -> None:
    told = watch(queue)
    queue.on_data_received(lambda id, data: Result.FAILED)
    id = queue.send_data("work")
    give = queue._settle_by

    def give_and_interrupt(*arguments: Any) -> None:
        give(*arguments)
        raise KeyboardInterrupt

    queue._settle_by = give_and_interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        queue.receive()
    assert told == [(id, "failed", 1)]


def test_a_retry_that_no_name_can_hold_is_told_as_the_interruption_that_it_is(
    queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pacchettino._retry.LONGEST_DELAY", math.inf)
    told = watch(queue)
    queue.on_data_received(lambda id, data: raiser(Retry(1e12))())
    id = queue.send_data("work")
    assert queue.receive() == 1
    assert told == [(id, "interrupted", 1)]
    (attempt,) = queue.history(id)
    assert attempt.ended == "interrupted"
    assert "it could not be settled: the delay ends after the year 2286" in (attempt.reason or "")


def test_a_hook_that_is_set_while_a_job_is_in_hand_is_told_of_it(queue: Pacchettino) -> None:
    id = queue.send_data("work")
    job = queue.claim()
    told = watch(queue)
    assert job is not None
    job.succeed()
    assert told == [(id, "success", 1)]


def test_what_is_no_hook_is_refused(queue: Pacchettino) -> None:
    async def later(*_: object) -> None:
        pass

    for nothing, what in ((None, "a hook must be callable"), (later, "an async def can't be a hook")):
        with pytest.raises(TypeError, match=what):
            queue.on_settled(nothing)  # type: ignore[type-var]

    def hook(job: Job, outcome: str, seconds: float) -> None:
        pass

    assert queue.on_settled(hook) is hook


@pytest.mark.needs("fork")
def test_a_forked_child_tells_nothing_of_its_parent_s_job(queue: Pacchettino) -> None:
    told = watch(queue)
    queue.send_data("work")
    job = queue.claim()
    assert job is not None
    pid = os.fork()
    if pid == 0:
        with suppress(RuntimeError):
            job.succeed()
        os._exit(len(told))
    assert os.waitpid(pid, 0)[1] == 0
    job.succeed()
    assert len(told) == 1


# The log


def test_every_record_has_the_fields(queue_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = Pacchettino(queue_dir, max_attempts=2, retry_delay=0)
    queue.on_data_received(lambda id, data: raiser(Retry(reason="not yet"))())
    id = queue.send_data("work")
    while queue.count_queued() or queue.count_scheduled():
        queue.receive_one(timeout=1)
    (queue_dir / "queued" / "stranger").write_text("")
    queue.send_data("work")
    job = queue.claim()
    assert job is not None
    job.succeed()
    fields = [(r.pacchettino_id, r.pacchettino_attempt, type(r.pacchettino_duration)) for r in caplog.records]  # type: ignore[attr-defined]
    assert fields == [(id, 1, float), (id, 2, float), (None, None, type(None))]
    assert "stranger" in caplog.records[-1].message


def test_what_the_core_tells_of_a_job_has_its_id(queue: Pacchettino, caplog: pytest.LogCaptureFixture) -> None:
    @queue.on_file_received
    def remove(id: str, name: str, path: Path) -> None:
        path.unlink()

    id = queue.send_file(__file__)
    queue.receive()
    (record,) = caplog.records
    assert "moved or deleted" in record.message
    assert record.pacchettino_id == id  # type: ignore[attr-defined]


def test_what_goes_well_is_logged_for_who_asks(queue: Pacchettino, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pacchettino")
    queue.on_data_received(lambda id, data: None)
    id = queue.send_data("work")
    queue.receive()
    other = queue.send_data("work")
    with queue.claim():  # type: ignore[union-attr]
        pass
    told = [(record.levelname, re.sub("job .{36} |, .*", "", record.message)) for record in caplog.records]
    assert told == [("DEBUG", "taken"), ("INFO", "settled: success")] * 2
    fields = [(r.pacchettino_id, r.pacchettino_attempt, r.pacchettino_outcome) for r in caplog.records]  # type: ignore[attr-defined]
    assert fields == [(id, 1, None), (id, 1, "success"), (other, 1, None), (other, 1, "success")]
    caplog.clear()
    queue.pause()
    queue.resume()
    queue.cancel(queue.send_data("work"))
    queue.requeue(id)
    queue.cleanup()
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 5


class Away(logging.Handler):
    """A handler of records that does what it is told, as `Handler.handleError` would not have it."""

    def __init__(self, act: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self.act = act

    def emit(self, record: logging.LogRecord) -> None:
        self.act(record)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The logger, to be spoilt by the test."""
    log = logging.getLogger("pacchettino")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "filters", [])
    return log


@pytest.fixture
def broken_log(log: logging.Logger) -> Callable[[Callable[..., object]], None]:
    """Has each record handled by a function."""
    return lambda act: log.addHandler(Away(act))


def spoil(way: str, log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have logging raise."""
    fail = raiser(SPOILT[way])
    match way:
        case "handler" | "handler that exits" | "handler that is stopped":
            log.addHandler(Away(lambda record: fail()))
        case "handler of the root":
            monkeypatch.setattr(logging.getLogger(), "handlers", [Away(lambda record: fail())])
        case "filter":
            log.addFilter(lambda record: fail())
        case "factory":
            monkeypatch.setattr(logging, "_logRecordFactory", lambda *_, **__: fail())
        case "level":
            monkeypatch.setattr(log, "isEnabledFor", lambda level: fail())
        case "subclass":
            monkeypatch.setattr(log, "_log", lambda *_, **__: fail())
        case "stream":
            stream = io.StringIO()
            log.addHandler(logging.StreamHandler(stream))
            monkeypatch.setattr(sys, "stderr", stream)  # or it tells there that it could not
            stream.close()
        case "fields":
            make = logging.getLogRecordFactory()

            def with_fields(*args: Any, **more: Any) -> logging.LogRecord:
                record = make(*args, **more)
                record.__dict__.update(pacchettino_id=1, pacchettino_attempt=1, pacchettino_outcome="mine")
                return record

            monkeypatch.setattr(logging, "_logRecordFactory", with_fields)


BAD: dict[str, tuple[Callable[[], object], str, str | None]] = {
    "raises": (raiser(ValueError("bad")), "failed", "ValueError: bad"),
    "Fail": (raiser(Fail("bad")), "failed", "bad"),
    "returns": (lambda: True, "failed", "returned True"),
    "Retry": (raiser(Retry(60, "later")), "scheduled", "later"),
    "too often": (raiser(Retry(0, "later")), "failed", "given up after one attempt: later"),
    "job.fail": (lambda: current_job().fail("bad"), "failed", "bad"),
    "hook": (lambda: None, "success", None),
}


WAYS = ("receive", "receive_one", "work", "threads", "asyncio")

SPOILT: dict[str, BaseException] = {
    "handler": ConnectionError("the log server is away"),
    "handler that exits": SystemExit(1),
    "handler that is stopped": Mine(),
    "handler of the root": ConnectionError("the log server is away"),
    "filter": KeyError("user"),
    "factory": LookupError("no request"),
    "level": TypeError("none"),
    "subclass": TypeError("unexpected keyword argument 'stacklevel'"),
    "stream": ValueError(),
    "fields": KeyError(),
}


@pytest.mark.parametrize(
    ("way", "spoilt", "bad"),
    sorted(
        {(way, spoilt, "raises") for way in WAYS for spoilt in SPOILT} | {("receive", "handler", bad) for bad in BAD}
    ),
)
def test_what_logging_raises_changes_no_result_and_ends_no_loop(
    queue_dir: Path, way: str, spoilt: str, bad: str, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, status, reason = BAD[bad]
    make = AsyncPacchettino if way == "asyncio" else Pacchettino
    queue: Any = make(queue_dir, fifo=True, max_attempts=1 if bad == "too often" else None)
    if bad == "hook":
        queue.on_settled(lambda *_: raiser(ValueError("mine"))())
    queue.on_data_received(lambda id, data: act() if data == b"bad" else None)
    looks = Pacchettino(queue_dir)
    first, *good = looks.send_many(["bad", "good", "good"])
    spoil(spoilt, log, monkeypatch)
    if way == "asyncio":
        assert asyncio.run(queue.receive()) == 3
    else:
        handle_all(queue, way, 3)
    assert looks.status(first) == status
    assert [looks.status(id) for id in good] == ["success"] * 2
    reasons = [attempt.reason or "" for attempt in looks.history(first)]
    assert reasons == [] if reason is None else reason in reasons[0]


def test_what_logging_raised_is_shown_on_stderr_with_what_was_to_be_logged(
    queue: Pacchettino, broken_log: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    broken_log(lambda record: raiser(ConnectionError("the log server is away"))())
    queue.on_data_received(lambda id, data: raiser(ValueError("bad"))())
    id = queue.send_data("work")
    queue.receive()
    said = "logging raised ConnectionError: the log server is away"
    assert capsys.readouterr().err == f"pacchettino: {said}; not logged: job {id} failed: ValueError: bad\n"


@pytest.mark.parametrize("act", [raiser(ValueError()), lambda: True, raiser(Fail()), raiser(Retry(60, "later"))])
def test_a_job_is_settled_before_that_is_logged(
    queue: Pacchettino, act: Callable[[], Any], broken_log: Callable[[Any], None]
) -> None:
    seen: list[Any] = []
    broken_log(lambda record: seen.append((queue.count_processing(), record.pacchettino_outcome)))
    queue.on_data_received(lambda id, data: act())
    queue.send_data("work")
    queue.receive()
    assert seen in ([(0, "failed")], [(0, "retry")])


def test_ctrl_c_in_a_handler_of_records_goes_on_and_the_verdict_stands(
    queue: Pacchettino, broken_log: Callable[[Any], None]
) -> None:
    broken_log(lambda record: raiser(KeyboardInterrupt())())
    queue.on_data_received(lambda id, data: raiser(ValueError("bad"))())
    id = queue.send_data("work")
    with pytest.raises(KeyboardInterrupt):
        queue.receive()
    assert queue.is_failed(id)


def test_the_fields_are_no_application_s(
    queue: Pacchettino, log: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make = logging.getLogRecordFactory()

    def with_fields(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        record.id = record.job_id = record.attempt = record.duration = record.outcome = "the application's"
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", with_fields)
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    of_ours = " ".join(f"%(pacchettino_{field})s" for field in ("id", "attempt", "outcome"))
    handler.setFormatter(logging.Formatter(f"{of_ours}, %(job_id)s %(attempt)s %(filename)s"))
    log.addHandler(handler)
    queue.on_data_received(lambda id, data: raiser(ValueError("bad"))())
    id = queue.send_data("work")
    queue.receive()
    (queue.base_dir / "queued" / "stranger").write_text("")
    queue.receive()
    theirs = "the application's the application's"
    assert shown.getvalue().splitlines() == [
        f"{id} 1 failed, {theirs} _retry.py",
        *caplog.records[0].exc_text.splitlines(),  # type: ignore[union-attr]
        f"None None None, {theirs} _queue.py",
    ]


def test_a_job_that_is_dropped_is_interrupted_before_that_is_warned_of(
    queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(warnings, "warn", lambda *_, **__: seen.append(queue.is_interrupted(id)))
    id = queue.send_data("work")
    job = queue.claim()
    del job
    gc.collect()
    assert seen == [True]


def test_all_that_is_logged_goes_through_one_place() -> None:
    package = Path(pacchettino.__file__).parent
    used = {path.name for path in package.rglob("*.py") if "getLogger" in path.read_text(encoding="utf-8")}
    assert used == {"_telling.py", "work.py"}  # of which the last only has them shown


def test_a_worker_whose_stderr_is_closed_goes_on(queue_dir: Path) -> None:
    program = """
import sys
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1], fifo=True)
queue.on_data_received(lambda id, data: 1 / 0 if data == b"bad" else None)
queue.send_many(["bad", "good", "good"])
sys.stderr.close()
print(queue.work(drain=True))
"""
    with start_python(program, queue_dir) as peer:
        out, _ = peer.communicate(timeout=60)
    assert out == "3\n"
    queue = Pacchettino(queue_dir)
    assert (queue.count_failed(), queue.count_successful()) == (1, 2)


def test_a_program_that_sets_up_no_logging_sees_warnings_and_no_more(queue_dir: Path) -> None:
    program = """
import sys
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1])
queue.on_data_received(lambda id, data: 1 / 0 if data == b"bad" else None)
queue.send_many(["good", "bad"])
queue.pause()
queue.resume()
queue.receive()
"""
    with start_python(program, queue_dir) as peer:
        out, err = peer.communicate(timeout=60)
    assert out == ""
    assert err.count("job ") == 1
    assert "ZeroDivisionError" in err


EVIL = "\x1b]0;pwned\x07\r\u202e\u2028\nERROR:root:forged\udcff"

TELLS = {
    "Fail": "raise Fail(EVIL)",
    "Retry": "raise Retry(0.001 if attempt == 1 else 3600, EVIL)",
    "given up": "raise Retry(0, EVIL)",
    "exception": "raise ValueError(EVIL)",
    "cause": "raise Fail from ValueError(EVIL)",
    "chain": "raise KeyError from ValueError(EVIL)",
    "note": "error = KeyError(); error.add_note(EVIL); raise error",
    "group": "raise ExceptionGroup(EVIL, [ValueError(EVIL), KeyError(EVIL)])",
    "syntax": "compile(EVIL[:5] + '(', EVIL, 'exec')",
    "path": "open(EVIL)",
    "unformattable": "raise Odd(EVIL)",
    "returned": "return coroutine()",
    "verdict": "current_job().fail(EVIL)",
    "hook": "",
    "name": "raise Fail",
}


@pytest.mark.parametrize("tells", TELLS)
@pytest.mark.needs("names of any bytes")
def test_nothing_of_a_sender_acts_in_a_log_or_passes_for_a_record(quick_dir: Path, tells: str) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise self

    async def coroutine() -> None:
        pass

    Odd.__qualname__ = coroutine.__qualname__ = EVIL
    code = f"def handle(*arguments):\n attempt = current_job().attempt\n {TELLS[tells]}"
    scope = {"EVIL": EVIL, "Odd": Odd, "coroutine": coroutine, "Fail": Fail, "Retry": Retry, "current_job": current_job}
    exec(compile(code, EVIL.replace("\udcff", ""), "exec"), scope)
    scope["handle"].__qualname__ = EVIL  # type: ignore[attr-defined]
    queue = Pacchettino(quick_dir / f"queue{EVIL}".replace("/", ""), max_attempts=2, retry_delay=0)
    stream = io.StringIO()
    output = logging.StreamHandler(stream)
    output.setFormatter(logging.Formatter("LOG %(levelname)s %(message)s"))
    log = logging.getLogger("pacchettino")
    log.addHandler(output)
    try:
        queue.on_data_received(scope["handle"])
        queue.on_file_received(scope["handle"])
        if tells == "hook":
            queue.on_settled(lambda *_: (_ for _ in ()).throw(ValueError(EVIL)))
        file = quick_dir / "file"
        file.touch()
        queue.send_file(file, name=EVIL)
        queue.send_data(EVIL.encode(errors="replace"))
        queue.receive()
        queue.receive()
        queue.pause()
        queue.work(drain=True)
    finally:
        log.removeHandler(output)
    written = stream.getvalue()
    assert r"\x1b" in written or r"\u{1b}" in written
    lines = written.split("\n")[:-1]
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if not line.startswith(("LOG ", "  "))] == []


# Prometheus


@pytest.fixture(scope="module")
def exporter() -> Iterator[tuple[prometheus_client.CollectorRegistry, str]]:
    """A registry that is exported, and where. One for all tests: to end a server takes half a second."""
    registry = prometheus_client.CollectorRegistry()
    server, _ = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    yield registry, f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


@pytest.fixture
def scrape(exporter: tuple[prometheus_client.CollectorRegistry, str]) -> Callable[[QueueCollector], dict[str, float]]:
    """Fetches samples by HTTP, as Prometheus does: `name{label,...}`, the labels by the order of their names."""
    registry, url = exporter

    def scrape(collector: QueueCollector) -> dict[str, float]:
        registry.register(collector)
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                text = answer.read().decode()
        finally:
            registry.unregister(collector)
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        labels = [",".join(value for _, value in sorted(sample.labels.items())) for sample in samples]
        names = [sample.name.removeprefix("pacchettino_") for sample in samples]
        return {f"{name}{{{of}}}": sample.value for name, of, sample in zip(names, labels, samples, strict=True)}

    return scrape


Scrape = Callable[[QueueCollector], dict[str, float]]


def test_a_scrape_shows_what_is_in_each_queue(tmp_path: Path, scrape: Scrape) -> None:
    first, second = Pacchettino(tmp_path / "first"), Pacchettino(tmp_path / "second")
    collector = QueueCollector(registry=None, max_age=0)
    collector.add(first, "first")
    collector.add(second)
    sent = first.send_many(["work"] * 3)
    due = time.time() + 3600
    first.send_data("later", delay=3600)
    first.claim(fifo=True).fail()  # type: ignore[union-attr]
    held = first.claim(fifo=True)
    assert held is not None
    second.pause()
    seen = scrape(collector)
    label = str(second.base_dir)
    states = {"scheduled": 1, "queued": 1, "processing": 1, "success": 0, "failed": 1, "interrupted": 0}
    assert {state: seen[f"jobs{{first,{state}}}"] for state in states} == states
    assert {seen[f"jobs{{{label},{state}}}"] for state in states} == {0}
    assert (
        0
        <= seen["oldest_job_age_seconds{first}"]
        == pytest.approx(time.time() - first.sent_at(sent[2]).timestamp(), abs=30)
    )
    assert seen["next_due_timestamp_seconds{first}"] == pytest.approx(due, abs=30)
    assert f"next_due_timestamp_seconds{{{label}}}" not in seen
    assert (seen["consumers{first}"], seen["held_jobs{first}"], seen[f"consumers{{{label}}}"]) == (1, 1, 0)
    assert (seen["paused{first}"], seen[f"paused{{{label}}}"]) == (0, 1)
    assert (seen["up{first}"], seen[f"up{{{label}}}"]) == (1, 1)
    held.succeed()
    until(lambda: scrape(collector)["jobs{first,success}"] == 1)


def test_a_scrape_tells_how_many_jobs_were_done_and_how_long_they_took(queue_dir: Path, scrape: Scrape) -> None:
    name = str(queue_dir)
    queue = Pacchettino(queue_dir)
    collector = QueueCollector(registry=None)
    collector.add(queue)
    other = Pacchettino(queue_dir)
    collector.add(other, name)
    collector.add(queue, name)  # once more changes nothing

    @queue.on_data_received
    def fail(id: str, data: bytes) -> Result:
        threading.Event().wait(0.06 if data == b"slow" else 0)
        return Result.FAILED

    queue.send_many(["slow", "bad", "bad"])
    queue.receive(fifo=True)
    queue.send_data("work")
    other.claim().succeed()  # type: ignore[union-attr]
    seen = scrape(collector)
    assert seen[f"job_duration_seconds_count{{failed,{name}}}"] == 3
    assert seen[f"job_duration_seconds_count{{success,{name}}}"] == 1
    assert 0.06 <= seen[f"job_duration_seconds_sum{{failed,{name}}}"] < 30
    assert seen[f"job_duration_seconds_bucket{{0.05,failed,{name}}}"] == 2


@pytest.mark.needs("names of any bytes")
def test_a_queue_whose_path_is_no_utf_8_breaks_no_scrape(tmp_path: Path, scrape: Scrape) -> None:
    odd = Pacchettino(tmp_path / os.fsdecode(b"na\xff"))
    collector = QueueCollector(registry=None)
    collector.add(Pacchettino(tmp_path / "good"), "good")
    collector.add(odd)
    collector.add(odd, os.fsdecode(b"given\xff"))
    odd.on_data_received(lambda id, data: None)
    odd.send_many(["a", "b"])
    odd.receive()
    seen = scrape(collector)
    for name in (f"{tmp_path}/na\\udcff", "given\\udcff"):
        assert seen[f"jobs{{{name},success}}"] == 2
        assert seen[f"job_duration_seconds_count{{success,{name}}}"] == 2
    assert seen["up{good}"] == 1


def test_figures_are_read_again_when_they_are_old(queue: Pacchettino, scrape: Scrape) -> None:
    kept, fresh = QueueCollector(registry=None, max_age=1000), QueueCollector(registry=None, max_age=0)
    kept.add(queue, "kept")
    fresh.add(queue, "fresh")
    for waiting in range(3):
        until(lambda waiting=waiting: scrape(fresh)["jobs{fresh,queued}"] == waiting)
        assert scrape(kept)["jobs{kept,queued}"] == 0
        queue.send_data("work")
    assert scrape(kept)["figures_age_seconds{kept}"] > scrape(fresh)["figures_age_seconds{fresh}"] >= 0


def test_figures_that_take_long_to_read_are_left_alone_for_a_while(
    queue_dir: Path, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(pacchettino.metrics, "time", types.SimpleNamespace(monotonic=lambda: now))

    class Slow(Pacchettino):
        reads = 0

        def stats(self) -> Any:
            nonlocal now
            self.reads += 1
            now += 0.5
            return super().stats()

    queue = Slow(queue_dir)
    collector = QueueCollector(registry=None, max_age=0)
    collector.add(queue, "slow")
    reads = []
    for later in (0, 9.9, 0.2, 9.9, 0.2):  # twenty times as long as it took
        now += later
        assert scrape(collector)["jobs{slow,queued}"] == 0
        reads.append(queue.reads)
    assert reads == [1, 1, 2, 2, 3]


def test_a_queue_that_can_not_be_read_hides_no_other(
    tmp_path: Path, scrape: Scrape, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Pacchettino(tmp_path / "good"), Pacchettino(tmp_path / "bad")
    collector = QueueCollector(registry=None)
    collector.add(good, "good")
    collector.add(bad, "bad")
    bad.close()
    seen = scrape(collector)
    assert (seen["up{good}"], seen["up{bad}"], seen["jobs{good,queued}"]) == (1, 0, 0)
    assert "jobs{bad,queued}" not in seen
    assert "bad: its figures can't be read: " in caplog.text


def test_one_name_is_one_queue_s(tmp_path: Path) -> None:
    collector = QueueCollector(registry=None)
    collector.add(Pacchettino(tmp_path / "a"), "name")
    with pytest.raises(ValueError, match="another queue already"):
        collector.add(Pacchettino(tmp_path / "b"), "name")


def test_a_collector_registers_itself_once() -> None:
    registry = prometheus_client.CollectorRegistry()
    QueueCollector(registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        QueueCollector(registry=registry)


@pytest.mark.parametrize("way", ["added up", "by itself"])
def test_what_worker_processes_have_done_is_added_up_where_that_was_asked_for(tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from pacchettino import Pacchettino
from pacchettino.metrics import QueueCollector

def handle(id, data):
    pass

if __name__ == "__main__":
    base, way = sys.argv[1:]
    registry = CollectorRegistry()
    if way == "added up":
        multiprocess.MultiProcessCollector(registry)
    queue = Pacchettino(base)
    QueueCollector(registry=registry).add(queue, "name")
    queue.on_data_received(handle)
    queue.send_many(["work"] * 9)
    queue.work(processes=2, drain=True)
    queue.send_data("work")
    queue.receive()
    print(generate_latest(registry).decode())
""")
    (tmp_path / "files").mkdir()
    more = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "files")} if way == "added up" else {}
    command = [sys.executable, str(program), str(tmp_path / "queue"), way]
    told = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=60, check=True).stdout
    done = 10 if way == "added up" else 1
    assert f'pacchettino_job_duration_seconds_count{{outcome="success",queue="name"}} {done}.0\n' in told
    assert told.count("# TYPE pacchettino_job_duration_seconds histogram") == 1
    assert 'pacchettino_jobs{queue="name",state="success"} 10.0\n' in told


def test_without_prometheus_client_it_is_said_what_to_install() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; import pacchettino.metrics"
    with start_python(program) as peer:
        _, err = peer.communicate(timeout=60)
    assert err.endswith(
        "ImportError: pacchettino.metrics needs prometheus_client: pip install pacchettino[prometheus]\n"
    )


# OpenTelemetry

TRACING = Path(__file__).parent.parent / "examples" / "tracing.py"


def test_the_example_makes_a_span_of_each_job(queue: Pacchettino) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    queue.on_settled(runpy.run_path(str(TRACING))["spans_of"](provider.get_tracer("test"), "uploads"))
    go_on = threading.Event()
    queue.on_data_received(lambda id, data: Result(go_on.wait(0.1) or "success") if data == b"good" else Result.FAILED)
    start = time.time_ns()
    ids = queue.send_many(["good", "bad"])
    queue.receive(fifo=True)
    good, bad = exporter.get_finished_spans()
    for span, id, outcome in ((good, ids[0], "success"), (bad, ids[1], "failed")):
        assert span.name == "process uploads"
        assert span.attributes is not None
        assert span.attributes["messaging.message.id"] == id
        assert span.attributes["pacchettino.attempt"] == 1
        assert span.attributes["pacchettino.outcome"] == outcome
        assert span.start_time is not None
        assert span.end_time is not None
        assert start <= span.start_time <= span.end_time <= time.time_ns()
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert good.end_time - good.start_time >= 100_000_000  # type: ignore[operator]


def test_the_example_runs(tmp_path: Path) -> None:
    id = Pacchettino(tmp_path / "queue").send_data("hello")
    command = [sys.executable, str(TRACING)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "data: hello\n1 jobs handled\n" in told
    assert f'"messaging.message.id": "{id}"' in told
