"""The queue: how many wait, who gives way to whom, and how a job ends."""

import asyncio
import threading

import pytest
import torch

from deepfool.errors import InputError
from deepfool.live import jobs
from deepfool.live.jobs import BusyError, Job, Workshop, watch_model
from tests.live.conftest import run_async
from tests.waiting import PATIENCE


async def collect(job):
    events = []
    while (event := await asyncio.wait_for(job.events.get(), PATIENCE)) is not None:
        events.append(event)
    return events


def in_loop(scenario):
    """Run a scenario with a workshop that is closed afterwards."""

    async def run():
        shop = Workshop(most_waiting=2)
        try:
            return await scenario(shop)
        finally:
            shop.close()

    return run_async(run())


def saying(*words):
    return lambda: iter([("said", {"word": word}) for word in words])


def test_a_job_sends_what_it_finds_and_then_ends():
    async def scenario(shop):
        job = Job("a", saying("x", "y"))
        assert shop.submit(job) == 0
        return await collect(job)

    *said, (last, _) = in_loop(scenario)
    assert said == [("said", {"word": "x"}), ("said", {"word": "y"})]
    assert last == "done"


async def occupy(shop, tab):
    """A job that is running, and calls a model for ever."""
    model, began = torch.nn.Linear(2, 2), threading.Event()
    watch_model(model)

    def work():
        while True:
            model(torch.zeros(1, 2))
            began.set()
            yield "called", {}

    job = Job(tab, work)
    shop.submit(job)
    await asyncio.to_thread(began.wait, PATIENCE)
    return job


def test_a_new_job_of_the_same_tab_takes_the_place_of_the_last():
    async def scenario(shop):
        first = await occupy(shop, "a")
        second = Job("a", saying("mine"))
        shop.submit(second)
        events = await collect(second)
        assert all(name != "failed" for name, _ in await collect(first))  # it ends without a word
        return events

    assert in_loop(scenario)[0] == ("said", {"word": "mine"})


def test_the_queue_has_an_end_and_other_tabs_keep_their_place():
    async def scenario(shop):
        running = await occupy(shop, "a")
        b, c = Job("b", saying("b")), Job("c", saying("c"))
        assert [shop.submit(b), shop.submit(c)] == [1, 2]
        with pytest.raises(BusyError, match="busy"):
            shop.submit(Job("d", saying("d")))
        again = Job("b", saying("again"))  # in place of the one that waits
        shop.submit(again)
        assert await collect(b) == []
        assert [shop.ahead(c), shop.ahead(again)] == [1, 2]
        shop.drop(running)
        return [(await collect(job))[0][1]["word"] for job in (c, again)]

    assert in_loop(scenario) == ["c", "again"]


def test_a_job_stops_inside_an_attack(monkeypatch):
    """Not only between two events: attacks run the model again and again, and are left there."""
    from deepfool import deepfool

    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    watch_model(model)
    monkeypatch.setattr(jobs, "MOST_SECONDS", 0.0)

    def work():
        deepfool(model, torch.rand(1, 6))
        yield "found", {}

    async def scenario(shop):
        job = Job("a", work)
        shop.submit(job)
        return await collect(job)

    assert [name for name, _ in in_loop(scenario)] == ["failed"]
    assert all(parameter.requires_grad for parameter in model.parameters())  # left as it was found


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InputError("target must differ.", hint="choose another."), "target must differ. Hint: choose another."),
        (
            RuntimeError("shape mismatch"),
            "Something went wrong in the model or the attack: RuntimeError: shape mismatch",
        ),
        (MemoryError(), "This machine does not have enough memory for that."),
    ],
)
def test_errors_end_as_sentences_and_the_next_job_runs(error, told):
    def work():
        raise error
        yield

    async def scenario(shop):
        broken, fine = Job("a", work), Job("b", saying("fine"))
        shop.submit(broken)
        shop.submit(fine)
        assert (await collect(fine))[0] == ("said", {"word": "fine"})
        return await collect(broken)

    assert in_loop(scenario) == [("failed", {"message": told})]
