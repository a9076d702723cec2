"""How the measurements of two runs differ. Distances are compared like with like, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepfool.runs.records import Run

QUESTION = ("bounds", "target", "goal", "mask", "subspace", "weights", "schema", "threshold", "outputs")
"""The knobs that say what is looked for, not how."""


def find_differences(a: Run, b: Run) -> list[str]:
    """What makes the distances of two runs incomparable: another attack, norm, bounds or knobs; a line each.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> data = (torch.rand(4, 3), None)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     one = evaluate(torch.nn.Linear(3, 2), data, out=f"{here}/1")
    ...     other = evaluate(torch.nn.Linear(3, 2), data, out=f"{here}/2", bounds=(0, 1), max_iter=9)
    ...     find_differences(one, other)
    ['bounds none and [0, 1]', 'max_iter 50 and 9']
    """
    found = []
    other = a.identity["attack"]["name"] != b.identity["attack"]["name"]
    if other:
        found.append(f"attack {a.identity['attack']['name']} and {b.identity['attack']['name']}")
    if a.p != b.p:
        found.append(f"norm {a.norm} and {b.norm}")
    elif a.unit != b.unit:
        found.append(f"unit {a.unit} and {b.unit}")
    mine, theirs = a.identity["attack"]["knobs"], b.identity["attack"]["knobs"]
    # Another attack searches in another way, so its knobs are its own business, except those that say what is asked.
    names = [name for name in dict.fromkeys((*QUESTION, *mine, *theirs)) if not other or name in QUESTION]
    names = [name for name in names if name != "unit"]  # it means something for p = 0 only
    found += [
        f"{name} {say_value(mine.get(name))} and {say_value(theirs.get(name))}"
        for name in names
        if mine.get(name) != theirs.get(name)
    ]
    if a.identity.get("skip_misclassified") != b.identity.get("skip_misclassified"):
        found.append("misclassified samples skipped in only one")
    return found


def ask_the_same(a: Run, b: Run) -> bool:
    """Whether both attacks looked for the same thing, so that the smaller answer is the better one."""
    mine, theirs = a.identity["attack"]["knobs"], b.identity["attack"]["knobs"]
    return a.p == b.p and a.unit == b.unit and all(mine.get(name) == theirs.get(name) for name in QUESTION)


def find_remarks(a: Run, b: Run) -> list[str]:
    """What else differs, and hardly ever matters: the precision, the seed, the version of this package."""
    names = {"dtype": "precision", "seed": "seed", "deepfool": "version of deepfool"}
    return [
        f"{words} {say_value(a.identity.get(name))} and {say_value(b.identity.get(name))}"
        for name, words in names.items()
        if a.identity.get(name) != b.identity.get(name)
    ]


def say_value(value: Any) -> str:
    """A knob in words.

    >>> say_value(None), say_value([0, 1]), say_value({"shape": [1, 28, 28], "sha256": "ab"})
    ('none', '[0, 1]', 'a tensor of shape [1, 28, 28]')
    """
    if isinstance(value, Mapping) and "feature" in value:
        return f"a schema of {len(value['feature'])} features"
    if isinstance(value, Mapping):
        return f"a tensor of shape {value.get('shape')}"
    return "none" if value is None else str(value)
