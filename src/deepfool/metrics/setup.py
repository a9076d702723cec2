"""What was asked of the attack: its name, norm, bounds and knobs. Figures compare only where this is the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepfool.attacks.shared.registry import ATTACKS, read_defaults
from deepfool.errors import DeepFoolError
from deepfool.metrics.formatting import format_number
from deepfool.runs.gallery import read_gallery
from deepfool.runs.manifests import read_number
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

EFFORT = ("budget", "max_iter", "steps", "eps")
"""Knobs that say how hard the attack searched: they are told even where they have their default."""

PIXELS = ("mnist", "cifar10", "imagenet")
"""Data sets of images in [0, 1], by how their names begin."""


@dataclass(frozen=True)
class Setup:
    """What was asked of the attack."""

    attack: str
    p: float
    bounds: Any
    """None, two numbers, or what the manifest keeps of a tensor."""
    knobs: dict[str, Any]
    """Those that differ from the defaults of the attack, and how hard it searched."""
    usual: bool
    """Whether all knobs but the bounds have their defaults."""
    weighted: bool = False
    """Whether features count differently in the norm."""

    @property
    def norm(self) -> str:
        return f"{'weighted ' * self.weighted}l{self.p:g}"

    @property
    def in_bounds(self) -> str:
        """The bounds in words.

        >>> Setup("deepfool", 2.0, [0, 1], {}, True).in_bounds, Setup("deepfool", 2.0, None, {}, True).in_bounds
        ('in [0, 1]', 'no bounds')
        """
        if self.bounds is None:
            return "no bounds"
        if isinstance(self.bounds, list | tuple) and all(isinstance(each, int | float) for each in self.bounds):
            return f"in [{', '.join(_short(each) for each in self.bounds)}]"
        return "in bounds per feature"

    @property
    def in_knobs(self) -> str:
        """The knobs in words.

        >>> Setup("smallest", 2.0, None, {"budget": 1000, "candidates": 5}, False).in_knobs
        'budget 1000, candidates 5'
        """
        return ", ".join(_tell(name, value) for name, value in self.knobs.items())

    @property
    def search(self) -> str:
        """Everything but the norm.

        >>> Setup("smallest", 2.0, None, {"budget": 1000}, False).search
        'smallest, no bounds, budget 1000'
        """
        return ", ".join(filter(None, (self.attack, self.in_bounds, self.in_knobs)))

    def __str__(self) -> str:
        """
        >>> print(Setup("deepfool", math.inf, [0, 1], {"max_iter": 50}, True))
        deepfool, linf, in [0, 1], max_iter 50
        """
        return ", ".join(filter(None, (self.attack, self.norm, self.in_bounds, self.in_knobs)))


def describe_setup(run: Run) -> Setup:
    """What was asked of the attack of a run."""
    attack = run.identity["attack"]
    name, given = str(attack["name"]), attack["knobs"]
    unusual = find_unusual(attack)
    knobs = {each: given[each] for each in EFFORT if given.get(each) is not None}
    return Setup(name, run.p, given.get("bounds"), knobs | unusual, not unusual, run.weighted)


def find_unusual(attack: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of an attack in a manifest that differ from its defaults, other than the bounds.

    >>> find_unusual({"name": "deepfool", "knobs": {"overshoot": 0.02, "max_iter": 2, "bounds": [0, 1]}})
    {'max_iter': 2}
    """
    # Of other attacks none are known: code named by a manifest is never imported, not even for its defaults.
    usual = read_defaults(attack["name"]) if attack["name"] in ATTACKS else {}
    return {
        name: value
        for name, value in attack["knobs"].items()
        if name != "bounds" and (usual[name] != value if name in usual else value is not None)
    }


def _tell(name: str, value: Any) -> str:
    """A knob in words: of many numbers only how many they are.

    >>> _tell("weights", [1.0, 2.0]), _tell("max_iter", 50)
    ('weights of 2 features', 'max_iter 50')
    """
    if name == "weights" and isinstance(value, list):
        return f"weights of {len(value)} features"
    if name == "schema" and isinstance(value, Mapping):
        return f"schema of {len(value.get('feature', ()))} features"
    return f"{name} {_short(value)}"


def _short(value: Any) -> str:
    """A value of a knob as text.

    >>> [_short(each) for each in (1000, 0.05, "all", None, 1.0, "inf")]
    ['1000', '0.05', 'all', 'none', '1', 'inf']
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}" if 1e-4 <= abs(value) < 1e6 or value in (0, math.inf) else format_number(value, 2)
    if isinstance(value, Mapping):
        return "a tensor"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def has_pixels(run: Run, records: Records) -> bool:
    """Whether the samples are images in [0, 1], as far as the run folder tells."""
    if not len(records) or bool((records.x["linf"] > 1 + 1e-6).any()):
        return False
    data = run.manifest["data"]
    if str(data["name"]).startswith(PIXELS) or str(data["spec"] or "").startswith(("folder:", "hf:")):
        return True
    try:
        stored = read_gallery(run)
    except DeepFoolError:
        return False
    return stored is not None and len(stored.original) > 0


def leaves_range(setup: Setup, *, pixels: bool) -> bool:
    """Whether perturbed pixels may leave [0, 1]: without bounds, or with wider ones."""
    if not pixels or (setup.bounds is not None and not isinstance(setup.bounds, list | tuple)):
        return False
    low, high = (-math.inf, math.inf) if setup.bounds is None else (_lowest(each) for each in setup.bounds)
    return low < 0 or high > 1


def _lowest(end: Any) -> float:
    return read_number(end) if isinstance(end, int | float | str) else math.nan
