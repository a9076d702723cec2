"""Start the server, say where it is, open a browser, and stop on Ctrl-C."""

from __future__ import annotations

import errno
import socket
import threading
import warnings
import webbrowser
from collections.abc import Callable

import uvicorn
from PIL import Image

from deepfool.errors import InputError
from deepfool.live.app import make_app
from deepfool.live.exhibit import Exhibit
from deepfool.live.safety import Door, is_loopback, make_token

PORT = 8765
"""Where to begin looking for a free port."""
TRIES = 20


def bind(host: str, port: int | None) -> socket.socket:
    """A socket on the wanted port, or on the first free one from `PORT` on.

    >>> with bind("127.0.0.1", 0) as bound:
    ...     bound.getsockname()[1] > 0
    True
    """
    wanted = range(PORT, PORT + TRIES) if port is None else [port]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for each in wanted:
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((host, each))
        except OSError as error:
            opened.close()
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            why = f"{host}:{each} cannot be used: {error.strerror or error}."
            raise InputError(why, hint="choose another --port or --host.") from error
        return opened
    raise InputError(f"no port from {PORT} to {PORT + TRIES - 1} is free.", hint="choose one with --port.")


def serve(
    exhibit: Exhibit,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the page until Ctrl-C. `on_ready` gets the address once it answers."""
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # the page has a lower limit of its own
    with bind(host, port) as bound:
        door = Door(host, bound.getsockname()[1], None if is_loopback(host) else make_token())
        app = make_app(exhibit, door)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1,
            limit_concurrency=200, proxy_headers=False,
        )  # fmt: skip
        server = uvicorn.Server(config)

        def announce() -> None:
            while not server.started:
                if stopped.wait(0.01):
                    return
            on_ready(door.url)
            if open_browser:
                webbrowser.open(door.url)

        stopped = threading.Event()
        threading.Thread(target=announce, daemon=True).start()
        try:
            server.run(sockets=[bound])
        except KeyboardInterrupt:
            pass
        finally:
            stopped.set()
