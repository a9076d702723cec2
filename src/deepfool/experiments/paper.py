"""The numbers and claims in the paper: Moosavi-Dezfooli, Fawzi, Frossard, "DeepFool: a simple and accurate method to
fool deep neural networks", CVPR 2016.

Only numbers from its tables and sentences are here. Figures 6, 7 and 9 are plots without numbers, so only what the
text says about them can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CITATION = "Moosavi-Dezfooli, Fawzi, Frossard: DeepFool, CVPR 2016"


@dataclass(frozen=True)
class Classifier:
    """One row of Table 1, with the values of the other tables for the same network."""

    name: str
    """As the paper prints it."""
    test_error: float
    deepfool: float
    """rho_adv by DeepFool; the other two likewise."""
    fgsm: float
    lbfgs: float | None
    ms: tuple[float, float, float | None]
    """Milliseconds per sample: DeepFool, fast gradient sign, L-BFGS (the paper gives a lower bound)."""
    gpu: bool = False
    """True if the times were measured on a GTX 750 Ti (an asterisk in the paper); the others on a 2015 laptop."""
    linf_deepfool: float | None = None
    linf_fgsm: float | None = None
    """Table 2."""
    tuned_deepfool: float | None = None
    tuned_fgsm: float | None = None
    tuned_clean: float | None = None
    """Table 3: test errors after five extra epochs."""


CLASSIFIERS: Mapping[str, Classifier] = {
    "lenet-mnist": Classifier(
        "LeNet (MNIST)", 0.010, 0.20, 1.0, 0.25, (110, 20, 4000), linf_deepfool=0.10, linf_fgsm=0.26,
        tuned_deepfool=0.008, tuned_fgsm=0.044, tuned_clean=0.010,
    ),
    "fc500-mnist": Classifier(
        "FC500-150-10 (MNIST)", 0.017, 0.11, 0.39, 0.12, (50, 10, 2000), linf_deepfool=0.04, linf_fgsm=0.11,
        tuned_deepfool=0.015, tuned_fgsm=0.049, tuned_clean=0.017,
    ),
    "nin-cifar10": Classifier(
        "NIN (CIFAR-10)", 0.115, 0.023, 0.12, 0.024, (1100, 180, 50_000), linf_deepfool=0.008, linf_fgsm=0.024,
        tuned_deepfool=0.112, tuned_fgsm=0.212, tuned_clean=0.115,
    ),
    "lenet-cifar10": Classifier(
        "LeNet (CIFAR-10)", 0.226, 0.030, 0.13, 0.039, (220, 50, 7000), linf_deepfool=0.015, linf_fgsm=0.028,
        tuned_deepfool=0.200, tuned_fgsm=0.286, tuned_clean=0.226,
    ),
    "caffenet": Classifier("CaffeNet (ILSVRC2012)", 0.426, 0.0027, 0.035, None, (510, 50, None), gpu=True),
    "googlenet": Classifier("GoogLeNet (ILSVRC2012)", 0.313, 0.0019, 0.047, None, (800, 80, None), gpu=True),
}  # fmt: skip
"""By the name of the network in the zoo, in the order of Table 1."""

SMALL = tuple(name for name, row in CLASSIFIERS.items() if row.linf_deepfool is not None)
"""The four networks of Tables 2 and 3 and of Figure 6."""

BESIDE = ("efficientnet-lite0",)
"""Networks that are not in the paper, measured in addition to its ImageNet networks."""

OVERSHOOT = 0.02
"""eta, Section 2."""
IMAGENET_CANDIDATES = 10
"""On ImageNet DeepFool considers the ten classes with the highest scores, the default of the authors' published code;
with ten classes it considers all."""
SHARE = 0.9
"""FGSM's eps is the smallest that leaves this share misclassified; Section 4.1."""
EXTRA_EPOCHS = 5
LR_SCALE = 0.5
"""The learning rate of the fine-tuning is cut by half (Section 4.2), for Figure 9 by 90 %."""
LR_SCALE_FIGURE_9 = 0.1
ALPHAS = (1.0, 2.0, 3.0)
"""Figure 7."""

PLACES: Mapping[str, str] = {
    "table1": "Table 1, Section 4.2",
    "table2": "Table 2, Section 4.2",
    "table3": "Table 3, Section 4.2",
    "figure1": "Figure 1, Section 1",
    "figure2": "Figure 2, Section 2",
    "figure3": "Figure 3, Section 2",
    "figure4": "Figure 4, Section 3.1",
    "figure5": "Figure 5, Section 3.2",
    "figure6": "Figure 6, Section 4.2",
    "figure7": "Figure 7, Section 4.2",
    "figure8": "Figure 8, Section 4.2",
    "figure9": "Figure 9, Section 4.2",
}


@dataclass(frozen=True)
class Statement:
    """A claim of the paper that can be checked by measurement."""

    text: str
    place: str


STATEMENTS: Mapping[str, Statement] = {
    "fgsm": Statement("DeepFool's perturbation is about 5 times smaller than FGSM's", "Section 4.2, on Table 1"),
    "lbfgs": Statement("DeepFool's perturbation is slightly smaller than L-BFGS's", "Section 4.2, on Table 1"),
    "faster": Statement("DeepFool is much faster than L-BFGS", "Section 4.2, on Table 1"),
    "iterations": Statement("DeepFool converges in less than 3 iterations", "Section 4.2"),
    "linf": Statement("In the linf norm too, DeepFool's perturbation is smaller than FGSM's", "Section 4.2, Table 2"),
    "mnist": Statement(
        "Fine-tuning on DeepFool's examples raises the robustness of the MNIST networks by about 50 %",
        "Section 4.2, on Figure 6 (a, b)",
    ),
    "nin": Statement(
        "Fine-tuning on DeepFool's examples raises the robustness of NIN by about 40 %",
        "Section 4.2, on Figure 6 (c)",
    ),
    "lowers": Statement("Fine-tuning on FGSM's examples can lower the robustness", "Section 4.2, on Figure 6"),
    "magnified": Statement("The larger alpha, the lower the robustness", "Section 4.2, Figure 7"),
    "accuracy": Statement(
        "Fine-tuning on DeepFool's examples can lower the test error; on FGSM's it raised it in all cases",
        "Section 4.2, Table 3",
    ),
    "misjudges": Statement(
        "FGSM misjudges: it exaggerates the effect of training on its own examples", "Section 4.2, Figure 9"
    ),
}  # fmt: skip
