"""One file over HTTP: resumed where it broke off, checked by hash, in place only when it is whole and right."""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from deepfool import __version__
from deepfool.cache import make_folder
from deepfool.errors import DataError

OnBytes = Callable[[int, int | None], None]
"""Told how many bytes are there, of how many (None where nobody knows)."""

TIMEOUT = 10.0
"""Seconds without an answer before a server counts as dead."""
ATTEMPTS = 4
"""How often a broken transfer is taken up again before the next mirror is tried."""


class _UnreachableError(Exception):
    """The server did not answer, or refused: trying again at once is of no use."""


class _BrokenError(Exception):
    """The transfer stopped before the end; what came is kept."""


def download(urls: Sequence[str], to: Path, *, hash: str, on_bytes: OnBytes = lambda done, total: None) -> Path:
    """Bring the file at the first of `urls` that has it, with the right hash (`md5:...` or `sha256:...`), to `to`.

    A file that is already there and right is kept. Bytes of a broken transfer wait in `NAME.part` beside it, for
    this call or a later one to go on from.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     source = Path(here) / "a"
    ...     _ = source.write_bytes(b"hello")
    ...     right = "md5:5d41402abc4b2a76b9719d911017c592"
    ...     download([source.as_uri()], Path(here) / "b", hash=right).read_bytes()
    b'hello'
    """
    if to.is_file() and matches(to, hash):
        return to
    make_folder(to.parent)
    problems = []
    for url in urls:
        try:
            _transfer(url, to.with_name(to.name + ".part"), hash, on_bytes)
        except (_UnreachableError, _BrokenError) as problem:
            problems.append(f"{url}: {problem}")
        else:
            to.with_name(to.name + ".part").replace(to)
            return to
    raise DataError(f"{to.name} could not be downloaded ({'; '.join(problems)}).")


def matches(path: Path, hash: str) -> bool:
    """Whether a file has the hash.

    >>> import os
    >>> matches(Path(os.devnull), "md5:d41d8cd98f00b204e9800998ecf8427e")
    True
    """
    kind, _, wanted = hash.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == wanted


def _transfer(url: str, part: Path, hash: str, on_bytes: OnBytes) -> None:
    """Fill `part` until its hash is right."""
    problem = _BrokenError("no attempt was made")
    for _ in range(ATTEMPTS):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _append(url, part, on_bytes)
        except _BrokenError as broken:
            problem = broken
            continue
        if matches(part, hash):
            return
        part.unlink()
        problem = _BrokenError(f"wrong hash, expected {hash}")
        # Bytes left by an earlier run may be at fault: one clean start. A fresh transfer that is wrong stays wrong.
        if not resumed:
            break
    raise problem


def _append(url: str, part: Path, on_bytes: OnBytes) -> None:
    """Ask for what is missing of `part` and append it."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"deepfool/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing lies beyond what we have: the hash will tell whether that is the file
            return
        raise _UnreachableError(f"HTTP {error.code} {error.reason}") from error
    except (urllib.error.URLError, OSError, http.client.HTTPException, ValueError) as error:
        raise _UnreachableError(str(getattr(error, "reason", error))) from error
    with response:
        start = have if _continues(response, have) else 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        done = start
        on_bytes(done, total)
        with part.open("r+b" if start else "wb") as stream:
            stream.seek(start)
            try:
                while block := response.read(1 << 18):
                    stream.write(block)
                    done += len(block)
                    on_bytes(done, total)
            except (OSError, http.client.HTTPException) as error:
                raise _BrokenError(f"broke off after {done} bytes: {error}") from error
    if total is not None and done < total:
        raise _BrokenError(f"broke off after {done} of {total} bytes")


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the answer goes on from byte `have`, rather than starting afresh."""
    given = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == 206 and given is not None and int(given[1]) == have
