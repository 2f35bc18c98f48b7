"""A web application that hands slow work to worker.py, which runs beside it.

python examples/webapp/app.py [DIR]               DIR is ./webapp-data unless you say so; PORT=5000
python examples/webapp/worker.py [DIR]            in another terminal, one or several

curl --data-binary @FILE http://127.0.0.1:5000/jobs           hands over a file to be compressed; tells where to look
curl http://127.0.0.1:5000/jobs/ID                            how far it is
curl --output FILE.xz http://127.0.0.1:5000/jobs/ID/result    what came of it
"""

import os
import sys
from pathlib import Path
from uuid import UUID

from flask import Flask, Response, abort, jsonify, request, send_file, url_for
from flask.typing import ResponseReturnValue
from pacchettino import Pacchettino, QueueFull, Status


def create_app(directory: Path) -> Flask:
    """Flask's own server, below, is a toy. Others, such as gunicorn or waitress, ask for the application."""
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 100_000_000
    # All threads may share it, and processes that a server forks. When a hundred jobs wait, those who come now
    # would wait so long that it is better to send them away.
    queue = Pacchettino(directory / "queue", max_queued=100, min_free=1_000_000_000)

    @app.post("/jobs")
    def hand_over() -> ResponseReturnValue:
        id = queue.send_data(request.get_data())
        return jsonify(id=id), 202, {"Location": url_for("tell", id=id)}

    @app.errorhandler(QueueFull)
    def send_away(full: QueueFull) -> ResponseReturnValue:
        return jsonify(error=str(full)), 503, {"Retry-After": "10"}

    @app.get("/jobs/<uuid:id>")
    def tell(id: UUID) -> ResponseReturnValue:
        status = queue.status(str(id))
        if status is Status.UNKNOWN:
            abort(404)
        if status is Status.FAILED:
            return jsonify(status=status, reason=queue.history(str(id))[-1].reason)
        return jsonify(status=status)

    @app.get("/jobs/<uuid:id>/result")
    def give(id: UUID) -> Response:
        if not queue.is_success(str(id)):
            abort(404)
        return send_file((directory / "results" / f"{id}.xz").absolute())

    return app


if __name__ == "__main__":
    directory = Path(sys.argv[1] if sys.argv[1:] else "webapp-data")
    create_app(directory).run(port=int(os.environ.get("PORT", "5000")))
