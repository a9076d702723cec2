"""What `benchmarks.finetuning` keeps beside its page, and how the page follows from it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import benchmarks.finetuning as benchmark
import pytest

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks"


def test_the_page_is_the_one_of_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / benchmark.RESULTS).write_bytes((DOCS / benchmark.RESULTS).read_bytes())
    benchmark.write_page(tmp_path)
    assert (tmp_path / "finetuning.md").read_text("utf-8") == (DOCS / "finetuning.md").read_text("utf-8")


def test_rows_that_are_kept_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, str]] = []

    def tune(name: str, key: str, limit: int | None, work: Path) -> dict[str, object]:
        measured.append((name, key))
        return {"error": [0.02, 0.01], "rho": [0.1, 0.2], "rate": 0.1, "samples": 5}

    monkeypatch.setattr(benchmark, "tune", tune)
    monkeypatch.setattr(benchmark, "read_training_error", lambda *_: 0.0)
    options = argparse.Namespace(
        networks=["fc500-mnist"], only=["paper", "clean"], limit=5, again=False, out=tmp_path, work=tmp_path
    )
    benchmark.measure(options)
    options.networks, options.only = ["fc500-mnist", "lenet-mnist"], ["paper"]
    benchmark.measure(options)
    assert measured == [("fc500-mnist", "paper"), ("fc500-mnist", "clean"), ("lenet-mnist", "paper")]
    kept = json.loads((tmp_path / benchmark.RESULTS).read_text("utf-8"))
    assert {name: list(each["rows"]) for name, each in kept.items()} == {
        "fc500-mnist": ["paper", "clean"],
        "lenet-mnist": ["paper"],
    }
    options.again = True
    benchmark.measure(options)
    assert measured[3:] == [("fc500-mnist", "paper"), ("lenet-mnist", "paper")]
