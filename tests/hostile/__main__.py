"""python -m tests.hostile: many cases, a table of what came of them, and how to run again what went wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch

from tests.hostile.invariants import CHECKS
from tests.hostile.trial import LIMIT, Outcome, run_case

PER_SEED = 1_000_000
"""Case numbers of one seed begin at seed * PER_SEED: the number alone says which case it is."""


def main(arguments: list[str] | None = None) -> int:
    options = _read(arguments)
    torch.set_num_threads(1)  # the models are tiny: threads would wait for each other
    if options.case is not None:
        numbers = range(options.case, options.case + 1)
    else:
        numbers = range(options.seed * PER_SEED, options.seed * PER_SEED + options.runs)
    outcomes, began = [], time.monotonic()
    for done, number in enumerate(numbers, 1):
        outcome = run_case(number, options.limit)
        outcomes.append(outcome)
        if outcome.violations:
            _tell("")
            print(outcome, flush=True)
        elif options.case is not None:
            print(f"case {number}: {outcome.case}")
        _show_progress(done, len(numbers), outcomes, time.monotonic() - began)
    _tell("\n")
    print(summarise(outcomes, time.monotonic() - began))
    return int(any(outcome.violations for outcome in outcomes))


def _read(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="which cases: those of one seed are never those of another")
    parser.add_argument("--case", type=int, help="one case, by its number")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds that a case may take")
    return parser.parse_args(arguments)


def _show_progress(done: int, runs: int, outcomes: list[Outcome], seconds: float) -> None:
    """A line that is written over on a terminal; elsewhere one line per hundred cases."""
    if sys.stderr.isatty() or done % 100 == 0:
        bad = sum(1 for outcome in outcomes if outcome.violations)
        end = "" if sys.stderr.isatty() else "\n"
        _tell(f"{done} of {runs} cases, {bad} with violations, {seconds / done:.2f} s a case{end}")


def _tell(text: str) -> None:
    """Talk goes to stderr."""
    sys.stderr.write(("\r\x1b[K" if sys.stderr.isatty() else "") + text)
    sys.stderr.flush()


def summarise(outcomes: list[Outcome], seconds: float) -> str:
    """Counts: runs, rows, rows by status; violations by invariant, with the cases they came from."""
    statuses = sum((outcome.statuses for outcome in outcomes), Counter())
    refused = statuses.pop("refused", 0)
    lines = [
        f"{'runs':<14}{len(outcomes):>7}   in {seconds:.0f} s",
        f"{'refused':<14}{refused:>7}   models that are no classifiers, or errors",
        f"{'rows':<14}{sum(statuses.values()):>7}",
        *(f"  {name:<12}{count:>7}" for name, count in sorted(statuses.items())),
        "violations",
    ]
    for name in ("time", "errors", *CHECKS):
        found = [outcome for outcome in outcomes for each, _ in outcome.violations if each == name]
        cases = sorted({outcome.case.number for outcome in found})
        shown = ", ".join(map(str, cases[:8])) + (", ..." if len(cases) > 8 else "")
        lines.append(f"  {name:<12}{len(found):>7}" + (f"   in {len(cases)} cases: {shown}" if cases else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
