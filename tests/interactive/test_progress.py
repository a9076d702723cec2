"""The bar in a notebook, with IPython's own shell and display; in test_examples.py a real kernel draws it."""

import pytest

import deepfool
from deepfool.interactive import evaluation, progress
from deepfool.interactive.progress import drawing, in_notebook
from tests import nets


class Screen:
    """What the cell shows: the last HTML of each display."""

    def __init__(self):
        self.shown, self.redraws = [], 0

    def display(self, html, display_id=False):
        assert display_id
        self.shown.append(html.data)
        screen, place = self, len(self.shown) - 1

        class Handle:
            def update(self, html):
                screen.shown[place] = html.data
                screen.redraws += 1

        return Handle()


@pytest.fixture
def screen(monkeypatch):
    pytest.importorskip("IPython")
    import IPython.display

    found = Screen()
    monkeypatch.setattr(IPython.display, "display", found.display)
    monkeypatch.setattr(evaluation, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "REDRAW_EVERY", 0.0)
    return found


def test_a_script_is_no_notebook():
    assert not in_notebook()


def test_an_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    ipython = pytest.importorskip("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: type("TerminalShell", (), {})())
    assert not in_notebook()
    monkeypatch.setattr(ipython, "get_ipython", lambda: type("KernelShell", (), {"kernel": 1})())
    assert in_notebook()


def test_evaluate_draws_one_bar_and_leaves_a_line(screen, tmp_path):
    run = deepfool.evaluate(nets.small(), nets.points(30), out=tmp_path / "run", batch_size=5)
    [line] = screen.shown
    assert "30 samples measured" in line
    assert str(run.folder) in line
    assert "<progress" not in line
    assert screen.redraws >= 6  # one for each batch but the first, and the line


def test_the_bar_moves(screen):
    with drawing() as bar:
        bar.show(1, 4, "first")
        assert 'value="1"' in screen.shown[0]
        bar.show(2, 4, "second")
        assert 'value="2"' in screen.shown[0]
        assert "second" in screen.shown[0]
    assert len(screen.shown) == 1


def test_fast_progress_is_not_drawn_each_time(screen, monkeypatch):
    monkeypatch.setattr(progress, "REDRAW_EVERY", 1e9)
    with drawing() as bar:
        for done in range(1000):
            bar.show(done, 1000, "")
        assert screen.redraws == 0
        bar.show(1000, 1000, "")  # the end is always drawn
    assert screen.redraws == 1


def test_a_finished_run_draws_nothing(screen, tmp_path):
    for _ in range(2):
        screen.shown.clear()
        deepfool.evaluate(nets.small(), nets.points(10), out=tmp_path / "run")
    assert screen.shown == []


def test_whoever_gives_on_progress_draws_it(screen, tmp_path):
    seen = []
    deepfool.evaluate(nets.small(), nets.points(10), out=tmp_path / "run", on_progress=seen.append)
    assert seen
    assert screen.shown == []


def test_a_run_that_fails_says_that_it_can_be_resumed(screen):
    def measure():
        with drawing() as bar:
            bar.show(3, 10, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert "run the cell again to resume" in screen.shown[0]


def test_finetune_draws_its_stages(screen, tmp_path):
    tuned = deepfool.finetune(nets.small(), nets.points(30), test=nets.points(20), epochs=1, judged=10, cache=tmp_path)
    [line] = screen.shown
    assert "1 epoch on 30 samples" in line
    assert len(tuned.epochs) == 2
