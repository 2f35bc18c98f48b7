"""Shows why lock files, not PIDs, tell across containers whether a worker lives: python examples/container.py [DIR].

Two workers, each in a PID namespace of its own, as in a container, take a job and are killed. The death of the first is
noticed outside, by its lock file. The other is known by its PID, which is 1 in there; outside, PID 1 is init and lives.
(Were it a PID that nobody has outside, the worker would be taken for dead while it works.)

Containers need nothing for that but one directory for all: `docker run --volume /srv/queue:/queue`. This program needs
Linux, unshare(1), and root or user namespaces. DIR is a temporary directory unless you say so.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pacchettino import CrashDetection, Pacchettino

CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def main(directory: Path) -> None:
    for detection in (CrashDetection.LOCK_FILE, CrashDetection.PID):
        queue = Pacchettino(directory / detection.value, crash_detection=detection)
        id = queue.send_data("a job")

        namespaces = CONTAINER if os.geteuid() == 0 else [*CONTAINER, "--map-root-user"]
        command = [*namespaces, sys.executable, __file__, str(queue.base_dir), detection.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as container:
            assert container.stdout is not None
            pid = container.stdout.readline().strip()
            queue.claim()  # who looks for a job looks whether all live that hold one
            print(
                f"{detection.name}: PID {pid} of a container has the job, which is {queue.status(id).value}", flush=True
            )
            container.kill()
        # Those who wait for a job look once a second.
        queue.claim(timeout=1.5)
        print(f"{detection.name}: it was killed, and the job is {queue.status(id).value}", flush=True)


def work(queue: Pacchettino) -> None:
    """In the container: take the job, and never come to its end."""
    job = queue.claim()
    assert job is not None
    print(os.getpid(), flush=True)
    signal.pause()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [directory, detection]:
            work(Pacchettino(directory, crash_detection=CrashDetection[detection]))
        case [directory]:
            main(Path(directory))
        case _:
            with tempfile.TemporaryDirectory(prefix="container-") as home:
                main(Path(home))
