"""Locales whose encoding is not UTF-8: names and paths are in Python what `os.fsdecode` makes of their bytes."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pacchettino import Pacchettino

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("localedef") is None, reason="NOT TESTED: there is no localedef"
)

# By the encoding, a locale of it.
LOCALES = {"ISO-8859-1": "en_US", "KOI8-R": "ru_RU", "EUC-JP": "ja_JP"}

# Bytes that mean something in UTF-8 and in the others, and that mean nothing in some of them.
NAMES = [
    "café.txt".encode(),
    "café.txt".encode("latin-1"),
    "файл".encode("koi8-r"),
    "漢字".encode("euc-jp"),
    "漢字".encode(),
    b"plain",
    b"\xff\x80",
]

PROGRAM = """
import os, pickle, sys
from pathlib import Path
from pacchettino import Pacchettino, Result, Status, _core

encoding, home, *names = sys.argv[1:]
names = map(bytes.fromhex, names)
assert sys.getfilesystemencoding().replace("_", "-").replace("iso8859", "iso-8859") == encoding.lower()


def listed(directory):
    return sorted(os.listdir(os.path.join(base, directory)))


for bytes_ in names:
    text = os.fsdecode(bytes_)
    base = os.path.join(home, "queue of " + text)
    source = os.path.join(home, text)
    with open(source, "wb") as file:
        file.write(bytes_)
    queue = Pacchettino(base)
    assert os.fspath(queue.base_dir) == base and os.path.isdir(base)

    # Into the queue.
    ids = [queue.send_file(source), queue.send_file(Path(source), name=text, delay=1000)]
    (scheduled,) = queue.jobs(Status.SCHEDULED)
    assert os.fspath(scheduled.path).endswith(text) and scheduled.path.read_bytes() == bytes_
    assert listed("scheduled") == [scheduled.path.name]
    (waiting,) = queue.jobs(Status.QUEUED)
    entry = f"fle-{ids[0]}-{text}"
    assert (waiting.name, waiting.entry, listed("queued")) == (text, entry, [entry])
    assert waiting.path.read_bytes() == bytes_
    assert queue.status(entry) is Status.QUEUED
    assert os.fsencode(pickle.loads(pickle.dumps(queue)).base_dir) == os.fsencode(home) + b"/queue of " + bytes_

    # Out of it.
    with queue.claim() as job:
        assert (job.name, job.entry, job.path.name) == (text, entry, text)
        assert os.listdir(job.path.parent) == [text]
        assert job.path.read_bytes() == job.data == bytes_
        job.fail()
    assert queue.requeue(entry)

    @queue.on_file_received
    def handle(id, name, path):
        assert (name, path.read_bytes()) == (text, bytes_)
        return Result.FAILED

    assert queue.receive() == 1
    assert queue.history(entry)[-1].ended == "failed"
    *_, (failure,) = queue._core.survey(0, 10)
    assert failure[3:] == (text, entry)

    # Errors and findings.
    try:
        queue.send_file(source + "?")
    except FileNotFoundError as error:
        assert error.filename == source + "?"
    try:
        queue.send_file(base)
    except IsADirectoryError as error:
        assert error.filename == base
    stranger = os.path.join(base, "queued", text)
    os.mkdir(stranger)
    assert stranger in [path for _, path, *_ in _core.Inspection(base, 0).findings()]
    os.write(1, pickle.dumps(queue))
"""


@pytest.fixture(scope="session")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the locales, and give the directory in which they are."""
    home = tmp_path_factory.mktemp("locales")
    making = [
        subprocess.Popen(
            ["localedef", "-c", "-i", language, "-f", encoding, home / encoding], stdout=subprocess.DEVNULL
        )
        for encoding, language in LOCALES.items()
    ]
    for process in making:
        process.wait()  # its status tells of warnings
    if [path for path in map(home.joinpath, LOCALES) if not path.is_dir()]:
        pytest.skip("NOT TESTED: localedef has no sources of these locales")
    return home


@pytest.mark.parametrize("encoding", LOCALES)
def test_names_and_paths_are_what_python_makes_of_their_bytes(locales: Path, tmp_path: Path, encoding: str) -> None:
    locale = {"LOCPATH": os.fspath(locales), "LC_ALL": encoding, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = [encoding, os.fspath(tmp_path), *map(bytes.hex, NAMES)]
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env={**os.environ, **locale}, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    # This process has another locale: the directories are the same ones all the same.
    queues: list[Pacchettino] = []
    rest = done.stdout
    while rest:
        queues.append(pickle.loads(rest))
        rest = rest[len(pickle.dumps(queues[-1])) :]
    assert [os.fsencode(queue.base_dir.name) for queue in queues] == [b"queue of " + name for name in NAMES]
