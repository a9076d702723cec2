"""How long the live page takes: from the end of a stroke to DeepFool's picture, and to the map.

    python -m benchmarks.live --rounds 20 --threads 2

Starts `deepfool live` on LeNet, draws digits with the mouse in Chromium, and prints the medians. The times are what the
page itself measures, until the frame after the picture was put on it. With `--load` it asks the server from many
clients at once instead, and prints how many were answered, how many were told "busy", and how much memory it took.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STROKES = (
    [(0.3, 0.25), (0.7, 0.25), (0.5, 0.8)],
    [(0.5, 0.2), (0.5, 0.8)],
    [(0.3, 0.3), (0.5, 0.2), (0.7, 0.35), (0.35, 0.8), (0.75, 0.8)],
    [(0.3, 0.2), (0.65, 0.3), (0.45, 0.5), (0.7, 0.65), (0.3, 0.8)],
    [(0.4, 0.2), (0.25, 0.5), (0.45, 0.8), (0.7, 0.55), (0.4, 0.2)],
)
"""A 7, a 1, a 2, a 3 and a 0, as shares of the pad."""
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def start(threads: int) -> tuple[subprocess.Popen[str], str, float]:
    """The server, its address, and how long it took to answer."""
    words = ["live", "--model", "lenet-mnist", "--data", "mnist-sample", "--no-open", "--port", "0"]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    began = time.perf_counter()
    server = subprocess.Popen([sys.executable, "-m", "deepfool", *words], stdout=subprocess.PIPE, text=True, env=env)
    assert server.stdout is not None
    return server, server.stdout.readline().strip(), time.perf_counter() - began


def measure(url: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds from the end of each stroke to DeepFool's picture, to the last map, and to the end."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"answered": [], "mapped": [], "done": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or "chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.wait_for_selector("body[data-state=idle][data-done]")
        box = page.locator("#pad").bounding_box()
        assert box is not None
        for turn in range(rounds + 2):  # two to warm up
            page.evaluate("for (const name of ['answered', 'mapped', 'done']) delete document.body.dataset[name]")
            page.click("#clear")
            places = [
                (box["x"] + a * box["width"], box["y"] + b * box["width"]) for a, b in STROKES[turn % len(STROKES)]
            ]
            page.mouse.move(*places[0])
            page.mouse.down()
            for place in places[1:]:
                page.mouse.move(*place, steps=5)
            page.mouse.up()
            page.wait_for_selector("body[data-state=idle][data-done]")
            if turn >= 2:
                for name, times in found.items():
                    times.append(float(page.locator("body").get_attribute(f"data-{name}") or "nan"))
        browser.close()
    return found


def ask(address: str, tab: str, index: int) -> str:
    """What became of one question: the label that DeepFool reached, or "busy", or what went wrong."""
    question = {
        "input": {"kind": "sample", "index": index},
        "p": 2,
        "bounds": [0, 1],
        "sides": [{"model": 0, "attack": "deepfool"}],
    }
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        connection.request("POST", "/api/ask", json.dumps(question), {"x-deepfool-tab": tab})
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return f"error: {type(error).__name__}"
    finally:
        connection.close()
    if answer.status == 503 and "busy" in text:
        return "busy"
    told = [json.loads(part.partition("data: ")[2]) for part in text.split("\n\n") if part.startswith("event: answer")]
    return f"label {told[0]['adv_label']}" if answer.status == 200 and told else f"error: {answer.status} {text[:80]}"


def load(address: str, pid: int, clients: int, seconds: float) -> dict[str, Any]:
    """Many clients ask at once, each again as soon as it was answered; answers are compared with the attack's own."""
    import torch

    import deepfool

    x = deepfool.datasets.load("mnist-sample").batch(range(clients))
    model = deepfool.models.load("lenet-mnist")
    right = [f"label {int(deepfool.deepfool(model, row, bounds=(0, 1)).adv_label)}" for row in torch.split(x, 1)]
    counts: Counter[str] = Counter()
    end, lock, most = time.monotonic() + seconds, threading.Lock(), memory(pid)
    begun = most

    def client(number: int) -> None:
        while time.monotonic() < end:
            said = ask(address, f"client-{number}", number)
            kind = "right" if said == right[number] else "wrong" if said.startswith("label") else said
            with lock:
                counts[kind] += 1
            if kind == "busy":
                time.sleep(0.2)

    crowd = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for each in crowd:
        each.start()
    while any(each.is_alive() for each in crowd):
        most = max(most, memory(pid))
        time.sleep(0.2)
    return {**counts, "memory_before_mb": round(begun / 1e6), "memory_most_mb": round(most / 1e6)}


def memory(pid: int) -> int:
    """Bytes in use by a process (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--load", action="store_true", help="many clients at once")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    server, url, began = start(options.threads)
    try:
        print(f"first answer after {began:.1f} s")
        if options.load:
            print(load(urlsplit(url).netloc, server.pid, options.clients, options.seconds))
            return
        for name, times in measure(url, options.rounds).items():
            middle = statistics.median(times)
            print(f"{name}: median {middle:.0f} ms of {len(times)}, {min(times):.0f} to {max(times):.0f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
