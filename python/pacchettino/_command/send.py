"""The subcommand `send`: files, data, and lines as fast as they come, and as soon."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from pacchettino import _core
from pacchettino._command import DURATIONS, UsageError, add_json, add_subcommand, complain, duration, number, opened
from pacchettino._command.output import Progress, as_json, is_terminal
from pacchettino._limits import checked_limit, with_room
from pacchettino._types import PacchettinoError, QueueFull, SendError, finite_seconds

CHUNK = 256 * 1024
BATCH = 1000

USAGE = """pacchettino send DIR [OPTION...] FILE...
       pacchettino send DIR [OPTION...] --data TEXT
       COMMAND | pacchettino send DIR [OPTION...] --lines
       COMMAND | pacchettino send DIR [OPTION...] -"""

EXAMPLES = """examples:
  pacchettino send queue photo.jpg *.pdf          copies of files
  pacchettino send queue --move --delay 1h a.tif  the file itself, in an hour
  pacchettino send queue --data 'hello'
  mysqldump shop | pacchettino send queue -       all of its output is one job
  tail -f log | pacchettino send queue --lines    a job for each line, at once
  pacchettino send queue -- -odd-name.txt         a name that begins with a dash
"""


def add_parser(subparsers: Any, common: list[argparse.ArgumentParser]) -> None:
    """Have the subcommand `send`."""
    parser = add_subcommand(
        subparsers,
        common,
        "send",
        send,
        "send jobs: files, or data",
        f"""
The ids of the jobs are printed, one on each line, as soon as the jobs exist.
DIR is made if it is missing.

{DURATIONS}

{EXAMPLES}""",
    )
    parser.usage = USAGE
    parser.add_argument(
        "files", metavar="FILE", nargs="*", default=[], help="a file to send; - alone is standard input, as data"
    )
    parser.add_argument("--data", metavar="TEXT", action="append", help="send this text; may be given more than once")
    parser.add_argument("--lines", action="store_true", help="send each line of standard input, without its newline")
    parser.add_argument("--move", action="store_true", help="move the files instead of copying them")
    parser.add_argument("--delay", metavar="DURATION", type=duration, default=0, help="have the jobs wait that long")
    parser.add_argument("--durable", action="store_true", help="flush to the disk, so that a power cut undoes nothing")
    parser.add_argument("--max-queued", metavar="N", type=number, help="send nothing if N jobs wait already")
    parser.add_argument("--min-free", metavar="BYTES", type=size, default=0, help="leave the disk so much (500M, 2G)")
    parser.add_argument(
        "--block",
        metavar="DURATION",
        type=patience,
        default=0,
        help="with the last two: wait that long for room, or `forever`",
    )
    add_json(parser)


def patience(text: str) -> float | None:
    """Understand a duration, or `forever`."""
    return None if text == "forever" else duration(text)


def size(text: str) -> int:
    """Understand a number of bytes, also as `500M` or `2G` (1000 bytes to a K)."""
    match = re.fullmatch(r"(\d+)([kKMGT]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (such as 500000000, 500M, 2G)")
    return int(match[1]) * int(1000 ** " KMGT".index(match[2].upper() or " "))


def send(args: argparse.Namespace) -> int:
    if [bool(args.files), args.data is not None, args.lines].count(True) != 1:
        complain("send needs one of: FILEs, --data TEXT, --lines, or - for standard input")
        if is_terminal(sys.stderr):
            print(EXAMPLES, end="", file=sys.stderr)
        return 2
    is_input = "-" in args.files
    if is_input and len(args.files) > 1:
        raise UsageError("- is standard input and goes alone; a file of that name is ./-")
    if args.move and (is_input or not args.files):
        raise UsageError("--move is for FILEs")
    if (args.lines or is_input) and sys.stdin is None:
        raise UsageError("standard input is closed")
    delay = finite_seconds(args.delay, "--delay")
    queue = opened(
        args.directory,
        durable=args.durable,
        max_queued=None if args.max_queued is None else checked_limit(args.max_queued, "--max-queued", 1),
        min_free=checked_limit(args.min_free, "--min-free", 0),
    )
    if (args.lines or is_input) and is_terminal(sys.stdin):
        complain(
            f"sending what is typed, {'each line as a job' if args.lines else 'all of it as one job'}; Ctrl-D ends it"
        )
    try:
        if args.lines:
            send_lines(queue, args, delay)
        elif args.files and not is_input:
            return send_files(queue, args, delay)
        else:
            for data in [sys.stdin.buffer.read()] if is_input else map(os.fsencode, args.data):
                show_ids([with_room(partial(queue.send, data, delay), args.block)], args.json)
    except QueueFull as error:
        raise PacchettinoError(full(error)) from error
    return 0


def full(error: QueueFull) -> str:
    """Name the option as it is called here."""
    return str(error).replace("block=SECONDS", "--block DURATION")


def send_files(queue: _core.Queue, args: argparse.Namespace, delay: float) -> int:
    """Send files. One that can't be sent keeps no other from it."""
    status = 0
    for file in args.files:
        try:
            ids = [with_room(partial(queue.send_file, file, not args.move, None, delay), args.block)]
        except QueueFull as error:
            complain(f"{file} was not sent, nor what comes after it: {full(error)}")
            return 1
        except SendError as error:
            ids = error.sent
            complain(f"{file}: sent, but: {error}")
            status = 1
        except (OSError, ValueError) as error:
            ids = []
            complain(error if isinstance(error, OSError) and error.filename is not None else f"{file}: {error}")
            status = 1
        show_ids(ids, args.json, file=file)
    return status


def send_lines(queue: _core.Queue, args: argparse.Namespace, delay: float) -> None:
    """Send all lines of standard input. The ids of jobs are printed as soon as they exist."""
    # Where room is short, a batch needs room for all of it.
    most = BATCH if args.max_queued is None else max(1, min(BATCH, args.max_queued // 4))
    sent = 0
    input = sys.stdin.fileno()
    with Progress(_size(input)) as progress:
        for lines, read in _lines(input):
            for begin in range(0, len(lines), most):
                error: Exception | None = None
                try:
                    ids = with_room(partial(queue.send_many, lines[begin : begin + most], delay), args.block)
                except (PacchettinoError, OSError) as refused:
                    ids, error = getattr(refused, "sent", []), refused
                sent += len(ids)
                progress.hide()
                show_ids(ids, args.json)
                if error is not None:
                    rest = f"{sent} lines were sent before, go on with line {sent + 1}" if sent else "nothing was sent"
                    why = full(error) if isinstance(error, QueueFull) else error
                    raise PacchettinoError(f"{why}; {rest}") from error
                progress.show(sent, read)


def _lines(input: int) -> Iterator[tuple[list[bytes], int]]:
    """Read lines, all that are there at a time, but not much more than `CHUNK`. With each how much was read so far.

    A read returns what there is: a line that comes alone is not kept waiting for others, a crowd comes together.
    """
    begun, read = bytearray(), 0
    while chunk := os.read(input, CHUNK):
        read += len(chunk)
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(begun) + lines[0]
            begun.clear()
            yield lines, read
        begun += rest
    if begun:
        yield [bytes(begun)], read


def _size(input: int) -> int | None:
    """How much there is to read, where that is known."""
    status = os.fstat(input)
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_size - os.lseek(input, 0, os.SEEK_CUR)


def show_ids(ids: list[str], in_json: bool, **more: str) -> None:
    """Print what exists now, at once."""
    if ids:
        print("\n".join(as_json({"id": id, **more}) for id in ids) if in_json else "\n".join(ids), flush=True)
