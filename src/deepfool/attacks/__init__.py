"""ATTACK: one file per paper. Every attack is a function `attack(model, x, *, knobs) -> Adversarial`."""
