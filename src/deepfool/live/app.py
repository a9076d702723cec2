"""The addresses of the page.

GET  /                the page, and its parts under /static/
GET  /api/about       what is on show
GET  /api/samples     samples to choose from
POST /api/picture     an image file; its pixels as the model sees them
POST /api/ask         a question; the answer is a stream of events
"""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deepfool import __version__, reporting
from deepfool.errors import DeepFoolError, InputError
from deepfool.live import stages
from deepfool.live.exhibit import Exhibit, describe
from deepfool.live.jobs import BusyError, Job, Workshop, watch_model
from deepfool.live.questions import read_question
from deepfool.live.safety import TAB, Door, Guard, read_body, refuse
from deepfool.live.samples import list_samples
from deepfool.live.scenes import send_bytes
from deepfool.reporting.single import check_picture_shape, fit_picture

HERE = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Of image files that are sent."""
MOST_BYTES = 20_000_000
MOST_PIXELS = 40_000_000
"""Of an image file: a photograph of today, not much more."""
DECODERS = 2
"""Files that are decoded at the same time: each may take some hundred MB for a moment."""
PING = 1.0
"""Seconds between two signs of life while a job waits."""


def make_app(exhibit: Exhibit, door: Door, workshop: Workshop | None = None) -> Starlette:
    """The page as an ASGI application."""
    shop = workshop or Workshop()
    for source in exhibit.models:
        watch_model(source.module)
    pages = Pages(exhibit, shop)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        pages.decoders = anyio.CapacityLimiter(DECODERS)
        yield
        shop.close()

    return Starlette(
        routes=[
            Route("/", pages.home),
            Route("/static/{name}", pages.part),
            Route("/api/about", pages.about),
            Route("/api/samples", pages.samples),
            Route("/api/picture", pages.picture, methods=["POST"]),
            Route("/api/ask", pages.ask, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, door=door)],
        exception_handlers={
            DeepFoolError: lambda _, error: refuse(503 if isinstance(error, BusyError) else 400, str(error)),
            HTTPException: lambda _, error: refuse(error.status_code, error.detail),
            ClientDisconnect: lambda *_: Response(status_code=400),
        },
        lifespan=lifespan,
    )


class Pages:
    """What is behind the addresses."""

    def __init__(self, exhibit: Exhibit, shop: Workshop) -> None:
        self.exhibit, self.shop = exhibit, shop
        self.decoders: anyio.CapacityLimiter | None = None
        self.parts = _read_parts()
        self.facts = {"version": __version__, **describe(exhibit)}

    async def home(self, _: Request) -> Response:
        return _send_part(*self.parts["index.html"])

    async def part(self, request: Request) -> Response:
        found = self.parts.get(request.path_params["name"])
        return refuse(404, "There is nothing here.") if found is None else _send_part(*found)

    async def about(self, _: Request) -> Response:
        return JSONResponse(self.facts)

    async def samples(self, request: Request) -> Response:
        asked = request.query_params
        listing: Callable[[], dict[str, Any]] = partial(
            list_samples, self.exhibit,
            label=None if asked.get("label", "") == "" else _read_whole(asked["label"], "label"),
            start=_read_whole(asked.get("start", "0"), "start"),
            count=_read_whole(asked.get("count", "24"), "count"),
            fragile=asked.get("order") == "fragile",
        )  # fmt: skip
        return JSONResponse(await anyio.to_thread.run_sync(listing))

    async def picture(self, request: Request) -> Response:
        """Decode an image file; nothing is kept."""
        shape = self.exhibit.shape
        check_picture_shape(shape)
        body = await read_body(request, MOST_BYTES)
        if not body:
            raise InputError("The file is empty.")
        fitting = partial(
            fit_picture, io.BytesIO(body), "The file", shape[1], grey=shape[0] == 1, formats=FORMATS,
            most_pixels=MOST_PIXELS, hint="choose a JPEG, PNG, WebP, GIF or BMP image.",
        )  # fmt: skip
        levels = await anyio.to_thread.run_sync(fitting, limiter=self.decoders)
        return JSONResponse({"levels": send_bytes(levels.numpy())})

    async def ask(self, request: Request) -> Response:
        """Queue a question; the answer streams what is found, and ends the job when nobody listens any more."""
        most = 100_000 + 8 * math.prod(self.exhibit.shape)
        body = await read_body(request, most)
        try:
            sent = json.loads(body)
        except (ValueError, RecursionError):
            raise InputError("a question must be JSON.") from None
        asked = await anyio.to_thread.run_sync(read_question, sent, self.exhibit)
        job = Job(request.headers[TAB][:64], lambda: stages.work(asked, self.exhibit))
        ahead = self.shop.submit(job)
        return StreamingResponse(self._stream(request, job, ahead), media_type="text/event-stream")

    async def _stream(self, request: Request, job: Job, ahead: int) -> AsyncIterator[str]:
        try:
            yield encode("queued", {"ahead": ahead})
            while True:
                try:
                    event = await asyncio.wait_for(job.events.get(), PING)
                except asyncio.TimeoutError:
                    if await request.is_disconnected():
                        return
                    if now := self.shop.ahead(job):
                        yield encode("queued", {"ahead": now})
                    else:
                        yield ": still here\n\n"
                    continue
                if event is None:
                    return
                yield encode(*event)
        finally:
            self.shop.drop(job)


def encode(name: str, fields: dict[str, Any]) -> str:
    """A server-sent event.

    >>> encode("queued", {"ahead": 2})
    'event: queued\\ndata: {"ahead":2}\\n\\n'
    """
    return f"event: {name}\ndata: {json.dumps(fields, allow_nan=False, separators=(',', ':'))}\n\n"


def _read_parts() -> dict[str, tuple[bytes, str]]:
    """All files of the page, read once: no name that a client sends is ever looked for on the disk."""
    files = [*HERE.iterdir(), Path(reporting.__file__).parent / "templates" / "report.css"]
    return {file.name: (file.read_bytes(), TYPES[file.suffix]) for file in files if file.suffix in TYPES}


def _send_part(content: bytes, kind: str) -> Response:
    return Response(content, headers={"content-type": f"{kind}; charset=utf-8"})


def _read_whole(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InputError(f"{name} must be a whole number, got {text!r:.40}.")
    return int(text)
