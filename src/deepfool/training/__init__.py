"""TRAINING: SGD as in the paper, the recipes of the zoo, robust objectives, fine-tuning on perturbed samples."""
