"""The subcommand `check`: says what is not as it should be in a queue's directory, and repairs what is certain."""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import groupby
from typing import Any, NamedTuple

from pacchettino import _core
from pacchettino._command import UsageError, add_json, add_subcommand, complain, opened
from pacchettino._command.output import as_json, coloured
from pacchettino._text import safe

SECOND_LOOK = 1.0
"""How many seconds later what was found is looked at once more: of a queue at work most of it is over by then."""

APART = 10.0
"""How many seconds there must be between the looks that show that a job is gone, before its records are deleted."""

SHOWN = 20
"""How many findings of a kind are shown to people."""

ADVICE = {
    "missing": "whoever opens the queue next makes it, and --repair; if it was there, ask where its jobs went",
    "no-directory": "the queue can't be used like that: move it elsewhere",
    "access": "change the owner or the mode, or run this as another user",
    "sharing": "users of one group: chgrp and chmod g+rwxs on all directories, and a umask of 002",
    "apart": "a job moves by rename, which leads to no other filesystem or mount: keep all directories in one",
    "filesystem": "put the queue on a local filesystem (ext4, xfs, btrfs, tmpfs), in a container on a volume",
    "full": "no job can be sent or taken before there is room: delete what is not needed, on that filesystem",
    "stranger": "nobody touches it: move it elsewhere",
    "almost-job": "nobody takes it: send it again under a name of its own, or delete it",
    "no-file": "nobody takes or follows it: move it elsewhere",
    "twice": "somebody made a copy; each keeps the other from its place: delete one of them",
    "future": "set the clock right; until that time has come, ages and the order of jobs are wrong",
    "unknown-owner": "nobody will look after it: if its program is gone, move it, or the job in it, elsewhere",
    "orphan": "the next consumer that looks, or --repair, moves its job to interrupted/, from where it can be requeued",
    "empty-claim": "no job is in it; it goes when its owner ends",
    "crowded-claim": "move what is not the job's file elsewhere, or it is set aside when the job is settled",
    "leftover": "a handler left it beside its job's file; nobody needs it: look into it, then delete it",
    "abandoned": "the next consumer that looks, or --repair, deletes it",
    "forgotten": "it may be the only copy of something: look into it, then send or delete it",
    "history": "consumers sweep them up in time; --repair does it now",
    "paused": "`pacchettino resume` ends that",
    "not-asked": "look yourself",
}
"""What to do about each kind of finding."""


def add_parser(subparsers: Any, common: list[argparse.ArgumentParser]) -> None:
    """Have the subcommand `check`."""
    parser = add_subcommand(
        subparsers,
        common,
        "check",
        check,
        "say what is wrong in a queue's directory, and what to do about it",
        """
All of it is read, and nothing is changed. The queue may be at work meanwhile:
what is found is looked at once more a second later, and told only if it is
still the same.

--repair does what a consumer does that looks after the dead: their jobs become
interrupted, and what they left half done is deleted. It also makes missing
directories, and deletes the records of jobs that are gone (which it takes ten
seconds to be sure of). All else is for a person to decide. Where consumers are
known by PIDs (CrashDetection.PID), run it where those PIDs mean something, and
not in another container.

Exit status: 0 nothing is wrong, 1 something is, 2 it can't be looked at. What
is merely noted is not wrong.

examples:
  pacchettino check queue
  pacchettino check queue --repair
  pacchettino check queue --json | jq -r .path
""",
    )
    parser.add_argument("--repair", action="store_true", help="repair what is certain")
    add_json(parser)


class Finding(NamedTuple):
    """Something that is not as it should be."""

    fault: str
    path: str
    what: str
    note: bool
    repairable: bool


def check(arguments: argparse.Namespace) -> int:
    """Look, repair if that was asked for, and tell."""
    found = _look(arguments.directory)
    findings = _findings(found)
    repaired: list[Finding] = []
    if arguments.repair and any(finding.repairable for finding in findings):
        _repair(arguments.directory, found)
        before, found = findings, _look(arguments.directory)
        findings = _findings(found)
        left = {(finding.fault, finding.path) for finding in findings}
        repaired = [finding for finding in before if finding.repairable and (finding.fault, finding.path) not in left]
    if arguments.json:
        for finding, done in [*((finding, False) for finding in findings), *((finding, True) for finding in repaired)]:
            told = {"fault": finding.fault, "path": finding.path, "what": finding.what, "advice": ADVICE[finding.fault]}
            print(as_json({**told, "note": finding.note, "repairable": finding.repairable, "repaired": done}))
    else:
        _tell(arguments.directory, findings, repaired, found.more)
        print(_summary(findings, repaired, found))
    return 1 if found.more or any(not finding.note for finding in findings) else 0


def _look(directory: str) -> _core.Inspection:
    """Look at everything, and once more at what seems wrong."""
    try:
        found = _core.Inspection(directory, APART)
        if found.findings():
            time.sleep(SECOND_LOOK)
            found.look_again()
    except FileNotFoundError:
        raise UsageError(f"{directory}: there is no queue here") from None
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}") from None
    return found


def _findings(found: _core.Inspection) -> list[Finding]:
    """Give the findings, those of one kind together, the notes last."""
    order = list(ADVICE)
    findings = [Finding(*row) for row in found.findings()]
    return sorted(findings, key=lambda finding: (order.index(finding.fault), finding.path))


def _repair(directory: str, found: _core.Inspection) -> None:
    rest = found.rest
    if rest > 0:
        if sys.stderr.isatty():
            print(f"waiting {rest:.0f}s, to be sure that jobs are gone of which there are records", file=sys.stderr)
        time.sleep(rest)
        found.look_again()
    try:
        queue = opened(directory)
        queue.repair(found)
        queue.close()
    except OSError as error:
        complain(error)


def _tell(directory: str, findings: list[Finding], repaired: list[Finding], more: int) -> None:
    home = os.path.join(os.getcwd(), directory)  # as the core has it, without resolving links
    for title, colour, some in (("repaired", "green", repaired), ("", "red", findings)):
        for fault, group in groupby(some, key=lambda finding: finding.fault):
            alike = list(group)
            told = "yellow" if alike[0].note else colour
            heading = coloured(title or fault, told, sys.stdout)
            print(f"{heading}: {fault if title else ADVICE[fault]}")
            for finding in alike[:SHOWN]:
                path = os.path.relpath(finding.path, home)
                print(f"  {safe(path)}: {safe(finding.what)}")
            if len(alike) > SHOWN:
                print(f"  ... and {len(alike) - SHOWN:,} more (--json tells all)")
    if more:
        print(f"and {more:,} more things that are not told, in directories with very many of them")


def _summary(findings: list[Finding], repaired: list[Finding], found: _core.Inspection) -> str:
    wrong = [finding for finding in findings if not finding.note]
    repairable = sum(finding.repairable for finding in findings)
    told = [
        f"{len(wrong) + found.more:,} finding{'s' * (len(wrong) + found.more != 1)}" if wrong else "nothing is wrong"
    ]
    if repaired:
        told.append(f"{len(repaired):,} repaired")
    if repairable:
        told.append(f"--repair mends {repairable:,}")
    return f"{', '.join(told)}; {found.jobs:,} job{'s' * (found.jobs != 1)} looked at"
