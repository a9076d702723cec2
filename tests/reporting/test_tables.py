"""Tables and figures for documents."""

import csv
import io
import re
import subprocess
import sys

import numpy as np
import pytest

from deepfool import Run
from deepfool.errors import InputError, MissingExtraError, RunError
from deepfool.metrics import rho_adv, rho_answered
from deepfool.reporting import figures
from deepfool.reporting.figures import draw_figure
from deepfool.reporting.tables import format_table
from tests.reporting.simulated import simulate


def test_csv_has_every_number_in_full(runs):
    folders = [Run(runs / "lenet"), Run(runs / "linf")]
    rows = list(csv.DictReader(io.StringIO(format_table(folders, "csv"))))
    assert [row["p"] for row in rows] == ["2", "inf"]
    for row, run in zip(rows, folders, strict=True):
        rho = rho_adv(run.records(), "p")
        assert (float(row["rho_adv"]), float(row["rho_adv_low"])) == (rho.value, rho.low)


def test_markdown_is_a_table(runs):
    lines = format_table([Run(runs / "lenet"), Run(runs / "fc")]).splitlines()
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {12}


def test_searches_without_an_answer_are_told(tmp_path):
    run = Run(simulate(tmp_path / "run", censored=20))
    for style in ("markdown", "latex"):
        text = format_table([run], style)
        assert re.search(r"not known \(0\.\d+ of 180\)", text), "the mean of the others, and how many they are"
        assert "≥" not in text
        assert "geq" not in text
    row = next(csv.DictReader(io.StringIO(format_table([run], "csv"))))
    assert (row["rho_adv_exact"], row["rho_adv"], row["rho_adv_high"], row["censored"]) == ("false", "", "", "20")
    assert float(row["rho_answered"]) == pytest.approx(rho_answered(run.records(), "p").value)


def test_every_row_says_how_it_was_measured(runs):
    folders = [Run(runs / "lenet"), Run(runs / "linf")]
    for style in ("markdown", "latex", "csv"):
        text = format_table(folders, style).replace("\\", "")
        assert "deepfool, l2, no bounds, max_iter 50" in text
        assert "deepfool, linf, in [0, 1], max_iter 50" in text


def test_accuracy_at_radii(runs):
    run = Run(runs / "linf")
    row = next(csv.DictReader(io.StringIO(format_table([run], "csv", eps=["0.1", "8/255"]))))
    away = np.where(run.records().misclassified, 0, run.records().r["p"])
    assert float(row["accuracy@0.1"]) == pytest.approx((away > 0.1).mean())
    assert float(row["accuracy@8/255"]) == pytest.approx((away > 8 / 255).mean())
    assert "| accuracy within 8/255 |" in format_table([run], eps=["8/255"])
    assert r"$\leq$" in format_table([run], "latex", eps=["8/255"])


def test_names_are_text_in_every_format(tmp_path):
    run = Run(simulate(tmp_path / "run", model="=1+1|a_b%\\x"))
    assert next(csv.reader(io.StringIO(format_table([run], "csv").splitlines()[1])))[0].startswith("'=")
    assert r"=1+1\|a\_b%" in format_table([run])
    latex = format_table([run], "latex")
    assert r"=1+1|a\_b\%\textbackslash{}x" in latex
    assert latex.count(r"\\") == 2


@pytest.mark.parametrize("kind", ["curve", "histogram", "classes"])
@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_figures_are_drawn(kind, suffix, runs, tmp_path):
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    path = draw_figure([Run(runs / "lenet")], kind, tmp_path / f"new/figure.{suffix}")
    assert path.read_bytes().startswith(starts[suffix])


def test_a_figure_is_the_same_each_time(runs, tmp_path):
    one, other = (draw_figure([Run(runs / "fc")], "curve", tmp_path / name) for name in ("a.pdf", "b.pdf"))
    assert one.read_bytes() == other.read_bytes()


def test_several_runs_in_one_figure(runs, tmp_path):
    both = [Run(runs / "lenet"), Run(runs / "fc")]
    text = draw_figure(both, "curve", tmp_path / "a.svg").read_text()
    assert "lenet-mnist" in text
    assert "fc500-mnist" in text
    draw_figure(both, "histogram", tmp_path / "b.svg")
    with pytest.raises(InputError, match="takes one run"):
        draw_figure(both, "classes", tmp_path / "c.svg")
    with pytest.raises(InputError, match="different norms"):
        draw_figure([*both, Run(runs / "linf")], "curve", tmp_path / "d.svg")


def test_class_names_are_no_mathematics(tmp_path):
    run = Run(simulate(tmp_path / "run", classes=2, names=["$\\frac{", "a_b^$"]))
    text = draw_figure([run], "classes", tmp_path / "a.svg").read_text()
    assert "$\\frac{" in text


def test_censored_runs_are_drawn(tmp_path):
    run = Run(simulate(tmp_path / "run", censored=50))
    for kind in ("curve", "histogram"):
        draw_figure([run], kind, tmp_path / f"{kind}.svg")
    assert "the mean of those with an answer" in (tmp_path / "histogram.svg").read_text()
    with pytest.raises(RunError, match="no class in which every search had an answer"):
        draw_figure([run], "classes", tmp_path / "classes.svg")
    nothing = Run(simulate(tmp_path / "nothing", 30, censored=30))
    for kind in figures.KINDS:
        with pytest.raises(RunError, match=r"no perturbation was found|no class in which"):
            draw_figure([nothing], kind, tmp_path / "nothing.svg")


def test_other_files_are_refused(runs, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.pdf"):
        draw_figure([Run(runs / "fc")], "curve", tmp_path / "a.doc")


def test_without_matplotlib(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"deepfool\[figures\]"):
        draw_figure([Run(runs / "fc")], "curve", tmp_path / "a.pdf")


def test_reporting_alone_loads_no_matplotlib():
    code = "import sys, deepfool.reporting.page, deepfool.reporting.figures; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
