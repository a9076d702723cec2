"""The page of a universal perturbation: one self-contained HTML file, made from its folder alone."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from markupsafe import Markup

from deepfool import __version__, cache
from deepfool.display.curves import draw_curve
from deepfool.display.pixels import SHARP, is_image, to_data_uri
from deepfool.errors import DataError, RunError
from deepfool.reporting.naming import name_class
from deepfool.reporting.page import REPORT, inline, make_environment
from deepfool.reporting.times import format_duration, format_moment
from deepfool.reporting.wording import format_number, format_percent, name_norm
from deepfool.runs import manifests
from deepfool.universals.results import Point, Universal

MOST_LABELS = 20
"""Rows of the table of labels."""
FORMS = {"gradient": "mini-batch ascent on the clipped margin", "deepfool": "the algorithm of 2017 (DeepFool)"}


def write_universal_report(found: Universal | str | Path, out: str | Path | None = None) -> Path:
    """Write the page and return its path; by default `report.html` in the folder that was given.

    >>> import tempfile, torch
    >>> from deepfool import universal
    >>> model = torch.nn.Linear(4, 3)
    >>> with tempfile.TemporaryDirectory() as here:
    ...     _ = universal(model, (torch.rand(20, 4), None), xi=0.5, out=f"{here}/v")
    ...     write_universal_report(f"{here}/v").name
    'report.html'
    """
    if out is None:
        if isinstance(found, Universal):
            raise RunError("the report needs a place.", hint="give out=, or the folder instead of the result.")
        out = Path(found) / REPORT
    found = found if isinstance(found, Universal) else Universal.read(found)
    path = Path(out)
    try:
        cache.write(path, render_universal(found).encode())
    except (DataError, OSError) as error:
        raise RunError(f"the report {path} cannot be written: {error.__cause__ or error}.") from error
    return path


def render_universal(found: Universal) -> str:
    """The page as HTML."""
    about = found.about
    norm, size = name_norm(found.p), format_number(found.norm)
    picture = None
    if is_image(tuple(found.v.shape)):
        drawn, factor = found.draw()
        picture = {"uri": to_data_uri(drawn), "factor": format_number(factor), "grey": len(found.v) == 1}
    environment = make_environment()
    return environment.get_template("universal.html.j2").render(
        found=found, norm=norm, size=size, picture=picture, title=f"{about['model']} on {about['data']}",
        lead=_lead(found, norm), notes=_notes(found), sharp=max(found.v.shape[-2:], default=0) <= SHARP,
        examples=_list_examples(found) if picture else [], curve=_draw(found.curve, norm), labels=_list_labels(found),
        most=MOST_LABELS, facts=_list_facts(found), command=_command(found), version=__version__,
        made=format_moment(manifests.now()), css=inline("report.css") + inline("universal.css") + inline("print.css"),
        form=FORMS[found.method], target=None if found.target is None else _name(found, found.target),
    )  # fmt: skip


def _name(found: Universal, label: int) -> str:
    return name_class(found.about["classes"], label)


def _lead(found: Universal, norm: str) -> str:
    done = "changes the decision" if found.target is None else f"changes the decision to {_name(found, found.target)}"
    return (
        f"One and the same perturbation, of {norm} norm {format_number(found.norm)}, {done} on "
        f"{format_percent(found.rate.value)} of {found.rate.count:,} images that it was not found on."
    )


def _notes(found: Universal) -> list[str]:
    """What a reader might take for something else."""
    notes = ["It is a lower bound on what is possible: a better search could only find a v that fools more."]
    moved = [row for row in found.ends() if row[3]]
    total = sum(row[3] for row in moved)
    if moved and total and found.target is None:
        first = max(moved, key=lambda row: row[3])
        notes.append(
            f"Of the decisions that change, {format_percent(first[3] / total)} change to {_name(found, first[0])}."
        )
    if found.accuracy is not None:
        before, after = (format_percent(each.value) for each in found.accuracy)
        notes.append(f"The accuracy on these images is {before} without it and {after} with it.")
    gap = found.used_rate.value - found.rate.value
    if gap > 0.1:
        notes.append(
            f"It fools {format_percent(found.used_rate.value)} of the images that it was found on: with more of them, "
            "a v that works better on others may be found."
        )
    if twins := found.about.get("twins"):
        notes.append(f"{twins} images to judge on were left out, because the same pictures were used.")
    return notes


def _list_examples(found: Universal) -> list[dict[str, Any]]:
    before, after = found.label.tolist(), found.label_with_v.tolist()
    return [
        {"image": image, "moved": moved, "before": _name(found, before[row]), "after": _name(found, after[row]),
         "changed": before[row] != after[row]}
        for row, image, moved in found.draw_examples()
    ]  # fmt: skip


def _draw(points: tuple[Point, ...], norm: str) -> Markup | None:
    if not points:
        return None
    told = "; ".join(f"{format_percent(each.rate.value)} at {format_number(each.xi)}" for each in points)
    return draw_curve(
        [0.0, *(each.xi for each in points)], [0.0, *(each.rate.value for each in points)],
        low=[0.0, *(each.rate.low for each in points)], high=[0.0, *(each.rate.high for each in points)],
        x_name=f"xi ({norm})", y_name="", title=f"The share of images that are fooled against xi: {told}.",
    )  # fmt: skip


def _list_labels(found: Universal) -> list[dict[str, Any]]:
    total = max(1, len(found.label))
    return [
        {"name": _name(found, label), "before": before, "after": after, "moved": moved,
         "width": round(100 * after / total, 1)}
        for label, before, after, moved in found.ends()
    ]  # fmt: skip


def _command(found: Universal) -> str | None:
    """The command that was run, if it was one."""
    command = str(found.about.get("session", {}).get("command", ""))
    words = shlex.split(command) if command else []
    return shlex.join(["deepfool", *words[1:]]) if len(words) > 1 and words[1] == "universal" else None


def _list_facts(found: Universal) -> list[tuple[str, str]]:
    settings, about = found.settings, found.about
    session = about.get("session", {})
    hidden = ("deepfool", "method", "p", "xi", "model", "data", "test", "used", "held_out")
    return [
        ("model", str(about["model"])),
        ("model, SHA-256", str(settings["model"])),
        ("images used", f"{about['used']:,} of {about['data']}"),
        ("images used, SHA-256 of the data", str(settings["data"])),
        ("images judged on", f"{about['held_out']:,} of {about['test']}, none of them used"),
        ("search", FORMS[found.method]),
        ("norm, xi", f"{name_norm(found.p)}, {format_number(found.xi, 4)}"),
        *((name, _plain(value)) for name, value in settings.items() if name not in hidden),
        ("time of the search", format_duration(found.seconds)),
        ("versions", ", ".join(f"{n} {session[n]}" for n in ("deepfool", "torch", "numpy", "python") if n in session)),
        ("measured", format_moment(session.get("started", "?"))),
    ]


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"a tensor of shape {value.get('shape')}, SHA-256 {str(value.get('sha256'))[:16]}"
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
