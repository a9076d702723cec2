"""The rows of a run as a pandas data frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepfool.errors import require
from deepfool.outcomes import Evidence, Proof, Status
from deepfool.runs.records import Run


def to_pandas(run: Run) -> Any:
    """One row per sample, in the order of the data; the index is the number of the sample.

    `norm` is the size of the perturbation in the norm of the attack, `relative` its share of the size of the input;
    both are infinite where the search had no answer (`status` says so), and so is their mean: nothing is dropped in
    silence. Labels that are not known are missing values. A certified run also has `lower`, the certified lower bound
    in the norm of the attack (0 where there is none), `proof`, and `proof_upper`, a smaller perturbation than the
    attack's (infinite where there is none).

    >>> import tempfile, torch
    >>> from deepfool import evaluate
    >>> with tempfile.TemporaryDirectory() as here:
    ...     run = evaluate(torch.nn.Linear(4, 3), (torch.rand(8, 4), torch.zeros(8, dtype=torch.long)), out=here)
    ...     frame = to_pandas(run)
    >>> frame.shape[0], frame.index.name, frame.status.unique().tolist()
    (8, 'sample', ['FOOLED'])
    """
    pandas = require("pandas", extra="pandas", purpose="a data frame")
    records = run.records()
    reasons = (*records.reasons, "")  # -1 is the last
    certified = bool(records.certified.any())
    proofs = [None if code < 0 else Proof(code).name for code in records.proof.tolist()]
    kinds = {-1: None, **{int(each): each.name.lower() for each in Evidence}}

    columns: dict[str, Any] = {
        "label": records.label,
        "true_label": _with_gaps(pandas, records.true_label),
        "adv_label": _with_gaps(pandas, records.adv_label),
        "status": pandas.Categorical(
            [Status(code).name for code in records.status.tolist()], categories=[each.name for each in Status]
        ),
        "norm": records.r["p"],
        "relative": records.ratio("p"),
        **{f"r_{norm}": records.r[norm] for norm in ("l1", "l2", "linf")},
        **{f"x_{norm}": records.x[norm] for norm in ("l1", "l2", "linf")},
        "iterations": records.iterations,
        "forwards": records.forwards,
        "backwards": records.backwards,
        "evidence": [kinds[code] for code in records.evidence.tolist()],
        "converged": _with_gaps(pandas, records.converged, "boolean"),
        **({"lower": records.lower, "proof": proofs, "proof_upper": records.proof_upper} if certified else {}),
        "seconds": records.seconds,
        "reason": [reasons[code] for code in records.reason.tolist()],
    }
    return pandas.DataFrame(columns, index=pandas.Index(records.index, name="sample"))


def _with_gaps(pandas: Any, column: Any, kind: str = "Int64") -> Any:
    """Whole numbers, or true and false, with a missing value where the column has -1."""
    return pandas.Series(np.where(column < 0, np.nan, column)).astype("Float64").astype(kind).array
