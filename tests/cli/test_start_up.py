"""Commands that read runs do it without torch: what takes time is known without a clock."""

import inspect
import subprocess
import sys

import pytest
import torch

from deepfool import evaluate
from deepfool.attacks.shared.registry import ATTACKS, find_attack, read_defaults

HEAVY = ("torch", "scipy", "matplotlib", "plotly", "ray", "jinja2", "PIL", "pandas", "onnx", "sklearn")

WATCHED = """
import sys
from deepfool.cli import main
try:
    main()
finally:
    print(sorted({names} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    here = tmp_path_factory.mktemp("runs")
    data = (torch.rand(30, 1, 8, 8), torch.zeros(30, dtype=torch.long))
    for seed, name in enumerate(("a", "b")):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        evaluate(model, data, out=here / name, bounds=(0, 1))
    return here


@pytest.mark.parametrize(
    "command",
    [
        ["show", "a"], ["show", "a", "--json", "--eps", "0.5"], ["table", "a", "b"], ["compare", "a", "b"],
        ["compare", "a", "b", "--json"], ["check", "a", "--min-rho", "0.0001"],
        ["check", "b", "--baseline", "a", "--max-fooled", "0.9@eps=0.001"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_reading_a_run_needs_no_torch(runs, command):
    code = WATCHED.format(names=set(HEAVY))
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=runs, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.strip()
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ATTACKS)
def test_defaults_that_are_read_are_those_of_the_function(name):
    parameters = inspect.signature(find_attack(name)).parameters.values()
    assert read_defaults(name) == {
        each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty
    }
