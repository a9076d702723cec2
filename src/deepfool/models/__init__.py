"""The networks of the zoo by name, and models from other sources.

`load` returns a model from any source (`lenet-mnist`, `timm:resnet18`, `onnx:FILE`, ...); `resolve` also says what is
known about it.

>>> from deepfool import models
>>> list(models.ZOO)[:2]
['fc500-mnist', 'lenet-mnist']
"""

from deepfool.models.sources import Source, as_module, from_jax, from_sklearn, load, resolve
from deepfool.models.zoo import ZOO, Entry

__all__ = ["ZOO", "Entry", "Source", "as_module", "from_jax", "from_sklearn", "load", "resolve"]
