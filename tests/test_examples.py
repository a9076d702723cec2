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
    "ci_gate.py": "passed  min-rho",
    "harden.py": "smallest sees",
    "pretrained_network.py": "The first digit, a 7",
    "tabular_data.py": "nearest to the boundary: row",
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
    assert "FAILED  min-rho" in said
    assert "<failure" in (tmp_path / "runs" / "robustness.xml").read_text()


def test_scripts_are_short():
    assert len(SCRIPTS) == 5
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
    for name, value in (("OMP_NUM_THREADS", "1"), ("MPLBACKEND", "agg"), ("DEEPFOOL_HOME", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    assert "6 samples: 6 fooled" in said
    assert "rho_adv" in said


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
