"""`deepfool train`, as a process of its own: killed, resumed, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from deepfool.models.cards import read_card, read_weights
from deepfool.models.zoo import ZOO
from tests.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Made-up data in MNIST's shape, enough of it that an epoch takes a moment."""
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("data") / "digits.npz"
    labels = rng.integers(0, 10, 6_000)
    images = rng.integers(0, 120, (6_000, 28, 28), dtype=np.uint8)
    images[np.arange(6_000), labels * 2, :] += 100  # a bright row tells the class
    np.savez(file, x=images, y=labels)
    return file


def start(folder, digits, *options):
    command = [sys.executable, "-m", "deepfool", "train", "fc500-mnist", "--data", f"npz:{digits}", "--threads", "1"]
    environment = os.environ | {"DEEPFOOL_HOME": str(folder / "home")}
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=listen_to_control_c,
    )  # fmt: skip


def listen_to_control_c():
    """Tests that are run in the background of a shell have it ignored, and hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out, err


def kill_inside(folder, digits, options, checkpoints, out):
    """Kill a run after its first checkpoint; returns how many of its epochs were done."""
    while True:
        process = start(folder, digits, *options)
        wait_until(lambda: list(checkpoints.glob("*.pt")), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        (state,) = checkpoints.glob("*.pt")
        done = torch.load(state, weights_only=True)["epoch"]
        if done < 4:
            assert not out.exists()
            return done
        # On a busy machine a run may end before its killer wakes up: that was no kill, so try again.
        for file in (state, out, out.with_suffix(".json")):
            file.unlink(missing_ok=True)


def test_a_run_that_is_killed_ends_with_the_same_weights_as_one_that_is_not(tmp_path, digits):
    options = ("--epochs", "4", "--seed", "7")
    out, err = finish(start(tmp_path, digits, *options, "--out", str(tmp_path / "unbroken.safetensors")))
    assert "fc500-mnist: epoch 4/4, loss" in err, "plain lines where there is no terminal"
    assert "test error" in out
    assert out.splitlines()[-1] == str(tmp_path / "unbroken.safetensors")

    checkpoints = tmp_path / "states"
    broken = (*options, "--out", str(tmp_path / "resumed.safetensors"), "--checkpoint", str(checkpoints))
    done = kill_inside(tmp_path, digits, broken, checkpoints, tmp_path / "resumed.safetensors")
    assert 1 <= done < 4

    _, err = finish(start(tmp_path, digits, *broken))
    assert "resuming from the checkpoint" in err
    assert f"epoch {done + 1}/4" in err
    assert f"epoch {done}/4" not in err
    names = ("unbroken.safetensors", "resumed.safetensors")
    first, second = ((tmp_path / name).read_bytes() for name in names)
    assert first == second
    cards = [json.loads((tmp_path / name).with_suffix(".json").read_text()) for name in names]
    assert cards[0] == cards[1]
    assert not list(tmp_path.glob("*.partial")), "nothing half-written is left"


def test_the_card_tells_how_the_weights_were_made(tmp_path, digits):
    out, _ = finish(start(tmp_path, digits, "--epochs", "2", "--seed", "3"))
    file = tmp_path / "home" / "models" / "fc500-mnist.safetensors"
    assert out.splitlines()[-1] == str(file)
    card = read_card(file)
    assert (card.seed, card.epochs, card.recipe["epochs"], card.parameters) == (3, 2, 2, 469_160)
    assert card.command == f"deepfool train fc500-mnist --epochs 2 --seed 3 --data npz:{digits}"
    network = read_weights(ZOO["fc500-mnist"].build(), file, sha256=card.sha256)
    with np.load(digits) as arrays, torch.no_grad():
        labels = network(torch.from_numpy(arrays["x"][:, None]).float() / 255).argmax(1).numpy()
        assert card.test_error == pytest.approx((labels != arrays["y"]).mean(), abs=2e-4)
    assert card.test_error < 0.5, "it learned something"

    # Again: the finished checkpoint is taken up; with --fresh the run starts anew and ends in the same place.
    before = file.read_bytes()
    _, err = finish(start(tmp_path, digits, "--epochs", "2", "--seed", "3"))
    assert "epoch 1/2" not in err
    _, err = finish(start(tmp_path, digits, "--epochs", "2", "--seed", "3", "--fresh"))
    assert "epoch 1/2" in err
    assert file.read_bytes() == before


def test_control_c_says_that_nothing_is_lost(tmp_path, digits):
    process = start(tmp_path, digits, "--epochs", "2000")  # more than it gets to before the signal comes
    wait_until(lambda: list((tmp_path / "home" / "checkpoints").glob("*.pt")), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["googlenet"], "one of fc500-mnist"),
        (["lenet-minst"], "one of fc500-mnist"),
        (["fc500-mnist", "--out", "weights.pt"], ".safetensors"),
    ],
)
def test_what_cannot_be_trained_ends_in_one_line(tmp_path, arguments, message):
    done = subprocess.run(
        [sys.executable, "-m", "deepfool", "train", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | {"DEEPFOOL_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
