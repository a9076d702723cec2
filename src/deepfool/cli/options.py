"""Options shared by several commands."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

RUN_CODE: Any = typer.Option(
    False, "--run-code", help="Run code named in the manifest (py: models, attacks); only for folders you trust."
)
MODEL: Any = typer.Option(
    ..., metavar="MODEL", help="A model of the zoo (deepfool models list), or timm:NAME, onnx:FILE, hf:DIR, ..."
)
ATTACK: Any = typer.Option(
    "deepfool", metavar="ATTACK", help="An attack (deepfool attacks lists them), or module:function."
)
NORM: Any = typer.Option("2", metavar="P", help="The norm to minimise: a number >= 1, or inf; 0 counts features.")
GOAL: Any = typer.Option(
    None,
    metavar="GOAL",
    help="What counts as changed: top:5, margin:2, confidence:0.9, target:3; labels, label:4; within:0.5, passes:3.",
)
WEIGHTS: Any = typer.Option(
    None, metavar="FILE", help="What each feature counts in the norm: a file (.npy, .json, text), or 1,0.5,2."
)
SUBSPACE: Any = typer.Option(
    None, metavar="TEXT", help="Keep r to a subspace: band:1/8 (of the DCT), random:50, resolution:4, channel:0."
)
SCHEMA: Any = typer.Option(
    None, metavar="FILE", help="What the columns of a table are and how they may change: a TOML or JSON file."
)
KNOB: Any = typer.Option(
    [], metavar="NAME=VALUE", help="A knob of the attack (deepfool attacks ATTACK lists them); may be repeated."
)
ARCH: Any = typer.Option(None, metavar="MODEL", help="The architecture, for file: models.")
MEAN: Any = typer.Option(
    None, metavar="M[,M,M]", help="What hf: models subtract from pixels in [0, 1] (default: as they say)."
)
STD: Any = typer.Option(None, metavar="S[,S,S]", help="What hf: models divide by after that.")


USUAL_SECONDS = "1"


class WithCertify(TyperCommand):
    """A command whose --certify may stand without its seconds, which typer does not know how to do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, complete_certify(args))


def complete_certify(args: list[str]) -> list[str]:
    """The arguments with the usual seconds after a --certify that has none.

    >>> complete_certify(["--certify", "--p", "2"]), complete_certify(["--certify", "30"])
    (['--certify', '1', '--p', '2'], ['--certify', '30'])
    """
    done = list(args)
    for i, word in reversed(list(enumerate(args))):
        if word == "--certify" and (i + 1 == len(args) or args[i + 1].startswith("--")):
            done.insert(i + 1, USUAL_SECONDS)
    return done


def add_preprocessing(model: str, mean: str | None, std: str | None) -> str:
    """The spec of a model with the normalisation that was asked for.

    >>> add_preprocessing("hf:vit", "0.5", "0.25"), add_preprocessing("lenet-mnist", None, None)
    ('hf:vit?mean=0.5&std=0.25', 'lenet-mnist')
    """
    from deepfool.errors import InputError

    given = [f"{name}={value.replace(' ', '')}" for name, value in (("mean", mean), ("std", std)) if value is not None]
    if not given:
        return model
    if not model.startswith("hf:"):
        raise InputError(
            f"--mean and --std are for hf: models, got {model!r}.",
            hint="other models have their normalisation inside; put it into yours.",
        )
    return f"{model}{'&' if '?' in model else '?'}{'&'.join(given)}"
