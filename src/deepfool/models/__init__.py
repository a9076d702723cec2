"""The networks of the zoo by name, and models from other sources.

`load` returns a network of the zoo; `resolve` takes any spec (`timm:resnet18`, `onnx:FILE`, ...) or object.

>>> from deepfool import models
>>> list(models.ZOO)[:2]
['fc500-mnist', 'lenet-mnist']
"""

from deepfool.models.sources import Source, as_module, from_jax, from_sklearn, resolve
from deepfool.models.zoo import ZOO, Entry, load

__all__ = ["ZOO", "Entry", "Source", "as_module", "from_jax", "from_sklearn", "load", "resolve"]
