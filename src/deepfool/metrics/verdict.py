"""The verdict: the one place where sentences about a run are made. `metrics.headline` decides what they may say.

What an attack finds is an upper bound on the distance. No sentence here says "at least" of it, and none counts a search
without an answer as a number. Of what is certified they say both ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepfool.attacks.shared.aims import find_goal
from deepfool.metrics.brackets import Bracket
from deepfool.metrics.estimates import quantile
from deepfool.metrics.formatting import format_number, format_percent
from deepfool.metrics.headline import Headline, Standing, choose_headline
from deepfool.metrics.measures import describe_measure
from deepfool.metrics.robustness import clean_accuracy, relative_distances
from deepfool.metrics.setup import Setup, describe_setup, has_pixels, leaves_range
from deepfool.runs.audit.checklist import Audit
from deepfool.runs.records import Run
from deepfool.runs.rows import Records


@dataclass(frozen=True)
class Words:
    """What a run shows, in sentences."""

    lead: str
    """The headline."""
    lines: tuple[str, ...]
    """What else there is to say, the most important first."""
    failures: tuple[str, ...]
    """Why searches had no answer, with counts."""

    @property
    def all(self) -> list[str]:
        return [self.lead, *self.failures, *self.lines]


def write_words(run: Run, records: Records, audit: Audit | None = None, *, rank: str = "") -> Words:
    """The verdict on a run; `rank` is a sentence on its place among others, if there is one to say.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     words = write_words(run, run.records())
    >>> words.lead
    'On average, a perturbation of ... % of the size of the input is enough to change the decision of ... on ....'
    """
    head, setup = choose_headline(run, records, audit), describe_setup(run)
    lead = write_bracket(run, head) if head.bracketed else _write_lead(run, head)
    if head.standing is Standing.EMPTY:
        return Words(lead, (), ())
    lines = [
        *tell_proofs(head),
        "" if lead.startswith("On average") and not head.unanswered else _tell_mean(run, head),
        _tell_goal(run),
        _tell_where(run),
        _tell_median(records),
        _tell_bounds(setup, has_pixels(run, records)) if head.answered.count else "",
        rank if head.comparable else "",
        _tell_search(records, head, setup),
    ]  # fmt: skip
    failures = (f"{_count(n, 'sample')}: {_end(reason)}" for reason, n in head.failures.items())
    return Words(lead, tuple(line for line in lines if line), tuple(failures))


def _write_lead(run: Run, head: Headline) -> str:
    model, data = run.manifest["model"]["spec"], run.manifest["data"]["name"]
    why = "; ".join(head.reasons)
    if head.standing is Standing.EMPTY:
        return "Nothing has been measured yet: no sample was searched."
    if head.standing is Standing.UNANSWERED:
        return (
            f"Nothing is known about the robustness of {model} on {data}: the attack found no perturbation for any of "
            f"{_count(head.searched, 'sample')}. The search failed; that does not make the model robust."
        )
    if head.standing is Standing.FAILED:
        return f"Do not use this number: {why}."
    if head.standing is Standing.PARTLY:
        also = f" What is more, {why}." if why else ""
        return (
            f"The robustness of {model} on {data} is not known: the attack found no perturbation for "
            f"{head.unanswered:,} of {_count(head.searched, 'sample')}.{also}"
        )
    if head.standing is Standing.MASKED:
        return f"Do not take this number for robustness, it may be far too large: {why}."
    if head.standing is Standing.LOOSE:
        return f"Take this number with caution: {why}."
    if head.standing is Standing.UNDEFINED:
        return "All samples are zeros and have no relative distance, so there is no verdict."
    return _tell_mean(run, head)


def write_bracket(run: Run, head: Headline) -> str:
    """The headline of a certified run: how much it takes, from both sides."""
    found, model, data = head.bracket, run.manifest["model"]["spec"], run.manifest["data"]["name"]
    assert found is not None
    low, high = format_percent(found.lower.value), format_percent(found.upper.value)
    whose = f"of the size of the input to change the decision of {model} on {data}"
    if not found.known:
        return (
            f"On average, it takes a perturbation of at least {low} {whose}: that is proved. How much is enough is not "
            f"known."
        )
    if found.closed or low == high:
        return f"On average, it takes a perturbation of {high} {whose}, no less and no more: that is proved."
    return (
        f"On average, it takes a perturbation of between {low} and {high} {whose}: the lower end is proved, the "
        f"upper end was found."
    )


def tell_proofs(head: Headline) -> list[str]:
    """What stands behind the bracket, and what speaks against its upper end."""
    found = head.bracket
    if found is None:
        return []
    if not found.proved:
        return [f"Certificates were tried, but nothing could be proved for any of {_count(found.count, 'sample')}."]
    exact, lines = round(found.exact.value * found.count), []
    if exact == found.count:
        lines.append(f"All {_count(found.count, 'sample')} are exact: what is proved and what was found are the same.")
    elif exact:
        told = f"{exact:,} of {_count(found.count, 'sample')} {'is' if exact == 1 else 'are'} exact"
        lines.append(f"{told}: what is proved and what was found are within 0.1 %.")
    else:
        lines.append("No sample is exact: more time may bring the two ends closer (deepfool certify --seconds).")
    if none := found.count - found.proved - found.missing:
        lines.append(f"Nothing could be proved for {_count(none, 'sample')}, which count with a lower bound of 0.")
    if found.missing:
        lines.append(f"{_count(found.missing, 'sample')} without a certificate count with a lower bound of 0.")
    if found.unchangeable:
        lines.append(
            f"No perturbation within the bounds changes the decision on {_count(found.unchangeable, 'sample')}."
        )
    if found.improved:
        lines.append(
            f"For {_count(found.improved, 'sample')} the proof came across smaller perturbations than the attack; they "
            f"count in the upper end."
        )
    why = "; ".join(head.reasons)
    if head.standing is Standing.MASKED and not found.closed:
        lines.append(f"The upper end may be far too large: {why}.")
    elif head.standing is Standing.LOOSE and not found.closed:
        lines.append(f"The upper end is not tight: {why}.")
    return lines


def _tell_mean(run: Run, head: Headline) -> str:
    model, data = run.manifest["model"]["spec"], run.manifest["data"]["name"]
    if math.isnan(head.answered.value):
        return ""
    share = format_percent(head.answered.value)
    if head.unanswered:
        return (
            f"For the other {head.answered.count:,}, {describe_measure(run).tell_change(share)} was enough on "
            f"average. That is their mean alone: it says nothing of the {head.unanswered:,} without an answer."
        )
    return (
        f"On average, {describe_measure(run).tell_change(share)} is enough to change the decision of {model} on {data}."
    )


def _tell_goal(run: Run) -> str:
    """What counts as a changed decision, where it is not another label."""
    knobs = run.identity["attack"]["knobs"]
    if knobs.get("goal") is None:
        return ""
    if str(knobs["goal"]).startswith("target:"):
        return f"The decision counts as changed where it is class {str(knobs['goal'])[7:]}."
    return f"The decision counts as changed where {find_goal(knobs).words}."


def _tell_where(run: Run) -> str:
    """Where the perturbations may lie and what features count, where that is not everywhere and all the same."""
    knobs, told = run.identity["attack"]["knobs"], []
    if run.weighted:
        told.append("Features are weighted: sizes are norms of weights × r, relative to weights × x.")
    if knobs.get("schema") is not None:
        told.append("The perturbed rows are valid ones of a schema, and the smallest that were found.")
    if knobs.get("subspace") is not None:
        which = knobs["subspace"] if isinstance(knobs["subspace"], str) else "the span of a given basis"
        told.append(f"The perturbations are kept to a subspace: {which}.")
    return " ".join(told)


def _tell_median(records: Records) -> str:
    """True with searches that have no answer too: they count as infinite, and what was found is an upper bound."""
    median = quantile(relative_distances(records, "p"), 0.5)
    if not math.isfinite(median.value):
        return ""
    return f"Half of the samples need no more than {format_percent(median.value)}."


def _tell_bounds(setup: Setup, pixels: bool) -> str:
    if leaves_range(setup, pixels=pixels):
        how = "No bounds were set" if setup.bounds is None else f"The bounds were wide ({setup.in_bounds})"
        return f"{how}: pixels may leave [0, 1]. With bounds of [0, 1] the distances would be larger or the same."
    if setup.bounds is None:
        return "No bounds were set: perturbed inputs may take any value."
    return f"Perturbed inputs stay {setup.in_bounds}."


def _tell_search(records: Records, head: Headline, setup: Setup) -> str:
    found = head.searched - head.unanswered
    whom = f"all {head.searched:,}" if not head.unanswered else f"{found:,} of the {head.searched:,}"
    if not found:
        whom = f"none of the {head.searched:,}"
    bound = " What it found is an upper bound: a stronger attack can find smaller perturbations, never larger ones."
    accuracy = clean_accuracy(records)
    right = ""
    if not math.isnan(accuracy.value):
        right = f" Unperturbed, {format_percent(accuracy.value)} of the {accuracy.count:,} are classified correctly."
    return (
        f"The attack ({setup.search}) changed the decision on {whom} samples it was tried on.{bound if found else ''}"
        f"{right}"
    )


def format_bound(head: Headline, digits: int = 3) -> str:
    """rho_adv as it is written: from both sides where it is certified, else an upper bound, or not known.

    >>> from deepfool.metrics.estimates import Estimate
    >>> found = Estimate(0.1659, 0.158, 0.174, 300)
    >>> format_bound(Headline(Standing.SOUND, found, found, 300, 0))
    '≤ 0.166'
    """
    if head.bracketed and head.bracket is not None:
        return format_bracket(head.bracket, digits)
    if head.standing is Standing.EMPTY or (head.rho.exact and math.isnan(head.rho.value)):
        return "–"
    return f"≤ {format_number(head.rho.value, digits)}" if head.rho.exact else "not known"


def format_bracket(found: Bracket, digits: int = 3) -> str:
    """rho_adv from both sides.

    >>> from deepfool.metrics.estimates import Estimate
    >>> low, high, half = Estimate(0.0981, 0.09, 0.1, 30), Estimate(0.121, 0.11, 0.13, 30), Estimate(0.5, 0.3, 0.7, 30)
    >>> format_bracket(Bracket(low, high, half, 30, 30, 0, 0, 0))
    '0.0981 – 0.121'
    """
    low, high = format_number(found.lower.value, digits), format_number(found.upper.value, digits)
    if not found.known:
        return f"≥ {low}"
    return f"= {high}" if found.closed or low == high else f"{low} – {high}"


def _end(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
