"""Download one file: resume an interrupted transfer, check the hash, and put the file in place only if it is right.

We use our own code because pooch does not resume: it requests the whole file again after an interruption.
"""

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
"""Called with the bytes so far and the total (None if unknown)."""

TIMEOUT = 10.0
"""Seconds to wait for a server to answer."""
ATTEMPTS = 4
"""Attempts per mirror; a broken transfer is resumed in the next attempt."""


class _UnreachableError(Exception):
    """The server did not answer, or refused: there is no point in trying again at once."""


class _BrokenError(Exception):
    """The transfer stopped early; the bytes so far are kept."""


def download(urls: Sequence[str], to: Path, *, hash: str, on_bytes: OnBytes = lambda done, total: None) -> Path:
    """Download to `to` from the first of `urls` that has the file with this hash (`md5:...`, `sha256:...`).

    A file that is there already and has the right hash is kept. The bytes of a broken transfer stay in `NAME.part`
    beside it, and this call or a later one resumes from them.

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
    """Whether a file has this hash.

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
        # If bytes from an earlier run were involved, start once from zero. A full transfer with a wrong hash is final.
        if not resumed:
            break
    raise problem


def _append(url: str, part: Path, on_bytes: OnBytes) -> None:
    """Request the missing bytes of `part` and append them."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"deepfool/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # there are no more bytes: the hash decides whether the file is right
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
                raise _BrokenError(f"interrupted after {done} bytes: {error}") from error
    if total is not None and done < total:
        raise _BrokenError(f"interrupted after {done} of {total} bytes")


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the response starts at byte `have`, rather than at the beginning."""
    given = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == 206 and given is not None and int(given[1]) == have
