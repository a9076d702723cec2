"""A running server, asked over the network as a browser would ask it."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.waiting import PATIENCE

PROJECT = Path(__file__).parents[2]
TAB = {"x-deepfool-tab": "a-test"}


@dataclass
class Server:
    """`deepfool live` in a process of its own."""

    process: subprocess.Popen
    url: str

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of a request."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def ask(self, question, tab="a-test"):
        """All events of a question; a refusal is (status, message)."""
        status, _, body = self.request("POST", "/api/ask", json.dumps(question), {"x-deepfool-tab": tab})
        return parse_events(body.decode()) if status == 200 else (status, json.loads(body)["message"])


def parse_events(text):
    """[(name, fields)] of a stream of server-sent events."""
    found = [dict(line.split(": ", 1) for line in event.splitlines()) for event in text.split("\n\n") if event]
    return [(event["event"], json.loads(event["data"])) for event in found if "event" in event]


def start(*words, cwd=PROJECT):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "deepfool", "live", "--no-open", "--port", "0", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd,
    )  # fmt: skip
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:"), process.communicate()
    return Server(process, url)


@pytest.fixture(scope="session")
def serve():
    """Start servers that are stopped at the end, whatever happens."""
    servers = []

    def begin(*words, **where):
        servers.append(start(*words, **where))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="session")
def lenet(serve):
    return serve("--model", "lenet-mnist", "--data", "mnist-sample")


@pytest.fixture(scope="session")
def small(serve):
    """A network that answers at once, for tests that ask much."""
    return serve("--model", "mlp-mnist-small", "--data", "mnist-sample")


def run_async(coroutine):
    """Run a coroutine to its end in a thread of its own: in this one the browser's loop may be running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def about_sample(index=0, **more):
    """A question about a sample of the data."""
    sides = [{"model": 0, "attack": "deepfool"}]
    return {"input": {"kind": "sample", "index": index}, "p": 2, "bounds": [0, 1], "sides": sides, **more}
