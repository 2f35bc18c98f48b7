"""The subcommand `send`: files, data, and lines as fast as they come, and as soon."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pacchettino import Pacchettino, PacchettinoError, QueueFull, SendError
from pacchettino._command import DURATIONS, UsageError, add_json, add_subcommand, complain, duration, number
from pacchettino._command.output import Progress, as_json
from pacchettino._types import Duration

CHUNK = 256 * 1024
BATCH = 1000


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

examples:
  pacchettino send queue photo.jpg *.pdf          copies of files
  pacchettino send queue --move --delay 1h a.tif  the file itself, in an hour
  pacchettino send queue --data 'hello'
  mysqldump shop | pacchettino send queue -       all of its output is one job
  tail -f log | pacchettino send queue --lines    a job for each line, at once
  pacchettino send queue -- -odd-name.txt         a name that begins with a dash
""",
    )
    parser.add_argument("files", metavar="FILE", nargs="*", help="a file to send; - alone is standard input, as data")
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
        raise UsageError("send needs one of: FILEs, --data TEXT, --lines, or - for standard input")
    is_input = "-" in args.files
    if is_input and len(args.files) > 1:
        raise UsageError("- is standard input and goes alone; a file of that name is ./-")
    if args.move and (is_input or not args.files):
        raise UsageError("--move is for FILEs")
    if (args.lines or is_input) and sys.stdin is None:
        raise UsageError("standard input is closed")
    queue = Pacchettino(args.directory, durable=args.durable, max_queued=args.max_queued, min_free=args.min_free)
    if args.lines:
        send_lines(queue, sys.stdin.fileno(), args.delay, args.block, lambda ids: show_ids(ids, args.json))
        return 0
    if args.files and not is_input:
        return send_files(queue, args)
    for data in [sys.stdin.buffer.read()] if is_input else map(os.fsencode, args.data):
        show_ids([queue.send_data(data, delay=args.delay, block=args.block)], args.json)
    return 0


def send_files(queue: Pacchettino, args: argparse.Namespace) -> int:
    """Send files. One that can't be sent keeps no other from it."""
    status = 0
    for file in args.files:
        try:
            ids = [queue.send_file(file, copy=not args.move, delay=args.delay, block=args.block)]
        except QueueFull as error:
            complain(f"{file} was not sent, nor what comes after it: {error}")
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


def send_lines(
    queue: Pacchettino, input: int, delay: Duration, block: Duration | None, tell: Callable[[list[str]], None]
) -> None:
    """Send all lines of a file that is open. `tell` gets the ids of jobs as soon as they exist."""
    # Where room is short, a batch needs room for all of it.
    most = BATCH if queue.max_queued is None else max(1, min(BATCH, queue.max_queued // 4))
    sent = 0
    with Progress(_size(input)) as progress:
        for lines, read in _lines(input):
            for begin in range(0, len(lines), most):
                error: Exception | None = None
                try:
                    ids = queue.send_many(lines[begin : begin + most], delay=delay, block=block)
                except (PacchettinoError, OSError) as refused:
                    ids, error = getattr(refused, "sent", []), refused
                sent += len(ids)
                progress.hide()
                tell(ids)
                if error is not None:
                    rest = f"{sent} lines were sent before, go on with line {sent + 1}" if sent else "nothing was sent"
                    raise PacchettinoError(f"{error}; {rest}") from error
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
