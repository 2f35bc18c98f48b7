"""What README.md shows is what happens, and what TESTING.md names is there."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_producer_and_the_consumer_are_the_examples() -> None:
    for name in ("producer.py", "consumer.py"):
        assert (ROOT / "examples" / name).read_text() in BLOCKS


def test_the_consumer_handles_what_the_producer_sent_until_ctrl_c(tmp_path: Path) -> None:
    producer, consumer, *_ = BLOCKS
    # The delay is shortened; what is shown is not the wait.
    Path(tmp_path, "producer.py").write_text(producer.replace("delay=5", "delay=0.1"))
    Path(tmp_path, "consumer.py").write_text(consumer)
    subprocess.run([sys.executable, "producer.py"], cwd=tmp_path, check=True)
    command = [sys.executable, "-u", "consumer.py"]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines = sorted(running.stdout.readline().split(":")[0] for _ in range(3))
        if sys.platform == "win32":  # there a program can't press Ctrl-C for another one
            running.kill()
        else:
            running.send_signal(signal.SIGINT)
        assert running.wait() == (sys.platform == "win32")
        assert running.stderr.read() == ""
    assert lines == ["data", "data", "file"]


def test_each_test_that_testing_md_names_is_there() -> None:
    named = re.findall(r"`((?:test|a)_[\w.]+)`", (ROOT / "TESTING.md").read_text(encoding="utf-8"))
    files = [name for name in named if name.endswith(".py")]
    tests = [re.escape(name).replace(re.escape("..."), ".*") for name in named if not name.endswith(".py")]
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").iterdir() if path.suffix in {".py", ".rs"}
    )
    assert files
    assert tests
    assert [name for name in files if not (ROOT / "tests" / name).exists()] == []
    assert [name for name in tests if not re.search(rf"\b(?:def|fn) {name}", sources)] == []
