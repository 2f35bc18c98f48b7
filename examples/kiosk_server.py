"""An unreliable server for kiosk.py: python examples/kiosk_server.py [PORT].

Of each photo it drops the first upload without an answer, to the second it says 503, and the third it takes. What is no
JPEG it refuses for good. After Ctrl-C it tells what it has.
"""

import sys
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

uploads: Counter[str] = Counter()
taken: dict[str, int] = {}


class Server(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        photo = self.rfile.read(int(self.headers["Content-Length"]))
        uploads[self.path] += 1
        if uploads[self.path] == 1:
            self.close_connection = True
        elif uploads[self.path] == 2:
            self.send_error(503)
        elif not photo.startswith(b"\xff\xd8"):
            self.send_error(415)
        else:
            taken[self.path] = len(photo)
            self.send_response(201)
            self.end_headers()


port = int(sys.argv[1]) if sys.argv[1:] else 8000
with HTTPServer(("127.0.0.1", port), Server) as server, suppress(KeyboardInterrupt):
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
for path, length in taken.items():
    print(path, length, "bytes, after", uploads[path], "uploads")
