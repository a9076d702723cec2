"""TRAINING: SGD as in the paper, the recipes of the zoo, fine-tuning on perturbed samples."""
