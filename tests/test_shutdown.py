"""The end of the interpreter: threads that wait, send, claim and handle are in nobody's way, and no job is lost."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from conftest import start_python
from helpers import ID, STATES, entries, everything, files, grow_old
from pacchettino import Pacchettino

TIMES = 20
PATIENCE = 60

BEGIN = '''
import os, sys, threading, time
from pathlib import Path
from pacchettino import CrashDetection, Pacchettino, Result

base = sys.argv[1]
settings = {"crash_detection": CrashDetection[sys.argv[2]]}
queue = Pacchettino(base, **settings)


def until_settled():
    """What a handler told of is not settled yet."""
    while any(Path(base, "processing").iterdir()):
        time.sleep(0.001)


def start(act, count=1):
    for _ in range(count):
        threading.Thread(target=act, daemon=True).start()
'''


def run(program: str, base: Path, *arguments: str | Path, exit_code: int = 0) -> str:
    """Run a program to its end, which must be silent; gives what it printed."""
    with start_python(BEGIN + program, base, *(arguments or ["LOCK_FILE"])) as process:
        try:
            answer, errors = process.communicate(timeout=PATIENCE)
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, errors) == (exit_code, "")
    return answer


def entries_by_id(base: Path) -> Counter[str]:
    """Count in how many places there is a file of each job."""
    found = (re.search(rb"(?:raw|fle)-(" + ID + rb")", path) for path in files(base) if not path.startswith(b"tmp/"))
    return Counter(match[1].decode() for match in found if match is not None)


def assert_each_is_in_one_state(base: Path, *sent: str) -> None:
    """Check that no job is lost or doubled, neither at once nor after a consumer has tidied up."""
    found = entries_by_id(base)
    assert set(sent) <= set(found)
    assert set(found.values()) <= {1}
    contents = [content for path, content in files(base).items() if not path.startswith(b"tmp/")]
    assert b"" not in contents
    assert len(set(contents)) == len(contents)
    grow_old(base)
    with Pacchettino(base) as queue:
        assert queue.claim(kind="file") is None
        assert entries_by_id(base) == found
        assert entries(base / "processing") == entries(base / "tmp") == []
        assert queue.count_all() == len(found)
        # Its own, at the most.
        assert len(entries(base / "owners")) <= 1


detections = pytest.mark.parametrize("detection", ["LOCK_FILE", "PID"])

WAIT = """
queue.on_data_received(lambda id, data: handled.put(id))
import queue as queues
handled = queues.SimpleQueue()


def wait():
    while queue.receive_one(timeout=None):
        pass


start(wait, 8)
ids = queue.send_many([b"1", b"2", b"3"])
assert sorted(handled.get() for _ in ids) == ids
until_settled()
"""

BUSY = """
import itertools
numbers = itertools.count()
going = threading.Event()
done = []
other = Pacchettino(base, **settings)
other.on_data_received(lambda id, data: [None, Result.FAILED, Result.RETRY][int(data) % 3])


def send():
    while True:
        sent.append(queue.send_data(str(next(numbers))))


def claim_and_settle():
    while True:
        with queue.claim(timeout=None) as job:
            done.append(job.id)
            if len(done) == 100:
                going.set()


def receive():
    while True:
        other.receive()


def receive_one():
    while other.receive_one(timeout=None):
        pass


sent = []
start(send)
start(claim_and_settle, 3)
start(receive_one, 2)
start(receive, 2)
assert going.wait(30)
"""

ENDS = {
    "at its last line": "",
    "by sys.exit": "sys.exit()",
    "while the main thread waited": """
import signal
signal.signal(signal.SIGALRM, lambda *_: sys.exit())
signal.setitimer(signal.ITIMER_REAL, 0.05)
Pacchettino(base, **settings).claim(timeout=None, kind="file")
""",
    "after the queue was closed": "queue.close()",
    "with a handler of atexit that sends": """
import atexit
atexit.register(lambda: queue.send_data("the last"))
""",
}


@detections
@pytest.mark.parametrize(
    "end", [pytest.param(end, marks=pytest.mark.needs("signals") if "SIGALRM" in ENDS[end] else ()) for end in ENDS]
)
def test_a_program_ends_in_peace_while_eight_threads_wait(tmp_path: Path, detection: str, end: str) -> None:
    for turn in range(3):
        base = tmp_path / str(turn)
        ids = run(WAIT + "print(*ids)\n" + ENDS[end], base, detection).split()
        if end == "with a handler of atexit that sends":
            assert len(entries_by_id(base)) == len(ids) + 1
        else:
            assert entries_by_id(base) == Counter(ids)
            assert entries(base / "processing") == []
        assert_each_is_in_one_state(base, *ids)


def test_a_program_ends_in_peace_twenty_times_while_eight_threads_wait(tmp_path: Path) -> None:
    for turn in range(TIMES):
        base = tmp_path / str(turn)
        ids = run(WAIT + "print(*ids)\n", base).split()
        assert entries_by_id(base) == Counter(ids)
        assert_each_is_in_one_state(base, *ids)


def test_a_program_ends_in_peace_twenty_times_while_threads_send_claim_and_settle(tmp_path: Path) -> None:
    for turn in range(TIMES):
        base = tmp_path / str(turn)
        end = [end for end in ENDS.values() if "SIGALRM" not in end or hasattr(signal, "SIGALRM")][turn % 3]
        sent = run(BUSY + "print(*list(sent))\n" + end, base, ["LOCK_FILE", "PID"][turn % 2]).split()
        assert len(sent) >= 100
        assert_each_is_in_one_state(base, *sent)


def test_a_program_ends_in_peace_while_threads_look_list_and_tidy(queue_dir: Path) -> None:
    run(
        """
queue.send_many(str(number) for number in range(50))
calls = [
    lambda: queue.status("01a227f2-b0d6-7000-826e-93b281bc7bc6"),
    lambda: list(queue.jobs(Pacchettino.Status.QUEUED)),
    lambda: queue.count_all(),
    lambda: queue.requeue_all(),
    lambda: queue.cleanup(older_than=60),
    lambda: Pacchettino(base).close(),
]
turns = threading.Semaphore(0)


def again_and_again(call):
    while True:
        call()
        turns.release()


for call in calls:
    start(lambda call=call: again_and_again(call))
for _ in range(200):
    turns.acquire()
""",
        queue_dir,
    )
    assert_each_is_in_one_state(queue_dir)
    assert len(entries(queue_dir / "queued")) == 50


@pytest.mark.parametrize("pace", ["time.sleep(0.001)", "pass"], ids=["that waits", "that runs"])
def test_a_program_ends_in_peace_while_a_thread_takes_what_it_sends_out_of_a_generator(
    queue_dir: Path, pace: str
) -> None:
    program = f"""
begun = threading.Event()


def items():
    while True:
        begun.set()
        {pace}
        yield b""


start(lambda: queue.send_many(items()))
assert begun.wait(30)
"""
    run(program, queue_dir)
    assert files(queue_dir) == {}


COPY = """
source = Path(base + ".source")
source.write_bytes(b"x" * (1 << 28))  # no hole, which is not copied
start(lambda: queue.send_file(source, copy=True))
while not (
    any(draft.stat().st_size for draft in Path(base, "tmp").iterdir() if not draft.name.startswith("owner-"))
    or queue.count_queued()
):
    time.sleep(0.001)
"""


@detections
@pytest.mark.parametrize("end", ["at its last line", "by sys.exit"])
def test_a_program_ends_in_peace_while_a_thread_sends_a_large_file(queue_dir: Path, detection: str, end: str) -> None:
    run(COPY + ENDS[end], queue_dir, detection)
    if entries(queue_dir / "queued"):  # the copy ended before the process did
        with Pacchettino(queue_dir) as queue, queue.claim() as job:
            assert job.path.stat().st_size == 1 << 28
        return
    assert [entries(queue_dir / state) for state in STATES] == [[]] * len(STATES)
    drafts = list((queue_dir / "tmp").iterdir())  # none, if the copy ended before the process did
    with Pacchettino(queue_dir) as queue:
        assert queue.claim() is None
        assert all(draft.exists() == (detection == "PID") for draft in drafts)
        grow_old(queue_dir)
        assert queue.claim() is None
        assert entries(queue_dir / "tmp") == []


@detections
@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("way", ["receive", "receive_one", "claim"])
def test_sys_exit_in_a_handler_interrupts_the_job_and_ends_the_program(
    queue_dir: Path, detection: str, code: int, way: str
) -> None:
    handle = {
        "receive": "queue.receive()",
        "receive_one": "queue.receive_one(timeout=None)",
        "claim": "with queue.claim(timeout=None) as job: sys.exit(code)",
    }[way]
    program = f"""
code = {code}
waiting = Pacchettino(base, **settings)
waiting.on_file_received(print)
start(lambda: waiting.receive_one(timeout=None), 4)
queue.on_data_received(lambda id, data: sys.exit(code))
print(queue.send_data("a"), queue.send_data("b"))
{handle}
"""
    ids = run(program, queue_dir, detection, exit_code=code).split()
    assert entries(queue_dir / "processing") == entries(queue_dir / "owners") == []
    assert len(entries(queue_dir / "queued")) == len(entries(queue_dir / "interrupted")) == 1
    assert_each_is_in_one_state(queue_dir, *ids)


def test_a_handler_of_a_thread_that_is_still_at_it_at_the_end_leaves_a_job_that_is_recovered(queue_dir: Path) -> None:
    program = """
handling = threading.Event()


@queue.on_data_received
def handle(id, data):
    handling.set()
    threading.Event().wait()


start(lambda: queue.receive_one(timeout=None))
print(queue.send_data("a"))
assert handling.wait(30)
"""
    id = run(program, queue_dir).strip()
    assert entries_by_id(queue_dir) == {id: 1}
    assert_each_is_in_one_state(queue_dir, id)
    assert entries(queue_dir / "interrupted") == [b"raw-" + id.encode()]


# The same after a fork

FORK = """

def in_children(count, act):
    \"\"\"Fork one child after the other, each of which does that and then ends as programs do.\"\"\"
    for number in range(count):
        child = os.fork()
        if not child:
            return act()
        end = time.monotonic() + 20
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                sys.exit(f"child {number} hangs at its end")
            time.sleep(0.002)
        if ended[1]:
            sys.exit(f"child {number} ended with {os.waitstatus_to_exitcode(ended[1])}")
"""


@detections
@pytest.mark.needs("fork")
def test_a_forked_child_ends_in_peace_while_its_own_threads_wait(queue_dir: Path, detection: str) -> None:
    program = """
import queue as queues
handled = queues.SimpleQueue()
queue.on_data_received(lambda id, data: handled.put(id))


def wait():
    while queue.receive_one(timeout=None):
        pass


def work():
    global handled
    handled = queues.SimpleQueue()
    start(wait, 8)
    ids = queue.send_many(f"{os.getpid()} {number}" for number in range(3))
    assert sorted(handled.get() for _ in ids) == ids
    until_settled()


in_children(5, work)
"""
    run(FORK + program, queue_dir, detection)
    assert len(entries(queue_dir / "success")) == 15
    assert_each_is_in_one_state(queue_dir)


@detections
@pytest.mark.needs("fork")
def test_a_forked_child_ends_in_peace_while_its_own_threads_send_claim_and_settle(
    queue_dir: Path, detection: str
) -> None:
    program = """
import itertools, logging
logging.getLogger("pacchettino").addHandler(logging.NullHandler())  # each child finds what the one before left


def work():
    numbers, done, going = itertools.count(), itertools.count(), threading.Event()

    def send():
        while True:
            queue.send_data(f"{os.getpid()} {next(numbers)}")

    def claim_and_settle():
        while True:
            with queue.claim(timeout=None):
                if next(done) == 50:
                    going.set()

    start(send, 2)
    start(claim_and_settle, 3)
    assert going.wait(20)


in_children(5, work)
"""
    run(FORK + program, queue_dir, detection)
    assert_each_is_in_one_state(queue_dir)


@pytest.mark.parametrize("way", ["waited", "sent, claimed and looked"])
@pytest.mark.needs("fork")
def test_a_child_forked_while_threads_of_its_parent_were_at_it_ends_in_peace(queue_dir: Path, way: str) -> None:
    program = """
import itertools
numbers = itertools.count()
queue.on_data_received(lambda id, data: None)
busy = sys.argv[3] != "waited"


def work():
    while queue.receive_one(timeout=None):
        if busy:
            queue.send_data(f"{os.getpid()} {next(numbers)}")


def look():
    while busy:
        queue.status("01a227f2-b0d6-7000-826e-93b281bc7bc6")


start(work, 6)
start(look, 2)
if busy:
    queue.send_many(f"{os.getpid()} {next(numbers)}" for _ in range(20))
in_children(TIMES, lambda: queue.send_data(f"{os.getpid()}"))
"""
    run(FORK + program.replace("TIMES", str(TIMES)), queue_dir, "LOCK_FILE", way)
    assert_each_is_in_one_state(queue_dir)


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.needs("fork")
def test_sys_exit_in_a_handler_of_a_forked_child_interrupts_its_job_and_ends_it(queue_dir: Path, code: int) -> None:
    program = f"""
queue.on_data_received(lambda id, data: sys.exit({code}))
waiting = Pacchettino(base)
waiting.on_file_received(print)
start(lambda: waiting.receive_one(timeout=None), 4)
queue.send_data("a")
child = os.fork()
if not child:
    queue.receive()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == {code}, status
assert queue.count_interrupted() == queue.count_all() == 1
"""
    run(program, queue_dir)
    assert entries(queue_dir / "owners") == []
    assert_each_is_in_one_state(queue_dir)
    assert [kind for kind, _ in everything(queue_dir / "interrupted").values()] == ["file"]
    assert os.listdir(queue_dir / "queued") == []  # noqa: PTH208
