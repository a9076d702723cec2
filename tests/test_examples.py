"""The examples run as a user would run them: as scripts, in an empty folder, on what ships with the package."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
TOLD = {
    "ci_gate.py": "met  min-rho",
    "harden.py": "smallest sees",
    "pretrained_network.py": "The first digit, a 7",
    "tabular_data.py": "nearest to the boundary: row",
    "track_training.py": "is in TensorBoard too",
    "two_models.py": "both on one page: runs/both.html",
}
"""Script -> what it says in the end, if it came that far."""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder, as `python SCRIPT WORDS`; returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path / "cache"))

    def run_script(script, *words):
        monkeypatch.setattr(sys, "argv", [str(script), *words])
        try:
            runpy.run_path(str(script), run_name="__main__")
            code = 0
        except SystemExit as left:
            code = left.code or 0
        return code, capsys.readouterr().out

    return run_script


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts(script, run):
    code, said = run(script)
    assert code == 0
    assert TOLD[script.name] in said


def test_the_gate_closes(run, tmp_path):
    code, said = run(EXAMPLES / "ci_gate.py", "fc500-mnist")
    assert code == 1
    assert "not met  min-rho" in said
    assert "<failure" in (tmp_path / "runs" / "robustness.xml").read_text()


def test_scripts_are_short():
    assert len(SCRIPTS) == 6
    for script in SCRIPTS:
        assert len(script.read_text().splitlines()) < 40, script


def test_all_are_listed():
    listed = (EXAMPLES / "README.md").read_text()
    for file in (*SCRIPTS, *EXAMPLES.glob("*.ipynb")):
        assert f"`{file.name}`" in listed


@pytest.mark.filterwarnings("default")  # the kernel's own libraries are not ours to mend
def test_the_notebook(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("pandas")
    for name, value in (("OMP_NUM_THREADS", "1"), ("MPLBACKEND", "agg"), ("DEEPFOOL_HOME", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.get("text", "") for output in outputs)
    html = [output.data.get("text/html", "") for output in outputs if "data" in output]
    assert "report: runs" in said
    assert sum("6 samples: 6 fooled" in each and "<img" in each for each in html) == 1
    assert sum("60 samples measured" in each for each in html) == 1  # what the progress bar left
    assert sum("<svg" in each and "≤" in each for each in html) == 1
    assert sum("met</span>" in each for each in html) == 1


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_the_workflow_runs_commands_that_exist():
    """Every `deepfool` line parses, and the files that one step leaves are those that the next ones take."""
    import yaml

    from tests.commands import parse

    flow = yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text())
    steps = flow["jobs"]["gate"]["steps"]
    lines = [step["run"].strip() for step in steps if step.get("run", "").startswith("deepfool ")]
    assert [line.split()[1] for line in lines] == ["evaluate", "verify", "check", "report"]
    for line in lines:
        parse(line)
    assert {step["uses"].split("@")[0] for step in steps if "uses" in step} == {
        "actions/checkout", "actions/setup-python", "actions/upload-artifact", "github/codeql-action/upload-sarif",
    }  # fmt: skip
    check = next(line for line in lines if " check " in line)
    assert "--sarif robustness.sarif" in check
    assert {"robustness.xml", "runs/candidate/report.html"} <= set(steps[-1]["with"]["path"].split())
    assert "always()" in steps[-1]["if"], "the report is wanted most where the gate fails"


def test_the_criteria_are_met_by_the_network_that_ships(tmp_path):
    from deepfool import evaluate
    from deepfool.metrics.criteria import read_criteria

    criteria = read_criteria(EXAMPLES / "criteria.toml")
    run = evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "run", limit=100)
    assert [verdict.sentence for verdict in criteria.judge(run) if not verdict.passed] == []
    listed = (EXAMPLES / "README.md").read_text()
    assert "`criteria.toml`" in listed
    assert "`github-workflow.yml`" in listed
