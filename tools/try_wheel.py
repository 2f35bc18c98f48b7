"""Installs the wheel that fits this interpreter into a clean environment, and runs the demo and README's pair there.

`python tools/try_wheel.py dist` takes it from the folder `dist`, and nothing from anywhere else.
"""

import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def main() -> None:
    """Try the wheels of the folder that the command line names."""
    wheels = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as home:
        venv.create(home, with_pip=True)
        python = Path(home, "Scripts" if os.name == "nt" else "bin", "python").absolute()
        source = ["--quiet", "--no-index", "--only-binary=:all:", "--find-links", wheels]
        subprocess.run([python, "-m", "pip", "install", *source, "pacchettino"], check=True)
        subprocess.run([python, "-W", "error", EXAMPLES / "demo.py"], cwd=home, check=True)
        run_the_pair(python, Path(home))
    threads = "free-threaded " if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    print(f"tried: {platform.system()} {platform.machine()}, {threads}Python {platform.python_version()}")


def run_the_pair(python: Path, home: Path) -> None:
    """Run the producer, and the consumer until it has done the three jobs."""
    subprocess.run([python, "-W", "error", EXAMPLES / "producer.py"], cwd=home, check=True)
    command = [python, "-u", "-W", "error", EXAMPLES / "consumer.py"]
    with subprocess.Popen(command, cwd=home, text=True, stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        lines = sorted(consumer.stdout.readline().split(":")[0] for _ in range(3))
        if os.name == "nt":
            consumer.terminate()  # Ctrl-C goes to a whole console there
        else:
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait() == 0
    assert lines == ["data", "data", "file"], lines


main()
