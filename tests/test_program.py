"""`pacchettino work DIR -- CMD`: each job is handed to a program, with real signals and real deaths."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import COMMAND, ODD_NAME, PATIENCE, child_of, environment, has_ended, new_id, run, terminal, until
from pacchettino import Pacchettino, Status


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that a test starts is gone after it; commands that ignore SIGTERM are killed soon."""
    monkeypatch.setenv("_PACCHETTINO_TIME_TO_END", "0.2")
    monkeypatch.setenv("TEST_OF_PACCHETTINO", mark := new_id())
    yield

    def left() -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark.encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                    found.append(int(process.name))
        return found

    for pid in left():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not left())


class Worker:
    """A worker in the background, and what it writes to standard error."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, text: str) -> None:
        """Wait until it has written that."""
        until(lambda: text in self.log or self.process.poll() is not None)
        assert text in self.log, self.log

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def working(command: list[str], home: Path, **options: Any) -> Iterator[Worker]:
    """Run a worker. It is killed at the end."""
    log = home / "log"
    with log.open("wb") as file, subprocess.Popen(command, stderr=file, **options) as process:
        try:
            yield Worker(process, log)
        finally:
            process.kill()


def ignore_children() -> None:
    """As a supervisor may leave it to what it starts."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


# Jobs


def test_a_command_gets_its_job(queue: Pacchettino, tmp_path: Path) -> None:
    file = tmp_path / ODD_NAME
    file.write_text("content")
    data, named = queue.send_data(b"bytes\0\xff"), queue.send_file(file)
    script = "import os, sys\nprint(repr((sys.argv[1:], sys.stdin.buffer.read(), sorted(e for e in os.environ.items() "
    script += "if e[0].startswith('PACCHETTINO_')))))"
    env = environment(PACCHETTINO_NAME="of an outer job", PACCHETTINO_OTHER="stays")
    command = (sys.executable, "-c", script, "{}", "a {}", "*")

    def told(id: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
        all = {"PACCHETTINO_ATTEMPT": "1", "PACCHETTINO_DIR": str(queue.base_dir), "PACCHETTINO_ID": id}
        return sorted([*all.items(), ("PACCHETTINO_OTHER", "stays"), *more])

    first, second = map(eval, run("work", queue.base_dir, "--fifo", "--drain", "--", *command, env=env).splitlines())
    assert first[0][1:] == second[0][1:] == ["a {}", "*"]
    assert Path(first[0][0]).parent.name.startswith(f"raw-{data}.")
    assert first[1:] == (b"bytes\0\xff", told(data))
    assert Path(second[0][0]).name == ODD_NAME
    assert second[1:] == (b"", told(named, ("PACCHETTINO_NAME", ODD_NAME)))
    assert queue.count_successful() == 2

    queue.requeue(named)
    assert run("work", queue.base_dir, "--drain", "--", "cat") == "content"


def test_the_exit_status_is_the_verdict(queue: Pacchettino) -> None:
    script = 'echo "attempt $PACCHETTINO_ATTEMPT" >&2; printf "line\\n50%%\\r100%%\\n" >&2; exit $(cat)'
    ends = {"0": queue.send_data("0"), "75": queue.send_data("75"), "3": queue.send_data("3")}
    arguments = ("--drain", "--fifo", "--max-attempts", "2", "--retry-delay", "0", "--", "sh", "-c", script)
    run("work", queue.base_dir, *arguments, error="attempt 2\n")
    assert queue.is_success(ends["0"])
    assert queue.is_failed(ends["75"])
    assert queue.is_failed(ends["3"])
    reason = "attempt {}\nline\n100%"
    assert queue.history(ends["0"]) == []
    assert [(attempt.ended, attempt.reason) for attempt in queue.history(ends["75"])] == [
        ("retry", f"exit status 75: {reason.format(1)}"),
        ("failed", f"given up after 2 attempts: exit status 75: {reason.format(2)}"),
    ]
    assert [attempt.reason for attempt in queue.history(ends["3"])] == [f"exit status 3: {reason.format(1)}"]


def test_a_reason_is_the_end_of_what_was_said(queue: Pacchettino) -> None:
    id = queue.send_data(b"x" * 1_000_000)  # which nobody reads
    script = "i=0; while [ $i -lt 2000 ]; do echo \"line $i \" >&2; i=$((i+1)); done; printf '\\377'>&2; kill -SEGV $$"
    run("work", queue.base_dir, "--drain", "--", "sh", "-c", script, error="line 0 \nline 1 \n")
    (attempt,) = queue.history(id)
    assert attempt.reason is not None
    assert attempt.reason.startswith("killed by SIGSEGV: ...")
    assert attempt.reason.endswith("line 1998 \nline 1999 \n\N{REPLACEMENT CHARACTER}")
    assert 900 < len(attempt.reason) <= 1_000


def test_what_a_command_leaves_behind_is_not_waited_for(queue: Pacchettino, tmp_path: Path) -> None:
    queue.send_data("a")
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo said >&2; exit 1"
    with working([*COMMAND, "work", str(queue.base_dir), "--drain", "--", "sh", "-c", script], tmp_path) as worker:
        assert worker.wait() == 0
    assert not has_ended(int((tmp_path / "pid").read_text()))
    (job,) = queue.jobs(Status.FAILED)
    assert queue.history(job.id)[0].reason == "exit status 1: said"


def test_what_is_left_behind_costs_no_thread_and_few_descriptors_and_is_read_on(
    queue: Pacchettino, tmp_path: Path
) -> None:
    ids = queue.send_many(["a"] * 40)
    script = f'(while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo "late $1" >&2; exec sleep 1000) & exit 0'
    command = [*COMMAND, "work", str(queue.base_dir), "--fifo", "--", "sh", "-c", script, "sh"]
    with working([*command, "{}"], tmp_path) as worker:
        until(lambda: queue.count_successful() == 40)
        assert len(list(Path(f"/proc/{worker.pid}/task").iterdir())) == 2
        assert len(list(Path(f"/proc/{worker.pid}/fd").iterdir())) < 60
        (tmp_path / "go").touch()
        worker.says(f"late {queue.base_dir}/processing/raw-{ids[-1]}")
    assert ids[0] not in worker.log  # of so many only the last are read


def test_a_data_job_is_never_read_by_its_worker(queue: Pacchettino) -> None:
    queue.send_data("a")
    (job,) = queue.jobs(Status.QUEUED)
    os.truncate(job.path, 1 << 42)  # more than any memory
    assert run("work", queue.base_dir, "--drain", "--", "head", "-c", "1") == "a"
    assert queue.count_successful() == 1


def test_a_fifo_that_somebody_put_in_place_of_the_job_s_file_keeps_nobody_waiting(
    queue: Pacchettino, tmp_path: Path
) -> None:
    queue.send_data("a")
    swapping = """if True:
        import os, sys
        from pacchettino import current_job
        from pacchettino._command import main
        from pacchettino._command.program import Program
        do = Program.__call__
        def swap_and_do(*arguments):
            path = current_job().path
            path.unlink()
            os.mkfifo(path)
            return do(*arguments)
        Program.__call__ = swap_and_do
        sys.exit(main())
    """
    command = [sys.executable, "-c", swapping, "work", str(queue.base_dir), "--drain", "--", "touch", f"{tmp_path}/run"]
    with working(command, tmp_path) as worker:
        assert worker.wait() == 0
    assert "a job must be a regular file" in worker.log
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_a_failure_is_known_where_sigchld_is_ignored(queue: Pacchettino, more: tuple[str, ...]) -> None:
    failed, again = queue.send_data("1"), queue.send_data("75")
    arguments = ("--drain", "--retry-delay", "1h", *more, "--", "sh", "-c", "exit $(cat)")
    run("work", queue.base_dir, *arguments, error="exit status 75", preexec_fn=ignore_children)
    assert queue.is_failed(failed)
    assert queue.is_scheduled(again)


def test_what_nobody_knows_the_exit_status_of_is_no_success(queue: Pacchettino, tmp_path: Path) -> None:
    id = queue.send_data("a")
    ignoring = """if True:
        import ctypes, os, signal, sys, threading, time
        from pacchettino._command import main
        def ignore():
            while not os.path.exists(sys.argv[-1] + "/pid"):
                time.sleep(0.01)
            ctypes.CDLL(None).signal(signal.SIGCHLD, signal.SIG_IGN)
            open(sys.argv[-1] + "/go", "w").close()
        threading.Thread(target=ignore).start()
        sys.exit(main())
    """
    arguments = waiting(queue, tmp_path, "--drain")[len(COMMAND) :]
    with working([sys.executable, "-c", ignoring, *arguments], tmp_path) as worker:
        assert worker.wait() == 0
    assert (tmp_path / "done").exists()
    assert queue.is_interrupted(id)
    assert "the exit status of its command is not known" in str(queue.history(id)[0].reason)


@pytest.mark.parametrize("processes", [1, 2])
def test_handlers_learn_exit_statuses_where_sigchld_is_ignored(
    queue: Pacchettino, tmp_path: Path, processes: int
) -> None:
    queue.send_data("a")
    (tmp_path / "tasks.py").write_text(
        "import subprocess\ndef data(id, data): print(subprocess.run('false').returncode)\n"
    )
    arguments = ("--drain", "--data", "tasks:data", "--processes", processes)
    assert run("work", queue.base_dir, *arguments, cwd=tmp_path, preexec_fn=ignore_children) == "1\n"


@pytest.mark.parametrize(
    "program",
    [
        "q = Pacchettino(sys.argv[1])\nq.on_data_received(lambda id, data: None)\nq.work(drain=True)",
        """if True:
        async def main():
            async with AsyncPacchettino(sys.argv[1]) as q:
                q.on_data_received(lambda id, data: None)
                await q.work(drain=True)
        asyncio.run(main())
        """,
    ],
    ids=["plain", "asyncio"],
)
def test_a_program_that_ignores_sigchld_is_told(queue: Pacchettino, program: str) -> None:
    program = f"import asyncio, sys\nfrom pacchettino import *\nfrom pacchettino.aio import *\n{program}"
    command = [sys.executable, "-c", program, str(queue.base_dir)]
    done = subprocess.run(command, preexec_fn=ignore_children, capture_output=True, text=True, check=True)
    assert "SIGCHLD is ignored" in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


# A command that can't be started


def remove(command: Path) -> Callable[[], object]:
    away = command.rename(command.with_name("away"))
    return lambda: away.rename(command)


def forbid(command: Path) -> Callable[[], object]:
    command.chmod(0o644)
    return lambda: command.chmod(0o755)


def garble(command: Path) -> Callable[[], object]:
    away = command.rename(command.with_name("away"))
    command.write_bytes(b"\0 is no program")
    command.chmod(0o755)
    return lambda: away.rename(command)


def write_to(command: Path) -> Callable[[], object]:
    return command.open("ab").close


@pytest.mark.parametrize(
    ("take_away", "said", "more"),
    [
        (remove, "No such file or directory", ("--threads", "3")),
        (forbid, "Permission denied", ("--threads", "1")),
        (garble, "Exec format error", ("--processes", "2")),
        (write_to, "Text file busy", ("--threads", "1")),
    ],
)
def test_while_a_command_can_not_be_started_its_jobs_wait(
    queue: Pacchettino,
    tmp_path: Path,
    take_away: Callable[[Path], Callable[[], object]],
    said: str,
    more: tuple[str, ...],
) -> None:
    command = tmp_path / "command"
    shutil.copy("/bin/true", command)
    first = queue.send_data("a")
    with working(
        [*COMMAND, "work", str(queue.base_dir), "--max-attempts", "1", *more, "--", command], tmp_path
    ) as worker:
        until(lambda: queue.is_success(first))
        give_back = take_away(command)
        ids = queue.send_many(["a"] * 10)
        worker.says(f"cannot start `{command}`: {said}; no job is begun, and none fails")
        assert queue.count_failed() == 0
        give_back()
        until(lambda: queue.count_successful() == 11)
        # A process notices the end with its next job.
        while worker.log.count(f"can start `{command}` again, after ") < worker.log.count("cannot start"):
            queue.send_data("a")
            until(lambda: queue.count_queued() == 0)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert queue.count_failed() == 0
    assert all(queue.history(id) == [] for id in ids)
    assert worker.log.count("cannot start") <= (2 if "--processes" in more else 1)


def test_while_a_worker_has_no_descriptors_its_jobs_wait(queue: Pacchettino, tmp_path: Path) -> None:
    first = queue.send_data("a")
    with working([*COMMAND, "work", str(queue.base_dir), "--max-attempts", "1", "--", "true"], tmp_path) as worker:
        until(lambda: queue.is_success(first))
        before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        # From none to as many as a command needs.
        for more in range(10):
            most = 1 + max(int(open.name) for open in Path(f"/proc/{worker.pid}/fd").iterdir())
            resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (most + more, before[1]))
            id = queue.send_data("a")
            until(lambda id=id: queue.is_success(id) or "Too many open files" in worker.log)
            resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
            until(lambda id=id: queue.is_success(id))
            assert queue.history(id) == []
        worker.says("Too many open files")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.parametrize("call", ["os.posix_spawn", "subprocess.Popen.__init__"], ids=["guard", "command"])
def test_while_there_is_no_process_to_be_had_jobs_wait(queue: Pacchettino, tmp_path: Path, call: str) -> None:
    id = queue.send_data("a")
    failing = f"""if True:
        import errno, os, subprocess, sys
        from pacchettino._command import main
        real = {call}
        def start(*arguments, **options):
            if not os.path.exists({str(tmp_path / "go")!r}):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return real(*arguments, **options)
        {call} = start
        sys.exit(main())
    """
    command = [sys.executable, "-c", failing, "work", str(queue.base_dir), "--drain", "--", "true"]
    with working(command, tmp_path) as worker:
        worker.says("cannot start `true`: Resource temporarily unavailable")
        assert not queue.is_failed(id)
        (tmp_path / "go").touch()
        assert worker.wait() == 0
    assert queue.is_success(id)
    assert queue.history(id) == []


@pytest.mark.parametrize("more", [(), ("--processes", "2", "--max-jobs", "1")])
def test_a_worker_whose_working_directory_is_gone_ends_and_names_it(
    queue: Pacchettino, tmp_path: Path, more: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy("/bin/true", home)
    first = queue.send_data("a")
    command = [*COMMAND, "work", str(queue.base_dir), *more, "--", "./true"]
    with working(command, tmp_path, cwd=home) as worker:
        until(lambda: queue.is_success(first))
        shutil.rmtree(home)
        id = queue.send_data("a")
        assert worker.wait() == 1
    assert f"the working directory {home} is gone" in worker.log
    assert queue.is_queued(id)
    starting = f"mkdir {home}; cd {home}; rmdir {home}; exec " + " ".join(map(str, command))
    with working(["sh", "-c", starting], tmp_path) as worker:
        assert worker.wait() == 1
    assert worker.log == f"pacchettino: the working directory {home} is gone; start the worker in one that exists\n"


# Stopping


WAIT = 'echo $$ > "$1/pid.tmp"; mv "$1/pid.tmp" "$1/pid"; while ! [ -e "$1/go" ]; do sleep 0.01; done; touch "$1/done"'


def waiting(queue: Pacchettino, home: Path, *options: str, script: str = WAIT) -> list[str]:
    """A worker's command that waits for the file `go`."""
    return [*COMMAND, "work", str(queue.base_dir), "--fifo", *options, "--", "sh", "-c", script, "sh", str(home)]


def started(home: Path) -> int:
    """Wait until it runs."""
    until((home / "pid").exists)
    return int((home / "pid").read_text())


def test_a_signal_that_wakes_another_thread_stops_a_worker_in_the_middle_of_a_command_too(
    queue: Pacchettino, tmp_path: Path
) -> None:
    queue.send_data("a")
    elsewhere = """if True:
        import signal, sys, threading
        from pacchettino import _work
        _work.SLICE = 0.1
        from pacchettino._command import main
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        sys.exit(main())
    """
    arguments = waiting(queue, tmp_path, "--grace", "0.1")[len(COMMAND) :]
    with working([sys.executable, "-c", elsewhere, *arguments], tmp_path) as worker:
        command = started(tmp_path)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 143
    assert has_ended(command)


SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_lets_the_command_finish(queue: Pacchettino, tmp_path: Path, number: int) -> None:
    first, second = queue.send_many(["a", "b"])
    with working(waiting(queue, tmp_path), tmp_path) as worker:
        started(tmp_path)
        worker.signal(number)
        (tmp_path / "go").touch()
        assert worker.wait() == 0
    assert (tmp_path / "done").exists()
    assert queue.is_success(first)
    assert queue.is_queued(second)


@pytest.mark.parametrize(
    ("number", "options", "ignored"),
    [
        (signal.SIGTERM, ("--threads", "1"), "TERM"),
        (signal.SIGINT, ("--threads", "1"), ""),
        (signal.SIGINT, ("--threads", "2"), ""),
        (signal.SIGTERM, ("--threads", "2"), ""),
        (signal.SIGTERM, ("--processes", "2"), "TERM"),
        (signal.SIGINT, ("--processes", "2"), ""),
    ],
)
def test_the_second_signal_ends_the_command_too(
    queue: Pacchettino, tmp_path: Path, number: int, options: tuple[str, ...], ignored: str
) -> None:
    id = queue.send_data("a")
    script = f"trap '' {ignored or 'HUP'}; sleep 1000 & {WAIT}"
    with working(waiting(queue, tmp_path, *options, script=script), tmp_path) as worker:
        command = started(tmp_path)
        children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
        assert children
        worker.signal(number)
        worker.says("a second signal leaves them")
        worker.signal(number)
        assert worker.wait() == (143 if number == signal.SIGTERM else -signal.SIGINT)
    assert not is_running(command)  # before others may begin the job once more
    until(lambda: all(has_ended(int(pid)) for pid in [command, *children]))
    queue.claim()
    assert queue.is_interrupted(id)
    assert not (tmp_path / "done").exists()


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_all_commands_are_ended_at_once(queue: Pacchettino, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PACCHETTINO_TIME_TO_END", str(PATIENCE))
    queue.send_many(["a"] * 8)
    # Each waits after its SIGTERM until all have got theirs.
    wait_for = "while [ $(ls $0/{0} | wc -l) -lt 8 ]; do sleep 0.01; done"
    last = f"touch $0/ended/$$; {wait_for.format('ended')}; touch $0/met/$$; exit"
    script = f"trap '{last}' TERM; touch $0/begun/$$; while :; do sleep 0.01; done"
    for name in ("begun", "ended", "met"):
        (tmp_path / name).mkdir()
    command = [*COMMAND, "work", str(queue.base_dir), "--threads", "8", "--", "sh", "-c", script, tmp_path]
    with working(command, tmp_path) as worker:
        until(lambda: len(list((tmp_path / "begun").iterdir())) == 8)
        worker.signal(signal.SIGTERM)
        worker.says("a second signal leaves them")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 143
    assert len(list((tmp_path / "met").iterdir())) == 8


def test_a_command_ends_with_the_grace(queue: Pacchettino, tmp_path: Path) -> None:
    id = queue.send_data("a")
    script = f"""trap 'echo "$1"/queue/processing/* > "$1/seen"; exit' TERM; {WAIT}"""
    with working(waiting(queue, tmp_path, "--grace", "0.1", script=script), tmp_path) as worker:
        command = started(tmp_path)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 143
    assert has_ended(command)
    assert id in (tmp_path / "seen").read_text()  # its job was nobody else's before
    assert queue.is_interrupted(id)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("ignored", ["", "TERM"])
def test_a_command_ends_with_the_time_of_its_job(queue: Pacchettino, tmp_path: Path, ignored: str) -> None:
    id = queue.send_data("a")
    script = f"trap '' {ignored or 'HUP'}; {WAIT}"
    arguments = ("--drain", "--job-timeout", "0.5", "--", "sh", "-c", script, "sh", tmp_path)
    run("work", queue.base_dir, *arguments, error="took longer than 0.5 s")
    assert not is_running(started(tmp_path))
    assert not (tmp_path / "done").exists()
    (attempt,) = queue.history(id)
    assert attempt.ended == "interrupted"
    assert "it took longer than 0.5 s" in str(attempt.reason)


@pytest.mark.parametrize("ignored", ["", "TERM"])
def test_the_job_of_a_worker_that_is_killed_is_nobody_else_s_until_its_command_is_gone(
    queue: Pacchettino, tmp_path: Path, ignored: str
) -> None:
    id = queue.send_data("a")
    script = f"trap '' {ignored or 'HUP'}; sleep 1000 & {WAIT}"
    with working(waiting(queue, tmp_path, script=script), tmp_path) as worker:
        command = started(tmp_path)
        children = [int(pid) for pid in Path(f"/proc/{command}/task/{command}/children").read_text().split()]
        worker.process.kill()
        worker.wait()
        until(lambda: queue.claim() is None and queue.is_interrupted(id))
        assert not any(map(is_running, [command, *children]))
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("signal.raise_signal(signal.SIGTERM); signal.raise_signal(signal.SIGTERM)", 143),
    ],
    ids=["is killed", "leaves"],
)
def test_a_worker_that_ends_as_it_starts_a_command_takes_that_along(
    queue: Pacchettino, tmp_path: Path, end: str, status: int
) -> None:
    id = queue.send_data("a")
    ending = f"""if True:
        import os, signal, subprocess, sys
        from pacchettino._command import main
        Popen = subprocess.Popen
        class Last(Popen):
            def __init__(self, command, **options):
                super().__init__(command, **options)
                while not os.path.exists(command[-1] + "/pid"):
                    pass
                {end}
        subprocess.Popen = Last
        sys.exit(main())
    """
    arguments = waiting(queue, tmp_path)[len(COMMAND) :]
    with working([sys.executable, "-c", ending, *arguments], tmp_path) as worker:
        assert worker.wait() == status
        command = started(tmp_path)
        until(lambda: queue.claim() is None and queue.is_interrupted(id))
        assert not is_running(command)
    assert not (tmp_path / "done").exists()


def test_a_guard_that_is_killed_is_replaced(queue: Pacchettino, tmp_path: Path) -> None:
    first, second = queue.send_data("a"), queue.send_data("b")
    with working(waiting(queue, tmp_path, "--threads", "2"), tmp_path) as worker:
        until(lambda: queue.count_processing() == 2)
        started(tmp_path)
        children = [
            pid for task in Path(f"/proc/{worker.pid}/task").glob("*/children") for pid in task.read_text().split()
        ]
        (guard,) = (pid for pid in children if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(int(guard), signal.SIGKILL)
        (tmp_path / "go").touch()
        until(lambda: queue.count_successful() == 2)
        for file in ("go", "pid", "done"):
            (tmp_path / file).unlink()
        third = queue.send_data("c")
        command = started(tmp_path)
        worker.process.kill()
        until(lambda: queue.claim() is None and queue.is_interrupted(third))
        assert not is_running(command)
    assert queue.is_success(first)
    assert queue.is_success(second)


def test_a_frozen_program_does_not_start_itself_as_the_guard(queue: Pacchettino, tmp_path: Path) -> None:
    queue.send_data("a")
    itself = tmp_path / "itself"
    itself.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    itself.chmod(0o755)
    frozen = f"""if True:
        import sys
        sys.frozen, sys.executable = True, {str(itself)!r}
        from pacchettino._command import main
        sys.exit(main())
    """
    arguments = waiting(queue, tmp_path, script=f"trap '' TERM; {WAIT}")[len(COMMAND) :]
    with working([sys.executable, "-c", frozen, *arguments], tmp_path) as worker:
        command = started(tmp_path)
        worker.process.kill()
        until(lambda: has_ended(command))
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "done").exists()


def test_ctrl_c_in_a_terminal(queue: Pacchettino, tmp_path: Path) -> None:
    first, second = queue.send_many(["a", "b"])
    with terminal(waiting(queue, tmp_path)) as (worker, screen, keys):
        started(tmp_path)
        os.write(keys, b"\x03")
        (tmp_path / "go").touch()
        assert "Ctrl-C finishes what is in hand" in screen()
        assert worker.returncode == 0
    assert (tmp_path / "done").exists()
    assert queue.is_success(first)
    assert queue.is_queued(second)


# The first process of a container


@contextmanager
def container(command: list[str], home: Path, **options: Any) -> Iterator[tuple[Worker, int]]:
    """Run a worker as the first process of PIDs of their own. Gives the PID that it has here, too."""
    under = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*under, "true"], capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: a PID namespace needs unshare, and the right to make one")
    with working([*under, *command], home, **options) as worker:
        until(lambda: Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text())
        yield worker, child_of(worker.pid)


def test_the_first_process_of_a_container_leaves_no_zombies(queue: Pacchettino, tmp_path: Path) -> None:
    queue.send_many(["a"] * 10)
    output = tmp_path / "output"
    # The last to end sees the others that ended.
    script = f"(sleep 0.01 & echo $! >> {tmp_path}/pids) & wait"
    with output.open("wb") as file:
        command = [*COMMAND, "work", str(queue.base_dir), "--", "sh", "-c", script]
        with container(command, tmp_path, stdout=file) as (worker, init):
            until(lambda: queue.count_successful() == 10)
            until(lambda: len((tmp_path / "pids").read_text().split()) == 10)
            inside = Path(f"/proc/{init}/root/proc")
            until(lambda: not any((inside / pid).exists() for pid in (tmp_path / "pids").read_text().split()))
            os.kill(init, signal.SIGTERM)
            assert worker.wait() == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_process_of_a_container_passes_signals_on(queue: Pacchettino, tmp_path: Path, number: int) -> None:
    first, second = queue.send_many(["a", "b"])
    with container(waiting(queue, tmp_path, script=f"trap '' TERM; {WAIT}"), tmp_path) as (worker, init):
        started(tmp_path)
        os.kill(init, number)
        worker.says("a second signal leaves them")
        os.kill(init, number)
        assert worker.wait() == 128 + number
    queue.claim(kind="file")
    assert queue.is_interrupted(first)
    assert queue.is_queued(second)
