"""The folder of downloaded data and weights, and atomic writes into it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from deepfool.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def home() -> Path:
    """The cache folder: `DEEPFOOL_HOME`, else `deepfool` in the user's cache folder (XDG). It may not exist yet.

    >>> os.environ["DEEPFOOL_HOME"] = "/somewhere/else"
    >>> home().as_posix()
    '/somewhere/else'
    >>> del os.environ["DEEPFOOL_HOME"]
    """
    if own := os.environ.get("DEEPFOOL_HOME"):
        return Path(own).expanduser()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification asks for relative paths to be ignored.
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "deepfool"


def make_folder(folder: Path) -> Path:
    """Make a folder inside the cache; if that fails, the error says how to choose another cache.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     make_folder(Path(here) / "a" / "b").is_dir()
    True
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def write(path: Path, *content: Buffer) -> None:
    """Write a file under a temporary name and rename it, so that nobody ever reads half of it.

    A large content may come in parts, so that it need not be joined in memory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     write(Path(here) / "a.txt", b"whole")
    ...     [(file.name, file.read_bytes()) for file in Path(here).iterdir()]
    [('a.txt', b'whole')]
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with temporary.open("wb") as stream:
            stream.writelines(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path} cannot be written: {error.strerror or error}.",
        hint="set DEEPFOOL_HOME to a writable folder with enough space.",
    )
