"""Fine-tune a small network: `python tuning.py FOLDER`, alone or with `accelerate launch` (see test_finetuning.py)."""

import sys
from pathlib import Path

import torch

from deepfool import finetune
from deepfool.training.processes import find_team
from deepfool.training.sgd import Recipe
from tests import nets


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    reports = []
    tuned = finetune(
        nets.small(), nets.points(91), test=nets.points(50), epochs=3, judged=20, cache=folder / "cache",
        recipe=Recipe(3, 0.05, batch_size=15, clip=1.0), learning_rate=0.05, checkpoint=folder / "state.pt", mix=0.2,
        on_progress=reports.append,
    )  # fmt: skip
    team = find_team()
    state = {
        "model": tuned.model.state_dict(), "size": team.size, "main": team.is_main, "reports": len(reports),
        "rho": tuned.epochs[-1].rho["deepfool"],
    }  # fmt: skip
    torch.save(state, folder / f"rank{team.rank}.pt")
    team.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
