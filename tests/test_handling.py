"""Handling: who gets which job, what a verdict does, what the log says, how waits end."""

import asyncio
import copy
import errno
import functools
import gc
import inspect
import logging
import os
import re
import shutil
import signal
import threading
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import find, finish_thread, start_python
from helpers import handle_all, raiser
from pacchettino import Fail, KeepPolicy, Pacchettino, Result, Retry, Status
from pacchettino.aio import AsyncPacchettino


@pytest.fixture
def tmp_path(quick_dir: Path) -> Path:
    """Give a directory in memory: nothing here depends on the filesystem, and a busy disk takes four times as long."""
    return quick_dir


POLICIES = [KeepPolicy(bits) for bits in range(8)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "report.txt"
    file.write_bytes(b"content")
    return file


def send(queue: Pacchettino, kind: str, source: Path, delay: float = 0) -> str:
    return queue.send_data("data", delay=delay) if kind == "data" else queue.send_file(source, delay=delay)


def entry(kind: str, id: str) -> str:
    return f"raw-{id}" if kind == "data" else f"fle-{id}-report.txt"


def handle_with(queue: Pacchettino, act: Callable[[], Any]) -> None:
    """Set handlers for both kinds that do the same."""
    queue.on_data_received = lambda id, data: act()
    queue.on_file_received = lambda id, name, path: act()


def make_due(queue_dir: Path) -> None:
    """Let the delays of all scheduled jobs be over."""
    for path in (queue_dir / "scheduled").iterdir():
        path.rename(path.with_name("0000000000001" + path.name[13:]))


# Handlers


def test_a_handler_is_called_by_position_with_what_was_sent(queue: Pacchettino, source: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    def on_data(a: str, b: bytes, /) -> None:
        calls.append((a, b))

    def on_file(a: str, b: str, c: Path, /) -> None:
        calls.append((a, b, c.read_bytes()))
        assert type(c) is type(Path())
        assert c.name == b

    queue.on_data_received(on_data)
    queue.on_file_received(on_file)
    ids = [queue.send_data(b"\xff\0"), queue.send_file(source), queue.send_data("")]
    assert queue.receive(fifo=True) == 3
    assert calls == [(ids[0], b"\xff\0"), (ids[1], "report.txt", b"content"), (ids[2], b"")]
    assert [type(call[1]) for call in calls] == [bytes, str, bytes]


@pytest.mark.parametrize("make", [Pacchettino, AsyncPacchettino])
def test_a_second_handler_warns_at_its_line_and_the_same_one_defined_again_does_not(
    queue_dir: Path, make: type[Pacchettino]
) -> None:
    queue = make(queue_dir)

    def define(name: str) -> Any:
        program = f"def {name}(id, *_): pass"
        names: dict[str, Any] = {"__name__": "application"}
        exec(program, names)
        return names[name]

    for method in ("on_data_received", "on_file_received"):
        sets = getattr(queue, method)
        sets(define("first"))
        sets(define("first"))
        with pytest.warns(UserWarning, match="replaces") as warned:
            sets(define("second"))
        (warning,) = warned
        line = inspect.currentframe().f_lineno - 2  # type: ignore[union-attr]
        assert (warning.filename, warning.lineno) == (__file__, line)
        told = "application.second replaces application.first, which is called no more"
        assert str(warning.message) == f"{method}: {told}; a queue has one handler for each kind"
        for other in (lambda *_: None, functools.partial(print), print, lambda *_: None):
            with pytest.warns(UserWarning, match="replaces"):
                sets(other)
            sets(other)  # is the same


@pytest.mark.parametrize("make", [Pacchettino, AsyncPacchettino])
def test_an_assignment_sets_the_handler_and_replaces_the_one_before(queue_dir: Path, make: type[Pacchettino]) -> None:
    queue = make(queue_dir)
    calls: list[tuple[Any, ...]] = []
    queue.on_data_received = queue.on_file_received = print
    queue.on_data_received = lambda id, data: calls.append(("data", data))
    queue.on_file_received = lambda id, name, path: calls.append(("file", name))
    for wrong in (None, 1, lambda id: None):
        with pytest.raises(TypeError):
            queue.on_data_received = wrong  # type: ignore[assignment]
        with pytest.raises(TypeError):
            queue.on_file_received = wrong  # type: ignore[assignment]
    sender = Pacchettino(queue_dir)
    sender.send_data("a")
    sender.send_file(__file__)
    received: Any = queue.receive(fifo=True)
    assert (asyncio.run(received) if inspect.iscoroutine(received) else received) == 2
    assert calls == [("data", b"a"), ("file", Path(__file__).name)]


def test_a_method_that_sets_a_handler_is_a_method_like_others(queue_dir: Path) -> None:
    class Mine(Pacchettino):
        def on_data_received(self, handler: Any) -> Any:
            return super().on_data_received(handler)

    queue = Mine(queue_dir)
    assert queue.on_data_received(print) is print
    assert Pacchettino.on_file_received(queue, print) is print
    assert queue.on_file_received.__name__ == "on_file_received"  # type: ignore[attr-defined]
    assert "(id, name, path)" in (inspect.getdoc(Pacchettino.on_file_received) or "")
    assert list(inspect.signature(queue.on_file_received).parameters) == ["handler"]


@pytest.mark.parametrize("kind", ["data", "file"])
def test_setting_a_handler_returns_it_and_replaces_the_one_before(queue: Pacchettino, source: Path, kind: str) -> None:
    calls = []
    set_handler: Any = queue.on_data_received if kind == "data" else queue.on_file_received

    @set_handler
    def first(*_: object) -> None:
        calls.append("first")

    def second(*_: object) -> None:
        calls.append("second")

    assert isinstance(first, types.FunctionType)
    assert first.__name__ == "first"
    with pytest.warns(UserWarning, match="second replaces"):
        assert set_handler(second) is second
    send(queue, kind, source)
    assert queue.receive_one()
    assert calls == ["second"]


def test_methods_partials_and_objects_can_be_handlers(queue: Pacchettino) -> None:
    calls = []

    class Handler:
        def __call__(self, id: str, data: bytes) -> None:
            calls.append(data)

        def method(self, id: str, data: bytes) -> None:
            calls.append(data)

    def with_more(more: bytes, id: str, data: bytes) -> None:
        calls.append(more + data)

    for handler in (Handler(), Handler().method, functools.partial(with_more, b"more ")):
        queue.on_data_received = handler
        queue.send_data("data")
        assert queue.receive_one()
    assert calls == [b"data", b"data", b"more data"]


async def coroutine(*_: object) -> None:
    pass


async def async_generator(*_: object) -> Any:
    yield


class Async:
    async def __call__(self, *_: object) -> None:
        pass

    async def method(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "handler",
    [coroutine, async_generator, Async(), Async().method, functools.partial(coroutine, 1)],
    ids=["function", "generator", "object", "method", "partial"],
)
def test_an_async_def_is_a_type_error(queue: Pacchettino, handler: Any) -> None:
    for set_handler in (queue.on_data_received, queue.on_file_received):
        with pytest.raises(TypeError, match="async"):
            set_handler(handler)
    with pytest.raises(RuntimeError):
        queue.receive_one()


@pytest.mark.parametrize("handler", [None, 1, "handler"], ids=repr)
def test_a_handler_that_can_not_be_called_is_a_type_error(queue: Pacchettino, handler: Any) -> None:
    for set_handler in (queue.on_data_received, queue.on_file_received):
        with pytest.raises(TypeError):
            set_handler(handler)


def test_without_a_handler_receiving_is_a_runtime_error(queue: Pacchettino) -> None:
    id = queue.send_data("a")
    for receive in (queue.receive, queue.receive_one, lambda: queue.receive_one(None)):
        with pytest.raises(RuntimeError):
            receive()
    assert queue.status(id) is Status.QUEUED


@pytest.mark.parametrize("handled", ["data", "file"])
def test_a_kind_without_a_handler_stays_queued(queue: Pacchettino, source: Path, handled: str) -> None:
    set_handler: Any = queue.on_data_received if handled == "data" else queue.on_file_received
    calls: list[str] = []
    set_handler(lambda *arguments: calls.append(arguments[0]))
    ids = {kind: [send(queue, kind, source) for _ in range(3)] for kind in ("data", "file")}
    other = "file" if handled == "data" else "data"
    assert queue.receive_one()
    assert queue.receive() == 2
    assert not queue.receive_one(0.1)
    assert sorted(calls) == ids[handled]
    assert [queue.status(id) for id in ids[other]] == [Status.QUEUED] * 3


def test_waiting_beside_jobs_without_a_handler_does_not_spin(queue: Pacchettino, source: Path) -> None:
    for _ in range(200):
        queue.send_file(source)
    queue.on_data_received(lambda id, data: None)
    before = time.process_time()
    assert not queue.receive_one(0.5)
    assert time.process_time() - before < 0.25


def test_a_handler_can_send_and_receive(queue: Pacchettino, queue_dir: Path) -> None:
    calls = []

    @queue.on_data_received
    def outer(id: str, data: bytes) -> None:
        calls.append(data)
        if data == b"outer":
            queue.send_data("inner")
            assert queue.receive_one()
            assert queue.status(id) is Status.PROCESSING

    queue.send_data("outer")
    assert queue.receive() == 1
    assert calls == [b"outer", b"inner"]
    assert queue.count_successful() == 2


# Verdicts


@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize(
    ("act", "status"),
    [
        (lambda: None, Status.SUCCESS),
        (lambda: Result.SUCCESS, Status.SUCCESS),
        (lambda: Result.FAILED, Status.FAILED),
        (lambda: Result.RETRY, Status.QUEUED),
        (raiser(ValueError("mine")), Status.FAILED),
        (raiser(KeyboardInterrupt()), Status.INTERRUPTED),
        (raiser(SystemExit(3)), Status.INTERRUPTED),
    ],
    ids=["None", "SUCCESS", "FAILED", "RETRY", "Exception", "KeyboardInterrupt", "SystemExit"],
)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_verdict_and_the_policy_decide_what_is_on_disk(
    queue_dir: Path, source: Path, policy: KeepPolicy, act: Callable[[], Any], status: Status, kind: str
) -> None:
    queue = Pacchettino(queue_dir, policy)
    handle_with(queue, act)
    id = send(queue, kind, source)
    try:
        assert queue.receive_one()
    except (KeyboardInterrupt, SystemExit):
        assert status is Status.INTERRUPTED
    else:
        assert status is not Status.INTERRUPTED
    kept = status is Status.QUEUED or KeepPolicy[status.name] in policy
    assert find(queue_dir) == ([f"{status.value}/{entry(kind, id)}"] if kept else [])
    assert queue.status(id) is (status if kept else Status.UNKNOWN)
    assert list((queue_dir / "processing").iterdir()) == []
    if kept:
        content = b"data" if kind == "data" else b"content"
        assert (queue_dir / status.value / entry(kind, id)).read_bytes() == content


def test_what_goes_well_is_not_logged(queue: Pacchettino, caplog: pytest.LogCaptureFixture) -> None:
    results = iter([None, Result.SUCCESS, Result.RETRY])
    queue.on_data_received(lambda id, data: next(results))
    queue.send_many(["a", "b", "c"])
    assert queue.receive() == 3
    assert caplog.records == []


class Broken:
    """What can't be looked at."""

    def __repr__(self) -> str:
        raise LookupError("no repr")

    __str__ = __repr__

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise LookupError("no class")


class BrokenAwaitable(Broken):
    def __await__(self) -> Any:
        yield


def generator() -> Any:
    yield


@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize("value", [0, 1, "", "success", "retry", KeepPolicy.SUCCESS, [], Result, Broken], ids=repr)
def test_any_other_value_that_is_returned_means_success(
    queue: Pacchettino, queue_dir: Path, source: Path, value: object, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    handle_with(queue, lambda: Broken() if value is Broken else value)
    id = send(queue, kind, source)
    assert queue.receive_one()
    assert find(queue_dir) == [f"success/{entry(kind, id)}"]
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: True, "True"),
        (lambda: False, "False"),
        (lambda: Status.SUCCESS, "<Status.SUCCESS: 'success'>"),
        (lambda: Status.FAILED, "<Status.FAILED: 'failed'>"),
        (lambda: coroutine(), "<coroutine object coroutine at "),
        (lambda: generator(), "<generator object generator at "),
        (lambda: async_generator(), "<async_generator object async_generator at "),
        (lambda: BrokenAwaitable(), "BrokenAwaitable"),
    ],
    ids=["True", "False", "SUCCESS", "FAILED", "coroutine", "generator", "async generator", "awaitable"],
)
def test_a_value_that_hints_at_a_mistake_fails_the_job_and_the_log_says_which_handler_returned_what(
    queue: Pacchettino,
    queue_dir: Path,
    source: Path,
    make: Callable[[], object],
    shown: str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def my_handler(*_: object) -> Any:
        return make()

    queue.on_data_received(my_handler)
    queue.on_file_received(my_handler)
    id = send(queue, kind, source)
    assert queue.receive_one()  # and no warning that something was never awaited
    assert find(queue_dir) == [f"failed/{entry(kind, id)}"]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("pacchettino", "ERROR")
    assert id in record.message
    assert f"my_handler returned {shown}" in record.message
    assert (queue.history(id)[0].reason or "") in record.message


class Mine(BaseException):
    """What is no `Exception`, as timeouts of gevent and func_timeout and the panics of other extensions are."""


def cancelled() -> None:
    """Run a client library that cancels what it waits for itself."""

    async def fetch() -> None:
        request = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(request.cancel)
        await request

    asyncio.run(fetch())


ENDINGS = {
    "CancelledError": (cancelled, asyncio.CancelledError),
    "no Exception": (raiser(Mine("mine")), Mine),
    "in a group": (raiser(BaseExceptionGroup("some", [Mine("mine")])), BaseExceptionGroup),
}


@pytest.mark.parametrize(("act", "error"), ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("way", ["receive", "receive_one", "work", "threads", "retry"])
def test_what_a_library_raises_that_is_no_exception_is_the_end_of_one_attempt(
    queue_dir: Path, act: Callable[[], None], error: type[BaseException], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Pacchettino(queue_dir, retry_on=error if way == "retry" else (), fifo=True)
    queue.on_data_received(lambda id, data: act() if data == b"bad" else None)
    bad, *good = queue.send_many(["bad", "good", "good"])
    handle_all(queue, "receive" if way == "retry" else way, 3)
    assert queue.status(bad) == ("scheduled" if way == "retry" else "failed")
    assert [queue.status(id) for id in good] == [Status.SUCCESS] * 2
    (attempt,) = queue.history(bad)
    assert error.__name__ in (attempt.reason or "")
    assert "Traceback" in (attempt.traceback or "")
    (record,) = caplog.records
    assert bad in record.message


def odd(broken: str, raised: BaseException, base: type[BaseException] = Exception) -> type[BaseException]:
    """Make a type of exceptions of which something can't be asked."""

    def fail(self: object, *_: object) -> NoReturn:
        raise raised

    def ignore(self: object, value: object) -> None:
        pass

    is_method = broken in ("__str__", "__repr__", "__getattribute__", "__bool__", "__eq__", "__reduce__")
    return type("Odd", (base,), {broken: fail if is_method else property(fail, ignore), "__hash__": None})


@pytest.mark.parametrize("way", ["handler", "block"])
@pytest.mark.parametrize("raised", [LookupError("broken"), SystemExit("broken"), Mine("broken")], ids=repr)
@pytest.mark.parametrize(
    "broken",
    [
        *("__str__", "__repr__", "__getattribute__", "__bool__", "__eq__", "args", "__class__", "__traceback__"),
        *("__cause__", "__context__", "__suppress_context__", "__notes__"),
    ],
)
def test_an_exception_of_which_something_can_not_be_asked_fails_its_job(
    queue: Pacchettino, broken: str, raised: BaseException, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = odd(broken, raised)

    def raise_oddity(*_: object) -> NoReturn:
        raise error("mine")

    bad, good = queue.send_many(["bad", "good"])
    queue.on_data_received(lambda id, data: raise_oddity() if data == b"bad" else None)
    if way == "handler":
        assert queue.receive(fifo=True) == 2
    else:
        with suppress(error), queue.claim(fifo=True):  # type: ignore[union-attr]
            raise_oddity()
        assert queue.receive() == 1
    assert [queue.status(bad), queue.status(good)] == ["failed", "success"]
    (attempt,) = queue.history(bad)
    assert "Odd" in (attempt.reason or "")
    assert "in raise_oddity" in (attempt.traceback or "")
    if way == "handler":
        assert bad in caplog.text
        assert "in raise_oddity" in caplog.text


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])
def test_asyncio_asks_nothing_of_an_odd_exception_or_value_either(queue_dir: Path, is_async: bool) -> None:
    queue = AsyncPacchettino(queue_dir, fifo=True)
    error = odd("__class__", Mine("mine"))

    def act(id: str, data: bytes) -> object:
        if data == b"bad":
            raise error("mine")
        return Broken()

    async def act_later(id: str, data: bytes) -> object:
        return act(id, data)

    queue.on_data_received(act_later if is_async else act)
    looks = Pacchettino(queue_dir)
    bad, good = looks.send_many(["bad", "good"])
    assert asyncio.run(queue.receive()) == 2
    assert [looks.status(bad), looks.status(good)] == ["failed", "success"]
    assert "in act" in (looks.history(bad)[0].traceback or "")


class BareRetry(Retry):
    """A subclass that does not call `super().__init__`."""

    def __init__(self) -> None:
        pass


class BareFail(Fail):
    def __init__(self) -> None:
        pass


def strange_retry(**attributes: object) -> Retry:
    error = Retry()
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


VERDICTS: dict[str, tuple[Callable[[], BaseException], str, str | None]] = {
    "Retry without its __init__": (BareRetry, "scheduled", None),
    "Fail without its __init__": (BareFail, "failed", None),
    "a delay that is none": (lambda: strange_retry(delay="soon"), "failed", "delay must be seconds"),
    "a delay without end": (lambda: strange_retry(delay=float("inf")), "failed", "delay can't be infinite"),
    "a reason that is no text": (lambda: strange_retry(reason=5), "failed", "reason must be str, not int"),
    "a reason that raises": (lambda: odd("reason", Mine("mine"), Fail)(), "failed", "Mine'>: mine"),
    "a delay that raises": (lambda: odd("delay", SystemExit(3), Retry)(), "failed", "SystemExit'>: 3"),
}


@pytest.mark.parametrize(("make", "status", "reason"), VERDICTS.values(), ids=VERDICTS)
def test_a_subclass_of_a_verdict_may_be_anything(
    queue: Pacchettino, make: Callable[[], BaseException], status: str, reason: str | None
) -> None:
    def act(id: str, data: bytes) -> None:
        if data == b"bad":
            try:
                raise odd("__bool__", Mine("mine"))("the cause")
            except Exception:
                raise make()  # noqa: B904

    queue.on_data_received(act)
    bad, good = queue.send_many(["bad", "good"])
    assert queue.receive(fifo=True) == 2
    assert [queue.status(bad), queue.status(good)] == [status, "success"]
    (attempt,) = queue.history(bad)
    assert (reason or "Odd'>: the cause") in (attempt.reason or "")


def test_what_a_failed_handler_held_goes_when_the_job_is_settled(
    queue: Pacchettino, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pacchettino"), "propagate", False)  # pytest keeps all records

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def act() -> None:
        big = Held()
        held.append(weakref.ref(big))
        raise ValueError("mine")

    handle_with(queue, act)
    queue.send_data("a")
    gc.disable()
    try:
        assert queue.receive_one()
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize(
    "error", [ValueError("mine"), OSError(2, "mine"), StopIteration("mine"), AssertionError("mine")], ids=repr
)
def test_an_exception_is_logged_with_its_traceback_and_the_loop_goes_on(
    queue: Pacchettino, source: Path, error: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    raised = copy.copy(error)

    def where_it_happened() -> None:
        raise raised

    handle_with(queue, where_it_happened)
    ids = [send(queue, kind, source) for _ in range(3)]
    assert queue.receive() == 3
    assert [queue.status(id) for id in ids] == [Status.FAILED] * 3
    assert sorted(re.findall("|".join(ids), " ".join(record.message for record in caplog.records))) == ids
    for record in caplog.records:
        assert (record.name, record.levelname) == ("pacchettino", "ERROR")
        assert record.exc_info is not None
        assert record.exc_info[1] is raised
    assert "Traceback" in caplog.text
    assert "where_it_happened" in caplog.text


def in_a_group(error: type[BaseException]) -> Callable[[str], BaseException]:
    return lambda text: BaseExceptionGroup("several", [ValueError(), BaseExceptionGroup("inner", [error(text)])])


@pytest.mark.parametrize(
    "make",
    [KeyboardInterrupt, SystemExit, GeneratorExit, in_a_group(KeyboardInterrupt), in_a_group(SystemExit)],
    ids=["KeyboardInterrupt", "SystemExit", "GeneratorExit", "KeyboardInterrupt in a group", "SystemExit in a group"],
)
@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize("way", ["receive", "receive_one"])
def test_what_is_to_end_the_program_propagates_and_the_job_is_interrupted(
    queue: Pacchettino, source: Path, make: Callable[[str], BaseException], kind: str, way: str
) -> None:
    raised = make("mine")

    def act() -> None:
        raise raised

    handle_with(queue, act)
    ids = [send(queue, kind, source) for _ in range(2)]
    with pytest.raises(type(raised)) as caught:
        getattr(queue, way)(fifo=True)
    assert caught.value is raised
    assert [queue.status(id) for id in ids] == [Status.INTERRUPTED, Status.QUEUED]


# Retries


@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize("delay", [0, 0.05, timedelta(milliseconds=50), -1], ids=repr)
def test_a_retried_job_comes_back_under_its_id_with_its_content(
    queue_dir: Path, source: Path, kind: str, delay: float | timedelta
) -> None:
    queue = Pacchettino(queue_dir, retry_delay=delay)
    calls: list[tuple[Any, ...]] = []

    def again(*arguments: Any) -> Result:
        content = arguments[1] if kind == "data" else arguments[2].read_bytes()
        calls.append((arguments[0], content))
        return Result.RETRY if len(calls) < 3 else Result.SUCCESS

    queue.on_data_received(again)
    queue.on_file_received(again)
    id = send(queue, kind, source)
    for _ in range(3):
        assert queue.receive_one(30)
    assert calls == [(id, b"data" if kind == "data" else b"content")] * 3
    assert find(queue_dir) == [f"success/{entry(kind, id)}"]


def test_a_retried_job_is_scheduled_for_after_the_retry_delay(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, retry_delay=timedelta(minutes=1))
    queue.on_data_received(lambda id, data: Result.RETRY)
    id = queue.send_data("a")
    before = datetime.now(UTC)
    assert queue.receive_one()
    after = datetime.now(UTC)
    (job,) = queue.jobs(Status.SCHEDULED)
    assert (job.id, find(queue_dir)) == (id, [f"scheduled/{job.path.name}"])
    assert job.due is not None
    assert before + timedelta(minutes=1) <= job.due <= after + timedelta(minutes=1, milliseconds=1)
    assert not queue.receive_one()


def test_a_retry_never_comes_before_its_delay_is_over(queue_dir: Path) -> None:
    queue = Pacchettino(queue_dir, retry_delay=0.2)
    ended, began = 0.0, 0.0

    @queue.on_data_received
    def handler(id: str, data: bytes) -> Result:
        nonlocal ended, began
        if ended:
            began = time.time()
            return Result.SUCCESS
        ended = time.time()
        return Result.RETRY

    queue.send_data("a")
    assert queue.receive_one()
    assert queue.receive_one(30)
    assert began - ended >= 0.2


# A pass over the queue


def test_receive_returns_how_many_were_handled_whatever_the_verdict(queue: Pacchettino) -> None:
    acts = iter([lambda: None, raiser(ValueError("mine")), lambda: Result.FAILED, lambda: Result.RETRY, lambda: 5])
    queue.on_data_received(lambda id, data: next(acts)())
    queue.send_many(["x"] * 5)
    assert queue.receive() == 5
    assert (queue.count_successful(), queue.count_failed(), queue.count_queued()) == (2, 2, 1)


def test_receive_of_an_empty_queue_handles_nothing(queue: Pacchettino) -> None:
    queue.on_data_received(lambda id, data: None)
    assert queue.receive() == 0


@pytest.mark.parametrize("fifo", [True, False])
def test_receive_tries_each_job_at_most_once_even_when_it_is_retried(queue: Pacchettino, fifo: bool) -> None:
    calls: Counter[str] = Counter()

    @queue.on_data_received
    def handler(id: str, data: bytes) -> Result:
        calls[id] += 1
        return Result.RETRY

    ids = queue.send_many(["a", "b", "c"])
    assert queue.receive(fifo=fifo) == 3
    assert calls == dict.fromkeys(ids, 1)
    assert queue.receive(fifo=fifo) == 3
    assert calls == dict.fromkeys(ids, 2)
    assert queue.count_queued() == 3


@pytest.mark.parametrize("fifo", [True, False])
def test_receive_leaves_what_is_sent_after_the_call_to_the_next_one(queue: Pacchettino, fifo: bool) -> None:
    @queue.on_data_received
    def handler(id: str, data: bytes) -> None:
        if data == b"parent":
            queue.send_data("child")

    queue.send_many(["parent"] * 3)
    assert queue.receive(fifo=fifo) == 3
    assert queue.count_queued() == 3
    assert queue.receive(fifo=fifo) == 3
    assert queue.receive(fifo=fifo) == 0


def test_receive_skips_what_another_took_since_the_call(queue: Pacchettino) -> None:
    taken = []

    @queue.on_data_received
    def handler(id: str, data: bytes) -> None:
        while (job := queue.claim()) is not None:
            taken.append(job.id)
            job.succeed()

    ids = queue.send_many(["a"] * 5)
    assert queue.receive(fifo=True) == 1
    assert sorted(taken) == ids[1:]


def test_receive_takes_what_is_due_and_leaves_what_is_not(queue: Pacchettino, queue_dir: Path, source: Path) -> None:
    calls: list[str] = []
    queue.on_data_received(lambda id, data: calls.append(id))
    queue.on_file_received(lambda id, name, path: calls.append(id))
    due = [queue.send_data("a", delay=60), queue.send_file(source, delay=60)]
    make_due(queue_dir)
    later = queue.send_data("b", delay=60)
    assert queue.receive() == 2
    assert sorted(calls) == due
    assert queue.status(later) is Status.SCHEDULED


def test_a_delayed_job_comes_when_its_delay_is_over_and_not_before(queue: Pacchettino) -> None:
    came = []
    queue.on_data_received(lambda id, data: came.append(time.time()))
    sent = time.time()
    queue.send_data("a", delay=0.2)
    assert not queue.receive_one()
    assert queue.receive_one(30)
    assert came[0] - sent >= 0.2


# Order


def send_both_kinds(queue: Pacchettino, source: Path) -> list[str]:
    ids = [queue.send_file(source) if number % 3 else queue.send_data("a") for number in range(40)]
    return ids + queue.send_many(["b"] * 10)


def take_all(queue: Pacchettino, way: str, **arguments: Any) -> list[str]:
    """Take all jobs one way or another and tell their ids in the order in which they came."""
    taken: list[str] = []
    if way == "claim":
        while (job := queue.claim(**arguments)) is not None:
            job.succeed()
            taken.append(job.id)
        return taken
    queue.on_data_received(lambda id, data: taken.append(id))
    queue.on_file_received(lambda id, name, path: taken.append(id))
    if way == "receive":
        queue.receive(**arguments)
    else:
        while queue.receive_one(**arguments):
            pass
    return taken


ways = pytest.mark.parametrize("way", ["receive", "receive_one", "claim"])


@ways
@pytest.mark.parametrize(("setting", "arguments"), [(True, {}), (False, {"fifo": True}), (True, {"fifo": None})])
def test_fifo_takes_the_oldest_first_whatever_the_kind(
    queue_dir: Path, source: Path, way: str, setting: bool, arguments: dict[str, Any]
) -> None:
    queue = Pacchettino(queue_dir, fifo=setting)
    ids = send_both_kinds(queue, source)
    assert take_all(queue, way, **arguments) == ids


@ways
@pytest.mark.parametrize(("setting", "arguments"), [(False, {}), (True, {"fifo": False}), (False, {"fifo": None})])
def test_without_fifo_the_order_is_random_and_every_job_comes_once(
    queue_dir: Path, source: Path, way: str, setting: bool, arguments: dict[str, Any]
) -> None:
    queue = Pacchettino(queue_dir, fifo=setting)
    ids = send_both_kinds(queue, source)
    taken = take_all(queue, way, **arguments)
    assert sorted(taken) == ids
    assert taken not in (ids, ids[::-1])  # one in 10^64


@ways
def test_fifo_goes_by_the_ids_and_not_by_the_times_of_the_files(
    queue: Pacchettino, queue_dir: Path, source: Path, way: str
) -> None:
    ids = [queue.send_data("a"), queue.send_file(source), queue.send_data("b", delay=60), queue.send_data("c")]
    make_due(queue_dir)
    for age, name in enumerate(name for name in find(queue_dir) if name.startswith("queued/")):
        os.utime(queue_dir / name, (1000 - age, 1000 - age))
    assert take_all(queue, way, fifo=True) == ids


# Waiting


waits = pytest.mark.parametrize("way", ["receive_one", "claim"])


def wait_for(queue: Pacchettino, way: str, timeout: Any) -> Any:
    """Wait for a data job, and tell what came of it as `receive_one` does."""
    if way == "receive_one":
        queue.on_data_received(lambda id, data: None)
        return queue.receive_one(timeout)
    job = queue.claim(timeout, kind="data")
    if job is not None:
        job.succeed()
    return job is not None


@waits
@pytest.mark.parametrize("timeout", [0, 0.0, 0.2, timedelta(milliseconds=200)], ids=repr)
def test_a_timeout_passes_when_nothing_comes(queue: Pacchettino, way: str, timeout: float | timedelta) -> None:
    before = time.monotonic()
    assert wait_for(queue, way, timeout) is False
    assert time.monotonic() - before >= (timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)


@waits
@pytest.mark.parametrize("timeout", [0, 1, 1e9, 1e300, timedelta.max, None], ids=repr)
def test_a_job_that_is_there_is_not_waited_for(queue: Pacchettino, way: str, timeout: float | timedelta | None) -> None:
    id = queue.send_data("a")
    assert wait_for(queue, way, timeout) is True
    assert queue.status(id) is Status.SUCCESS


@waits
@pytest.mark.parametrize("timeout", [True, False, "1", b"1", 1j, [1]], ids=repr)
def test_a_timeout_that_is_no_duration_is_a_type_error(queue: Pacchettino, way: str, timeout: Any) -> None:
    id = queue.send_data("a")
    with pytest.raises(TypeError):
        wait_for(queue, way, timeout)
    assert queue.status(id) is Status.QUEUED


@waits
@pytest.mark.parametrize("timeout", [60, None], ids=repr)
@pytest.mark.parametrize("sender", ["same instance", "another instance"])
@pytest.mark.parametrize("delay", [0, 0.1])
def test_other_threads_run_while_one_waits_and_what_they_send_ends_the_wait(
    queue: Pacchettino, queue_dir: Path, way: str, timeout: float | None, sender: str, delay: float
) -> None:
    other = queue if sender == "same instance" else Pacchettino(queue_dir)
    ids: list[str] = []
    timer = threading.Timer(0.1, lambda: ids.append(other.send_data("a", delay=delay)))
    timer.start()
    assert wait_for(queue, way, timeout) is True
    finish_thread(timer)
    assert queue.status(ids[0]) is Status.SUCCESS


@waits
def test_a_job_that_is_requeued_ends_the_wait(queue: Pacchettino, way: str) -> None:
    id = queue.send_data("a")
    job = queue.claim()
    assert job is not None
    job.fail()
    timer = threading.Timer(0.1, queue.requeue, [id])
    timer.start()
    assert wait_for(queue, way, 60) is True
    finish_thread(timer)


@waits
@pytest.mark.parametrize("timeout", [600, None], ids=repr)
def test_close_from_another_thread_ends_the_waits(queue: Pacchettino, way: str, timeout: float | None) -> None:
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(wait_for(queue, way, timeout)), daemon=True) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    threads[0].join(0.1)
    assert threads[0].is_alive()
    queue.close()
    for thread in threads:
        finish_thread(thread)
    assert results == [False] * 3


def test_close_ends_no_wait_of_another_instance(queue: Pacchettino, queue_dir: Path) -> None:
    other = Pacchettino(queue_dir)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(wait_for(other, "claim", 60)), daemon=True)
    thread.start()
    queue.close()
    thread.join(0.1)
    assert thread.is_alive()
    other.send_data("a")
    finish_thread(thread)
    assert results == [True]


@pytest.fixture
def signals() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Sets what a signal does, and sends it to this process again and again until the test is over."""
    if not hasattr(signal, "SIGUSR1"):
        pytest.skip("NOT TESTED: needs signals")
    over = threading.Event()
    before = signal.getsignal(signal.SIGUSR1)

    def send() -> None:
        while not over.wait(0.05):
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=send)

    def start(act: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: act())
        thread.start()

    yield start
    over.set()
    if thread.ident is not None:
        finish_thread(thread)
    signal.signal(signal.SIGUSR1, before)


@waits
def test_python_signal_handlers_run_while_the_main_thread_waits(
    queue: Pacchettino, way: str, signals: Callable[[Callable[[], None]], None]
) -> None:
    seen = []

    def act() -> None:
        seen.append(True)
        if len(seen) == 3:
            queue.send_data("a")

    signals(act)
    assert wait_for(queue, way, 60) is True
    assert len(seen) >= 3


@waits
@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
def test_what_a_signal_handler_raises_ends_the_wait_and_no_job_is_taken(
    queue: Pacchettino, queue_dir: Path, way: str, error: type[BaseException], signals: Any
) -> None:
    first = iter([True])
    ids: list[str] = []

    def act() -> None:
        if next(first, False):
            ids.append(queue.send_data("a"))
            raise error("mine")

    signals(act)
    with pytest.raises(error, match="mine"):
        wait_for(queue, way, 60)
    assert find(queue_dir) == [f"queued/raw-{ids[0]}"]


@waits
@pytest.mark.needs("signals")
def test_of_a_signal_and_a_job_that_comes_just_after_it_the_signal_ends_the_wait(
    queue: Pacchettino, queue_dir: Path, way: str
) -> None:
    ids: list[str] = []

    def act() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # noted for the main thread when this returns
        ids.append(queue.send_data("a"))

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timer = threading.Timer(0.1, act)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for(queue, way, 60)
    finally:
        finish_thread(timer)
        signal.signal(signal.SIGUSR1, before)
    assert find(queue_dir) == [f"queued/raw-{ids[0]}"]


@pytest.mark.parametrize("wait", ["receive_one(None)", "receive_one(600)", "claim(None)", "claim(600, kind='file')"])
@pytest.mark.needs("signals")
def test_ctrl_c_ends_a_wait_with_keyboard_interrupt(queue: Pacchettino, queue_dir: Path, wait: str) -> None:
    code = f"""
import sys
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1])
queue.on_file_received(lambda id, name, path: None)
print("ready", flush=True)
queue.{wait}
print("returned", flush=True)
"""
    with start_python(code, queue_dir) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert output == ""
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
    assert find(queue_dir) == []


@pytest.mark.needs("signals")
def test_ctrl_c_in_a_handler_interrupts_the_job(queue: Pacchettino, queue_dir: Path) -> None:
    code = """
import sys, threading
from pacchettino import Pacchettino
queue = Pacchettino(sys.argv[1])
@queue.on_data_received
def handler(id, data):
    print("ready", flush=True)
    threading.Event().wait()
queue.receive()
"""
    first, second = queue.send_many(["a", "b"])
    with start_python(code.replace("receive()", "receive(fifo=True)"), queue_dir) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert find(queue_dir) == [f"interrupted/raw-{first}", f"queued/raw-{second}"]


# Threads


@pytest.mark.parametrize("shared", [True, False], ids=["one instance", "an instance each"])
def test_threads_that_send_and_receive_handle_every_job_once(queue_dir: Path, source: Path, shared: bool) -> None:
    handled: list[str] = []
    sent: list[str] = []
    one = Pacchettino(queue_dir)

    def work(act: Callable[[Pacchettino], None]) -> threading.Thread:
        queue = one if shared else Pacchettino(queue_dir)
        queue.on_data_received(lambda id, data: handled.append(id))
        queue.on_file_received(lambda id, name, path: handled.append(id))
        thread = threading.Thread(target=act, args=[queue], daemon=True)
        thread.start()
        return thread

    def produce(queue: Pacchettino) -> None:
        for _ in range(25):
            sent.extend([*queue.send_many(["a", "b"]), queue.send_file(source), queue.send_data("c", delay=0.001)])

    def consume(queue: Pacchettino) -> None:
        while len(handled) < 200:
            queue.receive_one(0.1)
            queue.receive()

    for thread in [work(produce), work(consume), work(produce), work(consume), work(consume)]:
        finish_thread(thread, 60)
    assert sorted(handled) == sorted(sent)
    assert one.count_successful() == 200


def test_a_handler_that_runs_while_the_queue_is_closed_ends_in_peace(queue: Pacchettino, queue_dir: Path) -> None:
    running, closed = threading.Event(), threading.Event()
    results: list[bool] = []

    @queue.on_data_received
    def handler(id: str, data: bytes) -> None:
        running.set()
        assert closed.wait(30)

    id = queue.send_data("a")
    thread = threading.Thread(target=lambda: results.append(queue.receive_one()), daemon=True)
    thread.start()
    assert running.wait(30)
    queue.close()
    closed.set()
    finish_thread(thread)
    assert results == [True]
    assert find(queue_dir) == [f"success/raw-{id}"]


# What goes wrong with the file


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (lambda: None, "success"),
        (lambda: Result.FAILED, "failed"),
        (raiser(ValueError("mine")), "failed"),
        (lambda: Result.RETRY, "queued"),
        (raiser(KeyboardInterrupt("mine")), "interrupted"),
    ],
    ids=["None", "FAILED", "Exception", "RETRY", "KeyboardInterrupt"],
)
def test_a_verdict_that_the_disk_does_not_take_is_logged_and_tried_again(
    queue: Pacchettino,
    queue_dir: Path,
    source: Path,
    act: Callable[[], Any],
    state: str,
    caplog: pytest.LogCaptureFixture,
    mode_bound: None,
) -> None:
    def close_and_act() -> Any:
        (queue_dir / state).chmod(0o500)
        return act()

    handle_with(queue, close_and_act)
    id = queue.send_data("a")
    if state == "interrupted":
        with pytest.raises(KeyboardInterrupt, match="mine"):
            queue.receive_one()
    else:
        assert queue.receive_one()
    assert queue.status(id) is Status.PROCESSING
    assert any(id in record.message and "Permission denied" in record.message for record in caplog.records)
    (queue_dir / state).chmod(0o700)
    assert queue.claim(kind="file") is None  # any look for jobs will do
    assert find(queue_dir) == [f"{state}/raw-{id}"]
    assert list((queue_dir / "processing").iterdir()) == []


def test_a_job_that_can_not_be_read_fails_and_the_reason_is_logged(
    queue: Pacchettino, queue_dir: Path, caplog: pytest.LogCaptureFixture, mode_bound: None
) -> None:
    calls: list[str] = []
    queue.on_data_received(lambda id, data: calls.append(id))
    unreadable = queue.send_data("a")
    (queue_dir / f"queued/raw-{unreadable}").chmod(0)
    readable = queue.send_data("b")
    assert queue.receive() == 2
    assert calls == [readable]
    assert find(queue_dir) == [f"failed/raw-{unreadable}", f"success/raw-{readable}"]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert unreadable in record.message
    assert "Permission denied" in caplog.text


@pytest.mark.parametrize("policy", [KeepPolicy.ALL, KeepPolicy.NONE], ids=repr)
@pytest.mark.parametrize("verdict", [None, Result.FAILED, Result.RETRY, ValueError("mine")], ids=repr)
@pytest.mark.parametrize("act", ["move", "delete"])
def test_a_handler_that_takes_its_file_away_is_logged_and_nothing_else_breaks(
    queue_dir: Path, source: Path, act: str, verdict: Any, policy: KeepPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Pacchettino(queue_dir, policy)
    taken = source.with_name("taken")
    calls: list[str] = []

    @queue.on_file_received
    def handler(id: str, name: str, path: Path) -> Any:
        calls.append(id)
        if len(calls) > 1:
            return None
        if act == "move":
            shutil.move(path, taken)
        else:
            path.unlink()
        if isinstance(verdict, Exception):
            raiser(verdict)()
        return verdict

    ids = [queue.send_file(source) for _ in range(2)]
    assert queue.receive(fifo=True) == 2
    assert calls == ids
    assert taken.exists() == (act == "move")
    assert find(queue_dir) == ([f"success/fle-{ids[1]}-report.txt"] if policy else [])
    assert list((queue_dir / "processing").iterdir()) == []
    assert queue.status(ids[0]) is Status.UNKNOWN
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert ids[0] in warnings[0]


@pytest.mark.parametrize("kind", ["data", "file"])
@pytest.mark.parametrize(
    ("verdict", "state"), [(None, "success"), (Result.FAILED, "failed"), (Result.RETRY, "queued")], ids=repr
)
def test_a_file_put_beside_the_jobs_is_kept_and_logged_and_the_job_gets_its_verdict(
    queue: Pacchettino,
    queue_dir: Path,
    source: Path,
    kind: str,
    verdict: Any,
    state: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(directory: Path) -> Any:
        (directory / "beside").write_bytes(b"mine")
        return verdict

    queue.on_file_received(lambda id, name, path: handle(path.parent))
    queue.on_data_received(lambda id, data: handle(next((queue_dir / "processing").iterdir())))
    id = send(queue, kind, source)
    assert queue.receive() == 1
    assert (queue_dir / state / entry(kind, id)).read_bytes() == (b"data" if kind == "data" else b"content")
    (beside,) = (queue_dir / "processing").glob("*/beside")
    assert beside.read_bytes() == b"mine"
    assert str(beside.parent) in caplog.text
    assert queue.count_processing() == 0
    assert queue.count_all() == 1
    assert id in caplog.text
    send(queue, kind, source)
    handle_with(queue, lambda: None)
    assert queue.receive() >= 1  # the queue goes on


@pytest.mark.parametrize("kind", ["data", "file"])
def test_a_job_with_a_file_beside_it_comes_again_when_it_is_retried(
    queue: Pacchettino, queue_dir: Path, source: Path, kind: str
) -> None:
    def handle(directory: Path) -> Result:
        (directory / "beside").write_bytes(b"mine")
        return Result.RETRY

    queue.on_file_received(lambda id, name, path: handle(path.parent))
    queue.on_data_received(lambda id, data: handle(next((queue_dir / "processing").iterdir())))
    id = send(queue, kind, source)
    assert queue.receive_one()
    handle_with(queue, lambda: None)
    assert queue.receive_one(2)
    assert queue.status(id) is Status.SUCCESS


@pytest.mark.needs("a limit of descriptors")
def test_a_job_that_this_process_has_no_descriptor_left_to_read_waits_on(queue: Pacchettino) -> None:
    seen: list[str] = []
    queue.on_data_received(lambda id, data: seen.append(id))
    queue.claim()  # what is opened once is open
    id = queue.send_data("work")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 10, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        os.close(taken.pop())  # one is left, which the claim needs
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            queue.receive_one()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (seen, queue.status(id)) == ([], Status.QUEUED)
    assert queue.receive() == 1
    assert seen == [id]


def test_who_can_not_settle_is_given_only_a_few_more_jobs(queue: Pacchettino, mode_bound: None) -> None:
    seen: list[str] = []
    queue.on_data_received(lambda id, data: seen.append(id))
    ids = queue.send_many(["work"] * 30)
    success = queue.base_dir / "success"
    success.chmod(0o500)
    refused = 0
    for _ in ids:
        try:
            queue.receive_one()
        except PermissionError:
            refused += 1
    assert (len(seen), refused, queue.count_queued(), queue.count_processing()) == (8, 22, 22, 8)
    success.chmod(0o700)
    queue.receive()
    assert sorted(seen) == ids
    assert queue.count_successful() == 30


class Signalled:
    """A core whose claims are followed by a signal, before anybody has begun with them."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    @property
    def has_notices(self) -> bool:
        raise KeyboardInterrupt


@pytest.mark.parametrize("take", ["receive", "receive_one", "claim"])
def test_a_signal_on_the_way_to_the_handler_leaves_the_job_waiting(queue: Pacchettino, take: str) -> None:
    seen: list[str] = []
    queue.on_data_received(lambda id, data: seen.append(id))
    id = queue.send_data("work")
    core = queue._core
    queue._core = Signalled(core)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        getattr(queue, take)()
    queue._core = core
    assert (queue.status(id), seen) == (Status.QUEUED, [])
    assert queue.receive() == 1
    assert seen == [id]


def test_a_claim_that_can_not_be_recovered_keeps_nobody_from_the_others(queue: Pacchettino, mode_bound: None) -> None:
    queue.on_data_received(lambda id, data: None)
    blocked, *_ = queue.send_many(["work"] * 4)
    # The dead consumer's directory is not this process's to look into.
    dead = queue.base_dir / "processing" / f"raw-{blocked}.{'a' * 10}"
    dead.mkdir()
    (dead / "raw").write_text("half done")
    dead.chmod(0)
    assert queue.receive() == 4
    assert queue.is_processing(blocked)  # it may be
    dead.chmod(0o700)
    queue.receive()
    assert queue.is_interrupted(blocked)


def test_a_handler_that_can_not_take_its_arguments_is_refused_at_once(queue: Pacchettino) -> None:
    with pytest.raises(
        TypeError, match=r"a handler is called with \(id, data\), which .*<lambda> does not take: missing"
    ):
        queue.on_data_received(lambda id, data, more: None)  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match=r"called with \(id, name, path\), .* too many positional arguments"):
        queue.on_file_received(lambda id, path: None)  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match=r"a hook is called with \(job, outcome, seconds\)"):
        queue.on_settled(lambda job: None)  # type: ignore[arg-type, misc]
    queue.on_data_received = lambda *arguments: None
    queue.on_data_received = print
