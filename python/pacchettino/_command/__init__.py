"""The command `pacchettino`: its arguments, its exit status, and what its subcommands share."""

from __future__ import annotations

import argparse
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from pacchettino import _core
from pacchettino._command.output import columns
from pacchettino._text import safe
from pacchettino._types import KeepPolicy, PacchettinoError

# A short command is mostly the start of Python and of what it imports, so each imports only what it needs. All but
# `work` do without the package's Python layer, which also has what runs handlers.
SUBCOMMANDS = {
    "send": "send",
    "work": "work",
    "status": "look",
    "ls": "look",
    "show": "look",
    "requeue": "change",
    "cancel": "change",
    "cleanup": "change",
    "pause": "change",
    "resume": "change",
    "top": "top",
    "check": "check",
}
"""The module of each subcommand."""

DIRECTORIES = ("queued", "processing", "success", "failed", "interrupted", "scheduled", "tmp", "owners")
"""What a queue's directory holds, whoever made it."""

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
        import signal

        number = signal.Signals[name]
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return 1


# Arguments


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Knows the width without `shutil`: one is made for each argument, also where no help is asked for."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, width=columns() - 2, **more)


class Parser(argparse.ArgumentParser):
    """Quotes arguments safely in its messages: a pattern of the shell may have put any file name there."""

    def error(self, message: str) -> NoReturn:
        super().error(safe(message))


def parsers(names: Iterable[str] = SUBCOMMANDS) -> tuple[Parser, dict[str, Parser]]:
    """Make the parser of the command, and those of these subcommands by their names."""
    parser = Parser(
        prog="pacchettino",
        description="A job queue made of plain directories. Each subcommand takes one, DIR.",
        epilog="`pacchettino SUBCOMMAND --help` tells more, with examples.\n"
        "Exit status: 0 done; 1 something failed or is not there; 2 the arguments make\nno sense, or DIR is no queue.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(prog=parser.prog, title="subcommands", metavar="SUBCOMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False, formatter_class=HelpFormatter)
    common.add_argument("directory", metavar="DIR", help="the queue's directory")
    for module in dict.fromkeys(SUBCOMMANDS[name] for name in names):
        import_module(f"{__name__}.{module}").add_parser(subparsers, [common])
    return parser, subparsers.choices


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Understand the arguments, or say what is wrong and exit."""
    name, *rest = arguments or [""]
    if name not in SUBCOMMANDS:  # help, the version, or a mistake
        return parsers()[0].parse_args(arguments)
    chosen = parsers([name])[1][name]
    command = None
    if name == "work" and "--" in rest:
        end = rest.index("--")
        rest, command = rest[:end], rest[end + 1 :]
    # Intermixed, so that FILEs may come after options, too.
    parsed, unknown = chosen.parse_known_intermixed_args(rest)
    if unknown:
        hint = "; a command goes after --" if name == "work" and command is None else ""
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
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
        formatter_class=HelpFormatter,
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


def opened(directory: str, *, durable: bool = False, max_queued: int | None = None, min_free: int = 0) -> _core.Queue:
    """Open a queue, and make what is missing of it."""
    queue = _core.Queue(directory, int(KeepPolicy.ALL), False, max_queued, min_free)
    queue.ensure_open()
    queue.durable = durable
    return queue


def existing(directory: str) -> _core.Queue:
    """Open a queue that is there. To open it would make what is missing, and so hide that jobs may be lost."""
    missing = [name for name in DIRECTORIES if not _is_there(directory, name)]
    if len(missing) == len(DIRECTORIES):
        raise UsageError(f"{directory}: there is no queue here; `pacchettino send` and `work` make one")
    if missing:
        raise PacchettinoError(
            f"{directory}: of this queue {', '.join(f'{name}/' for name in missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing, with the jobs that may have been there; "
            f"`pacchettino check {directory}` shows what else is wrong, and with --repair makes what is missing"
        )
    return opened(directory)


def _is_there(directory: str, name: str) -> bool:
    try:
        os.stat(os.path.join(directory, name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_job_file(path: str) -> int:
    """Open a job's file to read it, as the core does: not through a link, and nothing but a regular file.

    Somebody may have put a FIFO in its place, which keeps waiting whoever opens it otherwise.
    """
    # On Windows, as it is and not as text.
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    file = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "a job must be a regular file", path)
    return file
