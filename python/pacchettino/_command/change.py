"""The subcommands by which a person changes a queue: `requeue`, `cancel`, `cleanup`, `pause`, `resume`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pacchettino import _core
from pacchettino._command import DURATIONS, KEPT, UsageError, add_json, add_subcommand, complain, duration, existing
from pacchettino._command.output import as_json
from pacchettino._text import safe


def add_parser(subparsers: Any, common: list[argparse.ArgumentParser]) -> None:
    """Have them."""
    parser = add_subcommand(
        subparsers,
        common,
        "requeue",
        requeue,
        "put failed, interrupted or successful jobs back into the queue",
        """
The attempts at them are counted anew.

examples:
  pacchettino requeue queue 0199c0de-0000-7000-8000-000000000000
  pacchettino requeue queue --all                  failed, interrupted
  pacchettino requeue queue --state interrupted    only these
""",
    )
    parser.add_argument("ids", metavar="ID", nargs="*", default=[], help="a job's id")
    parser.add_argument("--all", action="store_true", help="all failed and interrupted jobs")
    parser.add_argument("--state", action="append", choices=KEPT, help="all of this state; may be given more than once")
    add_json(parser)

    parser = add_subcommand(
        subparsers,
        common,
        "cancel",
        cancel,
        "delete jobs that wait or are scheduled",
        """
A job that somebody has taken already is not taken away.

examples:
  pacchettino cancel queue 0199c0de-0000-7000-8000-000000000000
  pacchettino ls queue scheduled | xargs -r pacchettino cancel queue
""",
    )
    parser.add_argument("ids", metavar="ID", nargs="+", help="a job's id")
    add_json(parser)

    parser = add_subcommand(
        subparsers,
        common,
        "cleanup",
        cleanup,
        "delete jobs that are done",
        f"""
The age counts from when a job was done.
{DURATIONS}

examples:
  pacchettino cleanup queue --older-than 12h --state success
  pacchettino cleanup queue --older-than 7d           whatever became of them
""",
    )
    parser.add_argument(
        "--older-than", metavar="DURATION", type=duration, required=True, help="only jobs done that long ago; 0: all"
    )
    parser.add_argument(
        "--state", action="append", choices=KEPT, help="only jobs of this state; may be given more than once"
    )
    add_json(parser)

    add_subcommand(
        subparsers,
        common,
        "pause",
        pause,
        "have no more jobs taken, by any worker, until `resume`",
        """
Jobs in hand are finished. It holds after a restart, too. Sending goes on.

example:
  pacchettino pause queue
""",
    )
    add_subcommand(
        subparsers,
        common,
        "resume",
        resume,
        "end a pause",
        """
example:
  pacchettino resume queue
""",
    )


def requeue(args: argparse.Namespace) -> int:
    if bool(args.ids) == (args.all or args.state is not None):
        raise UsageError("requeue needs either IDs, or --all or --state STATE")
    if args.all and args.state is not None:
        raise UsageError("--all is failed and interrupted jobs; leave it out where you name states")
    queue = existing(args.directory)
    if not args.ids:
        with noticing(queue):
            done = queue.requeue_all(states(args.state or ["failed", "interrupted"]))
        return show_count(done, "requeued", args.json)
    return for_each(queue, args, queue.requeue, "requeued")


def cancel(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    return for_each(queue, args, queue.cancel, "cancelled")


def cleanup(args: argparse.Namespace) -> int:
    queue = existing(args.directory)
    which = states(args.state or list(KEPT))
    with noticing(queue):
        done = queue.cleanup(which, args.older_than)
    return show_count(done, "deleted", args.json)


def pause(args: argparse.Namespace) -> int:
    existing(args.directory).pause()
    return 0


def resume(args: argparse.Namespace) -> int:
    existing(args.directory).resume()
    return 0


def states(names: list[str]) -> int:
    return int(sum(KEPT[name] for name in set(names)))


def show_count(count: int, what: str, in_json: bool) -> int:
    print(as_json({what: count}) if in_json else f"{count} {what}")
    return 0


def for_each(queue: _core.Queue, args: argparse.Namespace, act: Callable[[str], bool], what: str) -> int:
    """Act on each job; one that is not there keeps no other from it."""
    status = 0
    for id in args.ids:
        with noticing(queue):
            done = act(id)
        if args.json:
            print(as_json({"id": id, what: done}))
        elif done:
            print(f"{safe(id):<36}  {what}")
        if not done:
            complain(f"{id}: not {what}: it is {queue.status(id) or 'unknown'}")
            status = 1
    return status


@contextmanager
def noticing(queue: _core.Queue) -> Iterator[None]:
    """Act on a queue, then report what was noticed on the way, such as that a worker died."""
    try:
        yield
    finally:
        for notice, _ in queue.take_notices():
            complain(notice)
