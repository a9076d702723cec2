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
from deepfool.errors import DataError, DeepFoolError, InputError, RunError
from deepfool.metrics import (
    Comparison,
    Estimate,
    check_same_data,
    clean_accuracy,
    compare,
    find_warnings,
    quantile,
    relative_distances,
    rho_adv,
    share_fooled,
    shared_norm,
)
from deepfool.reporting import charts, provenance, wording
from deepfool.reporting.gallery import Gallery, make_gallery
from deepfool.reporting.references import DATA_NAMES, PAPER, Reference, family_of, find_references, is_bounded
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
    rho: Estimate
    rho_l2: Estimate
    accuracy: Estimate
    fooled: Estimate
    median: Estimate
    verdict: list[str]
    warnings: list[str]
    audit: Audit | None
    classes: dict[str, Any]
    matrix: dict[str, Any]
    statuses: dict[str, int]
    gallery: Gallery
    facts: list[tuple[str, str]]
    command: str | None
    verification: dict[str, Any] | None

    @property
    def title(self) -> str:
        return f"{self.run.manifest['model']['spec']} on {self.run.manifest['data']['name']}"


def write_report(
    runs: Sequence[Run | str | Path],
    out: str | Path | None = None,
    *,
    gallery: bool = True,
) -> Path:
    """Write the page of a run, or the comparison of several, and return its path.

    The page is made from the run folders alone: no model is loaded and nothing is measured.

    Args:
        runs: run folders; several make a comparison.
        out: the file; by default `report.html` in the folder of the first run.
        gallery: whether to show samples.

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
    page = render_report(found, gallery=gallery)
    try:
        cache.write(path, page.encode())
    except (DataError, OSError) as error:
        raise RunError(f"the report {path} cannot be written: {error.__cause__ or error}.") from error
    return path


def render_report(runs: Sequence[Run], *, gallery: bool = True) -> str:
    """The page as HTML."""
    names = _name_runs(runs)
    parts = []
    for run, name in zip(runs, names, strict=True):
        records = run.records()
        shown = make_gallery(run, records) if gallery else Gallery(notes=["The gallery is off (--no-gallery)."])
        parts.append(_make_part(run, records, name, shown))
    return _environment().get_template("report.html.j2").render(**_gather(parts))


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """Names that tell the runs apart: what differs between them, plus the folder if that is not enough."""
    names = [
        f"{run.manifest['model']['spec']}, {run.identity['attack']['name']} {wording.name_norm(run.p)}" for run in runs
    ]
    if len({run.manifest["data"]["name"] for run in runs}) > 1:
        names = [f"{name}, {run.manifest['data']['name']}" for name, run in zip(names, runs, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({run.folder.name})" for name, run in zip(names, runs, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} #{number}" for number, name in enumerate(names, 1)]
    return names


def _make_part(run: Run, records: Records, name: str, gallery: Gallery) -> Part:
    known = find_references(run.p, but=[run.manifest["model"]["spec"]])
    return Part(
        run=run, records=records, name=name, norm=wording.name_norm(run.p), rho=rho_adv(records, "p"),
        rho_l2=rho_adv(records, "l2"), accuracy=clean_accuracy(records), fooled=share_fooled(records),
        median=quantile(relative_distances(records, "p"), 0.5),
        verdict=wording.write_verdict(run, records, family_of(run), known),
        warnings=find_warnings(run, records), audit=read_audit(run, len(records)),
        classes=charts.make_classes(run, records), matrix=charts.make_matrix(run, records),
        statuses=dict(charts.count_statuses(records)),
        gallery=gallery, facts=provenance.list_facts(run), command=provenance.repeat_command(run),
        verification=provenance.read_verification(run, len(records)),
    )  # fmt: skip


def _gather(parts: Sequence[Part]) -> dict[str, Any]:
    groups = _group_by_norm(parts)
    return {
        "parts": parts,
        "groups": groups,
        "several": len(parts) > 1,
        "title": parts[0].title if len(parts) == 1 else f"Comparison of {len(parts)} runs",
        "references": _place_references(parts),
        "comparisons": _compare(parts),
        "chart_data": {
            "several": len(parts) > 1,
            "groups": groups,
            "classes": [part.classes["rows"] for part in parts],
        },
        "paper": PAPER,
        "version": __version__,
        "made": manifests.now(),
        "css": _inline("report.css"),
        "script": _inline("report.js"),
        "plotly": _inline("../vendor/plotly-basic.min.js"),
    }


def _group_by_norm(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """One pair of charts per norm: distances in different norms do not belong on one axis."""
    groups = []
    for norm in dict.fromkeys(part.norm for part in parts):
        members = [part for part in parts if part.norm == norm and len(part.records)]
        if not members:
            continue
        end = charts.find_end([part.records for part in members])
        curves = [charts.make_curve(part.records, end) for part in members]
        groups.append(
            {
                "norm": norm,
                "names": [part.name for part in members],
                "places": [parts.index(part) for part in members],
                "curves": curves,
                "histogram": charts.make_histogram([part.records for part in members]),
                "rho": [
                    part.rho.value if part.rho.exact and not math.isnan(part.rho.value) else None for part in members
                ],
                "labelled": all(curve["labelled"] for curve in curves),
            }
        )
    return groups


def _place_references(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """One table per norm: these runs among the known values, sorted, with other data at the end."""
    tables = []
    for norm in dict.fromkeys(part.norm for part in parts):
        own = [part for part in parts if part.norm == norm and not math.isnan(part.rho.value)]
        specs = [part.run.manifest["model"]["spec"] for part in own]
        known = find_references(own[0].run.p, but=specs) if own else []
        if not known:
            continue
        families = {family_of(part.run) for part in own}
        rows = [_row_of_part(part, parts.index(part), len(parts)) for part in own] + [
            _row_of_reference(each, families) for each in known
        ]
        largest = max(row["rho"] for row in rows)
        for row in rows:
            row["width"] = round(100 * row["rho"] / largest, 2)
        rows.sort(key=lambda row: (not row["near"], -row["rho"]))
        bounded = any(is_bounded(part.run) for part in own)
        tables.append({"norm": norm, "rows": rows, "bounded": bounded})
    return tables


def _row_of_part(part: Part, place: int, count: int) -> dict[str, Any]:
    family = family_of(part.run)
    return {
        "name": part.name if count > 1 else part.run.manifest["model"]["spec"], "place": place % 6,
        "data": part.run.manifest["data"]["name"] or DATA_NAMES.get(family or "", ""),
        "rho": part.rho.value, "text": wording.format_estimate(part.rho), "source": "this run", "own": True,
        "near": True,
    }  # fmt: skip


def _row_of_reference(each: Reference, families: set[str | None]) -> dict[str, Any]:
    return {
        "name": each.name, "place": None, "data": DATA_NAMES[each.data], "rho": each.rho,
        "text": wording.format_number(each.rho, 2), "source": each.source, "own": False, "near": each.data in families,
    }  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two runs compared sample by sample, or the reason why they cannot be compared."""

    a: str
    b: str
    found: Comparison | None
    why: str = ""


def _compare(parts: Sequence[Part]) -> list[Pair]:
    """Each run compared with the first one."""
    pairs = []
    for part in parts[1:]:
        first = parts[0]
        try:
            check_same_data(first.run, part.run)
            norm = shared_norm(first.run, part.run, None)
            pairs.append(Pair(first.name, part.name, compare(first.records, part.records, norm)))
        except DeepFoolError as error:
            pairs.append(Pair(first.name, part.name, None, str(error).partition(" Hint:")[0]))
    return pairs


def _inline(file: str) -> Markup:
    """One of our own files, put into the page as it is. Nothing else may go unescaped."""
    return Markup((HERE / "templates" / file).read_text(encoding="utf-8"))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters.update(
        number=wording.format_number, percent=wording.format_percent, estimate=wording.format_estimate
    )
    return environment
