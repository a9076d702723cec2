"""The adapters, each with the real library: what was logged is read back by the library's own reader."""

import json
import subprocess
import sys
import time

import pytest

from deepfool.errors import InputError, MissingExtraError
from deepfool.integrations import list_figures
from deepfool.integrations import mlflow as to_mlflow
from deepfool.integrations import tensorboard as to_tensorboard
from deepfool.integrations import wandb as to_wandb
from tests.waiting import PATIENCE


@pytest.mark.filterwarnings("default")  # TensorBoard's own libraries are not ours to mend
def test_tensorboard(answered, unanswered, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    to_tensorboard.log_run(answered, tmp_path, step=3)
    to_tensorboard.log_run(unanswered, str(tmp_path), step=4)
    everything = {"scalars": 0, "histograms": 0, "tensors": 0}
    found = EventAccumulator(str(tmp_path), size_guidance=everything).Reload()
    figures = list_figures(answered)
    [point] = found.Scalars("robustness/rho_at_most")  # none of the run whose rho is not known
    assert (point.step, point.value) == (3, pytest.approx(figures["rho_at_most"]))
    assert [each.step for each in found.Scalars("robustness/unanswered")] == [3, 4]
    assert [each.step for each in found.Scalars("robustness/rho_of_answered")] == [4]
    [histogram, _] = found.Histograms("robustness/relative")
    assert histogram.histogram_value.num == len(answered.records())
    words = [each.tensor_proto.string_val[0].decode() for each in found.Tensors("robustness/verdict/text_summary")]
    assert "upper bound" in words[0]
    assert "not known" in words[1]


@pytest.mark.filterwarnings("default")
def test_a_tensorboard_writer_of_the_caller_stays_open(answered, tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        to_tensorboard.log_run(answered, writer, prefix="")
        writer.add_scalar("loss", 0.5, 1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert {"rho_at_most", "loss"} <= set(tags)


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow with a store of files in an empty folder."""
    library = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = library.get_tracking_uri()
    library.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield library
    while library.active_run():
        library.end_run()
    library.set_tracking_uri(before)


@pytest.mark.filterwarnings("default")
def test_mlflow(answered, unanswered, mlflow, tmp_path):
    with mlflow.start_run() as active:
        to_mlflow.log_run(answered, step=1)
        to_mlflow.log_run(unanswered, step=2)  # other settings in the same MLflow run
    client = mlflow.MlflowClient()
    [point] = client.get_metric_history(active.info.run_id, "robustness/rho_at_most")
    assert (point.step, point.value) == (1, pytest.approx(list_figures(answered)["rho_at_most"]))
    assert len(client.get_metric_history(active.info.run_id, "robustness/unanswered")) == 2
    tags = client.get_run(active.info.run_id).data.tags
    assert tags["robustness.attack"] == "deepfool"
    names = {each.path for each in client.list_artifacts(active.info.run_id, "robustness/step-1")}
    assert {name.rpartition("/")[2] for name in names} == {
        "manifest.json", "records.jsonl", "report.html", "summary.json"
    }  # fmt: skip
    [kept] = tmp_path.rglob("step-2/summary.json")
    assert json.loads(kept.read_text())["rho_adv"]["value"] is None


@pytest.mark.filterwarnings("default")
def test_mlflow_without_an_active_run(answered, mlflow):
    to_mlflow.log_run(answered, artifacts=False)
    assert mlflow.active_run() is None
    [found] = mlflow.search_runs(output_format="list")
    assert found.info.run_name == answered.folder.name
    assert found.info.status == "FINISHED"


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    """A W&B run that never leaves this machine."""
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", project="test", dir=str(tmp_path))
    yield run
    run.finish()
    wandb.teardown()


@pytest.mark.filterwarnings("default")
def test_wandb(answered, unanswered, tracked, tmp_path):
    to_wandb.log_run(answered, to=tracked)
    figures = list_figures(answered)
    assert tracked.summary["robustness/rho_at_most"] == pytest.approx(figures["rho_at_most"])
    assert tracked.config["robustness/attack"] == "deepfool"
    assert "upper bound" in tracked.summary["robustness/verdict"]
    to_wandb.log_run(unanswered, artifacts=False)  # to the run that wandb.init began
    assert tracked.summary["robustness/unanswered"] == unanswered.records().censored.sum()
    assert "not known" in tracked.summary["robustness/verdict"]
    tracked.finish()
    [kept] = tmp_path.rglob("*.wandb")
    # Another process writes the file, and on a busy machine it is not done when `finish` returns.
    deadline = time.monotonic() + PATIENCE
    while b"robustness-run" not in kept.read_bytes():
        assert time.monotonic() < deadline, "the run never arrives in wandb's file"
        time.sleep(0.05)


def test_wandb_without_a_run_says_what_to_do(answered):
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match=r"wandb\.init"):
        to_wandb.log_run(answered)


@pytest.mark.parametrize(("adapter", "library"), [(to_mlflow, "mlflow"), (to_wandb, "wandb")])
def test_a_missing_library_is_named(adapter, library, answered, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"deepfool\[{library}\]"):
        adapter.log_run(answered)


def test_modules_are_loaded_when_they_are_used():
    import deepfool

    assert deepfool.integrations.mlflow is to_mlflow
    assert not hasattr(deepfool.integrations, "neptune")


def test_nothing_is_imported_that_was_not_asked_for():
    """`deepfool.integrations` needs no tracker, and imports none."""
    heavy = "{'mlflow', 'wandb', 'tensorboard', 'pytorch_lightning', 'lightning', 'transformers', 'pandas', 'IPython'}"
    code = (
        "import sys, deepfool.integrations.mlflow, deepfool.integrations.wandb, deepfool.integrations.tensorboard, "
        f"deepfool.interactive.evaluation; print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
