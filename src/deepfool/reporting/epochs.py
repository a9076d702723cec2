"""The curves of a fine-tuning: rho_adv and test error, epoch by epoch, as figures 6 to 9 of the paper draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepfool.errors import InputError
from deepfool.reporting.figures import DASHES, PALETTE, save_figure
from deepfool.training.results import Epoch

MARKS = ("o", "s", "^", "D", "v", "P")


def draw_epochs(tunings: Mapping[str, Sequence[Epoch]], out: str | Path) -> Path:
    """Draw rho_adv by every judge, and beside it the test error, of one or several fine-tunings (name -> epochs).

    >>> draw_epochs({}, "x.pdf")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: there is no fine-tuning to draw.
    """
    if not any(tunings.values()):
        raise InputError("there is no fine-tuning to draw.")
    return save_figure(lambda figure: _draw(figure, tunings), Path(out))


def _draw(figure: Any, tunings: Mapping[str, Sequence[Epoch]]) -> None:
    figure.set_size_inches(7.2, 3.0)
    robustness, error = figure.subplots(1, 2)
    line = 0
    for i, (name, epochs) in enumerate(tunings.items()):
        steps = [each.epoch for each in epochs]
        for judge in epochs[0].rho if epochs else ():
            rho = np.array([each.rho[judge] for each in epochs])
            label = judge if len(tunings) == 1 else f"{name}, by {judge}"
            robustness.plot(steps, np.where(np.isfinite(rho), rho, np.nan), label=label, **_look(line))
            line += 1
        error.plot(steps, [100 * each.test_error for each in epochs], label=name, **_look(i))
    for axes in (robustness, error):
        axes.set_xlabel("extra epochs")
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
    robustness.set_ylabel(r"$\hat\rho_{\mathrm{adv}}$", parse_math=True)
    error.set_ylabel("test error (%)")
    if line:  # above the axes: inside, it would cover one curve or another
        figure.legend(*robustness.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    if len(tunings) > 1:
        error.legend()


def _look(number: int) -> dict[str, Any]:
    """Colour, dash and mark, so that curves differ in print and to everyone's eyes."""
    return {
        "color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKS[number % len(MARKS)], "markersize": 4,
    }  # fmt: skip
