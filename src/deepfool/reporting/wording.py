"""The verdict in words; numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from deepfool.metrics import Estimate, clean_accuracy, quantile, relative_distances, rho_adv, share_fooled
from deepfool.reporting.references import DATA_NAMES, Reference, is_bounded
from deepfool.runs.records import Run
from deepfool.runs.rows import Records


def format_number(value: float | None, digits: int = 3) -> str:
    """A number with the given significant digits, without an exponent unless it is tiny.

    >>> format_number(0.16804), format_number(0.00191), format_number(12345.6), format_number(math.inf)
    ('0.168', '0.00191', '12346', '∞')
    >>> format_number(None), format_number(0.0000012)
    ('–', '1.2e-06')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{max(0, decimals)}f}"


def format_percent(value: float | None, digits: int = 3) -> str:
    """A share as a percentage.

    >>> format_percent(0.16804), format_percent(1.0), format_percent(0.00191)
    ('16.8 %', '100 %', '0.191 %')
    """
    if value is None or math.isnan(value):
        return "–"
    if value in (0.0, 1.0):
        return f"{value * 100:.0f} %"
    text = format_number(value * 100, digits)
    return f"{'>99.9' if text == '100' else text} %"


def format_estimate(estimate: Estimate, digits: int = 3) -> str:
    """A value with its interval.

    >>> format_estimate(Estimate(0.168, 0.154, 0.181, 100))
    '0.168 [0.154, 0.181]'
    >>> format_estimate(Estimate(0.15, 0.1, math.inf, 100, exact=False))
    '≥ 0.150 [0.100, ?]'
    """
    if math.isnan(estimate.value):
        return "–"
    high = format_number(estimate.high, digits) if estimate.exact else "?"
    sign = "" if estimate.exact else "≥ "
    return f"{sign}{format_number(estimate.value, digits)} [{format_number(estimate.low, digits)}, {high}]"


def name_norm(p: float) -> str:
    """The usual symbol of a norm.

    >>> name_norm(2.0), name_norm(math.inf), name_norm(1.5)
    ('ℓ2', 'ℓ∞', 'ℓ1.5')
    """
    return "ℓ∞" if math.isinf(p) else f"ℓ{p:g}"


def write_verdict(run: Run, records: Records, family: str | None, references: Sequence[Reference]) -> list[str]:
    """The findings, one sentence each, the most important first."""
    if not len(records):
        return ["Nothing has been measured yet: the run has no rows."]
    rho, fooled = rho_adv(records, "p"), share_fooled(records)
    if math.isnan(rho.value):
        return ["No sample has a relative distance, so there is no verdict."]
    lines = [_describe_rho(run, rho), _describe_median(records)]
    if family and references and rho.exact and not is_bounded(run):
        lines.append(_describe_rank(rho, [each for each in references if each.data == family], family))
    lines.append(_describe_fooled(run, records, fooled))
    return [line for line in lines if line]


def _describe_rho(run: Run, rho: Estimate) -> str:
    model, data = run.manifest["model"]["spec"], run.manifest["data"]["name"]
    if not rho.exact:
        return (
            f"Changing the decision of {model} on {data} takes a perturbation of at least {format_percent(rho.value)} "
            f"of the size of the input on average: this is a lower bound, because the attack failed on some samples."
        )
    return (
        f"On average, a perturbation of {format_percent(rho.value)} of the size of the input is enough to change the "
        f"decision of {model} on {data}."
    )


def _describe_median(records: Records) -> str:
    median = quantile(relative_distances(records, "p"), 0.5)
    if not math.isfinite(median.value):
        return "The attack failed on more than half of the samples."
    return f"Half of the samples need no more than {format_percent(median.value)}."


def _describe_rank(rho: Estimate, peers: Sequence[Reference], family: str) -> str:
    """How the value compares with networks on the same data."""
    below = max((each for each in peers if each.rho < rho.low), key=lambda each: each.rho, default=None)
    above = min((each for each in peers if each.rho > rho.high), key=lambda each: each.rho, default=None)
    alike = [each for each in peers if rho.low <= each.rho <= rho.high]
    if alike:
        names = " and ".join(f"{each.name} ({format_number(each.rho, 2)}, {each.source})" for each in alike)
        return f"Among networks on {DATA_NAMES[family]}, this is about as robust as {names}."
    parts = []
    if below:
        parts.append(f"more robust than {below.name} ({format_number(below.rho, 2)}, {below.source})")
    if above:
        parts.append(f"less robust than {above.name} ({format_number(above.rho, 2)}, {above.source})")
    return f"Among networks on {DATA_NAMES[family]}, this is {' and '.join(parts)}." if parts else ""


def _describe_fooled(run: Run, records: Records, fooled: Estimate) -> str:
    attack = run.identity["attack"]["name"]
    count = int(records.fooled.sum())
    accuracy = clean_accuracy(records)
    searched = f"all {count:,}" if count == fooled.count else f"{count:,} of the {fooled.count:,}"
    right = ""
    if not math.isnan(accuracy.value):
        right = f" Unperturbed, {format_percent(accuracy.value)} of the {len(records):,} are classified correctly."
    return (
        f"The attack ({attack}) changed the decision on {searched} samples it was tried on. A stronger attack could "
        f"only find smaller perturbations.{right}"
    )
