"""`deepfool attacks`: the attacks, their knobs with defaults, and an example of each."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from deepfool.attacks.shared.registry import Attack

HAVE_OPTIONS = {
    "p": "--p", "bounds": "--bounds", "goal": "--goal", "weights": "--weights", "subspace": "--subspace",
    "schema": "--schema",
}  # fmt: skip
"""Arguments of an attack that have an option of their own."""

IN_PYTHON_ONLY = ("target", "mask", "start", "threshold", "outputs")
"""Left out of the list: they take tensors, or belong to the model or to a single image."""

_COMMON = "deepfool evaluate --model lenet-mnist --data mnist-sample --limit 100 --attack"


@dataclass(frozen=True)
class Guide:
    """What a signature does not say."""

    norms: str
    options: str
    """Of the example."""


GUIDES = {
    "deepfool": Guide("any P >= 1", "--p inf --bounds 0,1 --knob max_iter=100"),
    "smallest": Guide("0, 1, 2, inf", "--p inf --bounds 0,1 --knob budget=300"),
    "superdeepfool": Guide("2", "--knob turns=20"),
    "ddn": Guide("2", "--knob steps=300"),
    "fmn": Guide("1, 2, inf", "--p 1 --knob steps=300"),
    "fab": Guide("1, 2, inf", "--p inf --knob steps=50"),
    "sparsefool": Guide("0", "--p 0 --bounds 0,1 --knob push=2"),
    "sigma_zero": Guide("0", "--p 0 --bounds 0,1 --knob steps=300"),
    "fgsm": Guide("inf", "--p inf --bounds 0,1 --knob eps=0.1"),
    "lbfgs": Guide("2", "--knob candidates=5"),
}
"""By the names of the registry."""


@dataclass(frozen=True)
class Knob:
    """One argument of an attack."""

    name: str
    default: Any
    required: bool
    about: str


def list_attacks(
    attack: str | None = typer.Argument(None, metavar="[ATTACK]", help="Show the knobs of this attack."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List the attacks, or the knobs of one attack with their defaults and an example."""
    from deepfool.attacks.shared.registry import ATTACKS, find_attack, name_attack

    if attack is not None:
        function = find_attack(attack)
        _show_attack(name_attack(attack), function, as_json)
        return
    found = [describe_attack(name, find_attack(name)) for name in ATTACKS]
    if as_json:
        echo(json.dumps(found))
        return
    from rich import box
    from rich.table import Table

    table = Table("attack", "norms", "what it finds, and its knobs", box=box.SIMPLE_HEAD, show_lines=False)
    for each in found:
        knobs = ", ".join(_name_knob(knob) for knob in each["knobs"])
        table.add_row(each["attack"], each["norms"], f"{each['about']}\n{knobs}\n")
    make_console(width=100).print(table)
    echo("Knobs are set with --knob NAME=VALUE. What they mean, and an example: deepfool attacks smallest", err=True)


def _name_knob(knob: dict[str, Any]) -> str:
    return f"{knob['name']}=..." if knob["required"] else f"{knob['name']}={knob['default']}"


def describe_attack(name: str, attack: Attack) -> dict[str, Any]:
    """What an attack is and takes, as plain values.

    >>> from deepfool.attacks.shared.registry import find_attack
    >>> found = describe_attack("fgsm", find_attack("fgsm"))
    >>> [(knob["name"], knob["required"]) for knob in found["knobs"]], found["norms"]
    ([('eps', True), ('tighten', False)], 'inf')
    """
    guide = GUIDES.get(name)
    return {
        "attack": name,
        "about": (inspect.getdoc(attack) or "").partition("\n\n")[0].replace("\n", " "),
        "norms": guide.norms if guide else "",
        "knobs": [vars(knob) for knob in read_knobs(attack)],
        "example": f"{_COMMON} {name}{f' {guide.options}' if guide else ''}",
    }


def read_knobs(attack: Attack) -> list[Knob]:
    """The knobs of an attack that the command line can set, with the words of its docstring."""
    from deepfool.attacks.shared.registry import find_attack, list_knobs

    words = _read_arguments(find_attack("deepfool")) | _read_arguments(attack)  # what is not said is as for deepfool
    return [
        Knob(
            name,
            None if default is inspect.Parameter.empty else default,
            default is inspect.Parameter.empty,
            words.get(name, ""),
        )
        for name, default in list_knobs(attack).items()
        if name not in HAVE_OPTIONS and name not in IN_PYTHON_ONLY
    ]


def _read_arguments(attack: Attack) -> dict[str, str]:
    """The Args of a docstring: name -> text."""
    section = re.search(r"Args:\n(.*?)(?:\n\S|\Z)", inspect.getdoc(attack) or "", re.DOTALL)
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", section[1]) if section else ():
        names, _, text = entry.strip().partition(": ")
        found |= {name.strip(): re.sub(r"\s+", " ", text) for name in names.split(",")}
    return found


def _show_attack(name: str, attack: Attack, as_json: bool) -> None:
    from rich import box
    from rich.table import Table

    found = describe_attack(name, attack)
    if as_json:
        echo(json.dumps(found))
        return
    echo(f"{name}: {found['about']}")
    if found["norms"]:
        echo(f"Norms (--p): {found['norms']}. Bounds (--bounds) as well.")
    table = Table("knob", "default", "meaning", box=box.SIMPLE_HEAD)
    for knob in found["knobs"]:
        table.add_row(knob["name"], "must be given" if knob["required"] else str(knob["default"]), knob["about"])
    make_console(width=100).print(table)
    echo(f"Example: {found['example']}")
