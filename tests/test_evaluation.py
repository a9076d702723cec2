"""evaluate(): which samples, in which batches, stopped and resumed, within the memory there is."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deepfool import Run, deepfool, evaluate
from deepfool.errors import InputError, RunError
from deepfool.runs.evaluation import Interrupted
from tests import nets
from tests.oracles import affine_case, free_distances, score_differences
from tests.waiting import PATIENCE

HERE = Path(__file__).parent


def test_rows_hold_the_exact_distances_of_an_affine_classifier(tmp_path):
    model, x = affine_case(c=5, d=8, n=30, seed=3)
    for p in (1.0, 2.0, float("inf")):
        run = evaluate(
            model, (x.float(), None), out=tmp_path / f"{p}", p=p, overshoot=1e-4, batch_size=7, dtype="float64"
        )  # fmt: skip
        records = run.records()
        for i, point in enumerate(x.float().double().numpy()):
            label, w, gap = score_differences(model, point)
            assert records.label[i] == label
            assert records.r["p"][i] == pytest.approx(free_distances(w, gap, p).min() * 1.0001, rel=1e-5)
            assert records.x["p"][i] == pytest.approx(np.linalg.norm(point, p), rel=1e-9)


def test_rows_are_what_the_attack_returns(tmp_path):
    x, labels = nets.points(20)
    run = evaluate(nets.small(), (x, labels), out=tmp_path / "run", batch_size=20)
    found = deepfool(nets.small(), x)
    rows = list(run.rows())
    assert [row["label"] for row in rows] == found.label.tolist()
    assert [row["adv_label"] for row in rows] == found.adv_label.tolist()
    assert [row["iterations"] for row in rows] == found.iterations.tolist()
    assert [row["forwards"] for row in rows] == found.forwards.tolist()
    assert [row["backwards"] for row in rows] == found.backwards.tolist()
    assert [row["true_label"] for row in rows] == labels.tolist()
    assert [row["evidence"] for row in rows] == ["gradients"] * 20
    assert [row["converged"] for row in rows] == found.converged.tolist()
    flat = found.r.double()
    for name, p in (("l1", 1), ("l2", 2), ("linf", float("inf")), ("p", 2)):
        assert [row[f"r_{name}"] for row in rows] == pytest.approx(flat.norm(p, dim=1).tolist())
        assert [row[f"x_{name}"] for row in rows] == pytest.approx(x.double().norm(p, dim=1).tolist())
    assert all(row["seconds"] > 0 for row in rows)


def test_rows_do_not_depend_on_the_batch_size(tmp_path):
    def rows(size):
        return list(evaluate(nets.small(), nets.points(50), out=tmp_path / str(size), batch_size=size).rows())

    for size in (1, 7, 50):
        for row, expected in zip(rows(size), rows("auto"), strict=True):
            assert row["adv_label"] == expected["adv_label"]
            assert row["r_p"] == pytest.approx(expected["r_p"], rel=1e-5)


def test_choosing_samples(tmp_path):
    def indices(name, **options):
        run = evaluate(nets.small(), nets.points(20), out=tmp_path / name, **options)
        return [row["index"] for row in run.rows()]

    assert indices("limit", limit=3) == [0, 1, 2]
    assert indices("text", indices="4-6,19") == [4, 5, 6, 19]
    assert indices("list", indices=[9, 3, 9]) == [9, 3]
    assert indices("both", indices="4-6,19", limit=2) == [4, 5]
    shards = [indices(f"shard{i}", limit=10, shard=(i, 4)) for i in (1, 2, 3, 4)]
    assert [index for shard in shards for index in shard] == list(range(10))
    with pytest.raises(InputError, match=r"0\.\.19, got 20"):
        indices("beyond", indices="18-20")
    with pytest.raises(InputError, match=r"0\.\.19, got 20"):
        indices("far", indices="0-99999999999")  # would not fit in memory
    with pytest.raises(InputError, match=r"0\.\.19, got 99999999999"):
        indices("far", indices=[0, 99999999999])
    with pytest.raises(InputError, match=r"0\.\.19, got -1"):
        indices("below", indices=[-1])
    with pytest.raises(InputError, match="look like 0-99,205"):
        indices("digits", indices="9" * 5000)
    for odd in ([0.5], [1.0], ["1"], [True, False], [[1, 2]], [10**30]):
        with pytest.raises(InputError, match="a list of whole numbers"):
            indices("odd", indices=odd)
    with pytest.raises(InputError, match="limit must be a whole number"):
        indices("half", limit=2.5)
    with pytest.raises(InputError, match=r"1 <= i <= n, got 1\.5/4"):
        indices("shard", shard=(1.5, 4))
    assert indices("first", shard=(1, 10**12)) == [0]  # as many parts would not fit in memory
    with pytest.raises(InputError, match="1 <= i <= n, got 5/4"):
        indices("shard", shard=(5, 4))
    with pytest.raises(InputError, match="no sample is left"):
        indices("none", limit=1, shard=(2, 2))


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_batches_are_halved_until_they_fit(tmp_path, kind):
    run = evaluate(nets.Narrow(10, kind), nets.points(150), out=tmp_path / "run")
    rows = list(run.rows())
    assert [row["index"] for row in rows] == list(range(150))
    assert {row["batch"] for row in rows} == {8, 6}  # 128 -> 8 at once, and 22 = 8 + 8 + 6
    free = evaluate(nets.Narrow(10**9, kind), nets.points(150), out=tmp_path / "free")
    for row, expected in zip(rows, free.rows(), strict=True):
        assert row["r_p"] == pytest.approx(expected["r_p"], rel=1e-5)


def test_a_chosen_batch_size_is_not_changed(tmp_path):
    with pytest.raises(RunError, match=r"16 samples at once do not fit .* Hint: give a smaller --batch-size"):
        evaluate(nets.Narrow(10), nets.points(40), out=tmp_path / "run", batch_size=16)
    assert evaluate(nets.Narrow(10), nets.points(40), out=tmp_path / "run", batch_size=10).complete


def test_one_sample_that_does_not_fit(tmp_path):
    with pytest.raises(RunError, match=r"a single sample of .* does not fit in the memory"):
        evaluate(nets.Narrow(0), nets.points(4), out=tmp_path / "run")


def test_ctrl_c_ends_after_the_batch_and_says_how_to_resume(tmp_path):
    def interrupt(progress):
        if progress.done == 16:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"stopped after 16 of 50 samples; .* Rerun the command to resume") as stopped:
        evaluate(nets.small(), nets.points(50), out=tmp_path / "run", batch_size=8, on_progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert stopped.value.run.count == 16
    assert "stopped" in Run(tmp_path / "run").manifest["sessions"][0]
    run = evaluate(nets.small(), nets.points(50), out=tmp_path / "run", batch_size=8)
    assert [row["index"] for row in run.rows()] == list(range(50))
    assert [s["rows_before"] for s in run.manifest["sessions"]] == [0, 16]


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    class Insisting(nn.Module):
        """Presses Ctrl-C twice while the third batch is on its way."""

        def __init__(self):
            super().__init__()
            self.body, self.calls = nets.small(), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 9:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return self.body(x)

    with pytest.raises(KeyboardInterrupt) as stopped:
        evaluate(Insisting(), nets.points(50), out=tmp_path / "run", batch_size=8)
    assert not isinstance(stopped.value, Interrupted)
    assert 0 < Run(tmp_path / "run").count < 50


def test_in_another_thread_signals_are_left_alone(tmp_path):
    runs = []
    thread = threading.Thread(
        target=lambda: runs.append(evaluate(nets.small(), nets.points(9), out=tmp_path / "run"))
    )  # fmt: skip
    thread.start()
    thread.join()
    assert runs[0].complete


def test_the_model_is_left_as_it_was(tmp_path):
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout()).train()
    evaluate(model, nets.points(5), out=tmp_path / "run", dtype="float64")
    assert model.training
    assert model[0].weight.dtype == torch.float32
    assert model[0].weight.requires_grad


def test_progress_tells_the_running_rho(tmp_path):
    seen = []
    run = evaluate(nets.small(), nets.points(40), out=tmp_path / "run", batch_size=16, on_progress=seen.append)
    assert [progress.done for progress in seen] == [16, 32, 40]
    assert seen[-1].rho == pytest.approx(run.records().ratio("p").mean())
    assert seen[0].seconds_left >= 0
    assert seen[-1].seconds_left == 0


def test_misclassified_samples_are_skipped_when_asked(tmp_path):
    x, labels = nets.points(40)
    run = evaluate(nets.small(), (x, labels), out=tmp_path / "run", skip_misclassified=True)
    wrong = nets.small()(x).argmax(1) != labels
    assert [row["status"] == "MISCLASSIFIED" for row in run.rows()] == wrong.tolist()
    with pytest.raises(InputError, match="needs true labels"):
        evaluate(nets.small(), (x, None), out=tmp_path / "none", skip_misclassified=True)


def test_attacks_that_draw_give_the_same_rows_each_time(tmp_path):
    def norms(name, **options):
        run = evaluate(model, nets.points(24), nets.drawing_attack, out=tmp_path / name, batch_size=8, **options)
        return [row["r_p"] for row in run.rows()]

    model = nets.small()
    state = torch.random.get_rng_state()
    first = norms("a")
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's stream is not touched"
    torch.rand(5)
    assert norms("b") == first
    assert norms("c", seed=1) != first


def test_arguments_are_checked_at_the_border(tmp_path):
    def refused(match, **options):
        with pytest.raises(InputError, match=match):
            evaluate(nets.small(), nets.points(4), **{"out": tmp_path / "run", **options})

    refused("no attack called 'deepfol'", attack="deepfol")
    refused("no knob called 'max_itre'. Hint: did you mean max_iter", max_itre=3)
    refused("dtype must be one of", dtype="float8")
    refused("engine must be local or ray", engine="dask")
    refused("batch_size must be a whole number", batch_size=0)
    refused("batch_size must be a whole number or 'auto'", batch_size="big")
    refused("the device 'abacus' cannot be used", device="abacus")
    refused("the device 'meta' cannot be used", device="meta")
    refused("out needs a name, got an empty one", out="")
    refused("minimises the l2 norm, but the run measures linf", attack=nets_l2_only, p=float("inf"))
    refused("must return an Adversarial", attack=lambda model, x: x)
    # None of these has left rows behind, so the folder is free for the command as it was meant.
    assert evaluate(nets.small(), nets.points(4), out=tmp_path / "run").complete


def nets_l2_only(model, x):
    return deepfool(model, x, p=2)


def test_memory_does_not_grow_with_the_number_of_samples():
    """Each sample has 3072 features: kept, 10,000 of them or of their perturbations would take 120 MB each."""
    peaks = {}
    for count in (1_000, 10_000):
        done = subprocess.run(
            [sys.executable, HERE / "remembering.py", str(count)], capture_output=True, text=True, timeout=PATIENCE,
            check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peaks[count] = json.loads(done.stdout)
    assert peaks[10_000]["rss"] <= 1.10 * peaks[1_000]["rss"], peaks
    # That much is torch itself; what came on top after a warm-up would show rows that were kept (2 kB each).
    assert peaks[10_000]["growth"] <= peaks[1_000]["growth"] + 8e6, peaks
