"""The command `pacchettino`: its arguments, its exit status, and what its subcommands share."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pacchettino import KeepPolicy, Pacchettino, PacchettinoError
from pacchettino._command.output import safe

KEPT = {"success": KeepPolicy.SUCCESS, "failed": KeepPolicy.FAILED, "interrupted": KeepPolicy.INTERRUPTED}

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

DURATIONS = """A DURATION is a number of seconds, or has a unit (s, m, h, d, w): 90, 1.5h, 10m,
7d."""


class UsageError(Exception):
    """What was asked for can't be meant: exit status 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit status: 0 done, 1 something was not, 2 it was not understood."""
    for stream in (sys.stdout, sys.stderr):
        # A locale without the letters of a name is no reason to fail.
        with suppress(AttributeError):  # a closed one is None
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        parsed = parse(sys.argv[1:] if arguments is None else arguments)
        status: int = parsed.run(parsed)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except (UsageError, ValueError) as error:  # the queue says by the latter that a setting can't be
        complain(error)
        return 2
    except BrokenPipeError:
        drop_output()
        return die_by("SIGPIPE")
    except KeyboardInterrupt:
        return die_by("SIGINT")
    except (PacchettinoError, OSError) as error:
        complain(error)
        drop_output()
        return 1


def complain(error: object) -> None:
    """Say on standard error what is wrong."""
    if isinstance(error, OSError) and error.strerror is not None and not isinstance(error, PacchettinoError):
        error = error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
    with suppress(OSError):
        print(f"pacchettino: {safe(str(error))}", file=sys.stderr, flush=True)


def drop_output() -> None:
    """Have what can't be written forgotten: the interpreter would try again at its end, and complain."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def die_by(name: str) -> int:
    """End as a program does that has no handler for this signal, so that a shell sees what it expects."""
    if sys.platform != "win32":
        number = signal.Signals[name]
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return 1


# Arguments


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """What understands the arguments: the command, and each of its subcommands by name."""
    from pacchettino._command import change, check, look, send, top, work

    parser = argparse.ArgumentParser(
        prog="pacchettino",
        description="A job queue made of plain directories. Each subcommand takes one, DIR.",
        epilog="`pacchettino SUBCOMMAND --help` tells more, with examples.\n"
        "Exit status: 0 done; 1 something failed or is not there; 2 the arguments make\nno sense, or DIR is no queue.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("directory", metavar="DIR", help="the queue's directory")
    for module in (send, work, look, change, top, check):
        module.add_parser(subparsers, [common])
    return parser, subparsers.choices


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Understand the arguments, or say what is wrong and exit."""
    parser, subcommands = parsers()
    name, *rest = arguments or [""]
    chosen = subcommands.get(name)
    if chosen is None:  # help, the version, or a mistake
        return parser.parse_args(arguments)
    command = None
    if name == "work" and "--" in rest:
        end = rest.index("--")
        rest, command = rest[:end], rest[end + 1 :]
    # Intermixed, so that FILEs may come after options, too.
    parsed, unknown = chosen.parse_known_intermixed_args(rest)
    if unknown:
        hint = "; a command goes after --" if name == "work" and command is None else ""
        chosen.error(f"unrecognized arguments: {safe(' '.join(unknown))}{hint}")
    parsed.command = command
    return parsed


class ShowVersion(argparse.Action):
    """`--version`, which is looked up only then."""

    def __call__(self, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"pacchettino {version('pacchettino')}")
        sys.exit()


def add_subcommand(
    subparsers: Any,
    common: list[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
    more: str = "",
) -> argparse.ArgumentParser:
    """Have one more subcommand, with a line that tells what it does, and more on its own page."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        parents=common,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=more.strip("\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, an object on each line")


def duration(text: str) -> float:
    """Understand `90`, `1.5h`, `10m`, `7d`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)([smhdw]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"not a duration: {text!r} (such as 90, 1.5h, 10m, 7d)")
    return float(match[1]) * UNITS[match[2]]


def number(text: str) -> int:
    """Understand a number of 1 or more."""
    if not re.fullmatch(r"\d+", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"not a number of 1 or more: {text!r}")
    return int(text)


def existing(directory: str) -> Pacchettino:
    """Open a queue that is there: to look at one does not make one."""
    if not all(Path(directory, name).is_dir() for name in ("queued", "processing")):
        raise UsageError(f"{directory}: there is no queue here; `pacchettino send` and `work` make one")
    return Pacchettino(directory)
