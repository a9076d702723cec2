"""Processes and Ray: the same rows as in one process, even if workers crash."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from deepfool import Run, evaluate
from deepfool.errors import InputError, MissingExtraError, ModelError, RunError
from deepfool.runs import ray_cluster
from deepfool.runs.backlog import ATTEMPTS, Backlog
from deepfool.runs.local import work_through
from deepfool.runs.rows import Group
from deepfool.runs.worker import Batch
from tests import nets
from tests.waiting import PATIENCE, wait_until

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


def run_with_ray(script, tmp_path):
    """What a script says at its end. In a process of its own: Ray leaves threads and warnings behind."""
    pytest.importorskip("ray")
    (tmp_path / "notes").mkdir()
    done = subprocess.run(
        [sys.executable, HERE / script, tmp_path / "ray"], capture_output=True, text=True, timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
             "NOTES": str(tmp_path / "notes"), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_ray_gives_the_same_rows_though_a_worker_is_killed(tmp_path):
    told = run_with_ray("raying.py", tmp_path)
    notes = [note.split() for note in told["notes"]]
    assert len({pid for pid, _ in notes}) >= 2
    tried = [first for _, first in notes]
    again = [first for pid, first in notes if int(pid) == told["killed"] and tried.count(first) > 1]
    assert len(again) == 1, "the batch that the dead worker had in hand was run by another"
    rows = [json.loads(line) for line in (tmp_path / "ray" / "records.jsonl").read_text().splitlines()]
    same_rows(rows, in_process(tmp_path))


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_rows_though_a_node_is_lost(tmp_path):
    told = run_with_ray("clustering.py", tmp_path)
    notes = [note.split()[1:] for note in told["notes"]]
    lost = [first for node, first in notes if node == told["doomed"]]
    assert len(lost) == 2, "the node was lost in its second batch"
    elsewhere = [first for node, first in notes if node != told["doomed"]]
    assert len(set(lost) & set(elsewhere)) == 1, "which the other node ran again"
    rows = [json.loads(line) for line in (tmp_path / "ray" / "records.jsonl").read_text().splitlines()]
    same_rows(rows, in_process(tmp_path))


def test_ray_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"--engine ray needs the package ray.*deepfool\[ray\]"):
        evaluate(SPEC, nets.points(4), out=tmp_path / "run", engine="ray")


class FakePool:
    """A pool that crashes as told, for the scheduler alone. As in a real one, a crash breaks all that is running.

    `crashes` says whether a batch crashes it, by its index and by how often it was tried before.
    """

    def __init__(self, crashes, workers=3):
        self.crashes, self.workers = crashes, workers
        self.tried, self.running, self.together = Counter(), {}, []
        self.restarts, self.killed, self.lock = 0, False, threading.Lock()

    def submit(self, batch):
        future, index = Future(), batch.index[0]
        with self.lock:
            self.running[index] = future
            self.together.append(sorted(self.running))
        threading.Timer(0.005, self.finish, (index, future)).start()
        return future

    def finish(self, index, future):
        with self.lock:
            if self.running.get(index) is not future:
                return  # broken by another
            self.tried[index] += 1
            if self.crashes(index, self.tried[index]):
                broken, self.running = self.running, {}
                for each in broken.values():
                    each.set_exception(BrokenProcessPool("crash"))
            else:
                del self.running[index]
                future.set_result([Group([{"index": index}])])

    def restart(self):
        self.restarts += 1
        return True, "exit code -9"

    def kill(self):
        self.killed = True


def batches(count):
    return (Batch([i], np.zeros((1, 2), np.float32), [-1]) for i in range(count))


def work(pool, count):
    return sorted(group.rows[0]["index"] for group in work_through(pool, Backlog(batches(count))))


def test_every_batch_is_run_once_whichever_worker_crashes():
    pool = FakePool(lambda index, times: index in (4, 9, 19) and times == 1)
    assert work(pool, 20) == list(range(20))
    assert pool.killed
    assert 1 <= pool.restarts <= 3
    assert work(FakePool(lambda index, times: False), 0) == []


def test_after_a_crash_the_batches_that_were_running_are_retried_alone():
    pool = FakePool(lambda index, times: index == 5 and times == 1)
    assert work(pool, 20) == list(range(20))
    assert [5] in pool.together, "the batch to blame, alone"
    assert sum(len(running) == 1 for running in pool.together) >= 3, "and those that ran beside it"
    assert max(map(len, pool.together)) == 3, "the rest share the pool"


def test_a_batch_that_crashes_every_worker_ends_the_run():
    pool = FakePool(lambda index, times: index == 4)
    with pytest.raises(RunError, match="starts with sample 4 crashed a worker three times: exit code -9"):
        work(pool, 20)
    assert pool.tried[4] == ATTEMPTS
    assert pool.together.count([4]) == ATTEMPTS - 1, "alone, so that no other batch is blamed"
    assert pool.killed


def test_batches_are_read_only_when_there_is_room_for_them():
    taken = []

    def watched():
        for batch in batches(50):
            taken.append(batch.index[0])
            yield batch

    groups = work_through(FakePool(lambda index, times: False), Backlog(watched()))
    next(groups)
    assert len(taken) <= 4
    groups.close()


def test_the_next_batch_is_read_while_the_workers_are_busy():
    read, in_time = threading.Event(), []

    def watched():
        for batch in batches(2):
            if batch.index == [1]:
                read.set()
            yield batch

    pool = FakePool(lambda index, times: in_time.append(read.wait(PATIENCE)), workers=1)
    assert len(list(work_through(pool, Backlog(watched())))) == 2
    assert in_time[0], "before the first one was done"


def test_a_batch_that_kills_real_workers_ends_the_run(tmp_path):
    with pytest.raises(RunError, match=r"starts with sample 16 crashed a worker three times: exit code -9"):
        evaluate(SPEC, nets.points(40), nets.deadly_attack, out=tmp_path / "run", batch_size=8, workers=2)
    assert multiprocessing.active_children() == []
    assert Run(tmp_path / "run").count <= 32


def test_workers_that_never_start_end_the_run(tmp_path):
    with pytest.raises(RunError, match="the workers crash before they can start: exit code 3"):
        evaluate("py:tests.nets:deadly_in_a_worker", nets.points(8), out=tmp_path / "run", workers=2)
    assert multiprocessing.active_children() == []


def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "start.py").write_text(
        "import sys\nfrom deepfool import evaluate\nfrom tests import nets\n\nif __name__ == '__main__':\n"
        f"    evaluate({SPEC!r}, nets.points(80), nets.telling_deepfool, out=sys.argv[1], batch_size=8, workers=2)\n"
    )
    process = subprocess.Popen(
        [sys.executable, tmp_path / "start.py", tmp_path / "run"], stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
             "NOTES": str(tmp_path / "notes")},
    )  # fmt: skip
    wait_until(lambda: list((tmp_path / "notes").glob("waiting *")), process)
    worker = int(next((tmp_path / "notes").glob("waiting *")).name.split()[1])
    process.kill()
    process.wait()
    deadline = time.monotonic() + PATIENCE
    while is_running(worker):
        assert time.monotonic() < deadline, "the worker has outlived its parent"
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_errors_can_be_sent_back_from_a_worker():
    missing = MissingExtraError("ray", extra="ray", purpose="--engine ray")
    for error in (RunError("broken.", hint="mend it."), missing):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.hint) == (type(error), str(error), error.hint)


class FakeRay:
    """Ray without processes, for the scheduler alone: calls are answered in order when they are waited for.

    `crashes` says whether a call crashes its actor, by the actor, the index of the batch (None while it starts), and
    how often that batch was tried.
    """

    class exceptions:  # noqa: N801  # as in Ray
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, crashes):
        self.crashes, self.tried = crashes, Counter()

    def wait(self, calls, num_returns, timeout):
        return calls[:1], calls[1:]

    def get(self, call):
        actor, batch = call.actor, call.batch
        index = None if batch is None else batch.index[0]
        self.tried[index] += 1
        if self.crashes(actor, index, self.tried[index]):
            raise self.exceptions.RayError("the actor died\nin many words")
        return [] if batch is None else [Group([{"index": index}])]

    def actors(self, count):
        return [SimpleNamespace(run=FakeMethod(i)) for i in range(count)]


class FakeMethod:
    def __init__(self, number):
        self.number = number

    def options(self, **_):
        return self

    def remote(self, batch):
        return FakeCall(self.number, batch)


class FakeCall:
    def __init__(self, actor, batch):
        self.actor, self.batch = actor, batch


def work_on_ray(ray, count, actors=3):
    groups = ray_cluster._work_through(ray, ray.actors(actors), Backlog(batches(count)))
    return sorted(group.rows[0]["index"] for group in groups)


def test_on_ray_every_batch_is_run_once_whichever_actor_crashes():
    ray = FakeRay(lambda actor, index, times: index in (0, 4, 19) and times < ATTEMPTS)
    assert work_on_ray(ray, 20) == list(range(20))
    assert ray.tried[4] == ATTEMPTS
    assert work_on_ray(FakeRay(lambda *_: False), 0) == []
    assert work_on_ray(FakeRay(lambda actor, index, times: index == 1 and times == 1), 2, actors=1) == [0, 1]


def test_on_ray_an_actor_has_its_next_batch_before_it_is_done_with_the_last():
    taken = []

    def watched():
        for batch in batches(50):
            taken.append(batch.index[0])
            yield batch

    ray = FakeRay(lambda *_: False)
    groups = ray_cluster._work_through(ray, ray.actors(1), Backlog(watched()))
    next(groups)
    assert taken == [0, 1, 2], "one that is done, one that runs, and one that waits for it"
    groups.close()


def test_on_ray_a_batch_that_only_waited_is_not_blamed_for_a_crash():
    ray = FakeRay(lambda actor, index, times: index == 0 and times < ATTEMPTS)
    assert work_on_ray(ray, 6, actors=1) == list(range(6))
    assert ray.tried[0] == ATTEMPTS
    assert all(ray.tried[index] == 1 for index in range(1, 6))


def test_on_ray_a_batch_that_crashes_every_actor_ends_the_run():
    ray = FakeRay(lambda actor, index, times: index == 4)
    with pytest.raises(RunError, match="starts with sample 4 crashed a worker three times: the actor died"):
        work_on_ray(ray, 20)
    assert ray.tried[4] == ATTEMPTS


def test_on_ray_actors_that_never_start_end_the_run():
    with pytest.raises(RunError, match="the workers crash before they can start: the actor died"):
        work_on_ray(FakeRay(lambda actor, index, times: index is None), 4)
    some = FakeRay(lambda actor, index, times: index is None and actor == 1)
    assert work_on_ray(some, 4) == [0, 1, 2, 3], "the others do the work"
