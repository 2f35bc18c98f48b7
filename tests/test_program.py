"""`pacchettino work DIR -- CMD`: each job is handed to a program, with real signals and real deaths."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import COMMAND, ODD_NAME, PATIENCE, environment, has_ended, run, terminal, until
from pacchettino import Pacchettino, Status

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
    command = [*COMMAND, "work", str(queue.base_dir), "--drain", "--", "sh", "-c", script]
    with (tmp_path / "error").open("wb") as error, (tmp_path / "output").open("wb") as output:
        subprocess.run(command, stdout=output, stderr=error, check=True, timeout=PATIENCE)
    left = int((tmp_path / "pid").read_text())
    assert not has_ended(left)
    os.kill(left, signal.SIGKILL)
    (job,) = queue.jobs(Status.FAILED)
    assert queue.history(job.id)[0].reason == "exit status 1: said"


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
        from pacchettino._command import main
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        sys.exit(main())
    """
    arguments = waiting(queue, tmp_path, "--grace", "0.1")[len(COMMAND) :]
    with subprocess.Popen([sys.executable, "-c", elsewhere, *arguments]) as worker:
        command = started(tmp_path)
        worker.terminate()
        assert worker.wait(PATIENCE) == 143
    assert has_ended(command)


SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_lets_the_command_finish(queue: Pacchettino, tmp_path: Path, number: int) -> None:
    first, second = queue.send_many(["a", "b"])
    with subprocess.Popen(waiting(queue, tmp_path)) as worker:
        started(tmp_path)
        worker.send_signal(number)
        (tmp_path / "go").touch()
        assert worker.wait(PATIENCE) == 0
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
    with subprocess.Popen(waiting(queue, tmp_path, *options, script=script)) as worker:
        command = started(tmp_path)
        children = Path(f"/proc/{command}/task/{command}/children").read_text().split()
        assert children
        # Two that come at once are one for Python: if the first was not taken yet, a third is the second.
        for pause in (0.3, 5, 5, 5):
            worker.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                worker.wait(pause)
                break
        assert worker.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT)
    if "--threads" in options:
        assert has_ended(command)  # before others may begin the job once more
    until(lambda: all(has_ended(int(pid)) for pid in [command, *children]))
    queue.claim()
    assert queue.is_interrupted(id)
    assert not (tmp_path / "done").exists()


def test_a_command_ends_with_the_grace(queue: Pacchettino, tmp_path: Path) -> None:
    id = queue.send_data("a")
    script = f"""trap 'echo "$1"/queue/processing/* > "$1/seen"; exit' TERM; {WAIT}"""
    with subprocess.Popen(waiting(queue, tmp_path, "--grace", "0.1", script=script)) as worker:
        command = started(tmp_path)
        worker.terminate()
        assert worker.wait(PATIENCE) == 143
    assert has_ended(command)
    assert id in (tmp_path / "seen").read_text()  # its job was nobody else's before
    assert queue.is_interrupted(id)
    assert not (tmp_path / "done").exists()


def test_a_command_ends_with_the_time_of_its_job(queue: Pacchettino, tmp_path: Path) -> None:
    id = queue.send_data("a")
    arguments = ("--drain", "--job-timeout", "1", "--", "sh", "-c", WAIT, "sh", tmp_path)
    run("work", queue.base_dir, *arguments, error="took longer than 1.0 s")
    until(lambda: has_ended(started(tmp_path)))
    assert not (tmp_path / "done").exists()
    assert [attempt.ended for attempt in queue.history(id)] == ["interrupted"]


def test_a_worker_that_is_killed_takes_its_command_along(queue: Pacchettino, tmp_path: Path) -> None:
    queue.send_data("a")
    with subprocess.Popen(waiting(queue, tmp_path, script=f"trap '' TERM; {WAIT}")) as worker:
        command = started(tmp_path)
        worker.kill()
    until(lambda: has_ended(command))
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
