"""The paper's networks by name, and where other models come from.

>>> from deepfool import models
>>> sorted(models.ZOO)[:2]
['caffenet', 'efficientnet-lite0']
"""

from deepfool.models.zoo import ZOO, Entry, load

__all__ = ["ZOO", "Entry", "load"]
