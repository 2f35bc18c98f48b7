"""`pacchettino top`, in a real terminal: what it shows, its keys, and that the terminal is as before when it ends."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from helpers import Peer, call, until
from pacchettino import Fail, Pacchettino, Retry, Status, _core
from pacchettino._command import top

TOP = f"{shlex.quote(sys.executable)} -W error -m pacchettino top"
PATIENCE = 20
ODD_NAME = "a\x1b[2Jb\nc\t\u202e\udcff.txt"
ODD_NAME_SHOWN = r"a\x1b[2Jb\nc\t\u202e\xff.txt"


@pytest.fixture
def queue_dir(quick_dir: Path) -> Path:
    """What is shown of a queue does not depend on the disk."""
    return quick_dir / "queue"


class Terminal:
    """A terminal with a shell script in it."""

    _numbers = count()

    def __init__(self, script: str, width: int, height: int, environment: dict[str, str]) -> None:
        self._socket = f"pacchettino-test-{os.getpid()}-{next(self._numbers)}"
        # The size is the terminal's own, whatever a shell or a library exported once.
        environment = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "80", "LINES": "24", **environment}
        settings = [f"{name}={value}" for name, value in environment.items()]
        shell = ["env", "-u", "NO_COLOR", *settings, "sh", "-c", script]
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", str(width), "-y", str(height), shlex.join(shell))

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._tmux("capture-pane", "-p").split("\n")[:-1]]

    def text(self) -> str:
        return "\n".join(self.lines())

    def colours(self) -> set[str]:
        """Give the codes of all colours on the screen, that of the terminal itself left out."""
        codes = re.findall(r"\x1b\[([\d;]*)m", self._tmux("capture-pane", "-e", "-p"))
        return {code for text in codes for code in text.split(";") if re.fullmatch(r"[349][0-7]|[349]8", code)}

    def state(self) -> str:
        """Tell whether it shows a screen of its own, and the cursor."""
        return self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip()

    def shows(self, *texts: str) -> None:
        """Wait until it shows all of that."""
        end = time.monotonic() + PATIENCE
        while missing := [text for text in texts if text not in (screen := self.text())]:
            assert time.monotonic() < end, f"it does not show {missing}, but:\n{screen}"
            time.sleep(0.02)

    def close(self) -> None:
        self._tmux("kill-server")


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(queue: Pacchettino, tmp_path: Path) -> Iterator[Open]:
    """Opens terminals with `top` in them, and files beside the queue that tell of what was before and after."""
    if shutil.which("tmux") is None:
        pytest.skip("NOT TESTED: needs tmux")
    opened: list[Terminal] = []

    def open(
        width: int = 80, height: int = 24, options: str = "--interval 0.1", command: str = TOP, **environment: str
    ) -> Terminal:
        script = f"""
            cd {shlex.quote(str(tmp_path))}
            trap : INT TERM HUP
            echo the shell
            stty -g > before
            {command} {options} {shlex.quote(str(queue.base_dir))} 2> errors
            echo $? > status
            stty -g > after
            mv status ended
            read the_end_of_the_terminal"""
        opened.append(Terminal(script, width, height, environment))
        return opened[-1]

    yield open
    for terminal in opened:
        terminal.close()
    until(lambda: not _tops(tmp_path))


def fill(queue: Pacchettino, tmp_path: Path) -> dict[str, str]:
    """Give it failures, odd ones among them, and something to do."""
    file = tmp_path / os.fsdecode(ODD_NAME.encode(errors="surrogateescape"))
    file.touch()
    raised = iter([Fail("no such user\x1b[2J"), ValueError("two\nlines"), Retry(3600, "busy")])

    def handle(id: str, *_: object) -> None:
        raise next(raised)

    queue.on_data_received(handle)
    queue.on_file_received(handle)
    ids = {"odd": queue.send_file(file)}
    queue.receive()
    ids["failed"] = queue.send_data("b")
    queue.receive()
    ids["later"] = queue.send_data("c")
    queue.receive()
    queue.send_many(["d"] * 1234)
    return ids


@pytest.fixture
def filled(queue: Pacchettino, tmp_path: Path) -> dict[str, str]:
    return fill(queue, tmp_path)


# What it shows


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 16), (120, 10)])
def test_it_shows_counts_who_works_on_what_and_why_jobs_failed(
    queue: Pacchettino, filled: dict[str, str], terminal: Open, width: int, height: int
) -> None:
    with Peer(queue.base_dir) as peer:
        held = peer("job = queue.claim(); job.id")
        (owner,) = {consumer.owner for consumer in queue.stats().consumers}
        screen = terminal(width, height)
        screen.shows(
            "queued 1,233", "scheduled 1", "processing 1", "failed 2", "oldest waits", "next due in", "sent 0.0/s"
        )
        screen.shows(
            "working (1)", held[-6:], owner, "last failures", filled["odd"][-6:], filled["failed"][-6:], "ValueError"
        )
        lines = screen.lines()
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        assert lines[0].lstrip().startswith("/")
        assert lines[-1].startswith("q quit")
        # The last failure comes first.
        failed, odd = (
            next(place for place, line in enumerate(lines) if id[-6:] in line)
            for id in (filled["failed"], filled["odd"])
        )
        assert odd == failed + 1
        if width == 120:
            assert filled["odd"] in lines[odd]
            assert "no such user" in lines[odd]
            assert r"a\x1b[2Jb" in lines[odd]
        peer("job.succeed()")
        screen.shows("working (0)", "success 1")


def test_what_comes_is_shown_and_how_fast(queue: Pacchettino, terminal: Open) -> None:
    screen = terminal()
    screen.shows("queued 0", "sent 0.0/s")
    queue.send_many(["a"] * 100)
    screen.shows("queued 100")
    until(lambda: re.search(r"sent [1-9]", screen.text()))


def test_more_than_fits_is_scrolled_to_the_chosen_job(queue: Pacchettino, terminal: Open) -> None:
    queue.send_many(["a"] * 30)
    while job := queue.claim(fifo=True):
        job.fail(f"number {job.id[-4:]}")
    oldest = min(job.id for job in queue.jobs(Status.FAILED))
    screen = terminal(80, 12)
    screen.shows("failed 30")
    assert oldest[-6:] not in screen.text()
    screen.press(*["Down"] * 40)
    screen.shows(oldest[-12:])
    screen.press("Enter")
    screen.shows(oldest, f"number {oldest[-4:]}")


def test_ids_names_and_reasons_take_the_width_that_there_is(queue: Pacchettino, terminal: Open) -> None:
    ids = []
    for name, reason in (("a" * 50, "x" * 70), ("b" * 30, "why")):
        file = queue.base_dir.parent / name
        file.touch()
        ids.append(queue.send_file(file))
        job = queue.claim()
        assert job is not None
        job.fail(reason)
    wide = terminal(190, 12)
    wide.shows(f"{ids[0]} {'a' * 50} failed      {'x' * 70}", f"{ids[1]} {'b' * 30}")
    narrow = terminal(80, 12)
    narrow.shows(f"..{ids[1][-12:]} {'b' * 20}", "failed      why")
    queue.cleanup()
    queue.send_data("a")
    queue.claim().fail("x" * 100)  # type: ignore[union-attr]
    (job_info,) = queue.jobs(Status.FAILED)
    narrow.shows(f"{job_info.id} failed      xxxxxxx")


def test_colours_are_left_out_where_they_are_not_wanted(filled: dict[str, str], terminal: Open) -> None:
    coloured = terminal()
    coloured.shows("ValueError")
    assert coloured.colours() >= {"31"}
    plain = terminal(NO_COLOR="1")
    plain.shows("ValueError")
    assert plain.colours() == set()


# Keys


def test_its_keys_choose_show_requeue_pause_and_quit(
    queue: Pacchettino, filled: dict[str, str], terminal: Open, tmp_path: Path
) -> None:
    screen = terminal()
    screen.shows("ValueError")
    screen.press("r")
    screen.shows("choose a job that failed")
    screen.press("Down", "Down", "Enter")
    screen.shows(filled["odd"], "state    failed", ODD_NAME_SHOWN, r"no such user\u{1b}[2J", "attempt 1 failed")
    screen.press("Escape")
    screen.shows("last failures")
    screen.press("k", "Enter")
    screen.shows(filled["failed"], "ValueError: two", "Traceback (most recent call last):", "raise next(raised)")
    screen.press("q")  # from the page, not from the program
    screen.shows("last failures")
    screen.press("r")
    screen.shows(f"requeued {filled['failed']}", "failed 1")
    assert queue.is_queued(filled["failed"])
    screen.press("p")
    screen.shows("PAUSED")
    assert queue.paused
    screen.press("p")
    until(lambda: not queue.paused)
    until(lambda: "PAUSED" not in screen.text())
    screen.press("x", "C-z")  # mean nothing
    screen.press("q")
    until((tmp_path / "ended").exists)
    assert (tmp_path / "ended").read_text() == "0\n"
    assert (tmp_path / "errors").read_text() == ""


def test_a_chosen_job_stays_chosen_wherever_it_goes(queue: Pacchettino, terminal: Open) -> None:
    queue.send_many(["a", "b", "c"])
    with Peer(queue.base_dir) as peer:
        first, second, third = peer("jobs = [queue.claim(fifo=True) for _ in range(3)]; [job.id for job in jobs]")
        screen = terminal(100, 24)
        screen.shows(first, second, third)
        screen.press("Down", "Down")
        peer("jobs[1].fail('no luck')")
        screen.shows("working (2)", "no luck")
        screen.press("Enter")  # it is another line now
        screen.shows(second, "state    failed", "attempt 1 failed")
        screen.press("Escape")
        screen.press("Up")
        peer("jobs[2].succeed()")
        screen.shows("working (1)", f"chosen: {third} is success")
        screen.press("Enter")
        screen.shows(third, "state    success")
        screen.press("Escape")
        screen.shows("last failures")
        screen.press("Down", "Enter")  # what has its place now
        screen.shows(second, "state    failed")
        screen.press("Escape", "Up", "Enter")
        screen.shows(first, "state    processing")
        screen.press("Escape")
        peer("jobs[0].succeed()")
        screen.shows(f"chosen: {first} is success")
        screen.press("r")
        screen.shows(f"requeued {first}")
        assert queue.is_queued(first)


def test_a_held_job_is_shown_and_not_requeued(queue: Pacchettino, terminal: Open) -> None:
    queue.send_data("a")
    with Peer(queue.base_dir) as peer:
        held = peer("job = queue.claim(); job.id")
        screen = terminal()
        screen.shows(held[-6:])
        screen.press("j", "Enter")
        screen.shows(held, "state    processing", "owner")
        screen.press("Enter")
        screen.press("r")
        screen.shows("choose a job that failed")
        assert queue.is_processing(held)


def test_it_is_drawn_anew_when_the_terminal_is_resized(filled: dict[str, str], terminal: Open) -> None:
    screen = terminal(80, 24, "--interval 1h")
    screen.shows("ValueError")
    for width, height in ((40, 10), (100, 30), (20, 5), (80, 24)):
        screen.resize(width, height)
        until(lambda height=height: len(screen.lines()) == height and screen.lines()[-1].startswith("q quit"))
        assert max(map(len, screen.lines())) <= width
    screen.shows("ValueError")


# The end


@pytest.mark.parametrize(("how", "status"), [("q", 0), ("C-c", 130), ("TERM", 143), ("HUP", 129)])
def test_the_terminal_is_as_before_when_it_ends(
    filled: dict[str, str], terminal: Open, tmp_path: Path, how: str, status: int
) -> None:
    screen = terminal()
    screen.shows("ValueError")
    assert screen.state() == "1 0"
    if how in ("TERM", "HUP"):
        (pid,) = _tops(tmp_path)
        os.kill(pid, getattr(signal, f"SIG{how}"))
    else:
        screen.press(how)
    until((tmp_path / "ended").exists)
    assert (tmp_path / "ended").read_text() == f"{status}\n"
    assert (tmp_path / "errors").read_text() in ("", "Terminated\n", "Hangup\n")  # which the shell says
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    assert screen.state() == "0 1"
    assert screen.lines()[0] == "the shell"
    assert "failures" not in screen.text()


def _tops(directory: Path) -> list[int]:
    """Find the processes that show the queue in that directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"\0top\0" in (process / "cmdline").read_bytes() and (process / "cwd").resolve() == directory.resolve():
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def test_trouble_is_told_and_over_when_it_is(queue: Pacchettino, terminal: Open) -> None:
    screen = terminal()
    screen.shows("queued 0")
    away = queue.base_dir.with_name("away")
    queue.base_dir.rename(away)
    screen.shows("No such file or directory")
    away.rename(queue.base_dir)
    queue.send_data("a")
    screen.shows("queued 1")
    until(lambda: "No such file" not in screen.text())


# Without a screen


def start(queue: Pacchettino, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "pacchettino", "top", str(queue.base_dir), *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_into_a_pipe_it_prints_and_a_pipe_closed_early_is_no_trouble(
    queue: Pacchettino, filled: dict[str, str]
) -> None:
    with start(queue, "--interval", "0.1") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines = [running.stdout.readline() for _ in range(5)]
        assert re.match(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  queued 1,234  scheduled 1  processing 0  success 0  failed 2", lines[0]
        )
        assert lines[1].split() == ["since", "state", "job", "owner", "or", "reason"]
        assert filled["failed"] in lines[2]
        assert ODD_NAME_SHOWN in lines[3]
        assert "".join(lines).replace("\n", "").isascii()
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait() == -signal.SIGPIPE


def test_each_failure_is_printed_once(queue: Pacchettino, filled: dict[str, str]) -> None:
    with start(queue, "--interval", "0.1") as running:
        assert running.stdout is not None
        seen: list[str] = []
        later = ""
        while sum("queued " in line for line in seen) < 8:
            seen.append(running.stdout.readline())
            if not later and len([line for line in seen if "queued " in line]) == 4:
                job = queue.claim()
                assert job is not None
                later = job.id
                job.fail("later")
        running.kill()
    for id in (filled["failed"], filled["odd"], later):
        assert sum(id in line for line in seen) == 1


def test_jobs_that_are_deleted_when_they_are_done_count_as_settled(queue: Pacchettino) -> None:
    with start(queue, "--interval", "0.2") as running, Pacchettino(queue.base_dir, Pacchettino.KeepPolicy.NONE) as fast:
        assert running.stdout is not None
        assert running.stdout.readline()
        fast.send_many(["a"] * 1000)
        until(lambda: "queued 1,000" in (running.stdout.readline() if running.stdout else ""))
        for _ in range(500):
            job = fast.claim()
            assert job is not None
            job.succeed()

        def ratio() -> float:
            line = running.stdout.readline() if running.stdout else ""
            rates = re.search(r"sent ([\d,.]+)/s  settled ([\d,.]+)/s", line)
            return (
                0.0 if rates is None else float(rates[2].replace(",", "")) / max(0.1, float(rates[1].replace(",", "")))
            )

        until(lambda: abs(ratio() - 0.5) < 0.05)
        running.kill()


def test_without_rich_it_prints_on_a_terminal_as_well(filled: dict[str, str], terminal: Open, tmp_path: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from pacchettino._command import main; sys.exit(main())"
    screen = terminal(command=f"{shlex.quote(sys.executable)} -W error -c {shlex.quote(code)} top")
    screen.shows("queued 1,234", "the shell", "ValueError")
    assert screen.state() == "0 1"
    assert (tmp_path / "errors").read_text() == "pip install 'pacchettino[top]' makes this a screen with keys\n"


class Enough(Exception):
    pass


def test_a_large_queue_is_read_seldom(queue: Pacchettino, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, rests = time.sleep, []

    class Large:
        """A queue that takes long to read."""

        def __getattr__(self, name: str) -> object:
            return getattr(queue._core, name)

        def survey(self, since: int, failures: int) -> object:
            sleep(0.05)
            return queue._core.survey(since, failures)

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            raise Enough

    monkeypatch.setattr(time, "sleep", rest)
    with pytest.raises(Enough):
        top._print_on(top.Readings(cast(_core.Queue, Large()), 0.1))
    assert min(rests) >= 10 * 0.05
    rests.clear()
    with pytest.raises(Enough):
        top._print_on(top.Readings(queue._core, 7))
    assert rests == [7, 7, 7]


def test_where_there_is_no_queue_none_is_made(tmp_path: Path) -> None:
    call("top", tmp_path / "queue", status=2, error="there is no queue here")
    assert not (tmp_path / "queue").exists()
