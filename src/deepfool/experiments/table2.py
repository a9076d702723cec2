"""Table 2: rho_adv in the linf norm, DeepFool and FGSM, for the four small networks."""

from __future__ import annotations

import math
from typing import Any

from deepfool.experiments import measuring
from deepfool.experiments.networks import find_subject, name_network
from deepfool.experiments.paper import SMALL
from deepfool.experiments.session import Session


def make(session: Session) -> dict[str, Any]:
    """A row for each of the four networks."""
    return {"rows": [make_row(session, name) for name in SMALL]}


def make_row(session: Session, name: str) -> dict[str, Any]:
    subject = find_subject(session, name)
    row: dict[str, Any] = {"network": name, "name": name_network(name)}
    if isinstance(subject, str):
        return {**row, "missing": subject}
    sizes = session.scale.sizes[name]
    found = measuring.measure_deepfool(session, subject, sizes.deepfool, p=math.inf)
    pixels = found
    if subject.layer is not None:
        pixels = measuring.measure_deepfool(session, subject, sizes.pixels, p=math.inf, pixels=True)
    # FGSM's step and eps are the same as in Table 1; only the norm differs.
    return {
        **row, "missing": None, "space": subject.space, "deepfool": found, "deepfool_pixels": pixels,
        "fgsm": measuring.measure_fgsm(session, subject, sizes.fgsm),
    }  # fmt: skip
