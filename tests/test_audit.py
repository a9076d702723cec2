"""The audit: healthy models pass, troubled ones are told, and a run folder keeps the outcome."""

import json
import math
import warnings

import pytest
import torch
from torch import nn

import deepfool
from deepfool import Run, audit, evaluate
from deepfool.errors import InputError, RunError
from deepfool.metrics import summarize
from deepfool.runs.audit import auditing, on_the_model, on_the_result
from deepfool.runs.audit.checklist import AUDIT, Audit, Check, Verdict, read_audit
from deepfool.runs.audit.subject import Subject
from deepfool.runs.evaluation import Interrupted
from deepfool.runs.rows import Records
from deepfool.runs.worker import Job
from tests import nets

PASS, CAUTION, FAIL = Verdict.PASS, Verdict.CAUTION, Verdict.FAIL


def rows(*sizes, **more):
    """Rows with these norms; None where nothing was found."""
    return tuple(
        {"index": i, "label": 0, "status": "STUCK" if size is None else "FOOLED", "r_p": size, "x_p": 1.0, **more}
        for i, size in enumerate(sizes)
    )


def subject(own=(1.0,) * 8, *, weak=(1.0,) * 8, strong=(1.0,) * 8, attack="smallest", p=2.0, x=None, r=None, **more):
    """What the checks look at, without a search."""
    model = more.pop("model", None) or nn.Linear(4, 3)
    x = torch.rand(8, 4) if x is None else x
    found = rows(*own, evidence="gradients", converged=True)
    job = Job(model=model, fingerprint="", attack=attack, p=p, knobs=more.pop("knobs", {}))
    return Subject(
        module=model, f=deepfool.Classifier(model), x=x, job=job, records=Records.of(more.pop("records", found), p),
        rows=found, weak=rows(*weak), strong=rows(*strong), r=r,
    )  # fmt: skip


def only(checks):
    (check,) = checks
    return check


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nets.small()

    def forward(self, x):
        return self.body(x).round()


class Noisy(Rounded):
    def forward(self, x):
        return self.body(x + 0.1 * torch.randn_like(x))


@pytest.fixture(scope="module")
def data():
    return nets.points(220)


@pytest.fixture(scope="module")
def audited(tmp_path_factory, data):
    """A run of a healthy model that was audited at its end."""
    return evaluate(nets.small(), data, "smallest", out=tmp_path_factory.mktemp("runs") / "run", budget=50)


def test_a_healthy_network_gives_no_caution():
    found = audit("fc500-mnist", "mnist-sample", bounds=(0, 1), samples=4)
    assert found.verdict is PASS, found
    assert len(found.samples) == 4
    assert [check.name for check in found.checks] == [
        "same scores twice", "alone as in a batch", "gradients", "hidden gradients", "saturation", "tenfold budget",
        "strongest attack", "found by", "converged", "bounds", "8-bit rounding",
    ]  # fmt: skip
    assert "nothing speaks against the numbers" in found.headline


def test_rounded_scores_are_told(data):
    found = audit(Rounded(), data, samples=3)
    assert found.verdict is not PASS
    assert found["gradients"].verdict is CAUTION
    assert found["gradients"].number == 1.0
    assert found["hidden gradients"].verdict is CAUTION
    assert "round" in found["hidden gradients"].sentence


def test_a_random_model_fails():
    found = only(on_the_model.check_scores(subject(model=Noisy(), x=nets.points(8)[0])))
    assert (found.name, found.verdict) == ("same scores twice", FAIL)
    assert found.number > 0


def test_a_single_sample_has_no_neighbours():
    assert only(on_the_model.check_scores(subject(x=torch.rand(1, 4)))).verdict is PASS


def test_a_model_that_looks_at_its_neighbours():
    checks = on_the_model.check_scores(subject(model=nn.BatchNorm1d(3, track_running_stats=False), x=torch.rand(8, 3)))
    assert [check.verdict for check in checks] == [PASS, CAUTION]


class Half(nn.Module):
    """No gradient where the first input is below 0.5."""

    def forward(self, x):
        live = (x[:, :1] >= 0.5).to(x.dtype)
        return torch.cat([1 + 0 * x[:, :1], live * x[:, 1:2], x[:, :1] * 0 - 1], 1)


def test_zero_gradients_are_counted():
    x = torch.full((8, 4), 0.75)
    assert only(on_the_model.check_gradients(subject(model=Half(), x=x))).verdict is PASS
    x[:2, 0] = 0.25
    some = only(on_the_model.check_gradients(subject(model=Half(), x=x)))
    assert (some.verdict, some.number) == (CAUTION, 0.25)


def test_saturated_probabilities_are_told():
    x = torch.tensor([[100.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = only(on_the_model.check_saturation(subject(model=nn.Softmax(1), x=x)))
    assert (found.verdict, found.number) == (CAUTION, 0.5)
    logits = only(on_the_model.check_saturation(subject(model=nn.Identity(), x=x)))
    assert logits.verdict is PASS, "large logits are fine"
    tied = torch.tensor([[1.0, 1.0, 0.0]])
    assert only(on_the_model.check_saturation(subject(model=nn.Identity(), x=tied))).verdict is CAUTION


@pytest.mark.parametrize(
    ("weak", "strong", "p", "verdict", "number"),
    [
        ([1.005] * 8, [1.0] * 8, 2.0, PASS, 0.005),
        ([1.05] * 8, [1.0] * 8, 2.0, CAUTION, 0.0476),
        ([1.035] * 8, [1.0] * 8, 2.0, PASS, 0.0338),
        ([1.035] * 8, [1.0] * 8, math.inf, CAUTION, 0.0338),
        ([1.05] * 8, [1.0] * 8, 1.0, PASS, 0.0476),
        ([None] + [1.0] * 7, [1.0] * 8, 2.0, CAUTION, 0.0),
        ([None] * 8, [None] * 8, 2.0, CAUTION, None),
        ([0.0] * 8, [0.0] * 8, 2.0, PASS, 0.0),
    ],
)
def test_ten_times_the_budget(weak, strong, p, verdict, number):
    found = only(on_the_result.check_budget(subject(weak=weak, strong=strong, p=p)))
    assert found.verdict is verdict
    assert found.number == (None if number is None else pytest.approx(number, rel=0.02))


@pytest.mark.parametrize(
    ("own", "verdict", "number"),
    [
        ([1.02] * 8, PASS, 1.02),
        ([1.0] * 7 + [1.3], CAUTION, 1.0375),
        ([1.15] * 8, CAUTION, 1.15),
        ([2.0] * 8, FAIL, 2.0),
        ([None] + [1.0] * 7, CAUTION, 1.0),
        ([None] * 8, FAIL, None),
        ([0.9] * 8, PASS, 1.0),
    ],
)
def test_the_strongest_attack_against_that_of_the_run(own, verdict, number):
    found = only(on_the_result.check_strongest(subject(own, attack="deepfool")))
    assert found.verdict is verdict
    assert found.number == pytest.approx(number)
    if verdict is not PASS and number:
        assert "--attack smallest" in found.sentence


def test_nobody_found_anything():
    lost = [None] * 8
    found = only(on_the_result.check_strongest(subject(lost, weak=lost, strong=lost)))
    assert (found.verdict, found.number) == (CAUTION, None)


def test_other_norms_are_not_checked():
    for check in (on_the_result.check_budget, on_the_result.check_strongest):
        found = only(check(subject(p=1.5)))
        assert found.verdict is CAUTION
        assert found.sentence == "Not checked: this is known of l1, l2 and linf only, and this run measures l1.5."


def test_what_rows_were_found_by():
    def check(*kinds):
        records = [row for kind in kinds for row in rows(1.0, **({"evidence": kind} if kind else {}))]
        return only(on_the_result.check_evidence(subject(records=records)))

    assert check("gradients", "gradients").verdict is PASS
    found = check("gradients", "repaired", "decisions", "decisions")
    assert (found.verdict, found.number) == (CAUTION, 0.75)
    assert "(1 by repaired gradients, 2 by decisions alone)" in found.sentence
    assert check(None, None).number is None, "of an older version"


@pytest.mark.parametrize(
    ("attack", "open_", "verdict", "number"),
    [
        ("smallest", 0, PASS, 0.0), ("smallest", 2, PASS, 0.25), ("smallest", 3, CAUTION, 0.375),
        ("deepfool", 8, PASS, None), ("my:attack", 8, PASS, None), ("my:attack", 7, CAUTION, 0.875),
    ],
)  # fmt: skip
def test_rows_that_had_not_converged(attack, open_, verdict, number):
    records = [row for i in range(8) for row in rows(1.0, evidence="gradients", converged=i >= open_)]
    found = only(on_the_result.check_convergence(subject(records=records, attack=attack, strong=(0.95,) * 8)))
    assert (found.verdict, found.number) == (verdict, number)


@pytest.mark.parametrize(
    ("strong", "p", "verdict"),
    [
        ((0.97,) * 8, 2.0, PASS), ((0.95,) * 8, 2.0, CAUTION), ((0.95,) * 8, 1.0, PASS), ((1.1,) * 8, 2.0, PASS),
        ((*[0.99] * 7, None), 2.0, CAUTION), ((0.97,) * 8, 3.0, CAUTION),
    ],
)  # fmt: skip
def test_rows_that_fall_by_little_need_no_caution(strong, p, verdict):
    records = [row for _ in range(8) for row in rows(1.0, evidence="gradients", converged=False)]
    found = only(on_the_result.check_convergence(subject(records=records, attack="smallest", strong=strong, p=p)))
    assert (found.verdict, found.number) == (verdict, 1.0)
    assert "8 of 8 perturbations were still getting smaller" in found.sentence
    assert ("raise the budget" in found.sentence) == (verdict is CAUTION)


def test_bounds():
    x = torch.full((2, 1, 4, 4), 0.5)
    r = torch.full_like(x, 0.75)

    def check(bounds, x=x):
        return only(on_the_result.check_bounds(subject(x=x, r=r, strong=(3.0, 3.0), knobs={"bounds": bounds})))

    assert check((0, 1)).verdict is PASS
    assert (check((0, 0.25)).verdict, check((0, 0.25)).number) == (FAIL, 0.25)
    free = check(None)
    assert (free.verdict, free.number) == (PASS, 0.25), "without bounds distances are smaller, never too large"
    assert "leave [0, 1]" in free.sentence
    assert check(None, x=torch.zeros(2, 4)).number is None, "these are not images"


class Brighter(nn.Module):
    """Class 1 where the image is brighter than a level on average."""

    def __init__(self, level):
        super().__init__()
        self.level = level

    def forward(self, x):
        mean = x.flatten(1).mean(1)
        return torch.stack([torch.zeros_like(mean), mean - self.level], 1)


@pytest.mark.parametrize(("levels", "verdict", "share"), [(2.9, PASS, 1.0), (2.2, PASS, 0.0), (0.4, CAUTION, 0.0)])
def test_rounding_to_8_bits(levels, verdict, share):
    """A perturbation of 2.9 grey levels survives, one of 2.2 only when it is stretched, one of 0.4 changes no image."""
    x = torch.full((2, 1, 4, 4), 100 / 255)
    r = torch.full_like(x, levels / 255)
    model = Brighter((100 + levels - 0.05) / 255)
    found = only(on_the_result.check_8_bits(subject(model=model, x=x, r=r, strong=(1.0, 1.0))))
    assert (found.verdict, found.number) == (verdict, share), found.sentence


def test_only_images_are_rounded():
    assert on_the_result.check_8_bits(subject(x=torch.rand(2, 4), r=torch.rand(2, 4), strong=(1.0, 1.0))) == []


def test_the_verdict_is_the_worst():
    checks = [Check("a", PASS, "x.", 1.0), Check("b", CAUTION, "y.", None), Check("c", CAUTION, "z.", 0.0)]
    assert Audit(tuple(checks), (1,)).headline == "3 checks on 1 sample: 2 cautions."
    worst = Audit((*checks, Check("d", FAIL, "w.", 0.0)), (1, 2))
    assert worst.verdict is FAIL
    assert worst.headline == "4 checks on 2 samples: 1 failure and 2 cautions."
    assert Audit.of_dict(json.loads(json.dumps(worst.as_dict()))) == worst


def test_a_run_is_audited_at_its_end(audited):
    kept = json.loads((audited.folder / AUDIT).read_text())
    assert kept["rows"] == 220
    assert len(kept["samples"]) == 4, "one of fifty"
    found = read_audit(audited)
    assert found.verdict.value == kept["verdict"] == summarize(audited)["audit"]["verdict"]
    assert found["found by"].sentence == "All 220 perturbations were found by gradients."
    sizes = {row["index"]: row["r_p"] for row in audited.rows()}
    assert min(sizes, key=sizes.get) in found.samples
    assert max(sizes, key=sizes.get) in found.samples


def test_runs_that_are_not_audited(data, tmp_path):
    small = evaluate(nets.small(), nets.points(30), out=tmp_path / "small")
    off = evaluate(nets.small(), data, out=tmp_path / "off", audit=False)
    for run in (small, off):
        assert read_audit(run) is None
        assert summarize(run)["audit"] is None


def test_rerunning_adds_an_audit_and_keeps_one(data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    evaluate(nets.small(), data, out=out, audit=False)
    run = evaluate(nets.small(), data, out=out)
    assert read_audit(run) is not None
    monkeypatch.setattr(auditing, "make_subject", None)  # no second audit: this would raise
    before = (out / AUDIT).read_bytes()
    evaluate(nets.small(), data, out=out)
    assert (out / AUDIT).read_bytes() == before


def test_several_processes(data, tmp_path):
    run = evaluate("py:tests.nets:small", data, out=tmp_path / "run", workers=2, batch_size=55)
    assert read_audit(run)["strongest attack"].number >= 1


def test_an_audit_that_fails_is_a_warning(data, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RunError("no luck.")

    monkeypatch.setattr(auditing, "make_subject", fail)
    with pytest.warns(auditing.AuditWarning, match="there is no audit: no luck"):
        run = evaluate(nets.small(), data, out=tmp_path / "run")
    assert run.complete


def test_an_audit_can_be_stopped(data, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(auditing, "make_subject", stop)
        with pytest.raises(Interrupted, match="220 of 220"):
            evaluate(nets.small(), data, out=tmp_path / "run")
    assert read_audit(Run(tmp_path / "run")) is None
    assert read_audit(evaluate(nets.small(), data, out=tmp_path / "run")) is not None


def test_a_run_is_audited_again(data, tmp_path):
    run = evaluate(nets.small(), data, out=tmp_path / "run", limit=40)
    with pytest.raises(RunError, match="data in memory"):
        audit(run)
    found = audit(run, data, model=nets.small(), samples=3)
    assert read_audit(run) == found
    assert len(found.samples) == 3
    with pytest.raises(RunError, match="the model is not the one of the run"):
        audit(run, data, model=nn.Linear(6, 4))


def test_knobs_that_the_manifest_does_not_keep(data, tmp_path):
    mask = torch.tensor([1, 1, 1, 1, 1, 0], dtype=torch.bool)
    run = evaluate(nets.small(), data, out=tmp_path / "run", mask=mask)
    assert read_audit(run)["strongest attack"].number >= 1, "at the end of the run the mask is there"
    with pytest.raises(RunError, match="a tensor for mask"):
        audit(run, data, model=nets.small())


def test_code_is_not_run_without_permission(data, tmp_path):
    run = evaluate("py:tests.nets:small", data, out=tmp_path / "run", limit=20)
    with pytest.raises(RunError, match="not run without permission"):
        audit(run, data)
    assert audit(run, data, may_run_code=True, samples=2).checks


def test_audits_of_other_rows_or_damaged_ones_are_not_read(audited, tmp_path):
    kept = json.loads((audited.folder / AUDIT).read_text())
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("manifest.json", "records.jsonl"):
        (folder / name).write_bytes((audited.folder / name).read_bytes())

    def read(content):
        (folder / AUDIT).write_text(content if isinstance(content, str) else json.dumps(content))
        return read_audit(Run(folder))

    assert read(kept) is not None
    for wrong in (
        kept | {"rows": 219}, kept | {"model": "other"}, kept | {"checks": 3}, kept | {"checks": [3]},
        kept | {"samples": ["a"]}, kept | {"checks": [{**kept["checks"][0], "verdict": "fine"}]},
        kept | {"checks": [{**kept["checks"][0], "number": "1"}]}, [], "{", "[" * 100_000, "null",
    ):  # fmt: skip
        assert read(wrong) is None


def test_bad_calls(data):
    with pytest.raises(InputError, match="a run, or a model and data"):
        audit(nets.small())
    with pytest.raises(InputError, match="samples must be"):
        audit(nets.small(), data, samples=0)
    with pytest.raises(InputError, match="no knob called"):
        audit(nets.small(), data, max_itre=3)


def test_the_model_is_left_alone(data):
    model = nets.small().train()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    audit(model, data, samples=2)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in model.parameters())
