"""What `universal` returns, and how a folder stores it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool import cache
from deepfool.display.pixels import colour, is_image, lay_out, stretch, to_data_uri, to_levels
from deepfool.display.tables import box, make_table, paragraph, side_by_side
from deepfool.errors import RunError
from deepfool.metrics.estimates import Estimate, as_json
from deepfool.metrics.formatting import format_estimate, format_number, format_percent

FIGURES, ARRAYS, VECTOR, PICTURE = "universal.json", "universal.npz", "v.npy", "v.png"
FORMAT = 1


@dataclass(frozen=True)
class Point:
    """One search: its radius, how many images it used, and the share of images that its v fools."""

    xi: float
    images: int
    rate: Estimate
    """On the images held out."""
    used_rate: Estimate
    """On the images used."""


@dataclass(frozen=True)
class Transfer:
    """What the same v does to another model: the share of its decisions on the images held out that change."""

    model: str
    rate: Estimate


@dataclass(frozen=True)
class Reached:
    """The smallest radius known at which a v fools a share of the images held out."""

    share: float
    xi: float
    """Infinite if no search reached the share."""
    rate: float
    """The share that was fooled there."""


@dataclass(frozen=True)
class Progress:
    """What is under way: a stage in words, and how much of it is done."""

    stage: str
    done: int
    total: int
    rate: float = math.nan
    """The share of the images used that was fooled when it was last looked at."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Universal:
    """One perturbation for all images, and how many decisions it changes."""

    v: Tensor
    """In the shape of one image."""
    p: float
    xi: float
    norm: float
    """||v||_p, at most xi."""
    method: str
    rate: Estimate
    """The share of the images held out whose decision v changes (to the target), with its 95 % interval."""
    used_rate: Estimate
    """The same for the images that v was found on."""
    accuracy: tuple[Estimate, Estimate] | None
    """On the images held out, without v and with it; None if their true labels are not known."""
    label: Tensor
    """The decisions on the images held out, without v."""
    label_with_v: Tensor
    rates: tuple[float, ...]
    """The share of the images used that was fooled, at the ends of up to ten epochs."""
    seconds: float
    """That the search took."""
    curve: tuple[Point, ...] = ()
    """A search for each radius, the smallest first."""
    reached: tuple[Reached, ...] = ()
    """The smallest radius for 50 % and for 90 %."""
    counts: tuple[Point, ...] = ()
    """A search for each number of images."""
    transfer: tuple[Transfer, ...] = ()
    examples: Tensor | None = None
    """A few of the images held out, and `example_rows` their places among them."""
    example_rows: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Everything that v depends on."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Names of model, data and classes, and where it was measured."""

    @property
    def target(self) -> int | None:
        found = self.settings.get("target")
        return None if found is None else int(found)

    def ends(self) -> list[tuple[int, int, int, int]]:
        """For each label: images decided so without v, with v, and how many of the latter came from elsewhere.

        The most frequent with v come first.
        """
        before, after = self.label.tolist(), self.label_with_v.tolist()
        rows = [
            (
                label, before.count(label), after.count(label),
                sum(a == label != b for b, a in zip(before, after, strict=True)),
            )
            for label in sorted(set(before) | set(after))
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def __repr__(self) -> str:
        norm = "linf" if math.isinf(self.p) else f"l{self.p:g}"
        return (
            f"Universal({norm} norm {format_number(self.norm)}, {self.method}: "
            f"fools {format_percent(self.rate.value)} of {self.rate.count} images not used)"
        )

    def _repr_html_(self) -> str:
        """For notebooks: v magnified, and the figures."""
        rows = [
            ["fooled, images not used", _tell(self.rate)],
            ["fooled, images used", _tell(self.used_rate)],
            ["norm of v", f"{format_number(self.norm)} (at most {format_number(self.xi)})"],
            *([f"fooled, {each.model}", _tell(each.rate)] for each in self.transfer),
        ]
        parts = [make_table(["", ""], rows)]
        if is_image(tuple(self.v.shape)):
            from markupsafe import Markup

            picture, factor = self.draw()
            shown = Markup('<img src="{}" width="112" style="image-rendering:pixelated" alt="v">')
            parts.insert(0, shown.format(to_data_uri(picture)) + paragraph(f"v × {format_number(factor)}", faint=True))
        return box(paragraph(repr(self), strong=True), side_by_side(*parts))

    def draw(self) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], float]:
        """v as a picture (h, w, 3), magnified until its largest values fill the colours, and the factor."""
        stretched, factor = stretch(self.v.numpy())
        return colour(stretched), factor

    def draw_examples(self) -> list[tuple[int, str, str]]:
        """The place of each example, the image, and the image with v as data URIs."""
        if self.examples is None:
            return []
        draw: Callable[[Any], str] = lambda x: to_data_uri(lay_out(to_levels(x)))  # noqa: E731
        pairs = zip(self.example_rows, self.examples.numpy(), strict=True)
        return [(row, draw(x), draw(x + self.v.numpy())) for row, x in pairs]

    def figures(self) -> dict[str, Any]:
        """Everything but the arrays, in types that JSON has."""
        found: dict[str, Any] = as_json({
            "format": FORMAT, "p": self.p, "xi": self.xi, "norm": self.norm, "method": self.method,
            "rate": self.rate, "used_rate": self.used_rate,
            "accuracy": None if self.accuracy is None else list(self.accuracy),
            "rates": list(self.rates), "seconds": self.seconds,
            "curve": [asdict(each) for each in self.curve], "counts": [asdict(each) for each in self.counts],
            "reached": [asdict(each) for each in self.reached], "transfer": [asdict(each) for each in self.transfer],
            "ends": [dict(zip(("label", "before", "after", "moved"), row, strict=True)) for row in self.ends()],
            "example_rows": list(self.example_rows), "settings": dict(self.settings), "about": dict(self.about),
        })  # fmt: skip
        return found

    def save(self, folder: str | Path) -> Path:
        """Write the figures, v (`v.npy`) and its picture (`v.png`) into a folder."""
        place = Path(folder)
        stream = io.BytesIO()
        arrays = {"label": self.label.numpy(), "label_with_v": self.label_with_v.numpy()}
        if self.examples is not None:
            arrays["examples"] = self.examples.numpy()
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        cache.write(place / ARRAYS, stream.getvalue())
        stream = io.BytesIO()
        np.save(stream, self.v.numpy())
        cache.write(place / VECTOR, stream.getvalue())
        if is_image(tuple(self.v.shape)):
            from PIL import Image

            stream = io.BytesIO()
            Image.fromarray(self.draw()[0]).save(stream, "PNG")
            cache.write(place / PICTURE, stream.getvalue())
        text = json.dumps(self.figures(), indent=1, allow_nan=False) + "\n"
        cache.write(place / FIGURES, text.encode())  # last: where it is, all is
        return place

    @staticmethod
    def read(folder: str | Path) -> Universal:
        """What a folder stores, without the model and the data."""
        place = Path(folder)
        try:
            told = json.loads((place / FIGURES).read_text("utf-8"))
            v = torch.from_numpy(np.load(place / VECTOR, allow_pickle=False))
            with np.load(place / ARRAYS, allow_pickle=False) as arrays:
                stored = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
            return Universal(
                v=v, p=float(told["p"]), xi=told["xi"], norm=told["norm"], method=str(told["method"]),
                rate=_read_estimate(told["rate"]), used_rate=_read_estimate(told["used_rate"]),
                accuracy=_read_pair(told["accuracy"]), label=stored["label"], label_with_v=stored["label_with_v"],
                rates=tuple(told["rates"]), seconds=told["seconds"],
                curve=tuple(map(_read_point, told["curve"])), counts=tuple(map(_read_point, told["counts"])),
                reached=tuple(Reached(each["share"], float(each["xi"]), each["rate"]) for each in told["reached"]),
                transfer=tuple(Transfer(each["model"], _read_estimate(each["rate"])) for each in told["transfer"]),
                examples=stored.get("examples"), example_rows=tuple(told["example_rows"]),
                settings=told["settings"], about=told["about"],
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{place} holds no universal perturbation that can be read ({type(error).__name__}: {error}).",
                hint="deepfool universal makes such folders.",
            ) from error


def _tell(estimate: Estimate) -> str:
    scaled = Estimate(100 * estimate.value, 100 * estimate.low, 100 * estimate.high, estimate.count)
    return f"{format_estimate(scaled)} % of {estimate.count}"


def _read_estimate(told: Mapping[str, Any]) -> Estimate:
    value, low, high = (math.nan if told[name] is None else float(told[name]) for name in ("value", "low", "high"))
    return Estimate(value, low, high, int(told["count"]), exact=bool(told["exact"]))


def _read_pair(told: Any) -> tuple[Estimate, Estimate] | None:
    return None if told is None else (_read_estimate(told[0]), _read_estimate(told[1]))


def _read_point(told: Mapping[str, Any]) -> Point:
    return Point(
        float(told["xi"]), int(told["images"]), _read_estimate(told["rate"]), _read_estimate(told["used_rate"])
    )
