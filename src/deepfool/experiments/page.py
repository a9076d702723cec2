"""The pages, made only from files: `reproduction.html` (self-contained) and `reproduction.md` (with image files)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

import deepfool.reporting
from deepfool import __version__, cache
from deepfool.experiments import tabulation
from deepfool.experiments.claims import judge_all
from deepfool.experiments.drawing import draw_all
from deepfool.experiments.gallery import make_card
from deepfool.experiments.paper import CITATION, PLACES
from deepfool.experiments.scales import find_scale
from deepfool.experiments.session import MARK, read_results
from deepfool.experiments.tabulation import Table
from deepfool.runs import manifests

HERE = Path(__file__).parent
PAGE, MARKDOWN, FIGURES = "reproduction.html", "reproduction.md", "figures"
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper."""

    key: str
    title: str
    place: str
    experiment: str
    """The experiment that it is made from."""
    about: str
    """What is shown here, and what the paper shows."""
    scale: str
    """At which it was made: a folder may hold results from elsewhere."""
    tables: list[Table] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    missing: str = ""


def write_pages(out: Path) -> Path:
    """Draw the figures and write both pages from the results in `out`."""
    results = read_results(out)
    mark = json.loads((out / MARK).read_text("utf-8"))
    drawn = draw_all(results, out / FIGURES)
    sections = [_make_section(key, results, drawn.get(key, []), mark["scale"]) for key in _ABOUT]
    context = {
        "sections": sections,
        "cards": [make_card(each.key, each.title, each.pictures, each.tables) for each in sections],
        "claims": judge_all(results),
        "scale": find_scale(mark["scale"]),
        "reproduced": tabulation.count_reproduced(results["table1"]) if "table1" in results else None,
        "runs": tabulation.list_runs(results),
        "facts": _list_facts(results, mark["scale"]),
        "citation": CITATION,
        "version": __version__,
        "made": manifests.now(),
        "figures": FIGURES,
        "css": _read_css(),
        "slug": _slug,
    }
    environment = _environment(out)
    cache.write(out / PAGE, environment.get_template("reproduction.html.j2").render(**context).encode())
    cache.write(out / MARKDOWN, environment.get_template("reproduction.md.j2").render(**context).encode())
    return out / PAGE


def _make_section(key: str, results: Mapping[str, Mapping[str, Any]], pictures: list[str], scale: str) -> Section:
    title, about, experiment = _ABOUT[key]
    result = results.get(experiment)
    if result is None:
        missing = f"not run yet: deepfool reproduce --only {key}"
    else:
        missing, scale = result.get("missing") or "", result["scale"]
    tables = [] if missing or result is None else [make(result) for make in _TABLES.get(key, [])]
    return Section(key, title, PLACES[key], experiment, about, scale, tables, pictures, missing)


_ABOUT: Mapping[str, tuple[str, str, str]] = {
    "table1": (
        "Table 1: adversarial robustness of the classifiers",
        "ρ is the mean of ‖r‖ / ‖x‖ in the ℓ2 norm, where r is the smallest perturbation that the method finds.",
        "table1",
    ),
    "table2": (
        "Table 2: the same in the ℓ∞ norm",
        "DeepFool with p = ∞, and FGSM at the smallest ε that misclassifies 90 %.",
        "table2",
    ),
    "figure1": (
        "Figure 1: DeepFool's perturbation and FGSM's",
        "An image; then for each method the image with a perturbation that is just large enough to change the label, "
        "and the perturbation itself (grey: no change; one scale per row). The paper shows an ILSVRC image, which "
        "cannot be redistributed; these are from CIFAR-10. FGSM uses the smallest ε that changes the label of this "
        "image.",
        "figure1",
    ),
    "figure2": (
        "Figure 2: a linear binary classifier",
        "The smallest perturbation is the projection onto the line: equation 3, by `deepfool.affine`.",
        "geometry",
    ),
    "figure3": (
        "Figure 3: Algorithm 1 in two dimensions",
        "The graph of f (wires), its tangent plane at x0 (green), where that plane is zero (orange), and the iterates "
        "of `deepfool.deepfool`, one call for each number of iterations.",
        "geometry",
    ),
    "figure4": (
        "Figure 4: an affine classifier of four classes",
        "x0 belongs to class 4. The polyhedron P is where class 4 wins, and the solution is the projection onto its "
        "nearest face: equations 8 and 9, by `deepfool.affine`.",
        "geometry",
    ),
    "figure5": (
        "Figure 5: a curved classifier of four classes",
        "The boundaries, their linearisations at x0 (dashed), the polyhedron of these, and the iterates of "
        "Algorithm 2.",
        "geometry",
    ),
    "figure6": (
        "Figure 6: robustness after extra epochs",
        "ρ, estimated by DeepFool, after fine-tuning on images perturbed by DeepFool, by FGSM, or not at all. The "
        "learning rate is half of that at the end of training. Lines are means over the seeds, bands go from the "
        "lowest to the highest. The paper gives no numbers in this figure; its text says +50 % for the MNIST networks "
        "and about +40 % for NIN.",
        "figure6",
    ),
    "figure7": (
        "Figure 7: magnified perturbations",
        "The same on x + α r, with r from DeepFool. The paper does not say which network it shows, and gives no "
        "numbers.",
        "figure7",
    ),
    "figure8": (
        "Figure 8: a 1 that becomes a 7",
        "An image of MNIST, DeepFool's perturbation r (vermilion: lighter, blue: darker), x + α r, and the label "
        "that LeNet gives it.",
        "figure8",
    ),
    "table3": (
        "Table 3: test errors after fine-tuning",
        "After the last of the extra epochs of Figure 6.",
        "figure6",
    ),
    "figure9": (
        "Figure 9: how DeepFool and FGSM judge the same network",
        "Fine-tuned on FGSM's examples with the learning rate cut by 90 %. Each judge's ρ is relative to its own "
        "value before. The paper shows NIN, without numbers; LeNet is added here.",
        "figure9",
    ),
}
"""Figure or table -> title, what it shows, the experiment that it comes from."""

_TABLES: Mapping[str, list[Any]] = {
    "table1": [tabulation.tabulate_robustness, tabulation.tabulate_methods, tabulation.tabulate_times],
    "table2": [tabulation.tabulate_linf],
    "table3": [tabulation.tabulate_errors],
    **{
        figure: [lambda result, figure=figure: tabulation.tabulate_gains(result, figure)]
        for figure in ("figure6", "figure7", "figure9")
    },
}


def _list_facts(results: Mapping[str, Mapping[str, Any]], scale: str) -> list[tuple[str, str]]:
    """Provenance: versions, hashes and times; nothing that identifies the machine."""
    facts = [("scale", f"{scale}: {find_scale(scale).about}")]
    machines = {json.dumps(result["provenance"], sort_keys=True) for result in results.values()}
    for text in sorted(machines):
        machine = json.loads(text)
        versions = ", ".join(f"{name} {machine[name]}" for name in ("deepfool", "torch", "numpy", "python"))
        facts += [("versions", versions), ("machine", f"{machine['cores']} cores, {machine['threads']} used by torch")]
    for name, result in results.items():
        facts.append((name, f"{result['seconds']:.0f} s in its last session, {result['made']}"))
    for row in results.get("table1", {}).get("rows", []):
        if not row["missing"]:
            facts.append((f"{row['network']}, SHA-256", row["sha256"]))
    facts.append(("seeds", "0 for attacks; " + ", ".join(map(str, find_scale(scale).seeds)) + " for fine-tuning"))
    return facts


def _slug(verdict: str) -> str:
    """The CSS class of a verdict."""
    return verdict.replace(" ", "-")


def _glue(text: str) -> str:
    """A number and what belongs to it kept together, so that a cell breaks only before a bracket or a second value.

    >>> _glue("0.83 % (0.81 to 0.85)").split(" ")
    ['0.83\\xa0%', '(0.81\\xa0to\\xa00.85)']
    """
    return text if text[:1].isalpha() else re.sub(r" (?!\(|against )", "\u00a0", text)


def _read_css() -> Markup:
    """The style sheet of the report, followed by that of this page."""
    report = Path(deepfool.reporting.__file__).parent / "templates" / "report.css"
    own = HERE / "templates" / "reproduction.css"
    return Markup(report.read_text("utf-8") + own.read_text("utf-8"))


def _environment(out: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, autoescape=lambda name: bool(name and "html" in name),
    )  # fmt: skip

    def embed(name: str) -> str:
        path = out / FIGURES / name
        return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"

    environment.filters["embed"] = embed
    environment.filters["glued"] = _glue
    # Text in backticks becomes code.
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    # A cell of a Markdown table must not contain a bare |.
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|")
    return environment
