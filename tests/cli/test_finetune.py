"""`deepfool finetune`: what it writes, that the weights load again, and that it goes on."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from deepfool.cli.finetune import make_remarks
from deepfool.datasets import load
from deepfool.models.cards import read_card
from deepfool.training.finetuning import Epoch, FineTuned
from tests.cli.test_train import listen_to_control_c
from tests.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Two halves of the digits that ship."""
    sample = load("mnist-sample")
    images, labels = sample.images()[:, 0].numpy(), sample.labels.numpy()
    folder = tmp_path_factory.mktemp("digits")
    np.savez(folder / "train.npz", x=images[:500], y=labels[:500])
    np.savez(folder / "test.npz", x=images[500:], y=labels[500:])
    return folder


def start(folder, *words):
    environment = os.environ | {"DEEPFOOL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "deepfool", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=listen_to_control_c,
    )  # fmt: skip


def run(folder, *words):
    process = start(folder, *words)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def words(digits, out, *more):
    data = ("--data", f"npz:{digits}/train.npz", "--test", f"npz:{digits}/test.npz")
    return ("finetune", "--model", "fc500-mnist", *data, "--judged", "30", "--out", str(out), *more)


def test_the_folder_holds_all_and_the_weights_load_again(tmp_path, digits):
    command = words(digits, tmp_path / "hard", "--epochs", "2", "--judge", "deepfool", "--judge", "fgsm")
    code, out, err = run(tmp_path, *command)
    assert code == 0, err
    files = {"model.safetensors", "model.json", "finetuning.json", "finetuning.svg", "checkpoint.pt"}
    assert {file.name for file in (tmp_path / "hard").iterdir()} == files
    figures = json.loads((tmp_path / "hard" / "finetuning.json").read_text())
    first, _, last = figures["epochs"]
    assert f"{last['rho']['deepfool']:.4f}" in out
    assert f"{100 * (last['rho']['deepfool'] / first['rho']['deepfool'] - 1):+.1f} %" in out
    assert out.splitlines()[-1] == str(tmp_path / "hard" / "model.safetensors")
    assert "epoch 2/2: test error" in err
    assert "--judge smallest tells whether it holds" in err
    card = read_card(tmp_path / "hard" / "model.safetensors")
    assert (card.name, card.epochs, card.test_error) == ("fc500-mnist", 2, last["test_error"])

    measured = ("--model", f"file:{tmp_path}/hard/model.safetensors", "--arch", "fc500-mnist", "--limit", "30")
    code, out, err = run(
        tmp_path, "evaluate", *measured, "--data", f"npz:{digits}/test.npz", "--out", str(tmp_path / "run"),
        "--no-report", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["rho_adv"]["value"] == pytest.approx(last["rho"]["deepfool"], rel=1e-5)

    code, out, err = run(tmp_path, *command, "--json")
    assert code == 0, err
    assert "resuming from the checkpoint" in err
    assert "epoch 2/2" not in err, "nothing was left to do"
    assert json.loads(out)["epochs"] == figures["epochs"]
    code, out, err = run(tmp_path, *command, "--mix", "0.5")
    assert code == 2
    assert "mix: 0.0 in the file, 0.5 now" in err
    assert "Traceback" not in err


def test_control_c_says_that_nothing_is_lost(tmp_path, digits):
    process = start(tmp_path, *words(digits, tmp_path / "hard", "--epochs", "500", "--perturb", "clean"))
    wait_until((tmp_path / "hard" / "checkpoint.pt").exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err
    assert not (tmp_path / "hard" / "model.safetensors").exists()


def test_remarks_tell_a_gain_that_holds_from_one_that_does_not():
    def tuned(deepfool, smallest, left_clean=0):
        before = Epoch(0, 0.1, {"deepfool": 0.1, "smallest": 0.1})
        after = Epoch(1, 0.1, {"deepfool": deepfool, "smallest": smallest})
        return FineTuned(None, (before, after), None, left_clean=left_clean, samples=9)

    assert make_remarks(tuned(0.15, 0.145)) == []
    assert make_remarks(tuned(0.09, 0.08)) == []
    (remark,) = make_remarks(tuned(0.2, 0.1))
    assert "deepfool sees a gain of 100 %, smallest one of 0 %" in remark
    assert make_remarks(tuned(0.15, 0.145, left_clean=3)) == [
        "3 of 9 training samples were not fooled and stayed clean."
    ]
