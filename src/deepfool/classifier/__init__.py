"""INPUT: any model seen as class scores, its gradients, and its last hidden layer."""

from deepfool.classifier.classifier import OUTPUTS, Classifier, Model, ProbabilityWarning, check_threshold, find_scores

__all__ = ["OUTPUTS", "Classifier", "Model", "ProbabilityWarning", "check_threshold", "find_scores"]
