"""The queues that a Python user would pick instead, each with its defaults, and ourselves in the same row.

A peer is a function that opens a queue in a directory and yields how a job is sent and how one is taken, done and
forgotten; its decorator says what a job of its survives.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pacchettino import KeepPolicy, Pacchettino


@dataclass(frozen=True)
class Calls:
    """What is measured of a peer."""

    send: Callable[[bytes], object]
    receive: Callable[[], object]
    send_many: Callable[[list[bytes]], object] | None = None


@dataclass(frozen=True)
class Peer:
    name: str
    package: str
    power_cut: str
    consumer_dies: str
    open: Callable[[Path], AbstractContextManager[Calls]]


PEERS: list[Peer] = []

# Of SQLite's two ways with a log, as its documentation has it.
FULL = "nothing is undone (WAL, synchronous=FULL)"
NORMAL = "the last commits may be undone (WAL, synchronous=NORMAL)"
UNFLUSHED = "the last seconds may be undone, files may be damaged (no flush)"


def peer(
    name: str, package: str, *, power_cut: str, consumer_dies: str
) -> Callable[[Callable[[Path], Iterator[Calls]]], None]:
    """Measure it, too, if its package, or its server, is there."""

    def add(function: Callable[[Path], Iterator[Calls]]) -> None:
        PEERS.append(Peer(name, package, power_cut, consumer_dies, contextmanager(function)))

    return add


def durability(peers: list[Peer]) -> str:
    """In Markdown: what is left of a peer's jobs."""
    lines = ["| | a power cut | the job in hand, when its consumer dies |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {peer.name} | {peer.power_cut} | {peer.consumer_dies} |" for peer in peers)])


def ours(directory: Path, keep_policy: KeepPolicy = KeepPolicy.ALL, *, durable: bool = False) -> Iterator[Calls]:
    queue = Pacchettino(directory, keep_policy, durable=durable)
    queue.on_data_received(lambda id, data: None)
    yield Calls(queue.send_data, queue.receive_one, queue.send_many)


@peer("pacchettino", "pacchettino", power_cut=UNFLUSHED, consumer_dies="kept, as interrupted")
def pacchettino(directory: Path) -> Iterator[Calls]:
    return ours(directory)


@peer("pacchettino, KeepPolicy.NONE", "pacchettino", power_cut=UNFLUSHED, consumer_dies="deleted, as is asked for")
def pacchettino_keeping_nothing(directory: Path) -> Iterator[Calls]:
    return ours(directory, KeepPolicy.NONE)


@peer("pacchettino, durable", "pacchettino", power_cut="nothing is undone", consumer_dies="kept, as interrupted")
def pacchettino_durable(directory: Path) -> Iterator[Calls]:
    return ours(directory, durable=True)


@peer("huey, SQLite", "huey", power_cut=FULL, consumer_dies="lost")
def huey_sqlite(directory: Path) -> Iterator[Calls]:
    from huey import SqliteHuey

    huey = SqliteHuey(filename=str(directory / "huey.db"))
    task = huey.task()(lambda data: None)
    yield Calls(task, lambda: huey.execute(huey.dequeue()))
    huey.storage.close()


@peer("huey, files", "huey", power_cut=UNFLUSHED, consumer_dies="lost")
def huey_files(directory: Path) -> Iterator[Calls]:
    from huey import FileHuey

    huey = FileHuey(path=str(directory))
    task = huey.task()(lambda data: None)
    yield Calls(task, lambda: huey.execute(huey.dequeue()))


@peer(
    "persist-queue, file",
    "persist-queue",
    power_cut="the last jobs may be undone (a flush for each 100)",
    consumer_dies="run again",
)
def persistqueue_file(directory: Path) -> Iterator[Calls]:
    from persistqueue import Queue

    queue = Queue(str(directory), tempdir=str(directory))  # the default only works on the filesystem of /tmp

    def receive() -> None:
        queue.get()
        queue.task_done()

    yield Calls(queue.put, receive)


@peer("persist-queue, SQLite ack", "persist-queue", power_cut=FULL, consumer_dies="run again")
def persistqueue_ack(directory: Path) -> Iterator[Calls]:
    from persistqueue import SQLiteAckQueue

    with closing(SQLiteAckQueue(str(directory))) as queue:
        yield Calls(queue.put, lambda: queue.ack(queue.get()))


@peer("dirq", "dirq", power_cut=UNFLUSHED, consumer_dies="stays locked, until a purge; then run again")
def dirq(directory: Path) -> Iterator[Calls]:
    from dirq.QueueSimple import QueueSimple

    queue = QueueSimple(str(directory))

    def take() -> Iterator[None]:
        while True:
            for name in queue:
                if queue.lock(name):
                    queue.get(name)
                    queue.remove(name)
                    yield

    yield Calls(queue.add, take().__next__)


@peer("litequeue", "litequeue", power_cut=NORMAL, consumer_dies="stays locked")
def litequeue(directory: Path) -> Iterator[Calls]:
    from litequeue import LiteQueue

    with closing(LiteQueue(str(directory / "queue.db"))) as queue:

        def send_many(items: list[bytes]) -> None:
            with queue.transaction():
                for item in items:
                    queue.put(item.decode())

        yield Calls(lambda data: queue.put(data.decode()), lambda: queue.done(queue.pop().message_id), send_many)


@peer("localqueue", "localqueue", power_cut=NORMAL, consumer_dies="run again, after its lease")
def localqueue(directory: Path) -> Iterator[Calls]:
    from localqueue import SimpleQueue

    with SimpleQueue(str(directory)) as queue:
        yield Calls(
            lambda data: queue.put(data.decode()),
            lambda: queue.ack(queue.get()),
            lambda items: queue.put_many([item.decode() for item in items]),
        )


@peer("diskcache.Deque", "diskcache", power_cut=NORMAL, consumer_dies="lost")
def diskcache(directory: Path) -> Iterator[Calls]:
    from diskcache import Deque

    queue = Deque(directory=str(directory))
    yield Calls(queue.append, queue.popleft)
    queue.cache.close()


@peer("kombu, filesystem", "kombu", power_cut=UNFLUSHED, consumer_dies="lost")
def kombu(directory: Path) -> Iterator[Calls]:
    from kombu import Connection

    folders = {f"data_folder_{way}": str(directory) for way in ("in", "out")}
    options = folders | {"control_folder": str(directory / "control")}
    with Connection("filesystem://", transport_options=options) as connection:
        # A new name, since the transport remembers, in all directories, which queues it made.
        queue = connection.SimpleQueue(uuid4().hex)
        yield Calls(lambda data: queue.put(data.decode()), lambda: queue.get(timeout=10).ack())


@peer(
    "Redis list, LMOVE and LREM",
    "redis",
    power_cut="the last minutes may be undone (snapshots)",
    consumer_dies="stays in the second list",
)
def redis(directory: Path) -> Iterator[Calls]:
    from redis import Redis

    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("there is no redis-server")
    socket = directory / "socket"
    with subprocess.Popen(
        [program, "--port", "0", "--unixsocket", socket, "--dir", directory], stdout=subprocess.DEVNULL
    ) as server:
        while not socket.exists():
            time.sleep(0.01)
        client = Redis(unix_socket_path=str(socket))

        def receive() -> None:
            job = client.lmove("queued", "processing", "LEFT", "RIGHT")
            client.lrem("processing", 1, job)

        try:
            yield Calls(
                lambda data: client.rpush("queued", data), receive, lambda items: client.rpush("queued", *items)
            )
        finally:
            server.terminate()
