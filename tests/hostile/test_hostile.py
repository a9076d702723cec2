"""A slice of the cases, each a test of its own; `make fuzz` runs more of them."""

import math
import signal
from dataclasses import replace

import pytest
import torch

from deepfool import Status
from tests.hostile.__main__ import main
from tests.hostile.cases import NORMS, Case
from tests.hostile.invariants import CHECKS, Snapshot, Trial, most_passes
from tests.hostile.models import KINDS
from tests.hostile.trial import OutOfTime, run_case, time_limit

SLICE = 2 * len(KINDS)
"""Every kind twice."""


def name(number):
    case = Case.draw(number)
    return f"{number}-{case.kind.name}-{case.attack}-{str(case.dtype).removeprefix('torch.')}"


@pytest.mark.parametrize("number", range(SLICE), ids=name)
def test_case(number):
    outcome = run_case(number)
    assert not outcome.violations, str(outcome)


# --- the harness itself: each planted fault is found, and by the invariant that is meant for it ---


PLAIN = Case(
    number=1, kind=KINDS["mlp_tanh"], attack="deepfool", dtype=torch.float32, n=5, p=2.0, bounds="none", mask="none",
    target=False, labels=False, training=False, strided=False,
)  # fmt: skip


def trial(**settings):
    """A plain case with these settings, run; it has fooled rows."""
    setup = replace(PLAIN, **settings).prepare()
    before = Snapshot(setup)
    found = Trial(setup, setup.run(), before)
    assert found.result.fooled.any()
    return found


def faults(name, found):
    return list(CHECKS[name](found))


def first_fooled(found):
    return int(found.result.fooled.nonzero()[0])


def test_a_row_that_is_not_fooled_is_found():
    found = trial(attack="ddn")
    assert not faults("fooled", found)
    found.result.x[first_fooled(found)] = found.setup.x[first_fooled(found)]
    texts = faults("fooled", found)
    assert any("alone" in text for text in texts)
    assert any("batch of 7" in text for text in texts)
    assert any("float64" in text for text in texts)


def test_a_target_that_is_not_reached_is_found():
    found = trial(dtype=torch.float64, target=True)
    assert not faults("fooled", found)
    found.setup.target = (found.setup.target + 1) % found.setup.classes
    assert faults("fooled", found)


def test_one_unit_out_of_the_box_is_found():
    found = trial(attack="fmn", bounds="per sample")
    assert not faults("box", found)
    inside = found.setup.upper.isfinite()
    found.result.x[inside] = torch.nextafter(found.setup.upper, torch.tensor(math.inf))[inside]
    assert faults("box", found)


def test_a_masked_feature_that_moves_is_found():
    found = trial(mask="per sample")
    assert not faults("mask", found)
    found.setup.mask[:] = False
    assert faults("mask", found)


def test_numbers_that_do_not_agree_are_found():
    found = trial(bounds="numbers")
    assert not faults("numbers", found)
    i = first_fooled(found)
    r, norm, status = (getattr(found.result, key).clone() for key in ("r", "norm", "status"))
    r[i].view(-1)[0] += 1e-7
    assert "x_adv - x" in faults("numbers", replace(found, result=replace(found.result, r=r)))[0]
    norm[i] *= 1 + 3e-6
    assert "has norm" in faults("numbers", replace(found, result=replace(found.result, norm=norm)))[0]
    status[i] = Status.STUCK
    assert "not inf" in faults("numbers", replace(found, result=replace(found.result, status=status)))[0]


@pytest.mark.parametrize(
    "touch",
    [
        lambda setup: setup.model[0].weight.data.add_(1),
        lambda setup: setup.model.train(not setup.model.training),
        lambda setup: setup.model[0].weight.requires_grad_(False),
        lambda setup: setattr(setup.model[0].weight, "grad", None),
        lambda setup: setup.model[0].register_forward_hook(lambda *_: None),
        lambda setup: setup.x.mul_(2),
        lambda _: torch.rand(()),
    ],
    ids=["weights", "training", "requires_grad", "grad", "hooks", "x", "random stream"],
)
def test_a_touched_model_is_found(touch):
    found = trial()
    assert not faults("untouched", found)
    touch(found.setup)
    assert faults("untouched", found)


def test_what_depends_on_the_neighbours_or_on_the_classes_left_out_is_found():
    found = trial()
    assert not faults("neighbours", found)
    assert not faults("pruning", found)
    found = replace(found, result=replace(found.result, norm=1.01 * found.result.norm))
    assert faults("neighbours", found)
    assert faults("pruning", found)


def test_too_many_passes_and_missing_reasons_are_found():
    found = trial(attack="fab", knobs={"steps": 10})
    assert not faults("passes", found)
    most = most_passes("fab", found.setup.case.knobs, found.setup.classes)
    found = replace(found, result=replace(found.result, forwards=found.result.forwards + most))
    assert faults("passes", found)
    status = torch.full_like(found.result.status, Status.EXHAUSTED)
    found = replace(found, result=replace(found.result, status=status, reason=("",) * len(status)))
    assert faults("reasons", found)


def loop():
    while True:
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no alarms")
def test_an_endless_loop_ends():
    with pytest.raises(OutOfTime), time_limit(1):
        loop()


def test_every_attack_has_a_bound_and_a_case_is_always_the_same():
    for attack in NORMS:
        numbers = (number for number in range(1000) if Case.draw(number).attack == attack)
        case = Case.draw(next(numbers))
        assert most_passes(attack, case.knobs, 10) > 1
        assert case == Case.draw(case.number)
        assert torch.equal(case.prepare().x, case.prepare().x)


def test_the_command_tells_what_it_did(capsys):
    assert main(["--runs", "2"]) == 0
    told = capsys.readouterr().out
    assert "violations" in told
    assert "runs                2" in told
