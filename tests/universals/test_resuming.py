"""A search that was killed ends at the same v; a folder holds one search."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deepfool import Universal, universal
from deepfool.errors import RunError
from tests import nets

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("method", ["gradient", "deepfool"])
def test_a_killed_search_ends_at_the_same_v(tmp_path, method):
    done = subprocess.run(
        [sys.executable, "-m", "tests.universals.stopping", str(tmp_path), method], cwd=ROOT, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert all(each["killed"] for each in kills)
    assert kills[0]["batches"] < kills[1]["batches"] < kills[2]["batches"] < 80  # it went on, and was not done
    whole, stopped = Universal.read(tmp_path / "whole"), Universal.read(tmp_path / "stopped")
    np.testing.assert_array_equal(whole.v.numpy(), stopped.v.numpy())
    assert whole.rates == stopped.rates
    assert whole.counts == stopped.counts
    assert len(whole.rates) == 8


def test_a_finished_search_is_not_done_again(tmp_path):
    how = {"p": 2, "xi": 0.4, "epochs": 3, "out": tmp_path / "v"}
    first = universal(nets.small(), nets.points(60), **how)
    seen = []
    again = universal(nets.small(), nets.points(60), **how, on_progress=lambda each: seen.append(each.stage))
    np.testing.assert_array_equal(first.v.numpy(), again.v.numpy())
    assert set(seen) == {"judging on images not used"}
    more = universal(nets.small(), nets.points(60), **how, curve=(0.2,), counts=(10,))
    np.testing.assert_array_equal(first.v.numpy(), more.v.numpy())
    assert [each.xi for each in more.curve] == [0.2, 0.4]
    assert [each.images for each in more.counts] == [10]


def test_a_folder_holds_one_search(tmp_path):
    universal(nets.small(), nets.points(60), xi=0.1, epochs=1, out=tmp_path / "v")
    with pytest.raises(RunError, match=r"xi: 0\.1 in the folder, 0\.2 now"):
        universal(nets.small(), nets.points(60), xi=0.2, epochs=1, out=tmp_path / "v")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        universal(nets.small(), nets.points(60), xi=0.1, epochs=1, out=tmp_path / "other")
    assert [each.name for each in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_what_is_stored_is_what_was_found(tmp_path):
    found = universal(
        nets.small(), nets.points(60), p=2, xi="20%", epochs=2, curve=("10%",), counts=(10,),
        transfer={"other": nets.kinked()}, out=tmp_path / "v",
    )  # fmt: skip
    read = Universal.read(tmp_path / "v")
    assert json.dumps(read.figures()) == json.dumps(found.figures())
    np.testing.assert_array_equal(read.v.numpy(), found.v.numpy())
    (tmp_path / "v" / "universal.json").write_text("{}")
    with pytest.raises(RunError, match="holds no universal perturbation"):
        Universal.read(tmp_path / "v")
