"""What was measured, as tables and plots."""

import math
import os
import platform
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from html import escape
from importlib.metadata import version
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Figure:
    """What one round found: our figure for a case, and those of what stands beside it.

    Cases that begin alike up to a colon stand together.
    """

    case: str
    ours: float
    beside: dict[str, float] = field(default_factory=dict)
    unit: str = "jobs/s"


class Row:
    """All rounds of one case on one filesystem."""

    def __init__(self, filesystem: str, case: str, figures: list[Figure]) -> None:
        self.filesystem = filesystem
        self.case = case
        self.unit = figures[0].unit
        self.ours = median(figure.ours for figure in figures)
        names = figures[0].beside.keys()
        self.beside = {name: median(figure.beside[name] for figure in figures) for name in names}
        self.speed = {
            name: median(self._speed(figure.ours, figure.beside[name]) for figure in figures) for name in names
        }

    def _speed(self, ours: float, other: float) -> float:
        """How many times as fast; time is the inverse of speed."""
        return ours / other if self.unit == "jobs/s" else other / max(ours, 1e-9)


def rows(found: dict[str, list[Figure]]) -> list[Row]:
    """By case, then filesystem."""
    cases: dict[tuple[str, str], list[Figure]] = {}
    for filesystem, figures in found.items():
        for figure in figures:
            cases.setdefault((figure.case, filesystem), []).append(figure)
    groups = list(dict.fromkeys(case.partition(": ")[0] for case, _ in cases))
    names = list(dict.fromkeys(case for case, _ in cases))
    order = sorted(cases, key=lambda key: (groups.index(key[0].partition(": ")[0]), names.index(key[0])))
    return [Row(filesystem, case, cases[case, filesystem]) for case, filesystem in order]


def table(rows: list[Row]) -> str:
    """In Markdown; in parentheses how many times as fast as that what was measured is."""
    beside = list(dict.fromkeys(name for row in rows for name in row.beside))
    lines = [["", "on", "measured", *beside], ["---", "---", *["---:"] * (1 + len(beside))]]
    for row in rows:
        unit = "" if row.unit == "jobs/s" else f" {row.unit}"
        cells = [
            f"{number(row.beside[name])}{unit} (**{row.speed[name]:.2f}**)" if name in row.beside else ""
            for name in beside
        ]
        lines.append([row.case, row.filesystem, f"{number(row.ours)}{unit}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """With three significant digits."""
    if not value:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


COLOURS = ["#c2410c", "#38bdf8", "#0f766e", "#94a3b8", "#475569", "#0f172a"]


def plot(title: str, rows: list[Row]) -> str:
    """A line for each row, on which a dot stands for each figure; the scale is logarithmic."""
    left, width, step, top = 380, 560, 20, 60
    names = ["measured", *dict.fromkeys(name for row in rows for name in row.beside)]
    values = [value for row in rows for value in (row.ours, *row.beside.values()) if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    height = top + step * len(rows) + 30

    def x(value: float) -> float:
        return left + width * (math.log10(max(value, 10.0**low)) - low) / max(1, high - low)

    parts = [f'<text x="10" y="20" font-weight="bold">{escape(title)}; jobs/s</text>']
    for place, name in enumerate(names):
        at = 20 + place * 150
        parts.append(
            f'<circle cx="{at}" cy="40" r="5" fill="{COLOURS[place]}"/><text x="{at + 9}" y="44">{name}</text>'
        )
    for power in range(low, high + 1):
        at, label = x(10.0**power), f"{10.0**power:,.0f}" if power >= 0 else f"{10.0**power:g}"
        parts.append(f'<path d="M{at:.1f} {top - 8}V{height - 24}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle">{label}</text>')
    for place, row in enumerate(rows):
        y = top + step * place + 6
        unit = "" if row.unit == "jobs/s" else f", {row.unit}"
        label = escape(f"{row.case}, {row.filesystem}{unit}")
        parts.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{label}</text>')
        parts.append(f'<path d="M{left} {y}H{left + width}" stroke="#f1f5f9"/>')
        for name, value in reversed([("measured", row.ours), *row.beside.items()]):
            colour = COLOURS[names.index(name)]
            parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="5" fill="{colour}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def circumstances(packages: Iterable[str]) -> str:
    """Where and with what it was measured."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    rustc = subprocess.run(["rustc", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    facts = {
        "command": f"`python benches/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`".replace(" `", "`"),
        "date, commit": f"{date.today()}, {commit or 'unknown'}",
        "machine": f"{cpu[1] if cpu else platform.machine()}, {os.cpu_count()} processors, {memory:.0f} GB",
        "load at the end": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystems": "tmpfs; ext4 with default options in a loop-mounted image on tmpfs",
        "versions": f"Python {platform.python_version()}, {rustc}, SQLite {sqlite3.sqlite_version}, "
        + ", ".join(f"{package} {version(package)}" for package in packages),
    }
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items())])
