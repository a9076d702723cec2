"""A file server on this machine that can misbehave, and a small data set published on it."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import re
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from deepfool.datasets import catalog
from deepfool.datasets.arrays import Arrays


class Server:
    """Serves `files`; the first `cut` responses stop half way, `ranges` says whether Range is supported."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut = 0
        self.ranges = True
        self.requests: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name, asked = request.path.lstrip("/"), request.headers.get("Range")
        self.requests.append((name, asked))
        if name not in self.files:
            request.send_error(404)
            return
        content, start = self.files[name], 0
        if self.ranges and asked and (wanted := re.match(r"bytes=(\d+)-$", asked)):
            start = int(wanted[1])
            if start >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        body = content[start:]
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.cut > 0:
            self.cut -= 1
            body = body[: len(body) // 2]
        request.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def write_idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def tiny(server: Server, monkeypatch: pytest.MonkeyPatch) -> catalog.Builtin:
    """A tiny MNIST: 30 + 20 random images in the four published files, with their own hashes."""
    rng = np.random.default_rng(0)
    archives, splits = [], {}
    for split, images_file, labels_file, count in (
        ("train", "train-images-idx3-ubyte", "train-labels-idx1-ubyte", 30),
        ("test", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 20),
    ):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        for file, array in ((images_file, images), (labels_file, labels)):
            content = gzip.compress(write_idx(array))
            server.files[f"{file}.gz"] = content
            archives.append(catalog.Archive(f"{file}.gz", len(content), f"md5:{hashlib.md5(content).hexdigest()}"))
        known = Arrays("", torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())
        splits[split] = catalog.Split(count, (round(float(images.mean()) / 255, 5),), known.fingerprint())
    monkeypatch.setenv("DEEPFOOL_MIRROR", server.url)
    return dataclasses.replace(catalog.MNIST, name="tiny", splits=splits, archives=tuple(archives))


@pytest.fixture(scope="session")
def imagenet() -> Path:
    """A folder of labelled ImageNet images, which is not part of the project."""
    place = Path(os.environ.get("DEEPFOOL_TEST_IMAGES") or Path(__file__).parents[2] / "../shared/data/imagenet-100")
    if not (place / "labels.json").is_file():
        pytest.skip("no ImageNet images: set DEEPFOOL_TEST_IMAGES to a folder with a labels.json")
    return place
