"""The subcommands that look at a queue and change nothing: `status`, `ls`, `show`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pacchettino import _core
from pacchettino._command import add_json, add_subcommand, complain, existing, open_job_file
from pacchettino._command.output import age, as_json, coloured, moment, table
from pacchettino._text import safe, safe_lines
from pacchettino._types import from_milliseconds

STATES = ("queued", "scheduled", "processing", "success", "failed", "interrupted")

FAILED = ("failed", "interrupted")
"""The states of jobs whose last attempt has a reason."""

SHOWN_BYTES = 256
"""How much of a job `show` shows."""


def add_parser(subparsers: Any, common: list[argparse.ArgumentParser]) -> None:
    """Have them."""
    parser = add_subcommand(
        subparsers,
        common,
        "status",
        status,
        "show how many jobs are where, or where some jobs are",
        """
With IDs it prints each with its state, and the exit status is 1 if one of them
is nowhere (unknown).

examples:
  pacchettino status queue
  pacchettino status queue 0199c0de-0000-7000-8000-000000000000
  pacchettino status queue --json | jq .failed
""",
    )
    parser.add_argument("ids", metavar="ID", nargs="*", default=[], help="a job's id")
    add_json(parser)

    parser = add_subcommand(
        subparsers,
        common,
        "ls",
        ls,
        "list jobs: those in a state, oldest first, or all",
        f"""
STATE is one of these, and without it they are listed in this order:
{", ".join(STATES)}.
A job that changes its state meanwhile may then be listed twice, or not at all.

ls prints ids, and with --long these columns: ID, STATE (if none was given),
KIND (data or file), SIZE in bytes, SENT, DUE (of scheduled jobs), OWNER (the
worker that holds a job), NAME. Lists of failed and interrupted jobs have REASON
instead of DUE and OWNER, and a list of all states has all columns. A dash
stands for nothing. Control characters are escaped.

examples:
  pacchettino ls queue failed --long
  pacchettino ls queue --json | jq 'select(.size > 1000000).id'
  pacchettino ls queue failed | xargs -r pacchettino requeue queue
""",
    )
    parser.add_argument("state", metavar="STATE", nargs="?", choices=STATES, help="only the jobs in this state")
    parser.add_argument("--long", action="store_true", help="more than the ids")
    add_json(parser)

    parser = add_subcommand(
        subparsers,
        common,
        "show",
        show,
        "show a job: its state, what became of its attempts, its first bytes",
        """
examples:
  pacchettino show queue 0199c0de-0000-7000-8000-000000000000
  pacchettino ls queue failed | xargs -r -n 1 pacchettino show queue
""",
    )
    parser.add_argument("id", metavar="ID", help="the job's id")
    add_json(parser)


def status(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    if args.ids:
        found = [(id, queue.status(id) or "unknown") for id in args.ids]
        for id, where in found:
            print(as_json({"id": id, "status": where}) if args.json else f"{safe(id):<36}  {where}")
        return int(any(where == "unknown" for _, where in found))

    now = time.time()
    counts, oldest, next_due, held = queue.stats()
    paused = queue.is_paused()
    waits = None if oldest is None else max(0.0, now - oldest / 1000)
    if args.json:
        consumers: dict[str, list[dict[str, object]]] = {}
        for owner, id, since in held:
            consumers.setdefault(owner, []).append({"id": id, "since": from_milliseconds(since)})
        told = {
            "oldest": waits,
            "next_due": None if next_due is None else from_milliseconds(next_due),
            "consumers": [{"owner": owner, "holds": holds} for owner, holds in consumers.items()],
            "paused": paused,
        }
        print(as_json({**counts, **told}))
        return 0
    notes = {
        "queued": "" if waits is None else f"the oldest for {age(waits)}",
        "scheduled": "" if next_due is None else f"the next in {age(next_due / 1000 - now)}",
    }
    orphans = counts["processing"] - len(held)
    if orphans > 0:
        notes["processing"] = f"{orphans} of consumers that died, interrupted as soon as a worker looks"
    print(f"{'STATE':<11}  {'JOBS':>9}")
    for state in STATES:
        count = counts[state]
        line = f"{state:<11}  {count:>9}  {notes.get(state, '')}".rstrip()
        print(coloured(line, "red", sys.stdout) if count and state in ("failed", "interrupted") else line)
    if held:
        rows = ((owner, id, age(now - since / 1000)) for owner, id, since in held)
        print(*("", *table(rows, ("OWNER", "HOLDS", "FOR"), (10, 36, 0))), sep="\n")
    if paused:
        print("", coloured("paused: no job is taken until `pacchettino resume`", "yellow", sys.stdout), sep="\n")
    return 0


def ls(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    jobs = (row for state in STATES if args.state in (None, state) for row in queue.jobs(state))
    if args.json:
        for row in jobs:
            print(as_json({**described(row), "reason": reason(queue, row)}))
    elif args.long:
        for line in listing(queue, jobs, args.state):
            print(line)
    else:
        for row in jobs:
            print(row.id)
    return 0


def listing(queue: _core.Queue, jobs: Iterable[_core.Row], state: str | None) -> Iterator[str]:
    """Lay out what `ls --long` shows."""
    columns = [
        ("ID", 36, lambda row: row.id, True),
        ("STATE", 11, lambda row: row.state, state is None),
        ("KIND", 4, kind, True),
        (f"{'SIZE':>12}", 12, lambda row: f"{dash(length(row.path)):>12}", True),
        ("SENT", 20, lambda row: moment(from_milliseconds(row.sent_at)), True),
        ("DUE", 20, lambda row: "-" if row.due is None else moment(from_milliseconds(row.due)), state not in FAILED),
        ("OWNER", 10, lambda row: dash(row.owner), state not in FAILED),
        ("NAME", 20, lambda row: dash(row.name), True),
        ("REASON", 0, lambda row: dash(reason(queue, row)), state in (None, *FAILED)),
    ]
    headings, widths, cells = zip(*(column[:3] for column in columns if column[3]), strict=True)
    return table(([cell(row) for cell in cells] for row in jobs), headings, widths)


def show(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    job = find(queue, args.id)
    if job is None:
        complain(f"{args.id}: there is no such job; a job that is done may have been deleted")
        return 1
    history, begin = queue.history(job.entry), first_bytes(job.path)
    if args.json:
        from base64 import b64encode

        first = None if begin is None else b64encode(begin).decode()
        attempts = [told_attempt(attempt) for attempt in history]
        print(as_json({**described(job), "history": attempts, "first_bytes_base64": first}))
        return 0
    now = time.time()
    long = length(job.path)
    facts = {
        "id": job.id,
        "status": job.state,
        "kind": kind(job),
        "name": job.name,
        "size": None if long is None else f"{long} bytes",
        "sent": f"{moment(from_milliseconds(job.sent_at))}  {age(now - job.sent_at / 1000)} ago",
        "due": None if job.due is None else f"{moment(from_milliseconds(job.due))}  in {age(job.due / 1000 - now)}",
        "owner": job.owner,
        "path": job.path,
    }
    for name, fact in facts.items():
        if fact is not None:
            print(f"{name:<6}  {safe(fact)}")
    for attempt in history:
        print("", *shown_attempt(attempt), sep="\n")
    if begin:
        rest = "" if long is None or long <= len(begin) else f", the first {len(begin)} bytes"
        print("", f"content{rest}:", sep="\n")
        print(*(f"  {line}" for line in safe_lines(begin.decode(errors="surrogateescape"))), sep="\n")
    return 0


def shown_attempt(attempt: _core.Record) -> Iterable[str]:
    what = "requeued" if attempt.ended == "requeued" else f"attempt {attempt.attempt}: {attempt.ended}"
    at = moment(from_milliseconds(attempt.at))
    yield coloured(what, "bold", sys.stdout) + f"  {at}  {safe(attempt.host)}, process {attempt.pid}"
    for line in safe_lines(attempt.reason or ""):
        yield f"  {line}"
    if attempt.due is not None:
        yield f"  to be done again at {moment(from_milliseconds(attempt.due))}"
    for line in safe_lines(attempt.traceback or ""):
        yield f"    {line}"


def told_attempt(attempt: _core.Record) -> dict[str, object]:
    """Give all that is known of an attempt, as `pacchettino.Attempt` has it."""
    names = ("attempt", "ended", "at", "due", "host", "pid", "owner", "reason", "traceback")
    fields = {name: getattr(attempt, name) for name in names}
    times = {name: from_milliseconds(fields[name]) for name in ("at", "due") if fields[name] is not None}
    return {**fields, **times, "settled": attempt.is_settled}


def described(row: _core.Row) -> dict[str, object]:
    """Give all that a listing knows of a job."""
    return {
        "id": row.id,
        "kind": kind(row),
        "name": row.name,
        "status": row.state,
        "path": row.path,
        "sent_at": from_milliseconds(row.sent_at),
        "due": None if row.due is None else from_milliseconds(row.due),
        "owner": row.owner,
        "size": length(row.path),
    }


def kind(row: _core.Row) -> str:
    return "data" if row.name is None else "file"


def reason(queue: _core.Queue, row: _core.Row) -> str | None:
    """Give the reason why a job is in a state of failure, if that was recorded."""
    return reason_of(queue, row.entry, row.state) if row.state in FAILED else None


def reason_of(queue: _core.Queue, job: str, state: str) -> str | None:
    """Give the reason of a job's last attempt if that ended so; a D program moves a job and records nothing."""
    try:
        last = queue.history(job)[-1:]
    except OSError:
        return None
    return next((attempt.reason for attempt in last if attempt.ended == state), None)


def find(queue: _core.Queue, id: str) -> _core.Row | None:
    """Look a job up. It may move between the look and the listing."""
    for _ in range(10):
        state = queue.status(id)
        if state is None:
            return None
        for row in queue.jobs(state):
            if id in (row.id, row.entry):
                return row
    return None


def length(path: str) -> int | None:
    """Give the length of a job's file, unless it moved meanwhile."""
    try:
        return os.lstat(path).st_size
    except (OSError, ValueError):  # or its name can't be said in this locale
        return None


def first_bytes(path: str) -> bytes | None:
    """Read the beginning of a job's file, if it is there and may be read."""
    try:
        file = open_job_file(path)
    except (OSError, ValueError):
        return None
    try:
        return os.read(file, SHOWN_BYTES)
    except OSError:
        return None
    finally:
        os.close(file)


def dash(value: object) -> str:
    return "-" if value is None else str(value)
