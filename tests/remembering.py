"""The peak memory of an evaluation of N samples that are made when they are read: `python remembering.py N`."""

import json
import resource
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset

from deepfool import evaluate


class Made(Dataset):
    """Samples out of their index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3072, generator=generator), index % 3


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(count: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(3072, 3)
    with tempfile.TemporaryDirectory() as here:
        evaluate(model, Made(256), out=f"{here}/warm")
        before = peak()
        run = evaluate(model, Made(count), out=f"{here}/run")
        if not run.complete:
            raise SystemExit("the run is not complete")
    print(json.dumps({"rss": peak(), "growth": peak() - before}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
