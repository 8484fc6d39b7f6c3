"""ASGI app -> base URL on the loopback interface, served by a background thread."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from pipeline.errors import InfrastructureError

START_TIMEOUT_SEC = 30.0


@contextlib.contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """App -> its base URL on 127.0.0.1 and a free port, until the block ends.

    Raises: InfrastructureError when the server does not come up.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="serving")
    thread.start()
    try:
        _wait_started(server, thread)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=START_TIMEOUT_SEC)
        listener.close()


def _wait_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SEC
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise InfrastructureError("a local HTTP server did not start")
        time.sleep(0.005)
