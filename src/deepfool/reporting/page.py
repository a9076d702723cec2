"""The report page: one self-contained HTML file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from deepfool import __version__, cache
from deepfool.attacks.shared.aims import Aim, Other, find_goal
from deepfool.errors import DataError, InputError, RunError
from deepfool.metrics import (
    Estimate,
    Headline,
    Setup,
    Words,
    accuracy_at_radii,
    choose_headline,
    clean_accuracy,
    describe_setup,
    quantile,
    relative_distances,
    rho_adv,
    share_fooled,
)
from deepfool.metrics.criteria import find_criteria
from deepfool.metrics.measures import Measure, describe_measure
from deepfool.metrics.radii import AtRadius
from deepfool.metrics.summary import find_notes
from deepfool.metrics.verdict import format_bound
from deepfool.reporting import charts, provenance, wording
from deepfool.reporting.brackets import Scale, draw_bracket
from deepfool.reporting.gallery import Gallery, make_gallery
from deepfool.reporting.pairs import LETTERS, compare_with_first, format_difference, show_side_by_side
from deepfool.reporting.peers import place_references
from deepfool.reporting.references import PAPER, family_of, find_references
from deepfool.reporting.signoff import SignOff, make_signoff
from deepfool.reporting.spectra import read_spectrum
from deepfool.reporting.times import format_moment
from deepfool.runs import manifests
from deepfool.runs.audit.checklist import Audit, read_audit
from deepfool.runs.records import Run
from deepfool.runs.rows import Records

HERE = Path(__file__).parent
REPORT = "report.html"


@dataclass(frozen=True)
class Part:
    """Everything the page shows of one run."""

    run: Run
    records: Records
    name: str
    norm: str
    measure: Measure
    setup: Setup
    headline: Headline
    rho: Estimate
    rho_l2: Estimate
    accuracy: Estimate
    fooled: Estimate
    median: Estimate
    radii: list[AtRadius]
    bracket: Scale | None
    words: Words
    notes: list[str]
    audit: Audit | None
    classes: dict[str, Any]
    matrix: dict[str, Any]
    statuses: dict[str, int]
    gallery: Gallery
    facts: list[tuple[str, str]]
    command: str | None
    verification: dict[str, Any] | None
    spectrum: dict[str, Any] | None

    @property
    def classy(self) -> bool:
        """Whether the decisions are classes."""
        return self.aim.reads == "classes"

    @property
    def aim(self) -> Aim:
        return find_goal(self.run.identity["attack"]["knobs"])

    @property
    def method(self) -> str:
        """What the perturbations were to do."""
        if isinstance(self.aim, Other):
            return "that changes the predicted label, whether that label is right or wrong"
        return f"such that {self.aim.words}"

    @property
    def title(self) -> str:
        return f"{self.run.manifest['model']['spec']} on {self.run.manifest['data']['name']}"

    @property
    def measured(self) -> str:
        """By which attack, in which norm, bounds and with which knobs."""
        return wording.name_setup(self.setup)


def write_report(
    runs: Sequence[Run | str | Path],
    out: str | Path | None = None,
    *,
    gallery: bool = True,
    eps: Sequence[str | float] | None = None,
    criteria: str | Path | None = None,
) -> Path:
    """Write the page of a run, or the comparison of several, and return its path.

    The page is made from the run folders alone: no model is loaded and nothing is measured.

    Args:
        runs: run folders; several make a comparison.
        out: the file; by default `report.html` in the folder of the first run.
        gallery: whether to show samples.
        eps: radii at which to show the robust accuracy; by default the usual ones for the data and the norm.
        criteria: a file of criteria for a single run; by default `criteria.toml` in its folder, if there is one.

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> data = (torch.rand(20, 4), torch.zeros(20, dtype=torch.long))
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), data, out=f"{here}/run")
    ...     write_report([run]).name
    'report.html'
    """
    found = [run if isinstance(run, Run) else Run(run) for run in runs]
    if not found:
        raise InputError("a report needs at least one run.")
    path = Path(out) if out is not None else found[0].folder / REPORT
    page = render_report(found, gallery=gallery, criteria=criteria, eps=eps)
    try:
        cache.write(path, page.encode())
    except (DataError, OSError) as error:
        raise RunError(f"the report {path} cannot be written: {error.__cause__ or error}.") from error
    return path


def render_report(
    runs: Sequence[Run],
    *,
    gallery: bool = True,
    eps: Sequence[str | float] | None = None,
    criteria: str | Path | None = None,
) -> str:
    """The page as HTML."""
    if criteria is not None and len(runs) > 1:
        raise InputError("criteria are for a single run.", hint="deepfool report RUN --criteria FILE.")
    names = _name_runs(runs)
    parts = []
    for run, name in zip(runs, names, strict=True):
        records = run.records()
        shown = make_gallery(run, records) if gallery else Gallery(notes=["The gallery is off (--no-gallery)."])
        parts.append(_make_part(run, records, name, shown, eps))
    beside = show_side_by_side(runs, [part.records for part in parts]) if gallery and len(runs) > 1 else None
    signoff = _sign_off(parts[0], criteria) if len(parts) == 1 else None
    page = make_environment().get_template("report.html.j2")
    return page.render(**_gather(parts), signoff=signoff, beside=beside)


def _sign_off(part: Part, criteria: str | Path | None) -> SignOff:
    return make_signoff(part.run, part.records, part.audit, find_criteria(part.run, criteria))


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """Names that tell the runs apart: what differs between them, plus the folder if that is not enough."""
    names = [f"{run.manifest['model']['spec']}, {wording.name_setup(describe_setup(run))}" for run in runs]
    if len({run.manifest["data"]["name"] for run in runs}) > 1:
        names = [f"{name}, {run.manifest['data']['name']}" for name, run in zip(names, runs, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({run.folder.name})" for name, run in zip(names, runs, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} #{number}" for number, name in enumerate(names, 1)]
    return names


def _make_part(
    run: Run, records: Records, name: str, gallery: Gallery, eps: Sequence[str | float] | None = None
) -> Part:
    known = find_references(run.p, but=[run.manifest["model"]["spec"]])
    audit = read_audit(run, len(records))
    headline = choose_headline(run, records, audit)
    return Part(
        run=run, records=records, name=name, norm=wording.name_norm(run.p, run.unit, run.weighted),
        setup=describe_setup(run), measure=describe_measure(run),
        headline=headline, bracket=draw_bracket(headline.bracket), rho=rho_adv(records, "p"),
        rho_l2=rho_adv(records, "l2"), accuracy=clean_accuracy(records), fooled=share_fooled(records),
        median=quantile(relative_distances(records, "p"), 0.5), radii=accuracy_at_radii(run, records, eps),
        words=wording.write_verdict(run, records, family_of(run), known, audit),
        notes=find_notes(run, records), audit=audit,
        classes=charts.make_classes(run, records), matrix=charts.make_matrix(run, records),
        statuses=dict(charts.count_statuses(records)),
        gallery=gallery, facts=provenance.list_facts(run), command=provenance.repeat_command(run),
        verification=provenance.read_verification(run, len(records)), spectrum=read_spectrum(run),
    )  # fmt: skip


def _gather(parts: Sequence[Part]) -> dict[str, Any]:
    groups = _group_by_norm(parts)
    return {
        "parts": parts,
        "groups": groups,
        "several": len(parts) > 1,
        "classy": all(part.classy for part in parts),
        "title": parts[0].title if len(parts) == 1 else f"Comparison of {len(parts)} runs",
        "references": place_references(parts),
        "comparisons": compare_with_first([part.run for part in parts], [part.name for part in parts]),
        "letters": [LETTERS[i % len(LETTERS)] for i in range(len(parts))],
        "chart_data": {
            "several": len(parts) > 1,
            "groups": groups,
            "classes": [part.classes["rows"] for part in parts],
        },
        "paper": PAPER,
        "version": __version__,
        "made": format_moment(manifests.now()),
        "css": inline("report.css") + inline("beside.css") + inline("print.css"),
        "script": inline("report.js"),
        "plotly": inline("../vendor/plotly-basic.min.js"),
    }


def _group_by_norm(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """One pair of charts per norm: distances in different norms do not belong on one axis."""
    groups = []
    for norm in dict.fromkeys(part.norm for part in parts):
        members = [part for part in parts if part.norm == norm and len(part.records)]
        if not members:
            continue
        records = [part.records for part in members]
        curves = _draw_curves(records)
        groups.append(
            {
                "norm": norm,
                "share": "accuracy" if all(part.classy for part in members) else "decisions that hold",
                "size": members[0].measure.name_size(norm),
                "ratio": members[0].measure.ratio,
                "counted": bool(members[0].measure.unit),
                "names": [part.name for part in members],
                "places": [parts.index(part) for part in members],
                "curves": curves,
                "relative": _draw_curves(records, relative=True),
                "histogram": charts.make_histogram(records),
                "means": [_number(part.headline.answered.value) for part in members],
                "answered": [part.headline.answered.count for part in members],
                "unanswered": [part.headline.unanswered for part in members],
                "labelled": all(curve["labelled"] for curve in curves),
                "certified": any(curve["certified"] is not None for curve in curves),
            }
        )
    return groups


def _draw_curves(records: Sequence[Records], *, relative: bool = False) -> list[dict[str, Any]]:
    """The curves of some runs on one axis; none if no perturbation was found, so that there is nothing to see."""
    end = charts.find_end(records, relative=relative)
    if relative and not all(bool((each.x["p"] > 0).any()) for each in records):
        return []
    return [charts.make_curve(each, end, relative=relative) for each in records] if end else []


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _at_most(estimate: Estimate) -> str:
    """A median or a share of what an attack found, as a percentage: an upper bound, or not known."""
    if not estimate.exact or math.isnan(estimate.value):
        return wording.format_value(estimate)
    return f"≤ {wording.format_percent(estimate.value)}" if estimate.value else "0 %"


def inline(file: str) -> Markup:
    """One of our own files, put into the page as it is. Nothing else may go unescaped."""
    return Markup((HERE / "templates" / file).read_text(encoding="utf-8"))


def make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters.update(
        number=wording.format_number, percent=wording.format_percent, estimate=wording.format_estimate,
        bound=wording.format_bound, interval=wording.format_interval, headline=format_bound, moment=format_moment,
        at_most=_at_most, difference=format_difference,
    )  # fmt: skip
    return environment
