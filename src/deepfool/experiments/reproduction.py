"""reproduce(): run the experiments and write the pages that compare them with the paper."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from deepfool.errors import InputError
from deepfool.experiments import curves, geometry, pictures, table1, table2
from deepfool.experiments.page import write_pages
from deepfool.experiments.scales import find_scale
from deepfool.experiments.session import Session, Step
from deepfool.runs.ray_cluster import keeping_ray

EXPERIMENTS: Mapping[str, Callable[[Session], dict[str, Any]]] = {
    "geometry": geometry.make,
    "figure1": pictures.make_figure_1,
    "figure8": pictures.make_figure_8,
    "table1": table1.make,
    "table2": table2.make,
    "figure6": curves.make_figure_6,
    "figure7": curves.make_figure_7,
    "figure9": curves.make_figure_9,
}
"""In the order in which they run: the quick ones first."""

PART_OF = {
    "table3": "figure6", "figure2": "geometry", "figure3": "geometry", "figure4": "geometry", "figure5": "geometry",
}  # fmt: skip
"""Tables and figures that are part of another experiment."""


def reproduce(
    out: str | Path,
    *,
    scale: str = "default",
    only: Sequence[str] = (),
    images: str | Path | None = None,
    engine: str = "local",
    workers: int | None = None,
    on_progress: Callable[[Step], None] = lambda _: None,
) -> Path:
    """Make the paper's tables and figures again, and write `reproduction.html` and `reproduction.md` into `out`.

    The same call resumes where an earlier one stopped. Returns the path of the page.

    Args:
        out: the output folder, for one scale.
        scale: `smoke` (a test of a few seconds, not a measurement), `default` (tens of minutes) or `full` (the paper's
            sizes).
        only: names of experiments to run; the results of the others are kept.
        images: a folder of labelled ImageNet images, for the ImageNet networks.
        engine, workers: as in `evaluate`.
        on_progress: called with a `Step` as the work proceeds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     reproduce(f"{here}/out", scale="smoke", only=["figure2"]).name
    'reproduction.html'
    """
    chosen = _choose(only)
    session = Session(
        Path(out), find_scale(scale), images=None if images is None else str(images), engine=engine, workers=workers,
        on_progress=on_progress,
    )  # fmt: skip
    session.claim()
    try:
        # There are dozens of runs, so Ray is started once for all of them.
        with keeping_ray(workers) if engine == "ray" else nullcontext():
            for name in chosen:
                session.experiment = name
                begin = time.monotonic()
                result = EXPERIMENTS[name](session)
                session.keep(name, result, time.monotonic() - begin)
    finally:
        page = write_pages(session.out)  # also after an interruption, with the results so far
    return page


def _choose(only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in EXPERIMENTS and name not in PART_OF:
            names = ", ".join(sorted([*EXPERIMENTS, *PART_OF]))
            raise InputError(f"there is no experiment called {name!r}.", hint=f"choose from {names}.")
    wanted = {PART_OF.get(name, name) for name in only}
    return [name for name in EXPERIMENTS if not only or name in wanted]
