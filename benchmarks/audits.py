"""Does the audit caution where it should, and only there? `python -m benchmarks.audits`, after `benchmarks.attacks`.

Each network is audited as `deepfool audit` does it, for `smallest` at its default budget. Beside the verdict stands how
far that attack really is from the smallest perturbations known, which `benchmarks.attacks` has stored. The page is
written from what is stored under --work, and kept in OUT/results/audits.json, in the repository; networks that are
there are not audited again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

import deepfool as df
from benchmarks import networks
from benchmarks.attacks import NORMS, add_options, result_file
from benchmarks.kept import FOLDER, pack, unpack

BUDGET = 100
ATTACK = f"smallest-{BUDGET}"
LARGE = 1.2
"""A row that is so many times the smallest known should not go without a caution."""

HEAD = f"""\
# The audit, audited

Made by `python -m benchmarks.audits`, after `make bench-attacks`. Each network is audited with `smallest` at {BUDGET}
passes, inside [0, 1], on 8 of 50 images. *Mean* and *worst* are the ratios of that attack to the smallest norms known
on all 50 images: what the audit is meant to notice, and does not see. A verdict is right where it is a caution and the
worst row is more than {LARGE} times too large, or a pass and it is not.

| network | norm | verdict | fall at ten times the passes | mean | worst | rows above {LARGE} | what it cautions about |
|---|---|---|---|---|---|---|---|
"""


def audit_network(name: str, norms: list[str], options: argparse.Namespace) -> None:
    """Audit what is not stored yet."""
    model, x = networks.load(name, options.images, options.networks_folder)
    for p in norms:
        file = result_file(options.work, name, p, "audit")
        if file.exists():
            continue
        found = df.audit(model, (x, None), "smallest", p=NORMS[p], bounds=(0, 1), budget=BUDGET)
        cautions = [check.name for check in found.checks if check.verdict.value != "pass"]
        result = {"verdict": found.verdict.value, "fall": found["tenfold budget"].number, "cautions": cautions}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result))
        print(name, p, result, flush=True)


def write_page(work: Path, norms_from: Path, out: Path) -> None:
    """One row per network and norm, and the count of verdicts that were right."""
    rows, right, judged = [], 0, 0
    for file in sorted(work.glob("*/*/audit.json")):
        network, p = file.parts[-3:-1]
        result = json.loads(file.read_text())
        ratios = _ratios(norms_from, network, p)
        above = sum(r > LARGE for r in ratios)
        judged += bool(ratios)
        right += bool(ratios) and (result["verdict"] != "pass") == (above > 0)
        fall = "-" if result["fall"] is None else f"{result['fall']:.1%}"
        mean, worst = (f"{sum(ratios) / len(ratios):.3f}", f"{max(ratios):.2f}") if ratios else ("-", "-")
        rows.append(
            f"| {network} | {p} | {result['verdict']} | {fall} | {mean} | {worst} | {above} of {len(ratios)} "
            f"| {', '.join(result['cautions'])} |"
        )
    out.mkdir(parents=True, exist_ok=True)
    text = HEAD + "\n".join(rows) + f"\n\n{right} of {judged} verdicts are right in that sense.\n"
    (out / "audits.md").write_text(text)
    print(text)


def _ratios(norms_from: Path, network: str, p: str) -> list[float]:
    """The norms of the audited attack over the smallest known ones; infinite where it found nothing."""
    results = [json.loads(file.read_text()) for file in sorted((norms_from / network / p).glob("*.json"))]
    own: list[dict[str, Any]] = [result for result in results if result["attack"] == ATTACK]
    if not own:
        return []
    every = [[math.inf if v is None else v for v in result["norms"]] for result in results]
    return [v / min(column) for v, *column in zip(every[results.index(own[0])], *every, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, images=50)
    parser.add_argument("--norms", nargs="*", choices=list(NORMS), default=["l2", "linf"])
    parser.add_argument("--norms-from", type=Path, default=Path("benchmarks/results/attacks"), help="stored norms")
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results/audits"), help="where results are kept")
    parser.add_argument("--tables", action="store_true", help="only write the page of what is stored")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kept = options.out / FOLDER
    unpack(kept / "attacks.json", options.norms_from)
    unpack(kept / "audits.json", options.work)
    for name in () if options.tables else options.networks or networks.names(options.networks_folder):
        audit_network(name, options.norms, options)
    write_page(options.work, options.norms_from, options.out)
    pack(options.work, kept / "audits.json")


if __name__ == "__main__":
    main()
