"""Who may ask, and how much they may send.

The page is for the person at this machine. Other pages in the same browser can send requests to it too, so each one
has to name this server as its Host (a foreign name that was pointed here does not), and to come from this page (its
Origin, or a header that other pages cannot set without asking). On an address that others can reach a token is needed
as well: it is in the address that is printed, and kept in a cookie after the first visit.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepfool.errors import InputError

COOKIE = "deepfool_live"
TAB = "x-deepfool-tab"
"""The header that names a tab. Pages of other origins cannot send it."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Door:
    """The address that is served: which names it goes by, and the token if others can reach it."""

    host: str
    port: int
    token: str | None = None

    @property
    def hosts(self) -> set[str]:
        """What the Host header may say. Behind a token, any address may lead here."""
        names = {"localhost", "127.0.0.1", "[::1]", f"[{self.host}]" if ":" in self.host else self.host}
        return {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())

    @property
    def url(self) -> str:
        """To open in a browser."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, True, False, True)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """Looks at every request before the app does, and adds the headers that keep the page to itself."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # there are none
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._judge(scope)
        await (refused or self.app)(scope, receive, send_guarded)

    def _judge(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        door, host = self.door, headers.get("host", "")
        if door.token is None and host not in door.hosts:
            return refuse(421, f"This server does not answer to the name {host!r:.80}.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return refuse(403, "Requests from other pages are refused.")
        if headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
            navigating = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
            if not navigating:
                return refuse(403, "Requests from other pages are refused.")
        if scope["method"] not in ("GET", "HEAD") and not headers.get(TAB):
            return refuse(403, f"A request that asks for work needs the header {TAB}.")
        return None if door.token is None else self._check_token(scope, headers, door.token)

    def _check_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        if cookie is not None and secrets.compare_digest(cookie.value.encode(), token.encode()):
            return None
        if secrets.compare_digest(query.get("token", "").encode(), token.encode()):
            welcome = RedirectResponse("/", 303)  # without the token, so that it is not bookmarked or looked at
            welcome.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return welcome
        return refuse(403, "This page needs its token: open the whole address that deepfool live has printed.")


def refuse(status: int, why: str) -> Response:
    """An error as the page shows it."""
    return JSONResponse({"message": why}, status)


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request, or an error as soon as it is too large."""
    told = request.headers.get("content-length", "0")
    too_large = InputError(f"That is too large: at most {most / 1e6:.3g} MB are taken.")
    if told.isdigit() and int(told) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)
