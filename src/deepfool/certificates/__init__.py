"""PROOF: no perturbation smaller than this changes the decision. `certify` is in `certifying.py`.

model ──▶ lowering ──▶ graph of affine maps, sums and ReLUs
                         └─▶ backward ──▶ radius ──▶ branching ──▶ Certificate
"""
