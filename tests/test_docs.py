"""What the documentation shows is what happens: its code runs, what it names is there, what is generated is fresh.

The blocks of a page are run in order in one directory, each as a process of its own. What is in a fence's title is the
name of a file, which a later block uses. A comment before a fence says what else is to be done with it:

    <!-- not run: why -->            for the few that can't be
    <!-- run by tests/... -->        a test of its own
    <!-- in another terminal -->     goes on to the end of the page, where Ctrl-C ends it, and it ends well
    <!-- prints -->                  a block of text: what the block before has printed
    <!-- the other prints -->        the same, of what runs in the other terminal
"""

import doctest
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import check_site
import for_agents
import pacchettino
import pytest
from pacchettino._command import parsers

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# What is made from others is not looked at twice.
MADE = {"SKILL.md", "llms-full.txt"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if path.name not in MADE),
]

FENCE = re.compile(
    r"(?:<!-- (?P<note>[^>]*) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# What is in no language that could be run: trees of directories, things that are only shown.
PLAIN = {"", "text"}
# A file of the repository, shown as it is; the site's build finds it, and its own tests look at it.
INCLUDED = re.compile(r'\{% include "\.\./\.\./(examples/[^"]+)" %\}\n')


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    where: str
    language: str
    title: str | None
    note: str
    text: str


def blocks(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(source):
        line = source.count("\n", 0, match.start("indent")) + 1
        text = textwrap.dedent(match["text"])
        where = f"{page.relative_to(ROOT).as_posix()}:{line}"
        found.append(Block(where, match["language"], match["title"], match["note"] or "", text))
    assert len(found) * 2 == len(re.findall(r"^ *```", source, re.MULTILINE)), f"a fence of {page} is not understood"
    return found


def environment() -> dict[str, str]:
    """Have the programs of the tests' own interpreter found first, as in an activated environment."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": programs + os.pathsep + os.environ["PATH"], "PYTHONUNBUFFERED": "1"}


def command(block: Block, home: Path) -> list[str]:
    if block.language == "sh":
        return ["bash", "-euo", "pipefail", "-c", block.text]
    program = home / f"block_{block.where.rpartition(':')[2]}.py"
    program.write_text(block.text, encoding="utf-8")
    return [sys.executable, "-W", "error", program.name]


def is_as_shown(shown: str, printed: str) -> bool:
    """Whether that is what was printed, with `...` for anything, and some job's id for another's."""
    shown, printed = (UUID.sub("<id>", text) for text in (shown, printed))
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


class Other:
    """What runs in another terminal."""

    def __init__(self, block: Block, home: Path) -> None:
        self.block = block
        self.printed = ""
        self._is_over = False
        self.process = subprocess.Popen(
            command(block, home),
            cwd=home,
            env=environment(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._more = threading.Condition()
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._more:
                    self.printed += line
                    self._more.notify()
        with self._more:
            self._is_over = True
            self._more.notify()

    def expect(self, shown: str) -> None:
        end = time.monotonic() + 20
        with self._more:
            while not is_as_shown(shown, self.printed):
                if self._is_over or not self._more.wait(max(0, end - time.monotonic())):
                    raise AssertionError(f"{self.block.where} printed\n{self.printed}instead of\n{shown}")
            self.printed = ""

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            ended = self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        finally:
            self._reader.join()
        assert ended == 0, f"{self.block.where} ended with {ended}:\n{self.printed}"


@contextmanager
def another_terminal(block: Block, home: Path) -> Iterator[Other]:
    other = Other(block, home)
    try:
        yield other
    finally:
        other.end()


def run(page: list[Block], home: Path) -> None:
    printed = ""
    other = None
    with ExitStack() as ends:
        for block in page:
            if INCLUDED.fullmatch(block.text):
                continue
            if block.title is not None:
                Path(home, block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(home, block.title).write_text(block.text, encoding="utf-8")
            elif block.note == "prints":
                assert is_as_shown(block.text, printed), f"{block.where}: printed was\n{printed}"
            elif block.note == "the other prints":
                assert other is not None, f"{block.where}: nothing runs in another terminal"
                other.expect(block.text)
            elif block.note == "in another terminal":
                other = ends.enter_context(another_terminal(block, home))
            elif block.language not in PLAIN and not block.note.startswith(("not run: ", "run by ")):
                done = subprocess.run(
                    command(block, home), cwd=home, env=environment(), text=True, capture_output=True, timeout=60
                )
                assert done.returncode == 0, f"{block.where} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
                printed = done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_block_of_a_page_runs(page: Path, quick_dir: Path) -> None:
    run(blocks(page), quick_dir)


def test_what_is_not_run_says_why_and_files_that_are_shown_are_used() -> None:
    known = re.compile(r"|not run: .{10,}|run by tests/test_(readme|aio)\.py|in another terminal|(the other )?prints")
    for page in PAGES:
        found = blocks(page)
        assert [block.where for block in found if not known.fullmatch(block.note)] == []
        for place, block in enumerate(found):
            if block.title is not None and not block.note and not INCLUDED.fullmatch(block.text):
                stem = re.escape(Path(block.title).stem)
                used = any(re.search(rf"\b{stem}\b", later.text) for later in found[place + 1 :])
                assert used, f"{block.where}: no later block uses {block.title}"


def test_few_blocks_are_not_run() -> None:
    found = [block for page in PAGES for block in blocks(page) if block.language not in PLAIN]
    left_out = [block.where for block in found if block.note.startswith("not run: ")]
    assert len(left_out) * 6 < len(found), left_out


def test_each_guarantee_names_the_tests_that_hold_it() -> None:
    page = (DOCS / "concepts" / "guarantees.md").read_text(encoding="utf-8")
    promises = page.split("\n## What is not promised")[0].split("\n### ")[1:]
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.*")}
    for promise in promises:
        told = re.search(r"\n\nHeld by ([^{]+)\n\{ \.held \}", promise)
        assert told, promise
        named = re.findall(r"`([^`]+)`", told[1])
        assert named, promise
        for name in named:
            file, _, test = name.partition("::")
            assert re.search(rf"^ *(?:def|fn) {test}\(", sources[file], re.MULTILINE), name


def test_each_promise_of_the_readme_is_a_guarantee() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| what happens | what it leaves |")[2].partition("\n\n")[0]
    promised = re.findall(r"^\| (.+?) \| ", table, re.MULTILINE)[1:]
    told = re.findall(r"^### (.+)$", (DOCS / "concepts" / "guarantees.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(promised) > 10
    assert [promise for promise in promised if promise not in told] == []


@pytest.mark.parametrize("name", sorted(for_agents.MADE))
def test_what_is_made_for_agents_is_what_would_be_made_now(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == for_agents.MADE[name](), "run `make for-agents`"


def test_all_that_is_exported_is_in_what_is_made_for_agents_and_in_the_reference() -> None:
    text = (DOCS / "llms-full.txt").read_text(encoding="utf-8")
    reference = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").iterdir())
    for module in for_agents.public_modules():
        for name in map(str, module.exports or ()):
            assert re.search(rf"^### (class )?{name}\b", text, re.MULTILINE), name
            assert re.search(rf"^::: {module.path}\.{name}$", reference, re.MULTILINE), name
    calls = [name for name in vars(pacchettino.Pacchettino) if not name.startswith("_")]
    words = {"KeepPolicy", "Result", "Status", "CrashDetection"}  # which have a place of their own
    assert [name for name in calls if name not in words and not re.search(rf"^- `{name}[(:]", text, re.MULTILINE)] == []
    for name in parsers()[1]:
        assert f"\n### pacchettino {name}\n" in text


SOUND = {
    "index.html": '<a href="other/#there">',
    "other/index.html": '<p id="there"><a href="..">',
    "a.css": "url(a.png)",
}
FAULTS = {
    '<a href="nowhere/">': "index.html: nowhere/ leads nowhere",
    '<a href="other/#elsewhere">': "index.html: other/#elsewhere leads to no place on its page",
    '<script src="https://example.org/a.js">': "index.html: fetches https://example.org/a.js",
    '<link href="//example.org/font.css" rel="stylesheet">': "index.html: fetches //example.org/font.css",
    "<style>@import 'https://example.org/a.css'</style>": "index.html: fetches https://example.org/a.css",
    '<p style="background: url(https://example.org/a.png)">': "index.html: fetches https://example.org/a.png",
}


def site(home: Path, pages: dict[str, str]) -> list[str]:
    for name, text in pages.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return check_site.faults(home)


def test_a_site_that_is_sound_has_no_faults(tmp_path: Path) -> None:
    assert site(tmp_path, SOUND | {"index.html": SOUND["index.html"] + '<a href="https://example.org">'}) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_site_is_told(fault: str, tmp_path: Path) -> None:
    assert site(tmp_path, SOUND | {"index.html": SOUND["index.html"] + fault}) == [FAULTS[fault]]


def test_what_is_shown_fits_its_page() -> None:
    """Nobody need scroll sideways, but on a phone; the README has the width of the code."""
    for page in PAGES:
        width = 120 if page.name == "README.md" else 80
        assert [block.where for block in blocks(page) if max(map(len, block.text.splitlines())) > width] == []
