"""`py:` factories that use torchvision, in processes of their own: here torchvision has been imported before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AT_THE_TOP = """
import torchvision

def build():
    return torchvision.models.squeezenet1_1(num_classes=7)
"""
LATER = """
def build():
    from torchvision.models import squeezenet1_1
    return squeezenet1_1(num_classes=7)
"""
ASK = "from deepfool.models.sources import resolve; import torch; print(resolve('py:mine:build').module(torch.rand(1, 3, 64, 64)).shape)"  # noqa: E501


@pytest.mark.parametrize("code", [AT_THE_TOP, LATER], ids=["at the top", "later"])
def test_a_factory_that_imports_torchvision(tmp_path: Path, code: str):
    (tmp_path / "mine.py").write_text(code)
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([1, 7])"
