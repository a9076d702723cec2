"""The spectrum of a model: how far its decisions are in bands of frequencies, and in random subspaces.

Bands say what the model looks at: where the distance is small, it is fragile ("Hold me tight!", NeurIPS 2020; see
`deepfool.subspaces`). In a random subspace of m out of d dimensions a boundary that is nearly flat at the scale of the
distance is sqrt(d / m) times as far as in the whole space, so distance * sqrt(m / d) over the distance in the whole
space is about 1 (Fawzi, Moosavi-Dezfooli, Frossard, NeurIPS 2016). How far from 1 says how far from flat.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepfool import cache
from deepfool.attacks.deepfool import deepfool
from deepfool.attacks.shared.arguments import Bounds
from deepfool.classifier import Classifier
from deepfool.datasets import Data
from deepfool.errors import InputError
from deepfool.metrics.estimates import Estimate, as_json, quantile
from deepfool.metrics.formatting import format_number
from deepfool.models.sources import Source
from deepfool.reporting.figures import PALETTE, import_plotting, save_figure
from deepfool.runs.records import Run
from deepfool.subspaces import Subspace, draw_subspace, make_bands
from deepfool.values import check_callable, check_count

SPECTRUM = "spectrum.json"
"""In the run folder."""
TOGETHER = 50
"""Samples at once."""
BANDS = 8
SHARES = (1 / 128, 1 / 32, 1 / 8, 1 / 2)
"""Random subspaces: which shares of all dimensions, if none are named; of MNIST 6, 24, 98 and 392."""


@dataclass(frozen=True)
class Entry:
    """What was found in one subspace."""

    name: str
    dimensions: int
    median: Estimate
    """Of the l2 distances; what was not fooled counts as infinite."""
    fooled: int
    samples: int
    ratio: Estimate
    """The median of distance * sqrt(m / d) over the distance in the whole space: 1 is the law of random subspaces."""
    passes: float
    """Forward passes and backward rows per sample."""


@dataclass(frozen=True)
class Spectrum:
    """The distances of a model in subspaces of its inputs."""

    model: str
    data: str
    bounds: Any
    features: int
    whole: Entry
    bands: tuple[Entry, ...]
    """Of frequencies, the lowest first; empty where the inputs are no images."""
    random: tuple[Entry, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: null where there is no number, "inf" for infinity."""
        found: dict[str, Any] = as_json(asdict(self))
        return found


def measure_spectrum(
    source: Source,
    data: Data,
    *,
    limit: int = 100,
    bands: int = BANDS,
    dimensions: Sequence[int] | None = None,
    bounds: Bounds | None = None,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Spectrum:
    """Run DeepFool once in the whole space, in each band of frequencies, and in each random subspace.

    Args:
        source, data: as `deepfool.models.sources.resolve` and `deepfool.datasets.load` return them.
        limit: the first so many samples.
        bands: how many bands of the DCT, of about the same dimension; 0 for none. Images only.
        dimensions: of the random subspaces, one drawn for each; None for four shares of all dimensions.
        bounds: the box to stay in; None as in the law, which knows no box.
        seed: of the random subspaces.
        on_progress: called with the name of what is measured, how many are done, and how many there are.

    >>> from deepfool.datasets import load
    >>> from deepfool.models.sources import resolve
    >>> found = measure_spectrum(resolve("lenet-mnist"), load("mnist-sample"), limit=4, bands=2, dimensions=[98])
    >>> [entry.name for entry in (*found.bands, *found.random)]
    ['band 1 of 2', 'band 2 of 2', 'random 98']
    """
    check_callable(on_progress, "on_progress")
    x = data.batch(range(min(check_count(limit, "limit"), len(data))))
    bands, seed = check_count(bands, "bands", least=0), check_count(seed, "seed", least=0)
    d = x[0].numel()
    if dimensions is None:
        dimensions = [max(1, round(share * d)) for share in SHARES]
    if any(not 0 < m <= d for m in dimensions):
        raise InputError(f"dimensions must lie in [1, {d}], got {list(dimensions)!r:.80}.")
    spaces: list[Subspace | None] = [None]
    spaces += make_bands(tuple(x.shape[1:]), bands) if x.ndim == 4 and bands else []
    spaces += [draw_subspace(d, m, seed) for m in dict.fromkeys(dimensions)]
    f = Classifier(source.module)
    entries, whole = [], None
    for done, space in enumerate(spaces):
        on_progress("whole space" if space is None else space.name, done, len(spaces))
        norms, passes = _attack(f, x, space, bounds)
        whole = norms if whole is None else whole
        entries.append(_describe(space, norms, whole, d, passes))
    on_progress("", len(spaces), len(spaces))
    drawn = len(dict.fromkeys(dimensions))
    return Spectrum(
        source.spec, data.name, None if bounds is None else [float(torch.as_tensor(end).max()) for end in bounds], d,
        entries[0], tuple(entries[1 : len(entries) - drawn]), tuple(entries[len(entries) - drawn :]),
    )  # fmt: skip


def _attack(f: Classifier, x: Tensor, space: Subspace | None, bounds: Bounds | None) -> tuple[Any, float]:
    """The distances, infinite where nothing was found, and the passes per sample."""
    parts = torch.split(x, TOGETHER)
    found = [deepfool(f, part, subspace=space, bounds=bounds) for part in parts]
    passes = sum(int((each.forwards + each.backwards).sum()) for each in found) / len(x)
    return torch.cat([each.norm for each in found]).double().numpy(), passes


def _describe(space: Subspace | None, norms: Any, whole: Any, features: int, passes: float) -> Entry:
    m = features if space is None else space.dimensions
    known = np.isfinite(whole) & (whole > 0)
    ratio = quantile(norms[known] * math.sqrt(m / features) / whole[known], 0.5)
    name = "whole space" if space is None else space.name
    return Entry(name, m, quantile(norms, 0.5), int(np.isfinite(norms).sum()), len(norms), ratio, round(passes, 1))


def list_rows(found: Spectrum) -> Iterable[tuple[str, ...]]:
    """The table: subspace, dimensions, median and interval, fooled, ratio and interval."""
    for entry in (found.whole, *found.bands, *found.random):
        yield (
            entry.name, str(entry.dimensions), *_tell(entry.median), f"{entry.fooled} of {entry.samples}",
            *(_tell(entry.ratio) if entry in found.random else ("", "")),
        )  # fmt: skip


def _tell(estimate: Estimate) -> tuple[str, str]:
    ends = (estimate.low, estimate.high)
    interval = "" if any(map(math.isnan, ends)) else " – ".join(map(format_number, ends))
    return format_number(estimate.value), interval


def keep_spectrum(run: Run, source: Source, found: Spectrum) -> Path:
    """Store a spectrum in the folder of a run of the same model; the report then shows it."""
    if source.fingerprint != run.identity["model"]["sha256"]:
        raise InputError(f"the spectrum is not of the model of {run.folder}.", hint="measure the same model.")
    path = run.folder / SPECTRUM
    cache.write(path, json.dumps({"model_sha256": source.fingerprint, **found.as_dict()}, allow_nan=False).encode())
    return path


def read_spectrum(run: Run) -> dict[str, Any] | None:
    """What the report shows of a spectrum in the folder of a run; None if there is none, or of another model."""
    try:
        found = json.loads((run.folder / SPECTRUM).read_bytes())
        if found["model_sha256"] != run.identity["model"]["sha256"]:
            return None
        drawn = {entry["name"] for entry in found["random"]}
        entries = [found["whole"], *found["bands"], *found["random"]]
        rows: list[dict[str, Any]] = [
            {
                "name": str(each["name"]), "dimensions": int(each["dimensions"]),
                "ratio": float(each["ratio"]["value"]) if each["name"] in drawn else None,
                **{end: _number(each["median"][end]) for end in ("low", "high")},
                "median": float(each["median"]["value"]),
            }
            for each in entries
        ]  # fmt: skip
        samples = int(found["whole"]["samples"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    sizes = [row["median"] for row in rows if 0 < row["median"] < math.inf]
    smallest, largest = (math.log(end(sizes, default=1.0)) for end in (min, max))
    for row in rows:
        above = min(max(math.log(row["median"]) if row["median"] > 0 else smallest, smallest), largest) - smallest
        row["share"] = 0.05 + 0.95 * above / max(largest - smallest, 1e-9)
    return {**found, "rows": rows, "samples": samples}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def draw_spectrum(found: Spectrum, out: str | Path) -> Path:
    """Draw the bands, and the random subspaces beside their law, into a .pdf, .svg, .eps or .png."""

    def draw(figure: Any) -> None:
        figure.set_size_inches(8.2 if found.bands else 4.6, 3.0)
        axes = list(np.atleast_1d(figure.subplots(1, 2 if found.bands else 1)))
        if found.bands:
            _draw_bands(axes[0], found)
        _draw_law(axes[-1], found)
        figure.suptitle(f"{found.model} on {found.data}", fontsize=9)

    return save_figure(draw, Path(out))


def _draw_bands(axes: Any, found: Spectrum) -> None:
    places = np.arange(1, len(found.bands) + 1)
    _draw_entries(axes, places, found.bands, PALETTE[0], "o-", "in the band")
    axes.axhline(found.whole.median.value, color=PALETTE[1], linestyle="--", label="in the whole space")
    axes.set(xlabel="band of frequencies, low to high", ylabel="median l2 distance", yscale="log", xticks=places)
    _plain_ticks(axes.yaxis)
    axes.legend(fontsize=7)


def _draw_law(axes: Any, found: Spectrum) -> None:
    entries = [*found.random, found.whole]
    m = np.array([entry.dimensions for entry in entries], float)
    _draw_entries(axes, m, entries, PALETTE[2], "o-", "in random subspaces")
    line = np.geomspace(m.min(), found.features, 50)
    law = found.whole.median.value * np.sqrt(found.features / line)
    axes.plot(line, law, color="0.4", linestyle=":", label="distance × sqrt(d / m)")
    axes.set(xlabel="dimensions m", ylabel="median l2 distance", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_ticks(axis)
    axes.legend(fontsize=7)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 in place of powers, which need mathematics in their labels."""
    ticker = import_plotting("matplotlib.ticker", "deepfool spectrum")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(ticker.NullLocator())


def _draw_entries(axes: Any, at: Any, entries: Sequence[Entry], colour: str, style: str, label: str) -> None:
    values, low, high = (
        np.array([getattr(entry.median, end) for entry in entries]) for end in ("value", "low", "high")
    )
    axes.plot(at, values, style, color=colour, markersize=3, label=label)
    order = np.argsort(at)
    axes.fill_between(np.asarray(at)[order], low[order], high[order], color=colour, alpha=0.2, linewidth=0)
