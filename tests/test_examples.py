"""The examples do what they say, each as a person would run it: real processes, signals and servers."""

import json
import lzma
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest
from helpers import PATIENCE, until
from pacchettino import Pacchettino, Status

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = [pytest.mark.docs, pytest.mark.needs("signals")]

JPEG = b"\xff\xd8 what a camera makes"


class Example:
    """A running example. What it says goes to a file: nobody need read it for it to go on."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    def said(self) -> str:
        return self._output.read_text()

    def says(self, pattern: str) -> str:
        """Wait until it says that, and give the group in it."""
        until(lambda: re.search(pattern, self.said()) or self._process.poll() is not None)
        found = re.search(pattern, self.said())
        assert found, self.said()
        return found[1]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Have it end by a signal, in order, and give all that it said."""
        self.send(number)
        return self.end()

    def end(self) -> str:
        """Wait for its end, which is to be in order, and give all that it said."""
        assert self._process.wait(PATIENCE) == 0, self.said()
        assert "Exception ignored" not in self.said(), self.said()  # such as something that was left open
        return self.said()


@contextmanager
def run(example: str, *arguments: object, **environment: str) -> Iterator[Example]:
    """Run an example from a directory that is not its own."""
    program = ["sh"] if example.endswith(".sh") else [sys.executable, "-u", "-W", "error"]
    command = [*program, EXAMPLES / example, *map(str, arguments)]
    with tempfile.NamedTemporaryFile() as output, tempfile.TemporaryDirectory() as elsewhere:
        process = subprocess.Popen(
            command,
            cwd=elsewhere,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with process:
            try:
                yield Example(process, Path(output.name))
            finally:
                with suppress(ProcessLookupError):  # whatever it started is to go, too
                    os.killpg(process.pid, signal.SIGKILL)


def get(url: str, data: bytes | None = None) -> tuple[int, bytes, dict[str, str]]:
    """Ask a server, and give its status, its answer and its headers."""
    try:
        with urllib.request.urlopen(url, data, timeout=PATIENCE) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


# The kiosk


def test_the_kiosk_uploads_its_photos_although_the_server_is_unreliable(tmp_path: Path) -> None:
    for name in ("one.jpg", "with spaces.jpg"):
        (tmp_path / name).write_bytes(JPEG)
    (tmp_path / "not one.jpg").write_bytes(b"GIF89a")
    with run("kiosk_server.py", 0) as server:
        with run("kiosk.py", tmp_path, "--server", server.says("(http.*)"), "--pause", 0.1) as kiosk:
            queue = Pacchettino(tmp_path / "queue")
            until(lambda: queue.count_failed() == 1 and queue.count_all() == 1)
            assert list(tmp_path.glob("*.jpg")) == []
            (tmp_path / "later.jpg").write_bytes(JPEG)
            queue.send_file(tmp_path / "later.jpg", copy=False)
            kiosk.says("uploaded ('later.jpg')")
            said = kiosk.stop()
        got = server.stop(signal.SIGINT)
    assert sorted(re.findall("^uploaded '(.*)'", said, re.MULTILINE)) == ["later.jpg", "one.jpg", "with spaces.jpg"]
    assert len(re.findall("to be tried again in .* s: .*Remote end closed connection without response", said)) == 4
    assert len(re.findall("to be tried again in .* s: the server says 503", said)) == 4
    assert "not uploaded: 'not one.jpg', because the server says 415 Unsupported Media Type" in said
    assert len(re.findall(f"{len(JPEG)} bytes, after 3 uploads", got)) == 3


def test_the_kiosk_gives_up_after_five_attempts_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(JPEG)
    with socket.socket() as nobody:  # bound, but it does not listen
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with run("kiosk.py", tmp_path, "--server", url, "--pause", 0.1) as kiosk:
            queue = Pacchettino(tmp_path / "queue")
            until(queue.count_failed)
            said = kiosk.stop()
    (job,) = queue.jobs(Status.FAILED)
    assert [(attempt.attempt, attempt.ended) for attempt in queue.history(job.id)] == [
        (1, "retry"),
        (2, "retry"),
        (3, "retry"),
        (4, "retry"),
        (5, "failed"),
    ]
    pauses = [(attempt.due - attempt.at).total_seconds() for attempt in queue.history(job.id) if attempt.due]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8], rel=0.15)
    assert re.search("not uploaded: 'photo.jpg', because given up after 5 attempts: .*Connection refused", said)
    assert "Connection refused" in "".join(path.read_text() for path in tmp_path.glob("queue/history/*/*"))


def test_the_kiosk_finishes_the_upload_in_hand_before_it_stops(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(JPEG)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with run("kiosk.py", tmp_path, "--server", url) as kiosk:
            connection, _ = server.accept()
            with connection:
                kiosk.send(signal.SIGINT)
                connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
                assert "uploaded 'photo.jpg'" in kiosk.end()
    assert list(tmp_path.glob("queue/*/*.jpg")) == []


# The web application


def test_the_web_application_hands_over_work_and_shows_how_far_it_is(tmp_path: Path) -> None:
    with run("webapp/app.py", tmp_path, PORT="0") as app:
        url = app.says("Running on (http://.*)")
        status, answer, headers = get(f"{url}/jobs", b"a text " * 1000)
        job = url + headers["Location"]
        assert (status, headers["Location"]) == (202, f"/jobs/{json.loads(answer)['id']}")
        assert json.loads(get(job)[1]) == {"status": "queued"}
        assert get(f"{job}/result")[0] == 404
        empty = url + get(f"{url}/jobs", b"")[2]["Location"]
        with run("webapp/worker.py", tmp_path) as worker:
            until(lambda: json.loads(get(job)[1]) == {"status": "success"})
            until(lambda: json.loads(get(empty)[1]) == {"status": "failed", "reason": "there is nothing to compress"})
            worker.stop()
        assert lzma.decompress(get(f"{job}/result")[1]) == b"a text " * 1000
        assert get(f"{url}/jobs/{'0' * 36}")[0] == get(f"{url}/jobs/00000000-0000-7000-8000-000000000000")[0] == 404


def test_the_web_application_sends_away_who_comes_when_the_queue_is_full(tmp_path: Path) -> None:
    waiting = Pacchettino(tmp_path / "queue").send_many([b""] * 100)
    with run("webapp/app.py", tmp_path, PORT="0") as app:
        url = app.says("Running on (http://.*)")
        status, answer, headers = get(f"{url}/jobs", b"a text")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert "100" in json.loads(answer)["error"]
        Pacchettino(tmp_path / "queue").cancel(waiting[0])
        assert get(f"{url}/jobs", b"a text")[0] == 202


# The producer at full rate


def test_the_firehose_is_slowed_down_by_its_consumers_and_nothing_is_lost(quick_dir: Path) -> None:
    with run("firehose.py", quick_dir) as firehose:
        said = firehose.end()
    progress = [line.replace(",", "") for line in said.splitlines()]
    sent = [(int(n), int(w)) for line in progress for n, w in re.findall(r"^sent (\d+) of which (\d+) wait", line)]
    handled = [int(n) for line in progress for n in re.findall(r"^handled (\d+)", line)]
    assert len(sent) == 3
    assert 500 <= max(waiting for _, waiting in sent) <= 1000
    assert len(handled) == 3
    assert sum(handled) == sent[-1][0]
    assert all(handled)
    assert Pacchettino(quick_dir).count_all() == 0


# The scraper


class Site:
    """A site of thirty pages, each with links to two others, to one that is missing, and to another site.

    Each takes its time, and the last three say 503 when they are asked for the first time.
    """

    PAGES = 30

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with site._lock:
                    site.asked[self.path] += 1
                    site._at_once += 1
                    site.most_at_once = max(site.most_at_once, site._at_once)
                time.sleep(0.05)
                with site._lock:
                    site._at_once -= 1
                number = int(self.path.removeprefix("/"))
                if number >= site.PAGES:
                    self.send_error(404)
                elif number >= site.PAGES - 3 and site.asked[self.path] == 1:
                    self.send_error(503)
                else:
                    self.send_response(200)
                    self.send_header("Content-Type", "text/html; charset=utf-8")
                    self.end_headers()
                    nexts = [(2 * number + more) % site.PAGES for more in (1, 2)]
                    links = [*map(str, nexts), f"/{site.PAGES}", "http://127.0.0.2:1/elsewhere", f"/{number}#here"]
                    self.wfile.write("".join(f"<a href={link}>" for link in links).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Site":
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_the_scraper_gets_each_page_of_a_site_once_ten_at_a_time(tmp_path: Path) -> None:
    with Site() as site, run("scraper.py", tmp_path, f"{site.url}/0") as scraper:
        until(lambda: len(list(tmp_path.glob("pages/http*"))) == site.PAGES)
        said = scraper.stop(signal.SIGINT)
        assert site.asked == {f"/{number}": 1 if number < 27 or number == 30 else 2 for number in range(31)}
        assert 2 < site.most_at_once <= 10
    queue = Pacchettino(tmp_path / "queue")
    (job,) = queue.jobs(Status.FAILED)
    assert queue.count_all() == 1
    assert queue.history(job.id)[-1].reason == f"{site.url}/30: 404 Not Found"
    assert f"{site.url}/30: 404 Not Found" in said


def test_a_scraper_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with Site() as site:
        with run("scraper.py", tmp_path, f"{site.url}/0") as scraper:
            until(lambda: len(list(tmp_path.glob("pages/http*"))) >= 5)
            scraper.send(signal.SIGKILL)
        assert len(list(tmp_path.glob("pages/http*"))) < site.PAGES
        with run("scraper.py", tmp_path, f"{site.url}/0") as scraper:
            until(lambda: len(list(tmp_path.glob("pages/http*"))) == site.PAGES)
            scraper.stop()
        assert site.asked["/0"] == 1
    assert Pacchettino(tmp_path / "queue").count_interrupted() == 0


# The pipeline


def test_the_pipeline_does_each_line_and_says_which_it_could_not_do(tmp_path: Path) -> None:
    if shutil.which("factor") is None:
        pytest.skip("NOT TESTED: needs factor(1)")
    with run("pipeline.sh", tmp_path, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}") as pipeline:
        said = pipeline.end()
    factors = {int(number): rest.split() for number, rest in re.findall(r"^(\d{9,}):(.*)", said, re.MULTILINE)}
    assert len(factors) == 10
    assert all(math.prod(map(int, of)) == number for number, of in factors.items())
    (job,) = Pacchettino(tmp_path).jobs(Status.FAILED)
    assert job.path.read_text() == "eleven"
    assert Pacchettino(tmp_path).count_successful() == 10
    assert re.search("exit status 1: factor: .*eleven.*not a valid positive integer", said)


# The container


def test_the_container_s_worker_is_missed_by_its_lock_file_and_not_by_its_pid() -> None:
    namespaces = ["unshare", "--pid", "--fork", "--mount-proc", "--map-root-user", "true"]
    if subprocess.run(namespaces, check=False, capture_output=True).returncode != 0:
        pytest.skip("NOT TESTED: a PID namespace needs unshare(1), and root or user namespaces")
    with run("container.py") as container:
        said = container.end()
    assert re.findall(r"^[A-Z_]+: .*", said, re.MULTILINE) == [
        "LOCK_FILE: PID 1 of a container has the job, which is processing",
        "LOCK_FILE: it was killed, and the job is interrupted",
        "PID: PID 1 of a container has the job, which is processing",
        "PID: it was killed, and the job is processing",
    ]
