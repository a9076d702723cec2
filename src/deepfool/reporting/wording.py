"""The verdict for the page, with the place among other networks; numbers and names as text.

The sentences are made in `deepfool.metrics.verdict`; here is only what needs the values of other networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from deepfool.metrics import Estimate, Setup, Words, choose_headline, describe_setup, rho_adv, write_words
from deepfool.metrics.formatting import format_estimate, format_interval, format_number, format_percent, format_value
from deepfool.reporting.references import DATA_NAMES, Reference, why_incomparable
from deepfool.runs.audit.checklist import Audit
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

__all__ = [
    "format_bound", "format_estimate", "format_interval", "format_number", "format_percent", "format_value",
    "name_norm", "name_setup", "write_verdict",
]  # fmt: skip


def name_norm(p: float, unit: str = "", weighted: bool = False) -> str:
    """The usual symbol of a norm; for p = 0 with what is counted, if that is not features.

    >>> name_norm(2.0), name_norm(math.inf), name_norm(1.5), name_norm(0, "pixel")
    ('ℓ2', 'ℓ∞', 'ℓ1.5', 'ℓ0 (pixels)')
    >>> name_norm(2.0, weighted=True)
    'weighted ℓ2'
    """
    if unit == "pixel":
        return "ℓ0 (pixels)"
    return f"{'weighted ' * weighted}{'ℓ∞' if math.isinf(p) else f'ℓ{p:g}'}"


def name_setup(setup: Setup) -> str:
    """What was asked of the attack, with the symbol of the norm.

    >>> name_setup(Setup("deepfool", math.inf, [0, 1], {"max_iter": 50}, True))
    'deepfool, ℓ∞, in [0, 1], max_iter 50'
    """
    return str(setup).replace(setup.norm, name_norm(setup.p, weighted=setup.weighted), 1)


def format_bound(estimate: Estimate) -> str:
    """A mean of what an attack found, with its interval: an upper bound, or not known.

    >>> format_bound(Estimate(0.168, 0.154, 0.181, 100)), format_bound(Estimate(math.nan, 0, 1, 9, exact=False))
    ('≤ 0.168 [0.154, 0.181]', 'not known')
    """
    text = format_estimate(estimate)
    return text if not estimate.exact or math.isnan(estimate.value) else f"≤ {text}"


def write_verdict(
    run: Run, records: Records, family: str | None, references: Sequence[Reference], audit: Audit | None = None
) -> Words:
    """The findings, one sentence each, the most important first."""
    return write_words(run, records, audit, rank=_describe_rank(run, records, family, references, audit))


def _describe_rank(
    run: Run, records: Records, family: str | None, references: Sequence[Reference], audit: Audit | None
) -> str:
    """How the value compares with networks on the same data, measured in the same way."""
    if family is None or not choose_headline(run, records, audit).comparable:
        return ""
    peers = [each for each in references if each.data == family and not why_incomparable(run, records, each)]
    rho = rho_adv(records, "p")
    below = max((each for each in peers if each.rho < rho.low), key=lambda each: each.rho, default=None)
    above = min((each for each in peers if each.rho > rho.high), key=lambda each: each.rho, default=None)
    alike = [each for each in peers if rho.low <= each.rho <= rho.high]
    start = f"Among networks on {DATA_NAMES[family]} measured in the same way ({describe_setup(run).search}), this is"
    if alike:
        return f"{start} about as robust as {' and '.join(_name(each) for each in alike)}."
    parts = []
    if below:
        parts.append(f"more robust than {_name(below)}")
    if above:
        parts.append(f"less robust than {_name(above)}")
    return f"{start} {' and '.join(parts)}." if parts else ""


def _name(each: Reference) -> str:
    return f"{each.name} ({format_number(each.rho, 2)}, {each.source})"
