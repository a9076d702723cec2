"""Data to measure on: MNIST, CIFAR-10, image folders, arrays, and the samples in the package.

name, file, dataset or arrays ──▶ load ──▶ Data: batches by index, labels, a fingerprint
"""

from __future__ import annotations

from deepfool.datasets.data import Data
from deepfool.datasets.loading import NAMES, load

__all__ = ["NAMES", "Data", "load"]
