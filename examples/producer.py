"""Sends three jobs through ./queue to consumer.py, which runs in another terminal, or will some day."""

from pacchettino import Pacchettino

queue = Pacchettino("queue")

queue.send_data("hello")
queue.send_file(__file__)
queue.send_data("hello again, five seconds later", delay=5)

print(queue.count_all(), "jobs in", queue.base_dir)
