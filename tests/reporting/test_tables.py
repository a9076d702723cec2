"""Tables and figures for documents."""

import csv
import io
import subprocess
import sys

import pytest

from deepfool import Run
from deepfool.errors import InputError, MissingExtraError
from deepfool.metrics import rho_adv
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
    assert {line.count("|") for line in lines} == {11}


def test_a_lower_bound_is_told(tmp_path):
    run = Run(simulate(tmp_path / "run", censored=20))
    assert "≥ " in format_table([run])
    assert r"$\geq$" in format_table([run], "latex")
    assert r"$\infty$" in format_table([run], "latex")
    row = next(csv.DictReader(io.StringIO(format_table([run], "csv"))))
    assert (row["rho_adv_exact"], row["rho_adv_high"], row["censored"]) == ("false", "", "20")


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
    for kind in figures.KINDS:
        draw_figure([run], kind, tmp_path / f"{kind}.svg")


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
