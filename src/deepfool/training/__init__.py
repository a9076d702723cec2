"""TRAINING: SGD as the paper trains, recipes of the zoo, fine-tuning on perturbed samples."""
