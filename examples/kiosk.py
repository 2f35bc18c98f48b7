"""Uploads the photos of a folder to a server that is often away, until Ctrl-C or SIGTERM.

python examples/kiosk_server.py                   an unreliable server to try it with, in another terminal
python examples/kiosk.py [FOLDER] --pause 1       FOLDER is ./photos unless you say so; copy some *.jpg there first

A photo that can't be uploaded is tried five times, and then kept in FOLDER/queue/failed; the log says why, and so does
`cat FOLDER/queue/history/*/*`.
"""

import argparse
import logging
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pacchettino import Backoff, Fail, KeepPolicy, Pacchettino, Retry, Status

TRY_AGAIN = {408, 429, 500, 502, 503, 504}  # what a server says that may let us in later

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", nargs="?", default="photos", type=Path)
parser.add_argument("--server", default="http://127.0.0.1:8000")
parser.add_argument(
    "--pause", default=60, type=float, help="seconds before the second attempt; then twice as long, ..."
)
options = parser.parse_args()

logging.basicConfig(format="%(levelname)s %(message)s")

queue = Pacchettino(
    options.folder / "queue",
    KeepPolicy.FAILED | KeepPolicy.INTERRUPTED,  # photos that are on the server need no place here
    durable=True,  # kiosks are switched off at the wall
    max_attempts=5,
    retry_delay=Backoff(options.pause, maximum=3600),
    # Whatever urllib raises if there is no network, or nobody answers. (ConnectionError would be too little: URLError,
    # in which urllib wraps most of them, is none.)
    retry_on=(OSError,),
    # The power went during an upload: PUT by the job's id does no harm when it is done twice.
    interrupted_attempts=5,
)


@queue.on_file_received
def upload(id: str, name: str, path: Path) -> None:
    with path.open("rb") as photo:
        headers = {"Content-Length": str(path.stat().st_size), "Content-Type": "image/jpeg"}
        request = Request(f"{options.server}/photos/{id}", photo, headers, method="PUT")
        try:
            urlopen(request, timeout=30).close()  # without a timeout a silent server would keep the kiosk for ever
        except HTTPError as error:
            reason = f"the server says {error.code} {error.reason}"
            if error.code in TRY_AGAIN:
                raise Retry(reason=reason) from None
            raise Fail(reason) from None
    print(f"uploaded {name!r}", flush=True)


# Moved, not copied: whenever the power goes, a photo is in the folder or in the queue, and never in both. Other
# programs, such as the camera's, may send theirs themselves, at any time.
for photo in sorted(options.folder.glob("*.jpg")):
    queue.send_file(photo, copy=False)

queue.work()  # until Ctrl-C or SIGTERM, after which the upload in hand is finished

for job in queue.jobs(Status.FAILED):
    print(f"not uploaded: {job.name!r}, because {queue.history(job.id)[-1].reason}")
