"""What the processes of a soak wrote down, checked against itself and against the queue's directory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from helpers import STATES, entries, files

MISSES = 3
"""How often in a row a job must be nowhere until it counts as gone: it may move between two looks."""


class Wrong(AssertionError):
    """Something that must not be."""


class Story:
    """What is known of one job. Times are lines of the ledger; 0 is never."""

    __slots__ = ("given", "id", "misses", "number", "requeue", "requeued", "run", "sent", "started", "verdict")

    def __init__(self, number: str) -> None:
        self.number = number
        self.id = ""
        self.sent = False
        self.run = ""
        """The last time that it was handled: `<process>/<number>`."""
        self.started = 0
        """When that began."""
        self.verdict = ""
        self.given = 0
        """When the verdict of that was about to be given."""
        self.requeue = 0
        """When the last requeue that moved it began."""
        self.requeued = 0
        """When a requeue of it last ended."""
        self.misses = 0

    def __str__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)


class Account:
    """All stories, as the lines tell them in the order in which they were written.

    | line | written |
    | --- | --- |
    | `born <process>` | when it is ready |
    | `killing <process>`, `exiting <process>` | before it is killed, before it ends itself in a handler |
    | `gone <process>` | after it ended, in whatever way |
    | `broke <process>` | after it was interrupted by a signal |
    | `forking <process>` | before that one is forked |
    | `intend <number>`, `sent <number> <id>` | before and after a send |
    | `start <number> <id> <run>` | by a handler, first |
    | `verdict <number> <run> <verdict>` | by a handler, last |
    | `requeue <process> <id>`, `requeued <process> <done>` | before and after a requeue |
    | `requeue-all <process>`, `requeued-all <process> <done>` | the same of all |
    | `cleanup <process>`, `cleaned <process> <done>` | before and after the successful jobs are deleted |
    | `torn <number>`, `wrong <text>` | when a job is not whole, or something else is not as it should be |
    """

    def __init__(self, ledger: Path, base: Path) -> None:
        self.base = base
        self.counts: Counter[str] = Counter()
        self.born: set[str] = set()
        self.stories: dict[str, Story] = {}
        self._ids: dict[str, Story] = {}
        self._file = ledger.open("rb")
        self._line = 0
        self._died: dict[str, int] = {}
        self._broke: dict[str, int] = {}
        self._requeues: dict[str, tuple[str, int]] = {}
        self._all_requeues: set[str] = set()
        self._all_requeued = 0
        self._cleanups: set[str] = set()
        self._cleaned = 0
        self._cut = 0
        """How many cleanups did not come to tell how many jobs they deleted."""

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.stories)

    # What was written

    def read(self) -> None:
        """Take in what was written since the last time."""
        while (line := self._file.readline()).endswith(b"\n"):
            self._line += 1
            what, *rest = line.decode().split()
            self.counts[what] += 1
            getattr(self, f"_read_{what.replace('-', '_')}")(*rest)
        self._file.seek(-len(line), 1)

    def _read_born(self, who: str) -> None:
        self.born.add(who)

    def _read_killing(self, who: str) -> None:
        self._died[who] = self._line

    _read_exiting = _read_killing

    def _read_gone(self, who: str) -> None:
        self.born.discard(who)
        if who in self._died:
            self._died[who] = self._line  # it may have begun with a job after it was to be killed
        if who in self._requeues:
            self._read_requeued(who, "0")
        if who in self._all_requeues:
            self._read_requeued_all(who, "0")
        if who in self._cleanups:
            self._cut += 1
            self._read_cleaned(who, "0")

    def _read_broke(self, who: str) -> None:
        self._broke[who] = self._line

    def _read_forking(self, who: str) -> None:
        pass

    def _read_intend(self, number: str) -> None:
        self.stories[number] = Story(number)

    def _read_sent(self, number: str, id: str) -> None:
        self._story(number, id).sent = True

    def _read_start(self, number: str, id: str, run: str) -> None:
        story = self._story(number, id)
        if story.run and not self._may_start(story):
            raise Wrong(f"handled again, by {run} in line {self._line}: {story}")
        story.run, story.started, story.verdict, story.given = run, self._line, "", 0

    def _read_verdict(self, number: str, run: str, verdict: str) -> None:
        story = self._story(number)
        if story.run != run:
            raise Wrong(f"handled twice at one time, by {run} as well: {story}")
        self.counts[verdict] += 1
        story.verdict, story.given = verdict, self._line

    def _read_requeue(self, who: str, id: str) -> None:
        self._requeues[who] = id, self._line

    def _read_requeued(self, who: str, done: str) -> None:
        id, began = self._requeues.pop(who)
        self.counts["jobs requeued"] += int(done)
        if story := self._ids.get(id):
            story.requeued = self._line
            if done == "1":
                story.requeue = began

    def _read_requeue_all(self, who: str) -> None:
        self._all_requeues.add(who)

    def _read_requeued_all(self, who: str, done: str) -> None:
        self._all_requeues.discard(who)
        self._all_requeued = self._line
        self.counts["jobs requeued"] += int(done)

    def _read_cleanup(self, who: str) -> None:
        self._cleanups.add(who)

    def _read_cleaned(self, who: str, done: str) -> None:
        self._cleanups.discard(who)
        self._cleaned = self._line
        self.counts["jobs cleaned up"] += int(done)

    def _read_torn(self, number: str) -> None:
        raise Wrong(f"not whole: {self._story(number)}")

    def _read_wrong(self, *text: str) -> None:
        raise Wrong(" ".join(text))

    def _story(self, number: str, id: str = "") -> Story:
        story = self.stories.get(number)
        if story is None:
            raise Wrong(f"in line {self._line} of a job that was never sent, or is long gone: {number} {id}")
        if id:
            if story.id not in ("", id):
                raise Wrong(f"sent twice, as {id} as well: {story}")
            story.id = id
            self._ids[id] = story
        return story

    # What may be

    def _may_start(self, story: Story) -> bool:
        """Whether a job may be handled once more after the last time."""
        return story.verdict == "retry" or (
            self._was_requeued(story) and (story.verdict != "" or self._was_interrupted(story))
        )

    def _was_requeued(self, story: Story) -> bool:
        """Whether a requeue of it was under way after it was last begun with."""
        return (
            max(story.requeued, self._all_requeued) > story.started
            or bool(self._all_requeues)
            or any(id == story.id for id, _ in self._requeues.values())
        )

    def _was_interrupted(self, story: Story) -> bool:
        """Whether who last handled it has died or was interrupted since."""
        who = story.run.partition("/")[0]
        return max(self._died.get(who, 0), self._broke.get(who, 0)) > story.started

    def _may_be_gone(self, story: Story) -> bool:
        """Whether a cleanup may have deleted it."""
        was_success = story.verdict == "success" and story.requeue < story.given
        return was_success and (self._cleaned > story.given or bool(self._cleanups))

    def _may_be(self, state: str, story: Story) -> bool:
        """Whether a job may be in that state, now that nobody is at work."""
        waits = not story.run or story.verdict == "retry" or self._was_requeued(story)
        if state in ("queued", "scheduled"):
            return waits
        if state in ("success", "failed"):
            return story.verdict == state
        # Who claimed it and died before the handler began wrote nothing.
        return self._was_interrupted(story) or (waits and bool(self._died))

    # What is there

    def look(self) -> None:
        """See that no job is lost, while all are at work. Forget those that a cleanup deleted."""
        there: set[str] = set()
        for state in STATES:
            start = 18 if state == "scheduled" else 4
            there.update(entry[start : start + 36].decode(errors="replace") for entry in entries(self.base / state))
        self._see(there, MISSES)

    def _see(self, there: set[str], most: int) -> None:
        for story in [*self.stories.values()]:
            story.misses = 0 if story.id in there or not (story.sent or story.run) else story.misses + 1
            if story.misses >= most:
                if not self._may_be_gone(story):
                    raise Wrong(f"lost: {story}")
                self.counts["jobs seen to be gone"] += 1
                del self.stories[story.number], self._ids[story.id]

    def look_at_rest(self) -> None:
        """See that each job is in one place, which is the right one, when nobody is at work."""
        there: dict[str, str] = {}
        for state, id, content in self._files():
            story = self._story(content.split(b" ", 1)[0].decode(), id)
            if id in there:
                raise Wrong(f"in {state} and in {there[id]}: {story}")
            there[id] = state
            if not self._may_be(state, story):
                raise Wrong(f"in {state}: {story}")
        self._see({*there}, 1)
        cleaned, gone = self.counts["jobs cleaned up"], self.counts["jobs seen to be gone"]
        if gone < cleaned or (gone > cleaned and not self._cut):
            raise Wrong(f"{cleaned} jobs were cleaned up, and {gone} are gone")

    def look_at_the_end(self) -> None:
        """See that all has come to a good end, and that nothing else is left."""
        there = set()
        for state, id, content in self._files():
            number, digest, body = content.split(b" ", 2)
            story = self._story(number.decode(), id)
            if state != "success" or story.verdict != "success":
                raise Wrong(f"in {state} at the end: {story}")
            if hashlib.sha256(body).hexdigest().encode() != digest:
                raise Wrong(f"not whole at the end: {story}")
            there.add(id)
        self._see(there, 1)
        left = [path for path in files(self.base) if not path.startswith(b"success/")]
        # What a process without a lock file was writing may be anybody's.
        drafts = [path for path in left if path.startswith(b"tmp/") and len(path) == len("tmp/") + 36]
        others = [*({*left} - {*drafts}), *entries(self.base / "processing"), *entries(self.base / "owners")]
        if others or len(drafts) > 20 * len(self._died):
            raise Wrong(f"left at the end: {others}, {len(drafts)} drafts")

    def _files(self) -> Iterator[tuple[str, str, bytes]]:
        """Give the state, the id and the content of each job's file."""
        for path, content in files(self.base).items():
            state, _, entry = path.decode(errors="replace").partition("/")
            if state != "tmp":
                yield state, entry.removeprefix(entry[:14] if state == "scheduled" else "")[4:40], content
