"""Run the Python tests in two pytest processes side by side, and print one summary.

    python tests/halves.py [--half N] [--record] [PYTEST OPTION ...]

The files are split by how long each one took when `--record` was last used (`tests/data/seconds.json`). Every line of
output begins with the number of its half. `--half N` runs one half alone, which is how a failure is repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import timedelta
from pathlib import Path

TESTS = Path(__file__).resolve().parent
RECORD = TESTS / "data" / "seconds.json"
HALVES = (1, 2)

# A new file counts for as much until `--record` knows better.
UNKNOWN = 5.0


def split(seconds: dict[str, float]) -> dict[int, list[str]]:
    """Deal the test files out, the longest first, each to the half that has less to do."""
    files = {path.name: seconds.get(path.name, UNKNOWN) for path in TESTS.glob("test_*.py")}
    halves: dict[int, list[str]] = {number: [] for number in HALVES}
    load = dict.fromkeys(HALVES, 0.0)
    for name in sorted(files, key=lambda name: (-files[name], name)):
        number = min(load, key=lambda number: (load[number], number))
        halves[number].append(name)
        load[number] += files[name]
    return halves


# What a test is called in pytest's summary, by the element that its report has; "" for none.
OUTCOMES = {"failure": "failed", "": "passed", "skipped": "skipped", "xfail": "xfailed", "error": "error"}


def in_memory() -> dict[str, str]:
    """Return this environment, with temporary files in memory unless it names a place for them.

    What a test does to a directory again and again takes ten times as long on a disk. Tests that need a certain
    filesystem make or choose one.
    """
    memory = "/dev/shm"
    return {**({"TMPDIR": memory} if os.access(memory, os.W_OK) else {}), **os.environ}


class Half:
    """One pytest process: its files, its output, and its report."""

    def __init__(self, number: int, names: list[str], options: list[str], folder: Path) -> None:
        self.number = number
        self._report = folder / f"{number}.xml"
        # Two processes would overwrite each other's cache.
        settings = ["-q", "-p", "no:cacheprovider", f"--junitxml={self._report}"]
        files = [str(TESTS / name) for name in names]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *settings, *options, *files],
            cwd=TESTS.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=in_memory(),
            text=True,
            errors="replace",
        )
        self._printer = threading.Thread(target=self._print)
        self._printer.start()

    def _print(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(f"{self.number} | {line}", end="", flush=True)

    def wait(self) -> int:
        """Return pytest's exit status; a half in which nothing was selected has not failed."""
        status = self._process.wait()
        self._printer.join()
        return 0 if status == 5 else status

    def cases(self) -> list[ElementTree.Element]:
        """Return what the report says of each test; nothing if pytest did not live to write it."""
        return list(ElementTree.parse(self._report).iter("testcase")) if self._report.exists() else []


def outcome(case: ElementTree.Element) -> str:
    """Return the word that pytest's summary has for it."""
    skipped = case.find("skipped")
    if skipped is not None and skipped.get("type") == "pytest.xfail":
        return "xfailed"
    return next((word for tag, word in OUTCOMES.items() if case.find(tag) is not None), OUTCOMES[""])


def record(cases: list[ElementTree.Element]) -> None:
    """Write down how long each file took."""
    seconds: Counter[str] = Counter()
    for case in cases:
        seconds[case.get("classname", "").removeprefix("tests.") + ".py"] += float(case.get("time", 0))  # type: ignore[assignment]
    RECORD.write_text(json.dumps({name: round(seconds[name], 1) for name in sorted(seconds)}, indent=4) + "\n")


def main() -> int:
    """Run the halves; return the exit status."""
    parser = argparse.ArgumentParser(description="Run the Python tests in two processes side by side.")
    parser.add_argument("--half", type=int, choices=HALVES, help="run this half alone")
    parser.add_argument("--record", action="store_true", help="write down how long each file takes")
    arguments, options = parser.parse_known_args()
    began = time.monotonic()
    halves = split(json.loads(RECORD.read_text()))
    with tempfile.TemporaryDirectory(prefix="pacchettino-halves-") as folder:
        numbers = HALVES if arguments.half is None else [arguments.half]
        running = [Half(number, halves[number], options, Path(folder)) for number in numbers]
        try:
            statuses = {half.number: half.wait() for half in running}
        except KeyboardInterrupt:  # which the halves get from the terminal, too
            statuses = {half.number: half.wait() or 2 for half in running}
        cases = [case for half in running for case in half.cases()]
    if arguments.record and cases:
        record(cases)
    for number, status in statuses.items():
        if status:
            again = " ".join([sys.executable, "tests/halves.py", "--half", str(number), *options])
            print(f"half {number} failed (exit status {status}); to run it alone: {again}")
    counts = Counter(map(outcome, cases))
    words = ", ".join(f"{counts[word]} {word}" for word in OUTCOMES.values() if counts[word])
    seconds = time.monotonic() - began
    print(f"===== {words or 'no tests ran'} in {seconds:.2f}s ({timedelta(seconds=int(seconds))}) =====")
    return max(statuses.values())


if __name__ == "__main__":
    sys.exit(main())
