"""Sentences that used to be false, on the runs that provoked them: real networks, real attacks."""

import functools
import json
import re

import numpy as np
import pytest
import torch

from deepfool import Run, audit, evaluate
from deepfool.metrics import choose_headline, summarize, write_words
from deepfool.models.sources import resolve
from deepfool.reporting.page import render_report
from deepfool.reporting.references import family_of, find_references
from deepfool.reporting.tables import format_table
from deepfool.reporting.wording import write_verdict
from tests.cli.test_evaluate import call

FALSE = re.compile(r"at least|lower bound|≥|>=|no upper (end|limit)|count(s|ed)? (them )?as 0")
"""What must not be said of anything that an attack found."""


class Rounded(torch.nn.Module):
    """A good network behind a rounding: no gradient gets through."""

    def __init__(self):
        super().__init__()
        self.network = resolve("lenet-mnist").module

    def forward(self, x):
        return self.network((8 * x).round() / 8)


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """Two iterations are too few for some digits."""
    run = evaluate(
        "lenet-mnist", "mnist-sample", out=tmp_path_factory.mktemp("truth") / "failing", limit=200, max_iter=2,
        audit=False,
    )  # fmt: skip
    assert 0 < run.records().censored.sum() < 20
    return run


@pytest.fixture(scope="module")
def stuck(tmp_path_factory):
    run = evaluate(Rounded(), "mnist-sample", out=tmp_path_factory.mktemp("truth") / "stuck", limit=40)
    assert run.records().censored.all()
    return run


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A network that was trained to mislead gradients, with what the audit finds."""
    run = evaluate("kwta-mnist", "mnist-sample", out=tmp_path_factory.mktemp("truth") / "masked", limit=40, audit=False)
    audit(run, samples=2)
    return run


@functools.cache
def render(folder, *, eps=None):
    return render_report([Run(folder)], gallery=False, eps=eps)


def read_page(run, **options):
    """The words of the page: no code, no markup, no data."""
    page = render(run.folder, **options)
    page = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@functools.cache
def words_of(folder):
    """The page, the terminal and the tables of a run."""
    run = Run(folder)
    shown = " ".join(call("show", folder).stdout.split())
    return [read_page(run), shown, format_table([run]), format_table([run], "latex")]


def test_a_failed_search_makes_no_bound(failing):
    records = failing.records()
    lost, found = int(records.censored.sum()), int(records.fooled.sum())
    ratios = records.ratio("p")
    as_zero, among = np.where(np.isinf(ratios), 0, ratios).mean(), ratios[records.fooled].mean()
    for text in words_of(failing.folder):
        assert not FALSE.search(text), FALSE.search(text)
        assert "not known" in text
        verdict = text.partition("How accuracy falls")[0]
        assert f"{as_zero:.3f}" not in verdict, "a mean with failures counted as zero bounds nothing"
        assert f"{among:.3f}" in text, "the value among the others"
    for text in words_of(failing.folder)[:2]:
        assert f"the attack found no perturbation for {lost} of 200 samples" in text
        assert f"{lost} samples: the label did not change within 2 iterations" in text, "reasons, with counts"
    page = words_of(failing.folder)[0]
    assert f"is that of the {found} samples with an answer" in page, "the distribution says whose mean it is"


def test_the_summary_says_not_known(failing):
    summary = summarize(failing)
    assert summary["rho_adv"] | {"count": 0} == {"value": None, "low": None, "high": None, "count": 0, "exact": False}
    assert summary["headline"]["standing"] == "partly"
    assert not FALSE.search(json.dumps([summary["verdict"], summary["warnings"], summary["notes"]]))


def test_a_run_with_failures_is_not_ranked(failing):
    text = read_page(failing)
    assert "robust than" not in text
    assert "Compared with other networks" not in text


def test_classes_without_an_answer_stand_apart(failing):
    from deepfool.reporting.charts import make_classes

    records = failing.records()
    open_ = set(records.label[records.censored].tolist())
    found = make_classes(failing, records)
    assert {row["label"] for row in found["apart"]} == open_
    assert open_.isdisjoint(row["label"] for row in found["rows"])
    assert "Classes with searches that had no answer" in read_page(failing)
    assert "of the classes in which every search had an answer" in read_page(failing)


def test_accuracy_is_never_said_to_be_at_least(failing):
    """The lower edge of the curve counted failures as fooled: a stronger attack goes below it."""
    page = read_page(failing, eps=("1",))
    assert "if what has no answer counts as fooled" in page
    curve = summarize(failing)["curve"]
    assert all(low <= edge for low, edge in zip(curve["band"][0], curve["low"], strict=True))


def test_nothing_found_is_the_headline_and_no_chart_is_blank(stuck):
    for text in words_of(stuck.folder)[:2]:
        assert "the attack found no perturbation for any of 40 samples" in text
        assert "40 samples: the gradients are zero" in text
        assert not FALSE.search(text)
        assert not re.search(r"\binf\b", text)
    page = render(stuck.folder)
    assert 'data-standing="unanswered"' in page
    assert "data-chart=" not in page.partition("<script")[0]
    assert "There is no curve" in page
    assert "There is no distribution" in page
    assert "accuracy within l2 1 not known" in re.sub(r"\s+", " ", call("show", stuck.folder, "--eps", "1").stdout)


def test_a_masked_network_looks_it(masked):
    """The number is that of a very robust network; what the audit found stands before it."""
    head = choose_headline(masked, masked.records(), None)
    assert head.standing == "sound", "by its rows alone nothing can be seen"
    for text in words_of(masked.folder)[:2]:
        warned = re.search(r"Do not (use|take) this number", text)
        assert warned
        assert "On average" not in text[: warned.start()]
        assert "stronger attack" in text
        assert "robust than" not in text
    assert re.search(r"data-standing=\"(failed|masked)\"", render(masked.folder))
    assert "audit: failed" in format_table([masked]) or "caution: masked" in format_table([masked])


def test_scores_that_change_are_the_headline(tmp_path):
    class Noisy(Rounded):
        def forward(self, x):
            return self.network(x) + torch.randn(len(x), 10)

    with pytest.warns(UserWarning, match="random"):
        run = evaluate(Noisy(), "mnist-sample", out=tmp_path / "run", limit=10)
    words = write_words(run, run.records())
    assert "gives other scores each time it is run" in words.lead


def find_known(page, data):
    """The known values on some data: the style of their row, and where they come from."""
    row = rf'<tr class="([^"]*)"><th scope="row">[^<]*</th><td>{data}</td>.*?<td>([^<]*)</td></tr>'
    return re.findall(row, page)


def test_only_like_is_compared_with_like(tmp_path):
    """Another attack, other bounds, other knobs: no sentence, and the known values are greyed and say why."""
    runs = {
        "the same": evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "a", limit=30),
        "by deepfool": evaluate("lenet-mnist", "mnist-sample", "smallest", out=tmp_path / "b", limit=30, budget=10),
        "no bounds": evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "c", limit=30, bounds=(0, 1)),
        "default knobs": evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "d", limit=30, overshoot=0.1),
    }
    for why, run in runs.items():
        told = " ".join(write_verdict(run, run.records(), "mnist", find_references(2)).all)
        page = render(run.folder)
        assert ("Among networks on MNIST measured in the same way" in told) == (why == "the same")
        assert ("robust than" in told or "about as robust as" in told) == (why == "the same")
        rows = find_known(page, "MNIST")
        assert rows
        for style, source in rows:
            assert ("far" in style) == (why != "the same")
            assert (why in source) == (why != "the same")
        assert "this run: " in page


def test_the_papers_values_on_cifar_are_not_compared(tmp_path):
    """They were measured behind a normalisation, as far as anyone can tell; ours in [0, 1] are half as large."""
    run = evaluate("lenet-cifar10", "cifar10-sample", out=tmp_path / "run", limit=30)
    assert family_of(run) == "cifar10"
    told = " ".join(write_verdict(run, run.records(), "cifar10", find_references(2)).all)
    assert "the paper" not in told
    page = render(run.folder)
    rows = [row for row in find_known(page, "CIFAR-10") if "the paper" in row[1]]
    assert len(rows) == 2
    assert all("far" in style and "behind a normalisation" in source for style, source in rows)


def test_pixels_may_leave_their_range_is_said_where_it_is_so(runs):
    assert "pixels may leave [0, 1]" in read_page(Run(runs / "lenet"))
    assert "pixels may leave [0, 1]" in call("show", runs / "lenet").stdout
    assert "pixels may leave" not in read_page(Run(runs / "linf"))
    assert "Perturbed inputs stay in [0, 1]" in read_page(Run(runs / "linf"))


def test_titles_say_attack_norm_bounds_and_knobs(runs, failing):
    for run, words in ((Run(runs / "linf"), "ℓ∞, in [0, 1], max_iter 50"), (failing, "ℓ2, no bounds, max_iter 2")):
        page = render(run.folder)
        assert f"deepfool, {words} – robustness report</title>" in page
        assert f'<span class="measured">deepfool, {words}</span></h1>' in page
    both = render_report([Run(runs / "lenet"), failing], gallery=False)
    assert "lenet-mnist, deepfool, ℓ2, no bounds, max_iter 2" in both
    assert "lenet-mnist, deepfool, ℓ2, no bounds, max_iter 50" in both


def test_two_samples_have_no_interval(tmp_path):
    """It used to be four equal digits, or close to it."""
    run = evaluate("lenet-mnist", "mnist-sample", out=tmp_path / "run", limit=2)
    shown = call("show", run.folder).stdout
    (line,) = [line for line in shown.splitlines() if "rho_adv" in line]
    assert re.fullmatch(r"\s*rho_adv \(l2\)\s+<= 0\.\d{3}\s*", line)
    assert "too few samples for an interval" in read_page(run)
    assert not re.search(r"\de-\d", shown)


def test_usual_radii_are_tiles(runs):
    l2, linf = read_page(Run(runs / "lenet")), read_page(Run(runs / "linf"))
    assert all(f"accuracy within ε = {eps} (ℓ2)" in l2 for eps in ("0.5", "1", "2"))
    assert all(f"accuracy within ε = {eps} (ℓ∞)" in linf for eps in ("0.1", "0.3"))
    assert "accuracy within ε = 8/255 (ℓ∞)" in read_page(Run(runs / "linf"), eps=("8/255",))
    assert "accuracy within linf 0.1" in call("show", runs / "linf").stdout
    assert "accuracy within linf 2/255" in call("show", runs / "linf", "--eps", "2/255").stdout
