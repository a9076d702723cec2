"""Run folders with made-up rows, for cases that would take too long to measure."""

import json

import numpy as np

KNOBS = {"overshoot": 0.02, "max_iter": 50, "candidates": "auto", "bounds": None, "target": None, "mask": None}


def simulate(folder, n=200, *, classes=10, names=None, censored=0, p=2.0, seed=0, model="made.up.Model", **manifest):
    """A run of `n` rows over `classes` classes, the last `censored` of them not fooled."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    label = rng.integers(0, classes, n)
    step = rng.integers(1, max(2, classes), n)
    size = rng.gamma(4.0, 0.4, n)
    lines = []
    for i in range(n):
        lost = i >= n - censored
        r, x = float(size[i]), float(rng.uniform(8, 12))
        row = {
            "index": i, "label": int(label[i]), "true_label": int(label[i] if i % 50 else (label[i] + 1) % classes),
            "adv_label": int(label[i] if lost else (label[i] + step[i]) % classes),
            "status": "EXHAUSTED" if lost else "FOOLED", "iterations": 2, "forwards": 3, "backwards": 20,
            "seconds": 0.001, "batch": n,
            **{f"r_{name}": None if lost else r for name in ("p", "l1", "l2", "linf")},
            **{f"x_{name}": x for name in ("p", "l1", "l2")}, "x_linf": 1.0,
        }  # fmt: skip
        lines.append(json.dumps(row))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    about = {
        "format": 1,
        "identity": {
            "deepfool": "0.1.0", "model": {"sha256": "ab" * 32}, "data": {"sha256": "cd" * 32, "samples": n},
            "indices": f"0-{n - 1}", "attack": {"name": "deepfool", "knobs": KNOBS},
            "p": p if np.isfinite(p) else "inf", "dtype": "float32", "seed": 0, "skip_misclassified": False,
            "perturbations": False,
        },
        "samples": n,
        "model": {"spec": model, "arch": None},
        "data": {
            "spec": None, "name": "made-up", "split": "test", "size": None,
            "classes": names or [f"class {i}" for i in range(classes)],
        },
        "sessions": [],
    } | manifest  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(about))
    return folder
