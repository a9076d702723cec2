"""What benchmarks that keep their results have in common on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from deepfool.runs.execution import keep_freed_memory


def read_options(parser: argparse.ArgumentParser, name: str) -> argparse.Namespace:
    """The options of a parser, with --work, --out and --threads; threads are set, and the folder --work is there."""
    parser.add_argument("--work", type=Path, default=Path("benchmarks/results") / name)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    options.work.mkdir(parents=True, exist_ok=True)
    return options
