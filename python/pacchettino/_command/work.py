"""The subcommand `work`: jobs are done by functions, or by a command."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

from pacchettino import Backoff, CrashDetection, KeepPolicy, Pacchettino
from pacchettino._command import DURATIONS, KEPT, UsageError, add_subcommand, complain, duration, number
from pacchettino._command.init import split_off_init
from pacchettino._retry import ENDS
from pacchettino._work import heed_children, missing_directory


def add_parser(subparsers: Any, common: list[argparse.ArgumentParser]) -> None:
    """Have the subcommand `work`."""
    parser = add_subcommand(
        subparsers,
        common,
        "work",
        work,
        "take jobs and do them, by Python functions or by a command",
        f"""
MOD:FUNC is a function in a module, which is looked for in the current
directory, too. For data it is called with (id, data), for a file with (id,
name, path). It returns nothing for success, or raises pacchettino.Retry or
pacchettino.Fail; README.md tells more. The settings of the queue are those of
this command, also if the module makes a Pacchettino of its own.

CMD is run for each job, without a shell. An argument {{}} is replaced by the
path of the job's file, which must neither be moved nor deleted. A data job's
bytes are on standard input; so are a file's, where there is no {{}}.
Exit status 0 is success, 75 means "again", any other that the job failed, for
a reason that is the end of what CMD wrote to standard error.
In its environment are PACCHETTINO_ID, PACCHETTINO_ATTEMPT (from 1),
PACCHETTINO_DIR, and for a file PACCHETTINO_NAME.
It runs in a session of its own, which Ctrl-C does not reach. If the worker
leaves or dies, CMD is ended with all that it started (SIGTERM, a second later
SIGKILL), and only then the job is interrupted. With --crash-detection pid, or
if CMD starts sessions of its own, the job may be interrupted before that.
While CMD cannot be started its jobs wait; that is no attempt.

The first SIGTERM or SIGINT (Ctrl-C): the jobs in hand are finished, no more
are taken, and the exit status is 0, also if jobs failed. The second: the
worker leaves at once, and the jobs in hand are interrupted.

{DURATIONS}

examples:
  pacchettino work queue --data tasks:mail --file tasks:upload --threads 4
  pacchettino work queue --retry-delay 1m..1h -- rsync {{}} backup:/incoming/
  pacchettino work queue --drain -- sh -c 'wc -c; echo "$PACCHETTINO_ID"'
""",
    )
    # `parse` takes the command out before.
    parser.usage = (
        "pacchettino work DIR [OPTION...] [--data MOD:FUNC] [--file MOD:FUNC]\n"
        "       pacchettino work DIR [OPTION...] -- CMD [ARG | {}]..."
    )
    parser.add_argument("--data", metavar="MOD:FUNC", help="the function for data jobs")
    parser.add_argument("--file", metavar="MOD:FUNC", help="the function for files")

    how = parser.add_argument_group("how to work")
    how.add_argument("--threads", metavar="N", type=number, default=1, help="handle N jobs at a time, in threads")
    how.add_argument("--processes", metavar="N", type=number, default=1, help="in N processes, each with its threads")
    how.add_argument("--drain", action="store_true", help="end when no job waits; those of a later time are left")
    how.add_argument(
        "--grace",
        metavar="DURATION",
        type=duration,
        help="leave that long after the first signal, whatever is in hand; by default wait",
    )
    how.add_argument("--max-jobs", metavar="N", type=number, help="replace a process after N jobs")
    how.add_argument(
        "--job-timeout",
        metavar="DURATION",
        type=duration,
        help="interrupt a job that takes longer, by killing its process; needs --threads 1",
    )

    settings = parser.add_argument_group("the queue")
    settings.add_argument(
        "--keep",
        metavar="STATES",
        type=kept,
        default=KeepPolicy.ALL,
        help="which finished jobs to keep: all (the default), none, or some of success,failed,interrupted",
    )
    settings.add_argument("--durable", action="store_true", help="flush each change to the disk")
    settings.add_argument("--fifo", action="store_true", help="the oldest job first, instead of any")
    settings.add_argument(
        "--max-attempts", metavar="N", type=number, help="fail a job after N attempts; by default never"
    )
    settings.add_argument(
        "--retry-delay",
        metavar="DURATION[..DURATION]",
        type=retry_delay,
        default=Backoff(1, maximum=60),
        help="how long a job waits that is to be done again; "
        "1s..1m, the default, is a second, then two, four, ... up to a minute, a tenth more or less",
    )
    settings.add_argument(
        "--retry-on",
        metavar="[MOD:]EXC",
        action="append",
        default=[],
        help="an exception of a function that means again, such as ConnectionError or ftplib:error_temp; "
        "may be given more than once",
    )
    settings.add_argument(
        "--interrupted-attempts",
        metavar="N",
        type=int,
        default=0,
        help="put a job whose worker died back by itself, N times (0)",
    )
    settings.add_argument(
        "--crash-detection",
        choices=["lock-file", "pid"],
        default="lock-file",
        help="how others notice that this worker died; pid is for filesystems without locks",
    )


def retry_delay(text: str) -> float | Backoff:
    """Understand a duration, or `1m..1h`: one that doubles each time, up to the second."""
    first, is_range, longest = text.partition("..")
    return Backoff(duration(first), maximum=duration(longest)) if is_range else duration(text)


def kept(text: str) -> KeepPolicy:
    """Understand `all`, `none`, or states joined by commas."""
    if text in ("all", "none"):
        return KeepPolicy.ALL if text == "all" else KeepPolicy.NONE
    policy = KeepPolicy.NONE
    for state in text.split(","):
        if state not in KEPT:
            raise argparse.ArgumentTypeError(f"not all, none, or any of {', '.join(KEPT)} joined by commas: {text!r}")
        policy |= KEPT[state]
    return policy


def work(args: argparse.Namespace) -> int:
    if args.command == []:
        raise UsageError("there is no command after --")
    if (args.command is None) == (args.data is None and args.file is None):
        raise UsageError("work needs either --data MOD:FUNC or --file MOD:FUNC (or both), or a command after --")
    if args.job_timeout is not None and args.threads > 1:
        raise UsageError("--job-timeout needs --threads 1, since it kills the process; use --processes")
    if args.interrupted_attempts < 0:
        raise UsageError("--interrupted-attempts must be 0 or more")
    heed_children()
    split_off_init()  # before anything starts a thread
    gone = missing_directory()
    if gone is not None:
        complain(gone)
        return 1
    # As for `python -m`: where the worker is started, there its modules are.
    sys.path.insert(0, str(Path.cwd()))
    handlers = {kind: imported(name) for kind, name in (("data", args.data), ("file", args.file)) if name is not None}
    program = None
    if args.command is not None:
        from shutil import which

        from pacchettino._command.program import Program

        if which(args.command[0]) is None:
            raise UsageError(f"{args.command[0]}: there is no such command")
        program = Program(args.command)
    queue = Pacchettino(
        args.directory,
        args.keep,
        durable=args.durable,
        crash_detection=CrashDetection(args.crash_detection.replace("-", "_")),
        retry_delay=args.retry_delay,
        fifo=args.fifo,
        max_attempts=args.max_attempts,
        retry_on=tuple(exception(name) for name in args.retry_on),
        interrupted_attempts=args.interrupted_attempts,
    )
    if sys.stderr is not None and sys.stderr.isatty():
        complain(f"working on {queue.base_dir}; Ctrl-C finishes what is in hand, a second one leaves it")
    tell_stops()
    try:
        queue._on_claim = program
        if "data" in handlers:
            queue.on_data_received(handlers["data"])
        if "file" in handlers:
            queue.on_file_received(handlers["file"])
        queue.work(
            args.threads,
            args.processes,
            drain=args.drain,
            grace=args.grace,
            max_jobs=args.max_jobs,
            job_timeout=args.job_timeout,
        )
    except TypeError as error:  # no function, or one that can't be taken to another process
        raise UsageError(str(error)) from error
    except RuntimeError as error:  # a process that could not begin
        complain(error)
        return 1
    finally:
        if program is not None:
            program.end_all()  # before the jobs are seen to be interrupted
    return 0


def tell_stops() -> None:
    """Have what is said of stopping shown: who pressed Ctrl-C is to know that it was heard."""
    told = logging.getLogger("pacchettino.work")
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("pacchettino: %(message)s"))
    told.addHandler(shown)
    told.setLevel(logging.INFO)
    told.propagate = False


def imported(name: str, default: str | None = None) -> Any:
    """Give what `MOD:NAME` names. What the module itself raises is shown with its traceback."""
    from importlib import import_module

    module, colon, path = name.rpartition(":")
    if not module and default is not None:
        module = default
    if not (module and path) or not (colon or default):
        raise UsageError(f"not MOD:FUNC: {name!r} (a module, a colon, and the name of a function in it)")
    try:
        found = import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            said = f"there is no module {missing!r}; looked in the current directory and in sys.path"
            raise UsageError(said) from None
        traceback.print_exc()
        sys.exit(1)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"there is no {path!r} in module {module!r}") from None
    return found


def exception(name: str) -> type[BaseException]:
    found = imported(name, "builtins")
    if not (isinstance(found, type) and issubclass(found, BaseException)) or issubclass(found, ENDS):
        raise UsageError(f"--retry-on needs a type of exceptions that does not end the worker, not {name}")
    return found
