"""The subcommands that look at a queue and change nothing: `status`, `ls`, `show`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pacchettino import Attempt, JobInfo, Pacchettino, Status
from pacchettino._command import add_json, add_subcommand, complain, existing
from pacchettino._command.output import age, as_json, coloured, moment, safe, safe_lines, table

STATES = [status.value for status in Status if status is not Status.UNKNOWN]

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
    parser.add_argument("ids", metavar="ID", nargs="*", help="a job's id")
    add_json(parser)

    parser = add_subcommand(
        subparsers,
        common,
        "ls",
        ls,
        "list the jobs that are in a state, oldest first",
        f"""
STATE is one of {", ".join(STATES)}.
It prints ids, and with --long these columns: ID, KIND (data or file), SIZE in
bytes, SENT, DUE (of scheduled jobs), OWNER (who holds a job), NAME. A dash
stands for nothing. What is no plain text in a name is escaped.

examples:
  pacchettino ls queue failed --long
  pacchettino ls queue failed | xargs pacchettino requeue queue
""",
    )
    parser.add_argument("state", metavar="STATE", choices=STATES, help="which jobs")
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
  pacchettino ls queue failed | xargs -n 1 pacchettino show queue
""",
    )
    parser.add_argument("id", metavar="ID", help="the job's id")
    add_json(parser)


def status(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    if args.ids:
        found = [(id, queue.status(id)) for id in args.ids]
        for id, where in found:
            print(as_json({"id": id, "status": where}) if args.json else f"{safe(id):<36}  {where.value}")
        return int(any(where is Status.UNKNOWN for _, where in found))

    stats, paused = queue.stats(), queue.paused
    if args.json:
        fields = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
        print(as_json({**fields, "paused": paused}))
        return 0
    now = datetime.now(UTC)
    notes = {
        "queued": "" if stats.oldest is None else f"the oldest for {age(stats.oldest.total_seconds())}",
        "scheduled": "" if stats.next_due is None else f"the next in {age((stats.next_due - now).total_seconds())}",
    }
    orphans = stats.processing - sum(len(consumer.holds) for consumer in stats.consumers)
    if orphans > 0:
        notes["processing"] = f"{orphans} of consumers that died, interrupted as soon as a worker looks"
    print(f"{'STATE':<11}  {'JOBS':>9}")
    for state in ("queued", "scheduled", "processing", "success", "failed", "interrupted"):
        count = getattr(stats, state)
        line = f"{state:<11}  {count:>9}  {notes.get(state, '')}".rstrip()
        print(coloured(line, "red", sys.stdout) if count and state in ("failed", "interrupted") else line)
    if stats.consumers:
        rows = (
            (consumer.owner, held.id, age((now - held.since).total_seconds()))
            for consumer in stats.consumers
            for held in consumer.holds
        )
        print(*("", *table(rows, ("OWNER", "HOLDS", "FOR"), (10, 36, 0))), sep="\n")
    if paused:
        print("", coloured("paused: no job is taken until `pacchettino resume`", "yellow", sys.stdout), sep="\n")
    return 0


def ls(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    jobs = queue.jobs(Status(args.state))
    if args.json:
        for job in jobs:
            print(as_json(described(job)))
    elif args.long:
        rows = (
            (
                job.id,
                job.kind,
                f"{dash(length(job.path)):>12}",
                moment(job.sent_at),
                "-" if job.due is None else moment(job.due),
                dash(job.owner),
                dash(job.name),
            )
            for job in jobs
        )
        headings = ("ID", "KIND", f"{'SIZE':>12}", "SENT", "DUE", "OWNER", "NAME")
        for line in table(rows, headings, (36, 4, 12, 20, 20, 10, 0)):
            print(line)
    else:
        for job in jobs:
            print(job.id)
    return 0


def show(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    job = find(queue, args.id)
    if job is None:
        complain(f"{args.id}: there is no such job; a job that is done may have been deleted")
        return 1
    history, begin = queue.history(args.id), first_bytes(job.path)
    if args.json:
        from base64 import b64encode

        told = None if begin is None else b64encode(begin).decode()
        print(as_json({**described(job), "history": history, "first_bytes_base64": told}))
        return 0
    now = datetime.now(UTC)
    long = length(job.path)
    facts = {
        "id": job.id,
        "status": job.status.value,
        "kind": job.kind,
        "name": job.name,
        "size": None if long is None else f"{long} bytes",
        "sent": f"{moment(job.sent_at)}  {age((now - job.sent_at).total_seconds())} ago",
        "due": None if job.due is None else f"{moment(job.due)}  in {age((job.due - now).total_seconds())}",
        "owner": job.owner,
        "path": str(job.path),
    }
    for name, fact in facts.items():
        if fact is not None:
            print(f"{name:<6}  {safe(fact)}")
    for attempt in history:
        print("", *told_attempt(attempt), sep="\n")
    if begin:
        cut = "" if long is None or long <= len(begin) else f", the first {len(begin)} bytes"
        print("", f"content{cut}:", sep="\n")
        print(*(f"  {line}" for line in safe_lines(begin.decode(errors="surrogateescape"))), sep="\n")
    return 0


def told_attempt(attempt: Attempt) -> Iterable[str]:
    what = "requeued" if attempt.ended == "requeued" else f"attempt {attempt.attempt}: {attempt.ended}"
    yield coloured(what, "bold", sys.stdout) + f"  {moment(attempt.at)}  {safe(attempt.host)}, process {attempt.pid}"
    for line in safe_lines(attempt.reason or ""):
        yield f"  {line}"
    if attempt.due is not None:
        yield f"  to be done again at {moment(attempt.due)}"
    for line in safe_lines(attempt.traceback or ""):
        yield f"    {line}"


def described(job: JobInfo) -> dict[str, object]:
    """All that a listing knows of a job."""
    fields = ("id", "kind", "name", "status", "path", "sent_at", "due", "owner")
    return {**{field: getattr(job, field) for field in fields}, "size": length(job.path)}


def find(queue: Pacchettino, id: str) -> JobInfo | None:
    """Look a job up. It may move between the look and the listing."""
    for _ in range(10):
        state = queue.status(id)
        if state is Status.UNKNOWN:
            return None
        for job in queue.jobs(state):
            if id in (job.id, job.entry):
                return job
    return None


def length(path: Path) -> int | None:
    """How long a job's file is, unless it moved meanwhile."""
    try:
        return path.lstat().st_size
    except (OSError, ValueError):  # or its name can't be said in this locale
        return None


def first_bytes(path: Path) -> bytes | None:
    """Read the beginning of a job's file, if it is there and may be read; never through a link."""
    try:
        # Without waiting for a writer, should it be a FIFO; on Windows, as it is and not as text.
        flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
        file = os.open(path, os.O_RDONLY | flags)
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
