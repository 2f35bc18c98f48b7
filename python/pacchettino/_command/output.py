"""What the command shows: tables, ages, JSON, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from pacchettino._text import safe

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_COLOURS = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}


def table(rows: Iterable[Sequence[str]], headings: Sequence[str], widths: Sequence[int] | None = None) -> Iterator[str]:
    """Lay out rows in columns, under their headings. Cells are made safe; the last column is not filled up.

    With `widths` a line comes as soon as its row does; without, all rows are looked at first.
    """
    cells: Iterator[list[str]] = ([safe(cell) for cell in row] for row in rows)
    if widths is None:
        known = list(cells)
        cells = iter(known)
        widths = [max(map(cells_of, column)) for column in zip(headings, *known, strict=True)]
    yield _line(headings, widths)
    for row in cells:
        yield _line(row, widths)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    *filled, last = cells
    padded = (cell + " " * (width - cells_of(cell)) for cell, width in zip(filled, widths, strict=False))
    return "  ".join([*padded, last])


def cells_of(text: str) -> int:
    """How many columns of a terminal text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def cut(line: str, width: int | None) -> str:
    """Have as much of a line as so many columns hold, with `...` at the end where it is cut; `None`: all of it."""
    if width is None or cells_of(line) <= width:
        return line
    room = max(0, width - 3)
    for place, character in enumerate(line):
        room -= cells_of(character)
        if room < 0:
            return f"{line[:place]}..."[:width]
    return line


def width_of(stream: TextIO | None) -> int | None:
    """Tell how many columns the terminal on that stream has; `None` if there is none."""
    try:
        return None if stream is None else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file
        return None


def columns() -> int:
    """Tell how wide a help text may be, as `shutil` does, whose import takes much longer."""
    told = os.environ.get("COLUMNS", "")
    return (int(told) if told.isascii() and told.isdigit() else 0) or width_of(sys.__stdout__) or 80


def age(seconds: float) -> str:
    """Tell a time span by its two largest units: `3m 20s`, `2d 4h`."""
    rest = max(0, int(seconds))
    if rest < 10 and seconds > 0:
        return f"{int(seconds * 10) / 10}s"
    for place, (unit, size) in enumerate(_UNITS):
        if rest >= size:
            whole, rest = divmod(rest, size)
            unit_below, size_below = _UNITS[min(place + 1, len(_UNITS) - 1)]
            below = rest // size_below if size > 1 else 0
            return f"{whole}{unit} {below}{unit_below}" if below else f"{whole}{unit}"
    return "0s"


def moment(time: datetime) -> str:
    """Tell a time as ISO 8601, UTC, to the second; all are equally long."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json(value: object) -> str:
    """Have one line of JSON, in ASCII. Times are ISO 8601 in UTC, odd bytes of names surrogates."""
    import json

    return json.dumps(value, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    raise TypeError(f"can't be written as JSON: {value!r}")


def has_colours(stream: TextIO) -> bool:
    """Whether colours are wanted there: on a terminal that has them, unless `NO_COLOR` says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """Have text in colour (`bold`, `red`, `green`, `yellow`), where colours are wanted."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if has_colours(stream) else text


class Progress:
    """A line on standard error that tells how far sending is, if that is a terminal which nobody types into.

    With `total`, which is what there is to be read, it has a bar, and tells how long it will take.
    """

    WIDTH = 20
    PAUSE = 0.1

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._stream = sys.stderr if is_terminal(sys.stderr) and not is_terminal(sys.stdin) else None
        self._shares_screen = is_terminal(sys.stdout)
        self._began = time.monotonic()
        self._next = self._began
        self._sent = 0
        self._is_shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._erase()
            passed = time.monotonic() - self._began
            self._write(f"{self._sent:,} jobs sent in {age(passed)}, {self._rate(passed):,.0f}/s\n")

    def hide(self) -> None:
        """Make way for output, where that goes to the same screen."""
        if self._shares_screen:
            self._erase()

    def show(self, sent: int, read: int) -> None:
        """Tell how many jobs were sent, and how much was read; not too often."""
        self._sent = sent
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next = now + self.PAUSE
        passed = now - self._began
        line = f"{sent:,} jobs  {self._rate(passed):,.0f}/s  {age(passed)}"
        if self._total:
            share = min(1.0, read / self._total)
            bar = "#" * int(share * self.WIDTH)
            line = f"{share:4.0%} [{bar:<{self.WIDTH}}] {line}, {age(passed / share - passed)} to go"
        self._erase()
        self._write(line[: (width_of(self._stream) or 80) - 1])
        self._is_shown = True

    def _rate(self, passed: float) -> float:
        return self._sent / max(passed, 0.001)

    def _erase(self) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with suppress(OSError):  # the terminal is gone; what matters goes on
                self._stream.write(text)
                self._stream.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether somebody sits there; a stream that was closed is `None`."""
    return stream is not None and stream.isatty()
