"""Does the slow work of app.py, until Ctrl-C or SIGTERM: python examples/webapp/worker.py [DIR]."""

import logging
import lzma
import sys
from pathlib import Path

from pacchettino import Fail, Pacchettino

logging.basicConfig(format="%(levelname)s %(message)s")
directory = Path(sys.argv[1] if sys.argv[1:] else "webapp-data")
results = directory / "results"
results.mkdir(parents=True, exist_ok=True)
queue = Pacchettino(directory / "queue", fifo=True)  # who asked first is served first


@queue.on_data_received
def compress(id: str, data: bytes) -> None:
    if not data:
        raise Fail("there is nothing to compress")  # app.py shows this
    # Renamed when it is whole: should this process die in the middle, nobody takes half a result for one.
    half = results / f"{id}.half"
    half.write_bytes(lzma.compress(data, preset=9))
    half.replace(results / f"{id}.xz")


queue.work()
