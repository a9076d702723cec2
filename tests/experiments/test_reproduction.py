"""The whole reproduction at the smoke scale: what it writes, and that it resumes."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepfool.cli import app
from deepfool.errors import InputError, RunError
from deepfool.experiments import EXPERIMENTS, curves, measuring, reproduce, table1
from deepfool.experiments.drawing import draw_figure_4, draw_figure_5
from deepfool.experiments.networks import find_subject
from deepfool.experiments.paper import CLASSIFIERS, PLACES
from deepfool.experiments.scales import SCALES
from deepfool.experiments.session import Session


def read(out, name):
    return json.loads((out / "results" / f"{name}.json").read_text())


def test_every_experiment_has_a_result(smoke):
    out, steps = smoke
    assert {path.stem for path in (out / "results").glob("*.json")} == set(EXPERIMENTS)
    assert {step.experiment for step in steps} == set(EXPERIMENTS)
    assert any(step.total and step.done == step.total for step in steps)


def test_rows_of_table_1(smoke):
    rows = {row["network"]: row for row in read(smoke[0], "table1")["rows"]}
    assert list(rows)[:6] == list(CLASSIFIERS)
    for name in ("lenet-mnist", "fc500-mnist", "lenet-cifar10"):
        row = rows[name]
        assert row["missing"] is None
        assert 0 < row["deepfool"]["rho"] < row["fgsm"]["rho"]
        assert row["deepfool"]["fooled"] == 1
        assert (smoke[0] / row["deepfool"]["run"] / "manifest.json").is_file()
        assert all(
            row["times"][attack]["ms"] > 0 for attack in ("deepfool", "fgsm", "lbfgs")
        )  # times vary, so their order is not tested
    assert rows["lenet-cifar10"]["deepfool_pixels"]["rho"] < rows["lenet-cifar10"]["deepfool"]["rho"]
    assert "deepfool models fetch caffenet" in (rows["caffenet"]["missing"] or "deepfool models fetch caffenet")
    assert "--images" in rows["efficientnet-lite0"]["missing"] or "extra" in rows["efficientnet-lite0"]["missing"]


def test_fine_tuning_has_a_curve_for_each_seed(smoke):
    row = read(smoke[0], "figure6")["rows"][0]
    assert set(row["curves"]) == set(curves.STRATEGIES)
    for curve in row["curves"].values():
        assert [one["seed"] for one in curve] == list(SCALES["smoke"].seeds)
        assert [epoch["epoch"] for epoch in curve[0]["epochs"]] == [0, 1]
    before = {one["epochs"][0]["rho"]["deepfool"] for curve in row["curves"].values() for one in curve}
    assert len(before) == 1


def test_the_pages_hold_everything(smoke):
    out, _ = smoke
    page, markdown = (out / "reproduction.html").read_text(), (out / "reproduction.md").read_text()
    for key in PLACES:
        assert f'id="{key}"' in page
    for text in (page, markdown):
        assert "These numbers are not measurements" in text
        assert "at the input of its networks" in text
        assert str(Path.home()) not in text
        assert str(out) not in text
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    linked = re.findall(r"\]\((figures/[^)]+)\)", markdown)
    assert len(linked) >= 9
    assert all((out / name).stat().st_size > 1000 for name in linked)


def test_markdown_tables_are_complete(smoke):
    lines = (smoke[0] / "reproduction.md").read_text().splitlines()
    for above, below in pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.count("|") - above.count("\\|") == below.count("|") - below.count("\\|"), below


def test_a_second_call_measures_nothing_again(smoke, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("this was measured before")

    for module, names in ((measuring, ("evaluate", "smallest_eps", "deepfool", "lbfgs")), (curves, ("finetune",))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr("deepfool.experiments.reproduction.write_pages", lambda out: out / "reproduction.html")
    reproduce(smoke[0], scale="smoke", only=["table1", "table2", "figure6", "figure7", "figure9"])


def test_a_stopped_reproduction_resumes(tmp_path, monkeypatch):
    """Stopped in the middle of Table 1: measurements are kept, and the page shows the results so far."""
    real, calls = measuring.smallest_eps, []

    def stop_at_the_second(*args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(measuring, "smallest_eps", stop_at_the_second)
    monkeypatch.setattr(table1, "CLASSIFIERS", ("fc500-mnist", "lenet-mnist"))
    with pytest.raises(KeyboardInterrupt):
        reproduce(tmp_path / "out", scale="smoke", only=["table1"])
    assert "not run yet" in (tmp_path / "out/reproduction.html").read_text()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/parts").glob("fc500-mnist-*.json")}
    assert kept
    reproduce(tmp_path / "out", scale="smoke", only=["table1"])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert read(tmp_path / "out", "table1")["rows"]


def test_a_stopped_training_goes_on_with_its_next_epoch(tmp_path):
    def tune_in(folder, on_progress=lambda _: None):
        session = Session(tmp_path / folder, replace(SCALES["smoke"], epochs=2, seeds=(0,)), on_progress=on_progress)
        return curves.tune(session, find_subject(session, "fc500-mnist"), "clean")

    def stop_in_the_second(step):
        if step.part.endswith("training 2/2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_in("stopped", stop_in_the_second)
    seen = []
    resumed = tune_in("stopped", lambda step: seen.append(step.part))
    assert any(part.endswith("training 2/2") for part in seen)
    assert not any(part.endswith("training 1/2") for part in seen)
    assert resumed == tune_in("straight")
    assert not list((tmp_path / "stopped/checkpoints").iterdir())


def test_a_folder_keeps_one_scale(smoke, tmp_path):
    with pytest.raises(RunError, match="at the scale smoke, not default"):
        reproduce(smoke[0], scale="default")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        reproduce(tmp_path, scale="smoke")
    with pytest.raises(InputError, match="no experiment called 'table9'"):
        reproduce(tmp_path / "new", scale="smoke", only=["table9"])


def test_the_command(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "--scale", "smoke", "--only", "figure4", "--out", str(tmp_path / "o")])
    assert done.exit_code == 0, done.output
    assert "reproduction.html" in done.stdout
    assert (tmp_path / "o/figures/figure4.svg").is_file()


def test_scales_cover_the_networks():
    for scale in SCALES.values():
        assert set(CLASSIFIERS) < set(scale.sizes)
        assert len(scale.seeds) > 1
    assert SCALES["full"].sizes["lenet-mnist"].train is None


def test_the_page_in_a_browser(smoke, watch):
    seen = watch(smoke[0] / "reproduction.html", viewport={"width": 400, "height": 800})
    assert seen.complaints == []
    assert seen.requests == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 400
    cards = seen.page.locator(".gallery li")
    assert cards.count() == len(PLACES) == 12
    small = seen.page.locator(".gallery img")
    assert small.count() >= 9, "a picture for each figure"
    assert small.evaluate_all("all => all.every(each => each.naturalWidth > 0)")
    assert cards.first.locator("tbody tr").count() >= 3, "a table shows its numbers"
    cards.nth(2).locator("a").click()
    assert seen.page.locator("#figure1 h2").evaluate("each => each.getBoundingClientRect().top") < 300
    assert seen.page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    before = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    seen.page.click("#theme")
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.parametrize("name", ["figure4", "figure5"])
def test_no_legend_is_cut_off(smoke, tmp_path, monkeypatch, name):
    figures = []
    drawing = pytest.importorskip("matplotlib.figure").Figure
    monkeypatch.setattr(drawing, "savefig", lambda figure, *_, **__: figures.append(figure))
    {"figure4": draw_figure_4, "figure5": draw_figure_5}[name](read(smoke[0], "geometry"), tmp_path)
    (figure,) = figures
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x1 <= figure.bbox.x1
    assert legend.x0 >= figure.axes[0].get_window_extent().x1, "nor does it lie on the drawing"
