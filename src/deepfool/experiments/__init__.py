"""The paper's tables and figures, each a few lines on top of the rest of the package.

>>> from deepfool.experiments import SCALES
>>> list(SCALES)
['smoke', 'default', 'full']
"""

from __future__ import annotations

from deepfool.experiments.reproduction import EXPERIMENTS, reproduce
from deepfool.experiments.scales import SCALES

__all__ = ["EXPERIMENTS", "SCALES", "reproduce"]
