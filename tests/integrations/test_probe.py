"""A network in training, measured on a fixed subset."""

import numpy as np
import pytest
import torch
from torch import nn

from deepfool import Run
from deepfool.errors import InputError, ModelError
from deepfool.integrations import Probe, ProbeWarning
from tests import nets


def test_the_subset_is_drawn_once_and_is_the_same_each_time():
    probes = [Probe(nets.points(50), samples=10, seed=seed) for seed in (0, 0, 1)]
    assert probes[0].indices == probes[1].indices != probes[2].indices
    assert len(set(probes[0].indices)) == 10
    assert Probe(nets.points(5), samples=10).indices == [0, 1, 2, 3, 4]
    assert Probe(nets.points(50), indices="3,7-9").indices == [3, 7, 8, 9]


def test_a_measurement_is_that_of_a_run(tmp_path):
    probe = Probe(nets.points(50), samples=10, out=tmp_path)
    found = probe.measure(nets.small(), epoch=4)
    run = Run(tmp_path / "epoch-0004")
    assert found.folder == run.folder
    assert run.records().index.tolist() == probe.indices
    assert found.rho.value == pytest.approx(run.summary()["rho_adv"]["value"])
    assert probe.history == [found]


def test_a_training_that_starts_again_finds_other_folders(tmp_path):
    for expected in ("epoch-0001", "epoch-0001-2", "epoch-0001-3"):
        found = Probe(nets.points(20), samples=5, out=tmp_path).measure(nets.small(), epoch=1)
        assert found.folder == tmp_path / expected


def test_searches_without_an_answer_leave_rho_unknown():
    found = Probe(nets.points(30), samples=30).measure(nets.Flat(), epoch=1)
    assert found.unanswered > 0
    assert not found.rho.exact
    assert "rho_at_most" not in found.figures


def test_neither_the_network_nor_the_random_numbers_change():
    net = nets.small().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(3)
    Probe(nets.points(20), "smallest", samples=5, budget=30).measure(net, epoch=1)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(weight.grad is None for weight in net.parameters())


def test_it_measures_where_gradients_are_off():
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert Probe(nets.points(20), samples=5).measure(nets.small(), epoch=1).unanswered == 0


def test_a_failed_measurement_does_not_end_the_training(tmp_path):
    probe = Probe(nets.points(20), samples=5)
    with pytest.warns(ProbeWarning, match="no robustness after epoch 2"):
        assert probe.measure(nn.Linear(5, 4), epoch=2) is None
    assert probe.history == []


def test_a_network_that_cannot_be_measured_is_found_out_at_the_start():
    probe = Probe(nets.points(20), samples=5)
    probe.try_out(nets.small())
    with pytest.raises(ModelError):
        probe.try_out(nn.Linear(5, 4))
    with pytest.raises(InputError, match="torch module"):
        Probe(nets.points(20), classifier=lambda net: "net").try_out(nets.small())


def test_the_classifier_may_be_a_part_of_what_is_trained():
    whole = nn.ModuleDict({"net": nets.small(), "other": nn.Linear(1, 1)})
    probe = Probe(nets.points(20), samples=5, classifier=lambda module: module["net"])
    alone = Probe(nets.points(20), samples=5)
    assert probe.measure(whole, 1).rho.value == pytest.approx(alone.measure(nets.small(), 1).rho.value)


@pytest.mark.parametrize(
    "wrong", [{"every": 0}, {"samples": 0}, {"indices": [99]}, {"classifier": 3}, {"seed": -1}, {"out": 3}]
)
def test_bad_arguments_are_refused_at_once(wrong):
    with pytest.raises(InputError):
        Probe(nets.points(20), **wrong)


def test_the_dtype_is_that_of_the_network():
    x, y = nets.points(20)
    found = Probe((x.double().numpy(), np.asarray(y)), samples=5).measure(nets.small().double(), epoch=1)
    assert found.unanswered == 0
