"""The callbacks, in real trainings by the real libraries: a few epochs of a small network."""

import importlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from deepfool.errors import ModelError
from tests import nets

EPOCHS = 4


@pytest.fixture
def lightning():
    """Lightning, by the name that is installed, and our module for it, which is imported first: see `frameworks.py`."""
    ours = pytest.importorskip("deepfool.integrations.lightning", exc_type=ImportError)
    name = ours.RobustnessCallback.__mro__[1].__module__.partition(".callbacks")[0]
    return importlib.import_module(name), ours


def fit(library, callbacks, folder, **how):
    """A training with Lightning; returns the weights in the end and the trainer."""
    torch.manual_seed(0)

    class Net(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nets.small(), nn.Dropout(0.2))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = DataLoader(TensorDataset(*nets.points(40)), batch_size=10, shuffle=True)
    trainer = library.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks, default_root_dir=str(folder), **how,
    )  # fmt: skip
    net = Net()
    trainer.fit(net, loader)
    return torch.cat([weight.detach().flatten() for weight in net.parameters()]), trainer


@pytest.mark.filterwarnings("default")  # what Lightning warns of is not ours to mend
def test_lightning(lightning, tmp_path):
    library, ours = lightning
    callback = ours.RobustnessCallback(nets.points(60), samples=20, every=2, out=tmp_path / "runs")
    keeper = library.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "best",
        monitor="robustness/rho_at_most",
        mode="max",
        every_n_epochs=2,
        save_on_train_epoch_end=True,
    )
    with_it, trainer = fit(library, [callback, keeper], tmp_path, enable_checkpointing=True)
    assert [found.epoch for found in callback.history] == [2, 4]
    assert len({found.rho.value for found in callback.history}) == 2  # the weights moved, and so did rho
    assert sorted(each.name for each in (tmp_path / "runs").iterdir()) == ["epoch-0002", "epoch-0004"]
    last = callback.history[-1]
    assert trainer.callback_metrics["robustness/rho_at_most"].item() == pytest.approx(last.rho.value)
    assert trainer.callback_metrics["robustness/unanswered"].item() == 0
    best = max(found.rho.value for found in callback.history)
    assert keeper.best_model_score.item() == pytest.approx(best)
    without, _ = fit(library, [], tmp_path, enable_checkpointing=False)
    torch.testing.assert_close(with_it, without)  # a random number drawn by the probe would have moved all weights


@pytest.mark.filterwarnings("default")
def test_lightning_finds_out_at_the_start_what_cannot_be_measured(lightning, tmp_path):
    wrong = torch.rand(20, 5), torch.zeros(20, dtype=torch.long)  # the network takes 6 features
    library, ours = lightning
    with pytest.raises(ModelError):
        fit(library, [ours.RobustnessCallback(wrong)], tmp_path, enable_checkpointing=False)


@pytest.fixture
def transformers(monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    ours = pytest.importorskip("deepfool.integrations.transformers", exc_type=ImportError)
    return importlib.import_module("transformers"), ours


def tune(library, folder, add):
    """A training with the Trainer; returns the weights in the end and the trainer."""
    torch.manual_seed(0)

    class Net(nn.Module):
        """As the models of transformers are: inputs and labels by name, a loss and logits in a dictionary."""

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nets.small(), nn.Dropout(0.2))

        def forward(self, pixel_values, labels=None):
            logits = self.net(pixel_values)
            loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
            return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}

    x, y = nets.points(40)
    rows = [{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)]
    settings = library.TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=10, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no", learning_rate=0.05, seed=0,
    )  # fmt: skip
    trainer = library.Trainer(Net(), settings, train_dataset=rows)
    trainer.remove_callback(library.PrinterCallback)
    add(trainer)
    trainer.train()
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]), trainer


@pytest.mark.filterwarnings("default")
def test_transformers(transformers, tmp_path):
    library, ours = transformers
    logged = []

    class Tracker(library.TrainerCallback):
        """What the trackers of the Trainer are: callbacks that are told what is logged."""

        def on_log(self, args, state, control, logs=None, **others):
            logged.append(dict(logs))

    def add(trainer):
        trainer.add_callback(Tracker())
        trainer.add_callback(ours.RobustnessCallback(trainer, nets.points(60), samples=20, every=2))

    with_it, trainer = tune(library, tmp_path, add)
    callback = next(each for each in trainer.callback_handler.callbacks if isinstance(each, ours.RobustnessCallback))
    assert [found.epoch for found in callback.history] == [2, 4]
    values = [found.rho.value for found in callback.history]
    assert [each["robustness/rho_at_most"] for each in logged if "robustness/rho_at_most" in each] == values
    assert [each["epoch"] for each in trainer.state.log_history if "robustness/rho_at_most" in each] == [2.0, 4.0]
    without, _ = tune(library, tmp_path, lambda trainer: None)
    torch.testing.assert_close(with_it, without)


@pytest.mark.filterwarnings("default")
def test_transformers_finds_out_at_the_start_what_cannot_be_measured(transformers, tmp_path):
    library, ours = transformers
    wrong = torch.rand(20, 5), torch.zeros(20, dtype=torch.long)
    with pytest.raises(ModelError):
        tune(library, tmp_path, lambda trainer: ours.RobustnessCallback(trainer, wrong))
