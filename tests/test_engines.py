"""Processes and Ray: the same rows as in one process, with workers that die on the way."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from deepfool import evaluate
from deepfool.errors import InputError, MissingExtraError, ModelError, RunError
from deepfool.runs import engines
from deepfool.runs.engines import ATTEMPTS, Batch
from deepfool.runs.records import Group
from tests import nets
from tests.waiting import PATIENCE

HERE = Path(__file__).parent
SPEC = "py:tests.nets:small"


def in_process(tmp_path, count=80):
    return list(evaluate(SPEC, nets.points(count), out=tmp_path / "one", batch_size=8).rows())


def same_rows(rows, expected):
    rows = sorted(rows, key=lambda row: row["index"])
    assert [row["index"] for row in rows] == [row["index"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        for name in ("label", "adv_label", "status", "iterations"):
            assert row[name] == other[name]
        for name in ("r_l1", "r_l2", "r_linf", "r_p"):
            assert row[name] == pytest.approx(other[name], rel=1e-5)


def test_processes_give_the_same_rows_though_one_is_killed(tmp_path):
    killed = []

    def kill(progress):
        if not killed:
            victim = multiprocessing.active_children()[0]
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    run = evaluate(SPEC, nets.points(80), out=tmp_path / "two", batch_size=8, workers=2, on_progress=kill)
    assert killed
    same_rows(run.rows(), in_process(tmp_path))
    assert multiprocessing.active_children() == []


def test_a_model_that_cannot_be_sent(tmp_path):
    model = nets.small()
    model.register_forward_hook(lambda module, inputs, output: output)
    with pytest.raises(InputError, match=r"cannot be sent to other processes.*py:package\.module:factory"):
        evaluate(model, nets.points(8), out=tmp_path / "run", workers=2)


def test_an_error_in_a_worker_is_the_error_of_the_run(tmp_path):
    with pytest.raises(ModelError, match="the model raised RuntimeError on a batch of shape"):
        evaluate(SPEC, (np.zeros((4, 9), np.float32), None), out=tmp_path / "run", workers=2)


def test_ray_gives_the_same_rows_though_a_worker_is_killed(tmp_path):
    """In a process of its own: Ray leaves threads and warnings behind."""
    pytest.importorskip("ray")
    (tmp_path / "notes").mkdir()
    done = subprocess.run(
        [sys.executable, HERE / "raying.py", tmp_path / "ray"], capture_output=True, text=True, timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
             "NOTES": str(tmp_path / "notes"), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    notes = [note.split() for note in told["notes"]]
    assert len({pid for pid, _ in notes}) >= 2
    tried = [first for _, first in notes]
    again = [first for pid, first in notes if int(pid) == told["killed"] and tried.count(first) > 1]
    assert len(again) == 1, "the batch that the dead worker had in hand was run by another"
    rows = [json.loads(line) for line in (tmp_path / "ray" / "records.jsonl").read_text().splitlines()]
    same_rows(rows, in_process(tmp_path))


def test_ray_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"--engine ray needs the package ray.*deepfool\[ray\]"):
        evaluate(SPEC, nets.points(4), out=tmp_path / "run", engine="ray")


class Script:
    """A crew that dies as it is told, for the scheduler alone. Workers are numbers, batches answer at once."""

    def __init__(self, die):
        self.die = die
        self.reports = deque()
        self.hired = 0
        self.given = []
        self.dismissed = False

    def hire(self):
        self.reports.append((self.hired, engines._Lost("at birth") if self.die == "at birth" else engines._Ready()))
        self.hired += 1

    def give(self, worker, batch):
        self.given.append((worker, batch.index[0]))
        dead = self.die != "at birth" and self.die(worker, batch)
        answer = [Group([{"index": i} for i in batch.index])]
        self.reports.append((worker, engines._Lost("killed") if dead else answer))

    def wait(self):
        return self.reports.popleft()

    def dismiss(self):
        self.dismissed = True


def batches(count):
    return (Batch([i], np.zeros((1, 2), np.float32), [-1]) for i in range(count))


def work(crew, count, workers=3):
    return sorted(group.rows[0]["index"] for group in engines._work_through(crew, workers, batches(count)))


def test_every_batch_once_whoever_dies():
    crew = Script(lambda worker, batch: worker in (0, 2))
    assert work(crew, 20) == list(range(20))
    assert crew.dismissed
    retried = [index for _, index in crew.given if [i for _, i in crew.given].count(index) > 1]
    assert len(set(retried)) == 2
    assert work(Script(lambda worker, batch: False), 0) == []


def test_the_last_batches_are_retried_too():
    crew = Script(lambda worker, batch: batch.index[0] == 5 and worker == 0)
    assert work(crew, 6, workers=1) == list(range(6))
    assert crew.hired == 2


def test_a_batch_that_ends_every_worker_ends_the_run():
    crew = Script(lambda worker, batch: batch.index[0] == 4)
    with pytest.raises(RunError, match="the batch of 1 that begins with sample 4 ended its worker 3 times: killed"):
        work(crew, 20)
    assert [index for _, index in crew.given].count(4) == ATTEMPTS
    assert crew.dismissed


def test_workers_that_never_come_up_end_the_run():
    crew = Script("at birth")
    with pytest.raises(RunError, match="die before they have begun: at birth"):
        work(crew, 4)
    assert crew.hired < 20


def test_batches_are_read_only_when_there_is_room_for_them():
    taken = []

    def watched():
        for batch in batches(50):
            taken.append(batch.index[0])
            yield batch

    work_through = engines._work_through(Script(lambda worker, batch: False), 3, watched())
    next(work_through)
    assert len(taken) <= 4
    work_through.close()
