"""Copies to and from a GPU. There is none here: a CPU that counts as one, and notes what it is asked."""

import numpy as np
import pytest
import torch

from deepfool.runs import transfers
from deepfool.runs.transfers import fetch, send

CPU = torch.device("cpu")


@pytest.fixture
def asked(monkeypatch):
    """What a GPU would be asked, in order; memory cannot be pinned without one, so that is left out."""
    notes = []
    to, copy, empty = torch.Tensor.to, torch.Tensor.copy_, torch.empty

    class Event:
        def record(self, stream):
            notes.append("record")

        def synchronize(self):
            notes.append("wait")

    def note(name, function):
        def noted(self, *args, **kwargs):
            notes.append(f"{name} at once" if kwargs.get("non_blocking") else name)
            return function(self, *args, **kwargs)

        return noted

    def pinned(*args, pin_memory=False, **kwargs):
        notes.append("pinned" if pin_memory else "not pinned")
        return empty(*args, **kwargs)

    monkeypatch.setattr(transfers, "PINNED", ("cpu",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", note("pin", lambda self: self))
    monkeypatch.setattr(torch.Tensor, "to", note("to", to))
    monkeypatch.setattr(torch.Tensor, "copy_", note("copy", copy))
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return notes


def test_a_batch_is_sent_from_pinned_memory_and_nobody_waits(asked):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sent = send(x, CPU, torch.float64)
    assert asked == ["pin", "to at once", "to"]
    assert sent.dtype == torch.float64
    assert torch.equal(sent, torch.arange(6.0, dtype=torch.float64).view(2, 3))


def test_a_result_is_waited_for_when_it_is_needed(asked):
    found = torch.arange(4.0, requires_grad=True)
    numbers = fetch(found)
    assert asked == ["pinned", "copy at once", "record"]
    assert numbers().tolist() == [0, 1, 2, 3]
    assert asked[-1] == "wait"


def test_on_a_cpu_nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pytest.fail("pinned"))
    x = np.ones((2, 2), np.float32)
    sent = send(x, CPU, torch.float32)
    x[:] = 7
    assert sent.tolist() == [[1, 1], [1, 1]], "a copy"
    assert fetch(sent)().tolist() == [[1, 1], [1, 1]]
