"""The command: what each subcommand does, by `call` in this process.

What only a process has, by `run` or `terminal`: pipes and a terminal, its memory, its locale, its end by a signal.
"""

import base64
import getpass
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import (
    COMMAND,
    ODD_NAME,
    PATIENCE,
    call,
    call_main,
    dead_pid,
    environment,
    lay_down,
    new_id,
    run,
    terminal,
    until,
)
from pacchettino import Job, Pacchettino, Status
from pacchettino._command import check, parse

ROOT = Path(__file__).parent.parent
SUBCOMMANDS = (
    "send",
    "work",
    "status",
    "ls",
    "show",
    "requeue",
    "cancel",
    "cleanup",
    "pause",
    "resume",
    "top",
    "check",
)


@pytest.fixture
def queue_dir(quick_dir: Path) -> Path:
    """What the command does to a queue does not depend on the disk."""
    return quick_dir / "queue"


def rows(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def contents(queue: Pacchettino, status: Status = Status.QUEUED) -> list[bytes]:
    return [job.path.read_bytes() for job in queue.jobs(status)]


# Sending


def test_send_sends_files_and_prints_their_ids(queue: Pacchettino, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.txt", "-b", ODD_NAME)]
    for file in files:
        file.write_text(file.name, errors="surrogateescape")
    ids = call("send", queue.base_dir, *files[:1], "--", "-b", files[2], cwd=tmp_path).split()
    jobs = list(queue.jobs(Status.QUEUED))
    assert [job.id for job in jobs] == ids
    assert [job.name for job in jobs] == [file.name for file in files]
    assert [job.path.read_bytes() for job in jobs] == [os.fsencode(file.name) for file in files]
    assert all(file.exists() for file in files)


def test_send_moves_and_delays(queue_dir: Path) -> None:
    file = queue_dir.parent / "file"
    file.write_text("moved")
    (id,) = call("send", queue_dir, "--delay", "1.5h", "--move", file).split()
    assert not file.exists()
    with Pacchettino(queue_dir) as queue:  # which it made
        (job,) = queue.jobs(Status.SCHEDULED)
        assert job.id == id
        assert job.due is not None
        assert abs((job.due - job.sent_at).total_seconds() - 5400) < 1


def test_send_says_what_it_does_not_understand(queue: Pacchettino, tmp_path: Path) -> None:
    for arguments, said in (
        ((), "one of: FILEs, --data TEXT, --lines"),
        (("a", "--lines"), "one of: FILEs, --data TEXT, --lines"),
        (("a", "-"), "goes alone"),
        (("--data", "a", "--move"), "--move is for FILEs"),
        (("--data", "a", "--delay", "1y"), "'1y' (such as 90, 1.5h, 10m, 7d)"),
        (("--data", "a", "--delay", "999999999d"), "2286"),
        (("--data", "a", "--min-free", "1E"), "'1E' (such as"),
    ):
        call("send", queue.base_dir, *arguments, status=2, error=said)
    assert queue.count_all() == 0


def test_send_sends_text_and_standard_input(queue: Pacchettino) -> None:
    call("send", queue.base_dir, "--data", "a", "--data", os.fsdecode(b"\xc3\xbc\xff"), "--durable")
    call("send", queue.base_dir, "-", input=b"\0\xff\n")
    assert contents(queue) == [b"a", b"\xc3\xbc\xff", b"\0\xff\n"]


def test_a_file_that_can_not_be_sent_keeps_no_other_from_it(queue: Pacchettino, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "missing", "directory", "long" * 60, "b")]
    for file in files:
        if file.name not in ("missing", "directory"):
            file.touch()
    files[2].mkdir()
    printed = rows(call("send", queue.base_dir, *files, "--json", status=1, error="missing: No such file or directory"))
    jobs = list(queue.jobs(Status.QUEUED))
    assert printed == [{"id": job.id, "file": str(file)} for job, file in zip(jobs, (files[0], files[4]), strict=True)]


def test_each_line_is_a_job(queue: Pacchettino) -> None:
    ids = call("send", queue.base_dir, "--lines", input=b"a\n\n\xff\0\r\nb" + b"b" * 1_000_000).split()
    assert contents(queue) == [b"a", b"", b"\xff\0\r", b"b" * 1_000_001]
    assert [job.id for job in queue.jobs(Status.QUEUED)] == ids


def test_a_line_is_sent_as_soon_as_it_comes(queue: Pacchettino) -> None:
    command = [*COMMAND, "send", str(queue.base_dir), "--lines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        for line in (b"a\nb", b"c\n"):
            sender.stdin.write(line)
            sender.stdin.flush()
            id = sender.stdout.readline().decode().strip()  # comes, although there may be more to read
            assert queue.is_queued(id)
        sender.stdin.close()
    assert contents(queue) == [b"a", b"bc"]


def test_more_lines_take_no_more_memory(quick_dir: Path) -> None:
    def peak(lines: int) -> int:
        """Give the most memory that was taken to send so many lines, in kB."""
        report = "import sys\nfrom pacchettino._command import main\nmain()\n"
        report += "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
        command = [sys.executable, "-c", report, "send", str(quick_dir / str(lines)), "--lines"]
        done = subprocess.run(command, input=(b"a line" * 30 + b"\n") * lines, capture_output=True, check=True)
        assert len(done.stdout.split()) == lines
        return int(done.stderr)

    few, many = peak(2_000), peak(20_000)
    assert many < few + 2_000


def test_lines_stop_where_there_is_no_room_and_say_where_to_go_on(queue: Pacchettino) -> None:
    lines = "".join(f"{number}\n" for number in range(20))
    said = "8 lines were sent before, go on with line 9"
    ids = call("send", queue.base_dir, "--lines", "--max-queued", "8", input=lines, status=1, error=said).split()
    assert len(ids) == 8
    assert contents(queue) == [b"%d" % number for number in range(8)]


def test_who_blocks_waits_for_room(queue: Pacchettino) -> None:
    call("send", queue.base_dir, "--data", "a", "--max-queued", "1")
    said = "--block DURATION waits for room"
    call("send", queue.base_dir, "--data", "b", "--max-queued", "1", status=1, error=said)
    call("send", queue.base_dir, "--lines", "--max-queued", "1", input="b", status=1, error=f"{said}; nothing was sent")
    call("send", queue.base_dir, __file__, "--max-queued", "1", status=1, error=said)
    command = [*COMMAND, "send", str(queue.base_dir), "--data", "c", "--max-queued", "1", "--block", "forever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert select.select([sender.stdout], [], [], 0.5)[0] == []
        job = queue.claim()
        assert job is not None
        job.succeed()
        assert queue.is_queued(sender.stdout.readline().decode().strip())


# A terminal


def test_lines_have_a_progress_bar_on_a_terminal(queue: Pacchettino, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a line\n" * 2_000)
    command = [*COMMAND, "send", str(queue.base_dir), "--lines"]
    with (
        lines.open() as input,
        (tmp_path / "ids").open("w") as output,
        terminal(command, stdin=input, stdout=output) as (_, screen, _),
    ):
        shown = screen()
    begin, *_, end = shown.split("\r\x1b[K")
    assert "100% [####################] 1,000 jobs  " in begin
    assert " to go" in begin
    assert end.startswith("2,000 jobs sent in ")
    assert end.endswith("/s\r\n")
    assert len((tmp_path / "ids").read_text().split()) == 2_000


def test_ids_and_the_progress_of_a_pipe_share_a_terminal(queue: Pacchettino) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\n" * 2_000)
    os.close(writing)
    with terminal([*COMMAND, "send", str(queue.base_dir), "--lines"], stdin=reading) as (_, screen, _):
        os.close(reading)
        shown = screen().replace("\r\n", "\n").removesuffix("\n").split("\n")
    assert [line.rpartition("\x1b[K")[2] for line in shown[:-1]] == [job.id for job in queue.jobs(Status.QUEUED)]
    assert "2,000 jobs sent" in shown[-1]
    assert any("1,000 jobs" in line for line in shown)


def test_who_types_lines_sees_no_progress_but_how_to_end(queue: Pacchettino) -> None:
    with terminal([*COMMAND, "send", str(queue.base_dir), "--lines"]) as (_, screen, keys):
        os.write(keys, b"hello\n")
        until(queue.count_queued)
        os.write(keys, b"\x04")
        shown = screen()
    assert "each line as a job; Ctrl-D ends it" in shown
    assert "jobs" not in shown
    assert contents(queue) == [b"hello"]


def test_send_says_on_a_terminal_what_it_can_send(queue: Pacchettino) -> None:
    command = [*COMMAND, "send", str(queue.base_dir)]
    with terminal(command) as (process, screen, _):
        shown = screen()
    assert process.returncode == 2
    assert "one of: FILEs, --data TEXT, --lines, or - for standard input" in shown
    assert "pacchettino send queue photo.jpg *.pdf" in shown
    assert "examples" not in call("send", queue.base_dir, status=2, error="one of: FILEs")
    call("send", status=2, error="required: DIR\n")
    call("send", status=2, error="COMMAND | pacchettino send DIR [OPTION...] --lines")


@pytest.mark.parametrize(("more", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(queue: Pacchettino, more: dict[str, str], has_colours: bool) -> None:
    queue.send_data("a")
    queue.claim().fail("for a test")  # type: ignore[union-attr]
    env = environment(TERM="xterm") | more
    env = {name: value for name, value in env.items() if name != "NO_COLOR" or more}
    with terminal([*COMMAND, "status", str(queue.base_dir)], env=env) as (_, screen, _):
        shown = screen()
    assert ("\x1b[31mfailed " in shown) == has_colours
    assert ("\x1b" in shown) == has_colours
    assert "\x1b" not in call("status", queue.base_dir)


# Working


HANDLERS = """
import sys
from pacchettino import current_job

def data(id, data):
    print("data", data.decode(), flush=True)

def file(id, name, path):
    print("file", name, path.read_text(), flush=True)

def refused(id, data):
    raise ConnectionRefusedError("nobody is there")

class Deep:
    @staticmethod
    def er(id, data):
        print("deep", flush=True)

async def asynchronous(id, data):
    pass

number = 7
unnamed = lambda id, data: None
"""


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A directory with a module of handlers."""
    (tmp_path / "tasks.py").write_text(HANDLERS)
    return tmp_path


def test_work_runs_functions(queue: Pacchettino, workshop: Path) -> None:
    file = workshop / "name"
    file.write_text("content")
    queue.send_file(file)
    queue.send_data("hello")
    options: dict[str, Any] = {"cwd": workshop, "env": environment(PYTHONSAFEPATH="1")}  # as where it is installed
    assert call("work", queue.base_dir, "--drain", "--file", "tasks:file", **options) == "file name content\n"
    assert queue.count_queued() == 1
    assert call("work", queue.base_dir, "--data", "tasks:data", "--drain", **options) == "data hello\n"
    queue.send_data("")
    assert call("work", queue.base_dir, "--data", "tasks:Deep.er", "--drain", **options) == "deep\n"
    assert queue.count_successful() == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "or a command after --"),
        (["--"], "no command after --"),
        (["--data", "tasks:data", "--", "true"], "or a command after --"),
        (["wc", "-c"], "a command goes after --"),
        (["--", "no-such-command"], "no-such-command"),
        (["--data", "tasks"], "MOD:FUNC"),
        (["--data", "no_such_module:data"], "no module 'no_such_module'"),
        (["--data", "tasks:missing"], "no 'missing' in module 'tasks'"),
        (["--data", "tasks:number"], "callable"),
        (["--data", "tasks:asynchronous"], "async def"),
        (["--data", "tasks:data", "--retry-on", "tasks:number"], "exceptions"),
        (["--data", "tasks:data", "--retry-on", "KeyboardInterrupt"], "does not end the worker"),
        (["--data", "tasks:data", "--retry-delay", "soon"], "'soon' (such as 90, 1.5h, 10m, 7d)"),
        (["--data", "tasks:data", "--keep", "success,lost"], "'success,lost'"),
        (["--data", "tasks:data", "--threads", "0"], "1 or more"),
        (["--data", "tasks:data", "--threads", "2", "--job-timeout", "1"], "--threads 1"),
    ],
)
def test_work_says_what_it_does_not_understand(
    queue: Pacchettino, workshop: Path, arguments: list[str], said: str
) -> None:
    queue.send_data("a")
    call("work", queue.base_dir, "--drain", *arguments, status=2, error=said, cwd=workshop)
    assert queue.count_queued() == 1


@pytest.mark.parametrize("code", ["import no_such_module", "raise ValueError('no')", "open('missing')"])
def test_a_module_that_can_not_be_imported_shows_why(queue: Pacchettino, workshop: Path, code: str) -> None:
    (workshop / "broken.py").write_text(f"{code}\n")
    status, _, said = call_main("work", queue.base_dir, "--data", "broken:data", cwd=workshop)
    assert status == 1
    assert b'broken.py", line 1' in said


def test_work_has_the_settings_of_a_queue(queue: Pacchettino, workshop: Path) -> None:
    ids = queue.send_many(["a", "b"])
    retried = ("--retry-on", "ConnectionError", "--retry-on", "asyncio:CancelledError")
    more = (*retried, "--retry-delay", "1m..1h", "--keep", "failed", "--durable")
    call("work", queue.base_dir, "--drain", "--data", "tasks:refused", *more, cwd=workshop, error="nobody is there")
    for id in ids:
        (attempt,) = queue.history(id)
        assert attempt.due is not None
        assert 53 < (attempt.due - attempt.at).total_seconds() < 67
    queue.send_data("c")
    call("work", queue.base_dir, "--drain", "--keep", "failed,interrupted", "--", "true")
    assert queue.count_all() == 2

    lay_down(queue.base_dir, {f"processing/raw-{new_id()}.{dead_pid()}/raw".encode(): b"left"})
    more = ("--interrupted-attempts", "1", "--crash-detection", "pid")
    assert call("work", queue.base_dir, "--drain", *more, "--", "cat", error="died") == "left"


def test_work_in_several_processes(queue: Pacchettino, workshop: Path) -> None:
    queue.send_many(["a", "b", "c"])
    more = ("--drain", "--processes", "2", "--max-jobs", "1")
    printed = run("work", queue.base_dir, "--data", "tasks:data", *more, cwd=workshop)
    assert sorted(printed.splitlines()) == ["data a", "data b", "data c"]
    queue.send_data("d")
    assert run("work", queue.base_dir, *more, "--", "cat") == "d"
    in_a_child = "multiprocessing.current_process().name != 'MainProcess'"
    fatal = f"import multiprocessing, os\nif {in_a_child}:\n    os._exit(3)\ndef data(id, data): pass\n"
    (workshop / "fatal.py").write_text(fatal)
    queue.send_data("e")
    said = "ended before it began (exit status 3)"
    run("work", queue.base_dir, "--data", "fatal:data", *more, cwd=workshop, status=1, error=said)
    said = "define it at the top level of a module"
    call("work", queue.base_dir, "--data", "tasks:unnamed", *more, cwd=workshop, status=2, error=said)


# Looking and changing


def test_status_ls_and_show_tell_of_jobs(queue: Pacchettino, tmp_path: Path) -> None:
    file = tmp_path / ODD_NAME
    file.write_bytes(b"line\n\x1b[2J\xff" + b"x" * 1000)
    done, failed, named = queue.send_data("a"), queue.send_data("b"), queue.send_file(file)
    later, held = queue.send_data("d", delay=3600), queue.send_data("e")
    for job in sorted((queue.claim(kind="data") for _ in range(3)), key=lambda job: job.id if job else ""):
        assert job is not None
        if job.id == held:
            holding = job
        elif job.id == failed:
            job.fail("a \x1b[31m reason\nof two lines")
        else:
            job.succeed()

    counts = {"queued": 1, "scheduled": 1, "processing": 1, "success": 1, "failed": 1, "interrupted": 0}
    (told,) = rows(call("status", queue.base_dir, "--json"))
    assert {state: told[state] for state in counts} == counts
    assert 0 < told["oldest"] < PATIENCE
    assert told["next_due"].endswith("Z")
    assert told["paused"] is False
    assert [held["id"] for consumer in told["consumers"] for held in consumer["holds"]] == [held]
    lines = call("status", queue.base_dir).splitlines()
    assert [tuple(line.split()[:2]) for line in lines[:7]] == [
        ("STATE", "JOBS"),
        *((state, str(count)) for state, count in counts.items()),
    ]
    assert held in lines[-1]

    nobody = new_id()
    printed = call("status", queue.base_dir, done, nobody, "odd\n", status=1)
    assert printed == f"{done}  success\n{nobody}  unknown\n{'odd' + chr(92) + 'n':<36}  unknown\n"
    assert rows(call("status", queue.base_dir, failed, "--json")) == [{"id": failed, "status": "failed"}]

    assert call("ls", queue.base_dir, "queued") == f"{named}\n"
    (job,) = rows(call("ls", queue.base_dir, "queued", "--json"))
    assert (job["name"], job["size"], job["status"], job["due"]) == (ODD_NAME, 1010, "queued", None)
    heading, line = call("ls", queue.base_dir, "queued", "--long").splitlines()
    assert (heading.index("DUE"), heading.index("OWNER"), heading.index("NAME")) == (80, 102, 114)
    assert heading.split() == ["ID", "KIND", "SIZE", "SENT", "DUE", "OWNER", "NAME"]
    assert line.split()[:3] == [named, "file", "1010"]
    assert line.endswith(r"  -           two\nlines \x1b[31m \xff \u202e.txt")
    _, line = call("ls", queue.base_dir, "scheduled", "--long").splitlines()
    assert line.split()[0] == later
    _, line = call("ls", queue.base_dir, "processing", "--long").splitlines()
    assert line.split()[5] == next(job.owner for job in queue.jobs(Status.PROCESSING))

    shown = call("show", queue.base_dir, named)
    assert "\x1b" not in shown
    assert r"name    two\nlines \x1b[31m \xff \u202e.txt" in shown
    assert "content, the first 256 bytes:\n  line\n  \\x1b[2J\\xffxxx" in shown
    shown = call("show", queue.base_dir, failed)
    assert "attempt 1: failed  " in shown
    assert "\n  a \\u{1b}[31m reason\n  of two lines\n" in shown
    (told,) = rows(call("show", queue.base_dir, failed, "--json"))
    assert base64.b64decode(told["first_bytes_base64"]) == b"b"
    assert [attempt["ended"] for attempt in told["history"]] == ["failed"]
    call("show", queue.base_dir, nobody, status=1, error="there is no such job")
    holding.succeed()


def test_ls_lists_all_states_and_why_jobs_failed(queue: Pacchettino) -> None:
    reasons = {"failed": "no such user \x1b[31m" + "x" * 100, "interrupted": "it took\ntoo long", "success": None}
    ids = {}
    for state, reason in reasons.items():
        ids[state] = queue.send_data(state)
        job = queue.claim()
        assert job is not None
        claim = job._claim
        if state == "success":
            claim.succeed()
        else:
            (claim.fail if state == "failed" else claim.interrupt)(reason)
    ids["queued"], ids["scheduled"] = queue.send_data("a"), queue.send_data("b", delay=3600)
    in_order = [ids[state] for state in ("queued", "scheduled", "success", "failed", "interrupted")]
    assert call("ls", queue.base_dir).split() == in_order
    told = {row["id"]: row for row in rows(call("ls", queue.base_dir, "--json"))}
    assert list(told) == in_order
    stored = {state: queue.history(ids[state])[-1].reason for state in ("failed", "interrupted")}
    assert {state: told[id]["reason"] for state, id in ids.items()} == {
        "queued": None, "scheduled": None, "success": None, **stored
    }  # fmt: skip
    heading, *lines = call("ls", queue.base_dir, "--long").splitlines()
    assert heading.split() == ["ID", "STATE", "KIND", "SIZE", "SENT", "DUE", "OWNER", "NAME", "REASON"]
    assert [line.split()[:2] for line in lines] == [[id, state] for id in in_order for state in ids if ids[state] == id]
    assert [line[heading.index("REASON") :] for line in lines] == [
        "-", "-", "-", r"no such user \u{1b}[31m" + "x" * 100, r"it took\ntoo long"
    ]  # fmt: skip
    heading, line = call("ls", queue.base_dir, "failed", "--long").splitlines()
    assert heading.split() == ["ID", "KIND", "SIZE", "SENT", "NAME", "REASON"]
    assert line[heading.index("REASON") :].startswith("no such user")
    # A program that records nothing, such as one of the D library, moved it since: that reason is no longer why.
    entry = f"raw-{ids['failed']}"
    (queue.base_dir / "failed" / entry).rename(queue.base_dir / "interrupted" / entry)
    heading, *lines = call("ls", queue.base_dir, "interrupted", "--long").splitlines()
    assert [line[heading.index("REASON") :] for line in lines] == ["-", r"it took\ntoo long"]


def test_requeue_and_cancel_by_id(queue: Pacchettino) -> None:
    queue.send_data("a")
    job = queue.claim()
    assert job is not None
    job.fail()
    waiting, nobody = queue.send_data("b"), new_id()
    said = f"{waiting}: not requeued: it is queued"
    assert call("requeue", queue.base_dir, waiting, job.id, status=1, error=said) == f"{job.id}  requeued\n"
    printed = call("cancel", queue.base_dir, nobody, waiting, job.id, "--json", status=1, error="it is unknown")
    assert rows(printed) == [
        {"id": nobody, "cancelled": False},
        {"id": waiting, "cancelled": True},
        {"id": job.id, "cancelled": True},
    ]
    assert queue.count_all() == 0


def test_requeue_and_cleanup_by_state(queue: Pacchettino) -> None:
    queue.send_many(["a", "b", "c"])
    for verdict in (Job.succeed, Job.fail, Job.fail):
        verdict(queue.claim())  # type: ignore[arg-type, operator]
    lay_down(queue.base_dir, {f"processing/raw-{new_id()}.{dead_pid()}/raw".encode(): b"left"})
    # What it notices on the way is said.
    assert call("requeue", queue.base_dir, "--state", "interrupted", error="died") == "1 requeued\n"
    assert call("requeue", queue.base_dir, "--all", "--json") == '{"requeued": 2}\n'
    assert (queue.count_queued(), queue.count_successful()) == (3, 1)
    call("requeue", queue.base_dir, status=2, error="either IDs, or --all or --state")
    call("requeue", queue.base_dir, new_id(), "--all", status=2, error="either IDs, or --all or --state")

    queue.claim().fail()  # type: ignore[union-attr]
    call("cleanup", queue.base_dir, status=2, error="--older-than")
    assert call("cleanup", queue.base_dir, "--older-than", "7d") == "0 deleted\n"
    assert call("cleanup", queue.base_dir, "--older-than", "0", "--state", "failed") == "1 deleted\n"
    assert rows(call("cleanup", queue.base_dir, "--older-than", "0", "--json")) == [{"deleted": 1}]
    assert queue.count_all() == 2


def test_pause_and_resume(queue: Pacchettino) -> None:
    call("pause", queue.base_dir)
    assert queue.paused
    assert "paused" in call("status", queue.base_dir)
    call("resume", queue.base_dir)
    assert not queue.paused
    assert "paused" not in call("status", queue.base_dir)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", new_id()],
        ["ls", "queued"],
        ["show", new_id()],
        ["requeue", "--all"],
        ["cancel", new_id()],
        ["cleanup", "--older-than", "0"],
        ["pause"],
        ["resume"],
    ],
)
def test_to_look_at_a_queue_makes_none(tmp_path: Path, arguments: list[str]) -> None:
    name, *rest = arguments
    directory = tmp_path / "missing" if name in ("status", "pause") else tmp_path
    call(name, directory, *rest, status=2, error="there is no queue here")
    assert list(tmp_path.iterdir()) == []


def test_a_queue_whose_directories_are_partly_missing_is_named_as_that(
    queue_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SECOND_LOOK", 0.01)
    lay_down(queue_dir, {})
    for name in ("failed", "queued"):
        (queue_dir / name).rmdir()
    said = f"queued/, failed/ are missing, with the jobs that may have been there; `pacchettino check {queue_dir}`"
    for arguments in (["status"], ["ls"], ["pause"], ["requeue", "--all"], ["top"]):
        name, *rest = arguments
        call(name, queue_dir, *rest, status=1, error=said)
    assert not (queue_dir / "failed").exists()
    call("check", queue_dir, "--repair")
    assert call("status", queue_dir).startswith("STATE")
    (queue_dir / "owners").rmdir()
    call("status", queue_dir, status=1, error="owners/ is missing")


# As other commands


@pytest.mark.parametrize(
    "arguments", [["status"], ["send", "--data", "a"], ["ls", "--long"], ["requeue", "--all"], ["show", new_id()]]
)
def test_a_short_command_imports_little(queue: Pacchettino, arguments: list[str]) -> None:
    name, *rest = arguments
    code = "import sys\nbefore = set(sys.modules)\nfrom pacchettino._command import main\nmain()\n"
    code += "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    command = [sys.executable, "-c", code, name, str(queue.base_dir), *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    imported = set(done.stderr.splitlines()[-1].split())
    assert {"argparse", "pacchettino._core", "pacchettino._types"} <= imported  # or nothing was looked at
    assert not imported & {
        "asyncio", "base64", "concurrent", "dataclasses", "inspect", "json", "logging", "multiprocessing", "pathlib",
        "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "traceback", "unicodedata",
    }  # fmt: skip
    ours = {module for module in imported if module.startswith("pacchettino")}
    assert not ours & {"pacchettino._queue", "pacchettino._job", "pacchettino._work", "pacchettino._views"}
    assert len({module for module in ours if "._command." in module}) <= 3


def test_to_import_a_queue_imports_no_machinery_of_workers() -> None:
    code = "import sys\nbefore = set(sys.modules)\nfrom pacchettino import Pacchettino\n"
    code += "print(*sorted(set(sys.modules) - before))"
    imported = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert "pacchettino._queue" in imported
    assert not imported & {
        "asyncio", "concurrent", "multiprocessing", "pacchettino._children", "pacchettino.aio", "socket", "subprocess"
    }  # fmt: skip


def test_a_pipe_that_is_closed_early(quick_dir: Path) -> None:
    Pacchettino(quick_dir).send_many([""] * 3_000)  # whose ids are more than a pipe holds
    command = [*COMMAND, "ls", str(quick_dir), "queued"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == -signal.SIGPIPE


def test_output_that_can_not_be_written_is_an_error(queue: Pacchettino) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "status", str(queue.base_dir)]
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"pacchettino: No space left on device\n"
    closed = shlex.join([*COMMAND, "send", str(queue.base_dir), "--data", "a"])
    assert subprocess.run(["sh", "-c", f"{closed} >&- 2>&-"], check=False).returncode == 0
    assert queue.count_queued() == 1


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
)
def test_a_locale_without_the_letters_of_a_name(queue: Pacchettino, tmp_path: Path, locale: dict[str, str]) -> None:
    names = ["größe 日本", ODD_NAME]
    for name in names:
        (tmp_path / name).write_text("größe")
    env = environment(**locale)
    ids = run("send", queue.base_dir, *(tmp_path / name for name in names), env=env).split()
    assert [os.fsencode(str(job.name)) for job in queue.jobs(Status.QUEUED)] == [os.fsencode(name) for name in names]
    for arguments in (["ls", "queued", "--long"], ["show", ids[0]], ["show", ids[1]]):
        command = [*COMMAND, arguments[0], str(queue.base_dir), *arguments[1:]]
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\x1b" not in done.stdout
    run("show", queue.base_dir, "größe", env=env, status=1, error="there is no such job")


def test_no_message_has_what_acts_in_a_terminal(queue: Pacchettino, tmp_path: Path) -> None:
    odd, shown = "\x1b[2J\nforged", r"\x1b[2J\nforged"
    for status, arguments in (
        (2, ["status", tmp_path / odd]),
        (1, ["show", queue.base_dir, odd]),
        (1, ["cancel", queue.base_dir, odd]),
        (1, ["send", queue.base_dir, tmp_path / odd]),
        (2, ["ls", queue.base_dir, odd]),
        (2, ["send", queue.base_dir, f"--odd{odd}"]),
        (2, ["send", queue.base_dir, "--data", "a", "--delay", odd]),
        (2, ["send", queue.base_dir, "--data", "a", f"--m={odd}"]),
        (2, ["send", queue.base_dir, "--data", "a", f"--json={odd}"]),
        (2, [odd]),
        (2, ["work", queue.base_dir, "--", odd]),
        (2, ["check", tmp_path / odd]),
    ):
        call(*arguments, status=status, error=shown)
        assert "\x1b" not in call_main(*arguments)[2].decode()


def test_help_has_examples_that_are_understood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in SUBCOMMANDS:
        with pytest.raises(SystemExit, match="0"):
            parse([name, "--help"])
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        examples = [line.strip() for line in text.split("example")[-1].splitlines() if "pacchettino " in line]
        assert examples
        # Without jobs nothing is run, which would complain.
        assert all("xargs -r " in example for example in examples if "xargs" in example)
        for example in examples:
            # Without what is said of it, and each command of a pipe.
            for command in re.split("   +", example)[0].split(" | "):
                words = shlex.split(command)
                if "pacchettino" in words:
                    parse([*words[words.index("pacchettino") + 1 :], *["ID"] * command.startswith("xargs")])
    assert "--version" in call("--help")


def test_version_and_the_command_that_is_installed() -> None:
    installed = shutil.which("pacchettino", path=str(Path(sys.executable).parent))
    assert installed is not None
    shown = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown == run("--version") == call("--version")
    call(status=2, error="SUBCOMMAND")
    call("sned", status=2, error="'send'")


# Examples


def test_the_systemd_unit_is_understood(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: there is no systemd-analyze")
    unit = (ROOT / "examples" / "pacchettino-worker.service").read_text()
    begin = unit.index("ExecStart=")
    words = shlex.split(unit[begin : unit.index("\n\n", begin)].partition("=")[2].replace("\\\n", ""))
    parse(words[1:])
    # All that it needs is there but for the command, the user and the directory.
    here = unit.replace(words[0], sys.executable).replace("=pacchettino\n", f"={getpass.getuser()}\n")
    (tmp_path / "pacchettino-worker.service").write_text(here)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "pacchettino-worker.service")]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_container_s_command_is_understood() -> None:
    dockerfile = (ROOT / "examples" / "Dockerfile").read_text()
    entry, more = (json.loads(line.partition(" ")[2]) for line in dockerfile.splitlines() if line.endswith("]"))
    assert entry[0] == "pacchettino"
    parse([*entry[1:], *more])
