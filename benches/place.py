"""Where it is measured, and the yardstick: the bare system calls that benches/bare.rs does."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
FILESYSTEMS = ["tmpfs", "ext4"] if os.geteuid() == 0 else ["tmpfs"]  # to mount needs root


@contextmanager
def filesystem(kind: str) -> Iterator[Path]:
    """A directory on a new filesystem of that kind, in memory: a disk hides what is to be seen."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pacchettino-bench-", dir=MEMORY)))
        if kind == "ext4":
            image, home = home / "image", home / "mounted"
            home.mkdir()
            with image.open("wb") as file:
                file.truncate(24 << 30)  # sparse: it takes what is written
            # Inodes for millions of small files, without a thread of the kernel that zeroes them while we measure.
            run("mkfs.ext4", "-q", "-i", "4096", image)
            run("mount", "-o", "loop,noinit_itable", image, home)
            stack.callback(run, "umount", "--lazy", home)  # after an error somebody may still have handles
        yield home


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


class Lab:
    """A filesystem to measure on, and the bare calls to measure against."""

    def __init__(self, home: Path, bare: "Bare", rounds: int, largest: int) -> None:
        self.home = home
        self.bare = bare
        self.rounds = rounds
        self.largest = largest
        self._numbers = count()

    def directory(self) -> Path:
        """A new one, on a filesystem that is done with what was written before.

        Nothing is deleted between two rounds: on some filesystems that slows down what comes after.
        """
        directory = self.home / str(next(self._numbers))
        directory.mkdir()
        run("sync", "-f", directory)
        return directory


class Bare:
    """Does sequences of bare calls, in up to eight processes at once."""

    def __init__(self) -> None:
        build = ["cargo", "bench", "--quiet", "--locked", "--bench", "bare", "--no-run", "--message-format=json"]
        lines = subprocess.run(build, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        programs = [program for line in lines if (program := json.loads(line).get("executable"))]
        self._servers = [
            subprocess.Popen(programs[-1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
        ]

    def close(self) -> None:
        for server in self._servers:
            server.communicate()

    def rate(
        self, sequence: str, directory: Path, jobs: int, *, first: int = 0, size: int = 256, processes: int = 1
    ) -> float:
        """Jobs per second; each process does its share, and none is in another's way."""
        share = jobs // processes
        firsts = range(first, first + jobs, share)
        times = self._do(*(f"{sequence} {first} {share} {size} {directory}" for first in firsts))
        return jobs / (max(end for _, end in times) - min(start for start, _ in times))

    def times(self, sequence: str, directory: Path, jobs: int) -> list[float]:
        """Seconds for each job."""
        (times,) = self._do(f"{sequence} 0 {jobs} 256 {directory}")
        return times

    def _do(self, *works: str) -> list[list[float]]:
        """All at once, by a process each."""
        servers = self._servers[: len(works)]
        for server, work in zip(servers, works, strict=True):
            tell(server, work)
        for server in servers:
            answer(server)
        for server in servers:
            tell(server, "go")
        return [[float(seconds) for seconds in answer(server).split()] for server in servers]


def tell(server: subprocess.Popen[str], line: str) -> None:
    assert server.stdin is not None
    print(line, file=server.stdin, flush=True)


def answer(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise RuntimeError(f"benches/bare.rs ended with {server.wait()}")
    return line
