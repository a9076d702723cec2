"""`deepfool attack`: perturb one image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepfool.cli.options import ARCH, ATTACK, GOAL, KNOB, MEAN, MODEL, NORM, STD, add_preprocessing
from deepfool.cli.output import echo, make_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from deepfool.models.sources import Source
    from deepfool.reporting.single import Outcome


def attack_image(
    image: Path = typer.Argument(..., metavar="IMAGE", help="An image file."),
    model: str = MODEL,
    attack: str = ATTACK,
    p: str = NORM,
    bounds: str = typer.Option(
        "0,1", metavar="LOW,HIGH", help="Keep x + r in this range; none: no limits, as in the paper."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", metavar="FILE.png", help="The perturbed image, in 8 bits (default: IMAGE-ATTACK.png here)."
    ),
    picture: Path | None = typer.Option(
        None,
        metavar="FILE.png",
        help="Original, perturbed image and perturbation side by side (default: next to --out, as ...-panels.png).",
    ),
    pictures: bool = typer.Option(
        True, "--pictures/--no-pictures", help="Write the two pictures; --json writes only those that are named."
    ),
    also: str | None = typer.Option(
        None, "--compare", metavar="ATTACK", help="Also show another attack, such as fgsm, magnified alike."
    ),
    arch: str | None = ARCH,
    size: int | None = typer.Option(None, metavar="PIXELS", help="The side of the image, if the model does not say."),
    mean: str | None = MEAN,
    std: str | None = STD,
    grey: bool = typer.Option(False, "--grey", help="Use one channel, if the model does not say."),
    goal: str | None = GOAL,
    knob: list[str] = KNOB,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Perturb one image. Prints labels, scores, the norm and rho, and writes the perturbed image and a comparison."""
    from deepfool.cli.evaluate import read_bounds, read_knobs, read_p
    from deepfool.models.sources import resolve
    from deepfool.reporting.single import attack_one, read_image

    _check_png(out, picture)
    source = resolve(add_preprocessing(model, mean, std), arch=arch)
    x = read_image(image, source, size=size, grey=grey)
    limits, norm = read_bounds(bounds), read_p(p)
    knobs = read_knobs(knob, attack_one) | ({} if goal is None else {"goal": goal})
    found = [attack_one(source, x, attack, p=norm, bounds=limits, **knobs)]
    if also is not None:  # the other knobs belong to the first attack, these to the model
        reading = {name: knobs[name] for name in ("threshold", "outputs", "goal") if name in knobs}
        found.append(attack_one(source, x, also, p=norm, bounds=limits, **reading))
    if as_json:
        echo(json.dumps({"image": str(image), "model": model, "attacks": [each.as_dict() for each in found]}))
    else:
        for each in found:
            _print(each)
    failed = not found[0].fooled
    if out is None and pictures and not as_json and not failed:
        out = name_picture(image, attack)
    if failed:
        echo(f"{attack} did not change the decision: {found[0].reason}", err=True, fg="red")
    elif out is not None:
        failed = not _write_rounded(out, source, x, found[0])
    shown = picture or (out.with_name(f"{out.stem}-panels.png") if out is not None and pictures else None)
    if shown is not None:
        _write_picture(shown, x, found)
    if failed:
        raise typer.Exit(1)


def name_picture(image: Path, attack: str) -> Path:
    """Where the perturbed image goes if no place was named: into the current folder.

    >>> name_picture(Path("holiday/photo.jpg"), "my.own:attack").as_posix()
    'photo-my.own_attack.png'
    """
    return Path(f"{image.stem}-{re.sub(r'[^a-zA-Z0-9_.]+', '_', attack)}.png")


def _check_png(*files: Path | None) -> None:
    from deepfool.errors import InputError

    for file in files:
        if file is not None and file.suffix.lower() not in (".png", ".bmp", ".tif", ".tiff"):
            raise InputError(
                f"{file} must be a .png, .bmp or .tif: other formats change pixels.", hint=f"{file.stem}.png"
            )


def _print(found: Outcome) -> None:
    from rich import box
    from rich.table import Table

    from deepfool.reporting.wording import format_number, format_percent

    table = Table("", "label", "score", "probability", box=box.SIMPLE_HEAD, title=found.attack)
    for what, rows in (("original", found.before), ("perturbed", found.after)):
        for i, row in enumerate(rows):
            table.add_row(what if i == 0 else "", row.name, f"{row.score:.4g}", format_percent(row.probability))
    make_console(width=100).print(table)
    if found.fooled:
        echo(
            f"{_name_size(found)} {format_number(found.norm, 4)}, rho {format_number(found.rho, 4)} "
            f"({format_percent(found.rho)} of the image), {found.iterations} iterations"
        )


def _name_size(found: Outcome) -> str:
    from deepfool.reporting.wording import name_norm

    return f"{found.unit}s changed:" if found.unit else f"{name_norm(found.p)} norm"


def _write_rounded(out: Path, source: Source, x: Tensor, found: Outcome) -> bool:
    """Write the 8-bit image, read it back, and return whether it fools the model."""
    from deepfool.reporting.rounding import round_adversarial
    from deepfool.reporting.single import classify, measure, name_label, read_back, write_image
    from deepfool.reporting.wording import format_number, format_percent

    rounded = round_adversarial(found.classifier, x, found.r, found.label)
    if rounded is None:
        echo(
            f"{out} was not written: no 8-bit image in the direction of this perturbation changes the decision. "
            f"Hint: try another norm or attack, such as --p inf.", err=True, fg="red",
        )  # fmt: skip
        return False
    write_image(out, rounded.levels)
    label = classify(found.classifier, read_back(out))
    if label != rounded.label:
        echo(f"{out} was written, but when read back it has the label {label}.", err=True, fg="red")
        return False
    size, rho = measure(x, rounded.x, found.p, x.shape[0] if found.unit == "pixel" else 1)
    further = "" if rounded.scale == 1 else f", {rounded.scale:.3g} times as far as without rounding"
    echo(
        f"{out}: after rounding to 8 bits still {name_label(source, label)}; {_name_size(found)} "
        f"{format_number(size, 4)}, {format_percent(rho)} of the image{further}", err=True,
    )  # fmt: skip
    return True


def _write_picture(path: Path, x: Tensor, found: Sequence[Outcome]) -> None:
    from deepfool.errors import DataError
    from deepfool.reporting.picture import Panels, as_array, draw_panels
    from deepfool.reporting.wording import format_percent

    rows: list[Any] = [
        Panels(
            each.attack, as_array(x.numpy()), as_array(each.r.numpy()), each.before[0].name,
            each.after[0].name if each.fooled else f"{each.after[0].name} (not fooled)",
            f"l{each.p:g} norm: {format_percent(each.rho)} of the image",
        )
        for each in found
    ]  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_panels(rows).save(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error
    echo(f"{path}: side by side", err=True)
