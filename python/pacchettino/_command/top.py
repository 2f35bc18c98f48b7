"""The subcommand `top`: a queue at work, as it is now, and now.

With `rich` and a terminal it is a screen with keys; otherwise what it shows is printed from time to time.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pacchettino import _core
from pacchettino._command import add_subcommand, die_by, duration, existing
from pacchettino._command.look import reason_of
from pacchettino._command.output import age, cells_of, cut, moment, table, width_of
from pacchettino._text import safe, safe_lines
from pacchettino._types import from_milliseconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

RESTS = 10
"""How many times as long as a reading took the next one waits."""

FAILURES = 50
"""How many of the last failures are looked at."""

FIRST_FAILURES = 5
"""How many of them are printed that were there before."""

LENGTH_OF_ID = 36

LEAST_REASON = 20
"""How many columns a reason has, if there are so many."""

WINDOW = 10
"""Over how many seconds a rate is taken, where readings come that often."""


def add_parser(subparsers: Any, common: list[argparse.ArgumentParser]) -> None:
    """Have the subcommand `top`."""
    parser = add_subcommand(
        subparsers,
        common,
        "top",
        top,
        "watch a queue: counts, rates, who works on what, the last failures",
        """
On a terminal, and with `pip install 'pacchettino[top]'`, it is a screen with
keys: up and down choose a job, Enter shows it, r requeues it, p pauses the
queue or ends the pause, q quits. A chosen job stays chosen wherever it goes.
Else the same is printed every --interval, but each failure only once.

A large queue is read less often: a reading waits ten times as long as the one
before took. Rates are of what was seen: a job that is sent and deleted between
two readings is not, and one that is cancelled counts as settled.

examples:
  pacchettino top queue
  pacchettino top queue --plain --interval 1m | tee queue.log
""",
    )
    parser.add_argument("--interval", metavar="DURATION", type=duration, default=1.0, help="how often to read; 1s")
    parser.add_argument("--plain", action="store_true", help="print instead of showing a screen")


def top(arguments: argparse.Namespace) -> int:
    """Watch a queue until somebody has seen enough."""
    queue = existing(arguments.directory)
    readings = Readings(queue, max(0.1, arguments.interval))
    if arguments.plain or not sys.stdin.isatty() or not sys.stdout.isatty() or not _can_show():
        return _print_on(readings)
    return Screen(queue, readings).run()


def _can_show() -> bool:
    """Whether a screen can be shown on a terminal, and if not, say what it takes."""
    if os.environ.get("TERM", "dumb") == "dumb" or find_spec("termios") is None:
        return False
    if find_spec("rich") is None:
        print("pip install 'pacchettino[top]' makes this a screen with keys", file=sys.stderr)
        return False
    return True


# Reading


@dataclass(frozen=True, slots=True)
class Line:
    """A job that somebody works on, or that failed."""

    kind: Literal["working", "failed", "interrupted"]
    id: str
    name: str | None
    entry: str
    """By which the queue finds it fastest."""
    since: datetime
    """When it came there."""
    what: str
    """Who works on it, or why it failed."""

    def label(self, length: int = LENGTH_OF_ID) -> str:
        """Tell which job it is, by so much of the end of its id: the beginnings are alike."""
        id = self.id if length >= len(self.id) else f"..{self.id[-length:]}"
        return id if self.name is None else f"{id} {safe(self.name)}"


@dataclass(frozen=True, slots=True)
class View:
    """What a reading showed."""

    at: datetime
    took: float
    counts: dict[str, int]
    oldest: timedelta | None
    next_due: timedelta | None
    sent: float | None
    """Jobs in a second; `None` before the second reading."""
    settled: float | None
    paused: bool
    working: list[Line]
    failures: list[Line]

    def figures(self) -> list[tuple[str, str]]:
        """Give the figures, each with what it is of."""
        figures = [(state, f"{count:,}") for state, count in self.counts.items()]
        if self.oldest is not None:
            figures.append(("oldest waits", age(self.oldest.total_seconds())))
        if self.next_due is not None:
            figures.append(("next due in", age(self.next_due.total_seconds())))
        for name, rate in (("sent", self.sent), ("settled", self.settled)):
            if rate is not None:
                figures.append((name, f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"))
        return figures


class Readings:
    """Reads a queue, and compares with what was there before."""

    ORDER = ("queued", "scheduled", "processing", "success", "failed", "interrupted")

    def __init__(self, queue: _core.Queue, interval: float) -> None:
        self._queue = queue
        self._interval = interval
        self._reasons: dict[tuple[str, int], str] = {}
        self._before: tuple[int, int, int] | None = None
        self._moved: deque[tuple[float, int, int]] = deque()

    def rest(self, view: View) -> float:
        """Tell how long to wait after a reading: to watch a queue must not slow it."""
        return max(self._interval, RESTS * view.took)

    def take(self) -> View:
        """Read the queue."""
        began, now = time.monotonic(), time.time_ns() // 1_000_000
        since = now if self._before is None else self._before[0]
        counts, oldest, next_due, held, sent, failed = self._queue.survey(since, FAILURES)
        rates = self._rates(began, now, counts, sent)
        known = self._reasons  # is not read again
        self._reasons = {
            (id, at): known[id, at] if (id, at) in known else reason_of(self._queue, entry, state) or ""
            for at, state, id, _, entry in failed
        }
        return View(
            at=datetime.now(UTC),
            took=time.monotonic() - began,
            counts={state: counts[state] for state in self.ORDER},
            oldest=None if oldest is None else timedelta(milliseconds=now - oldest),
            next_due=None if next_due is None else timedelta(milliseconds=next_due - now),
            sent=rates[0],
            settled=rates[1],
            paused=self._queue.is_paused(),
            working=[
                Line(
                    "working",
                    id,
                    name,
                    f"raw-{id}" if name is None else f"fle-{id}-{name}",
                    from_milliseconds(at),
                    owner,
                )
                for owner, id, name, at in held
            ],
            failures=[
                Line(
                    "failed" if state == "failed" else "interrupted",
                    id,
                    name,
                    entry,
                    from_milliseconds(at),
                    self._reasons[id, at],
                )
                for at, state, id, name, entry in failed
            ],
        )

    def _rates(self, began: float, now: int, counts: dict[str, int], sent: int) -> tuple[float | None, float | None]:
        """Tell how many jobs a second were sent and settled.

        A job is settled that came to where the settled are kept, or that is gone.
        """
        all, kept = sum(counts.values()), counts["success"] + counts["failed"] + counts["interrupted"]
        if self._before is None:
            self._moved.append((began, 0, 0))
        else:
            _, all_before, kept_before = self._before
            sent = max(sent, all - all_before)  # some got their ids before the last reading, and their names after it
            settled = kept - kept_before + max(0, all_before + sent - all)
            self._moved.append((began, sent, max(0, settled)))
        self._before = now, all, kept
        while len(self._moved) > 2 and began - self._moved[1][0] >= WINDOW:
            self._moved.popleft()
        first, *later = self._moved
        if not later:
            return None, None
        passed = max(0.001, began - first[0])
        return sum(move[1] for move in later) / passed, sum(move[2] for move in later) / passed


# Printing


def _print_on(readings: Readings) -> int:
    printed: set[tuple[str, datetime]] | None = None
    while True:
        view = readings.take()
        width = width_of(sys.stdout)
        paused = "  PAUSED" if view.paused else ""
        print(f"{moment(view.at)}{paused}  " + "  ".join(f"{name} {value}" for name, value in view.figures()))
        if printed is None:
            failures = view.failures[:FIRST_FAILURES]
        else:
            failures = [line for line in view.failures if (line.id, line.since) not in printed]
        is_all = printed is None or len(failures) < FAILURES
        printed = {(line.id, line.since) for line in view.failures}
        lines = [*view.working, *failures]
        if lines:
            for text in _table(view, lines, width):
                print(text)
        if not is_all:
            print("  ... and failures before these")
        print(flush=True)
        time.sleep(readings.rest(view))


def _table(view: View, lines: list[Line], width: int | None) -> Iterator[str]:
    """Lay out lines in as many columns as a terminal has, or, where there is none, as they are."""
    layout = None if width is None else Layout.of(lines, width - 6)  # what is between the columns
    jobs = (line.label() if layout is None else cut(line.label(layout.id), layout.job) for line in lines)
    rows = [(_ago(view, line), line.kind, job, line.what) for line, job in zip(lines, jobs, strict=True)]
    for text in table(rows, ("since", "state", "job", "owner or reason")):
        yield cut(f"  {text}", width)


def _ago(view: View, line: Line) -> str:
    return age((view.at - line.since).total_seconds())


# The screen


class Reader(threading.Thread):
    """Reads in the background, so that keys are answered at once, and tells when there is something new."""

    def __init__(self, readings: Readings, tell: Any) -> None:
        super().__init__(daemon=True)
        self._readings = readings
        self._tell = tell
        self._wanted = threading.Event()
        self.view: View | None = None
        self.trouble = ""

    def run(self) -> None:
        rest = took = 1.0
        while True:
            self._wanted.clear()
            try:
                self.view = self._readings.take()
                rest, took, self.trouble = self._readings.rest(self.view), self.view.took, ""
            except OSError as error:
                self.trouble = str(error)
            self._tell()
            time.sleep(took)  # who holds a key down does not have it read all the time
            self._wanted.wait(max(0.0, rest - took))

    def again(self) -> None:
        """Read soon: something was changed."""
        self._wanted.set()


@dataclass(slots=True)
class Shown:
    """What one job's page shows."""

    title: str
    lines: list[str]
    top: int = 0


class Screen:
    """The live screen."""

    KEYS = "q quit  p pause  up/down choose  enter show  r requeue"
    KEYS_IN_SHORT = "q quit, p pause, enter show, r requeue"

    def __init__(self, queue: _core.Queue, readings: Readings) -> None:
        self._queue = queue
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)
        self._reader = Reader(readings, self._wake)
        self._ended_by: str | None = None
        self._chosen: Line | None = None
        self._place = 0
        """Where the chosen one is among the lines, or was last."""
        self._page: Shown | None = None
        self._message = ""

    def run(self) -> int:
        """Show it until a key or a signal ends it. Then the terminal is as it was."""
        from rich.console import Console
        from rich.control import Control
        from rich.screen import Screen as Whole

        console = Console(highlight=False)
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            stack.enter_context(_keys_at_once(sys.stdin.fileno()))
            stack.enter_context(console.screen())
            self._reader.start()
            quits = False
            while not quits and self._ended_by is None:
                # Of the terminal itself: LINES and COLUMNS, where some shell has set them, do not change with it.
                console.size = width, height = os.get_terminal_size(sys.stdout.fileno())
                console.print(Control.home(), Whole(self._drawn(width, height)), end="")
                for key in self._wait(0.5):
                    quits = self._obey(key) or quits
        return 0 if self._ended_by is None else die_by(self._ended_by)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Have signals end the loop in order, or draw anew; none breaks off the drawing."""

        def end(number: int, frame: object) -> None:
            self._ended_by = signal.Signals(number).name

        handlers = {signal.SIGINT: end, signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGWINCH: lambda *_: None}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakes = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakes)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wake(self) -> None:
        with suppress(OSError):
            self._theirs.send(b"\0")

    def _wait(self, longest: float) -> list[bytes]:
        """Wait for keys, or for something to draw."""
        ready, _, _ = select.select([sys.stdin, self._ours], [], [], longest)
        if self._ours in ready:
            with suppress(BlockingIOError):
                self._ours.recv(4096)
        if sys.stdin not in ready:
            return []
        typed = os.read(sys.stdin.fileno(), 4096)
        return re.findall(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", typed, re.DOTALL) or [b"q"]  # the terminal is gone

    # Keys

    def _obey(self, key: bytes) -> bool:
        """Do what a key says. Returns whether that is to quit."""
        self._message = ""
        step = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1}.get(key, 0)
        if self._page is not None:
            if step:
                self._page.top = max(0, self._page.top + step)
            else:
                self._page = None
            return False
        try:
            if step:
                self._choose(step)
            elif key in (b"\r", b"\n"):
                self._show()
            elif key == b"r":
                self._requeue()
            elif key == b"p":
                self._pause()
        except OSError as error:
            self._message = str(error)
        return key == b"q"

    def _lines(self) -> list[Line]:
        view = self._reader.view
        return [] if view is None else [*view.working, *view.failures]

    def _find_chosen(self) -> bool:
        """Look where the chosen line is now. Returns whether it is still shown."""
        for place, line in enumerate(self._lines()):
            if self._chosen is not None and line.id == self._chosen.id:
                self._chosen, self._place = line, place
                return True
        return False

    def _choose(self, step: int) -> None:
        lines = self._lines()
        if self._chosen is None:
            place = 0
        elif self._find_chosen():
            place = self._place + step
        else:  # the next one has its place now
            place = self._place + min(step, 0)
        if lines:
            self._place = min(max(0, place), len(lines) - 1)
            self._chosen = lines[self._place]

    def _requeue(self) -> None:
        is_shown = self._find_chosen()
        line = self._chosen
        if line is None or (is_shown and line.kind == "working"):
            self._message = "choose a job that failed: that can be requeued"
        elif self._queue.requeue(line.entry):
            self._message = f"requeued {line.id}"
        else:
            self._message = f"not requeued: {line.id} is {self._state(line)}"
        self._reader.again()

    def _state(self, line: Line) -> str:
        return self._queue.status(line.entry) or "gone"

    def _pause(self) -> None:
        if self._queue.is_paused():
            self._queue.resume()
        else:
            self._queue.pause()
        self._reader.again()

    def _show(self) -> None:
        self._find_chosen()
        line = self._chosen
        if line is None:
            self._message = "choose a job first"
            return
        state = self._state(line)
        sent = _core.sent_at(line.id)
        lines = [f"state    {state}", f"sent     {'' if sent is None else moment(from_milliseconds(sent))}"]
        if line.name is not None:
            lines.append(f"file     {safe(line.name)}")
        if state == "processing" and line.kind == "working":
            lines.append(f"owner    {line.what}, since {moment(line.since)}")
        for attempt in self._queue.history(line.entry):
            due = "" if attempt.due is None else f", next {moment(from_milliseconds(attempt.due))}"
            number = "" if attempt.ended == "requeued" else f"attempt {attempt.attempt} "
            lines += ["", f"{moment(from_milliseconds(attempt.at))}  {number}{attempt.ended}{due}"]
            lines += [f"  {text}" for text in safe_lines(attempt.reason or "")]
            lines += [f"  {text}" for text in safe_lines(attempt.traceback or "")]
        self._page = Shown(line.id, lines)

    # Drawing

    def _drawn(self, width: int, height: int) -> RenderableType:
        from rich.console import Group

        lines = self._drawn_page(width, height) if self._page is not None else self._drawn_queue(width, height)
        return Group(*lines[:height])

    def _drawn_page(self, width: int, height: int) -> list[Text]:
        assert self._page is not None
        room = height - 2
        self._page.top = max(0, min(self._page.top, len(self._page.lines) - room))
        shown = self._page.lines[self._page.top : self._page.top + room]
        texts = [_row([(self._page.title, width, "bold reverse")])]
        texts += [_row([(text, width, "")]) for text in shown]
        texts += [_row([("", width, "")])] * (room - len(shown))
        return [*texts, _row([("up/down scroll, any other key goes back", width, "dim")])]

    def _drawn_queue(self, width: int, height: int) -> list[Text]:
        view = self._reader.view
        title = f" {safe(self._queue.base)}"
        if view is None:
            return [_row([(title, width, "bold reverse")]), _row([(self._reader.trouble or "reading ...", width, "")])]
        state = " PAUSED " if view.paused else f" {view.at.astimezone():%H:%M:%S} "
        place = width - len(state)
        texts = [_row([(title, place, "bold reverse"), (state, len(state), "bold reverse" + " red" * view.paused)])]
        texts += _wrapped(view.figures(), width)
        room = max(2, height - len(texts) - 3)  # two headings and the last line
        working = min(len(view.working), max(room // 2, room - len(view.failures)))
        texts.append(_row([(f"working ({len(view.working)})", width, "bold")]))
        layout = Layout.of([*view.working, *view.failures], width)
        texts += [self._drawn_line(view, line, layout) for line in self._around(view.working, working)]
        texts.append(_row([("last failures", width, "bold")]))
        failures = min(len(view.failures), room - working)
        texts += [self._drawn_line(view, line, layout) for line in self._around(view.failures, failures)]
        texts += [_row([("", width, "")])] * (height - 1 - len(texts))
        return [*texts[: height - 1], self._drawn_end(width)]

    def _around(self, lines: list[Line], room: int) -> list[Line]:
        """Give as many lines as there is room for, with the chosen one among them."""
        chosen = next((place for place, line in enumerate(lines) if self._is_chosen(line)), 0)
        first = max(0, min(chosen - room // 2, len(lines) - room))
        return lines[first : first + room]

    def _is_chosen(self, line: Line) -> bool:
        return self._chosen is not None and line.id == self._chosen.id

    def _drawn_line(self, view: View, line: Line, layout: Layout) -> Text:
        style = "reverse" if self._is_chosen(line) else ""
        kind = {"working": "", "failed": "red", "interrupted": "yellow"}[line.kind]
        cells = [(_ago(view, line), layout.SINCE, style), (line.label(layout.id), layout.job, style)]
        if line.kind != "working":
            shown = line.kind if layout.state > len(line.kind) else line.kind[0].upper()
            cells.append((shown, layout.state, f"{style} {kind}"))
        return _row([*cells, (line.what, max(0, layout.width - sum(cell[1] for cell in cells)), style)])

    def _drawn_end(self, width: int) -> Text:
        said = self._reader.trouble or self._message
        if not said and self._chosen is not None and not self._find_chosen():
            with suppress(OSError):
                said = f"chosen: {self._chosen.label()} is {self._state(self._chosen)}"
        if said:
            return _row([(said, width, "bold yellow")])
        return _row([(self.KEYS if len(self.KEYS) <= width else self.KEYS_IN_SHORT, width, "dim")])


@dataclass(frozen=True, slots=True)
class Layout:
    """How wide the columns of a line are."""

    SINCE: ClassVar = 8

    width: int
    id: int
    """How much of an id is shown."""
    job: int
    state: int

    @staticmethod
    def of(lines: list[Line], width: int) -> Layout:
        """Give jobs and reasons what they take, and where that is too much, half of the width to each."""
        state = 12 if width >= 60 else 2
        rest = width - Layout.SINCE - state
        reason = max((cells_of(safe(line.what)) for line in lines), default=0)
        room = max(12, min(rest - LEAST_REASON, max(rest // 2, LENGTH_OF_ID + 1, rest - reason)))
        longest = {
            length: max((cells_of(line.label(length)) + 1 for line in lines), default=0)
            for length in (LENGTH_OF_ID, 12, 6)
        }
        fits = (length for length, cells in longest.items() if cells <= room)
        id = next(fits, 12 if room >= LENGTH_OF_ID else 6)
        return Layout(width, id, min(longest[id], room), state)


def _row(cells: list[tuple[str, int, str]]) -> Text:
    """Make a line of cells: text, how wide, in which style. What is too long is cut off."""
    from rich.text import Text

    row = Text(no_wrap=True, overflow="crop")
    for place, (text, width, style) in enumerate(cells, 1):
        cell = Text(safe(text), style=style.strip())
        cell.truncate(max(0, width - (place < len(cells))), overflow="ellipsis")  # with a gap to the next one
        cell.pad_right(max(0, width - cell.cell_len))
        row.append_text(cell)
    return row


def _wrapped(figures: list[tuple[str, str]], width: int) -> list[Text]:
    """Lay out figures on as many lines as they take."""
    from rich.text import Text

    rows = [Text(no_wrap=True)]
    for name, value in figures:
        figure = Text.assemble((f"{name} ", "dim"), (value, "bold"))
        if rows[-1].cell_len and rows[-1].cell_len + 2 + figure.cell_len > width:
            rows.append(Text(no_wrap=True))
        rows[-1].append("  " if rows[-1].cell_len else "").append_text(figure)
    return rows


@contextmanager
def _keys_at_once(terminal: int) -> Iterator[None]:
    """Have keys come as they are typed, and unseen. Ctrl-Z would leave the screen to the shell: it does nothing."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        now = termios.tcgetattr(terminal)
        now[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(terminal, termios.TCSADRAIN, now)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
