"""Handles what producer.py sends through ./queue, until Ctrl-C."""

from pathlib import Path

from pacchettino import Pacchettino

queue = Pacchettino("queue")


@queue.on_data_received
def print_data(id: str, data: bytes) -> None:
    print("data:", data.decode())


@queue.on_file_received
def print_size(id: str, name: str, path: Path) -> None:
    print("file:", name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    queue.work()
