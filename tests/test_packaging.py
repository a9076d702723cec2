"""What ships: the wheel holds the samples, the weights and the page's parts, and stays small."""

import subprocess
import sys
import zipfile
from pathlib import Path

import deepfool


def test_the_wheel_holds_what_the_package_needs_and_is_small(tmp_path):
    source = Path(deepfool.__file__).parent
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=source.parents[1], check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= 20e6
    packed = set(zipfile.ZipFile(wheel).namelist())
    needed = {str(Path("deepfool") / file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    assert {name for name in needed if "__pycache__" not in name} <= packed
    assert "deepfool/models/weights/lenet-mnist.safetensors" in packed
