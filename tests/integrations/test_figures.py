"""What is logged: known numbers only, under names that say what they are."""

import math

import pytest

from deepfool.integrations import list_figures, list_settings
from deepfool.metrics import rho_adv


def test_rho_is_logged_where_it_is_known(answered):
    figures = list_figures(answered)
    rho = rho_adv(answered.records(), "p")
    assert figures["rho_at_most"] == pytest.approx(rho.value)
    assert figures["rho_low"] < figures["rho_at_most"] < figures["rho_high"]
    assert figures["unanswered"] == 0
    assert "rho_of_answered" not in figures


def test_a_run_with_searches_without_an_answer_has_no_rho(unanswered):
    figures = list_figures(unanswered)
    records = unanswered.records()
    assert not {"rho_at_most", "rho_low", "rho_high"} & set(figures)
    assert figures["unanswered"] == records.censored.sum()
    assert figures["rho_of_answered"] == pytest.approx(records.ratio("p")[records.fooled].mean())


def test_every_figure_is_a_number_and_every_setting_a_text(answered, unanswered):
    for run in (answered, unanswered):
        assert all(math.isfinite(value) for value in list_figures(run).values())
        assert all(isinstance(text, str) and text for text in list_settings(run).values())
    assert list_settings(answered)["model_sha256"] != list_settings(unanswered)["model_sha256"]
