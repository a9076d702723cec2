"""Verdicts on made-up results: each claim holds for some and fails for others."""

import pytest

from deepfool.experiments.claims import FAILS, HOLDS, PARTLY, UNKNOWN, judge_all
from deepfool.experiments.paper import CLASSIFIERS, STATEMENTS
from deepfool.experiments.tabulation import (
    compare_order,
    count_reproduced,
    tabulate_gains,
    tabulate_methods,
    tabulate_robustness,
)


def row(network="lenet-mnist", **changes):
    """A row of Tables 1 and 2 with the paper's values."""
    paper = CLASSIFIERS[network]
    made = {
        "network": network, "name": paper.name, "missing": None, "space": "pixels in [0, 1]",
        "test_error": {"error": paper.test_error, "n": 100},
        "deepfool": {
            "rho": paper.deepfool, "low": paper.deepfool, "high": paper.deepfool, "exact": True, "n": 100,
            "ratios": [paper.deepfool] * 4, "iterations": {"mean": 1.5, "max": 4},
        },
        "fgsm": {"rho": paper.fgsm, "rho_linf": 0.3, "reached": True, "share": 0.9, "n": 100},
        "lbfgs": {"ratios": [paper.lbfgs] * 3}, "thorough": None,
        "times": {"deepfool": {"ms": 10, "n": 3}, "fgsm": {"ms": 2, "n": 3}, "lbfgs": {"ms": 400, "n": 3}},
    }  # fmt: skip
    made["deepfool_pixels"] = made["deepfool"]
    return {**made, **changes}


def curve(*rhos, errors=(0.02, 0.02), judge="deepfool"):
    """One curve per seed, from the relative changes of rho."""
    return [
        {"seed": seed, "epochs": [{"epoch": 0, "error": errors[0], "rho": {judge: 0.1}},
                                  {"epoch": 1, "error": errors[1], "rho": {judge: 0.1 * (1 + rho)}}]}
        for seed, rho in enumerate(rhos)
    ]  # fmt: skip


def tuned(network, **curves):
    """A row of Figures 6, 7 and 9; curves that a test does not give stay flat."""
    usual = {} if "1" in curves else {name: curve(0.0) for name in ("deepfool", "fgsm", "clean")}
    return {"network": network, "name": CLASSIFIERS[network].name, "missing": None, "curves": usual | curves}


def verdict(key, **results):
    made = {name: {"rows": rows} for name, rows in results.items()}
    return next(each for each in judge_all(made) if each.key == key)


def test_claims_without_results_are_not_measured():
    assert {each.verdict for each in judge_all({})} == {UNKNOWN}
    assert [each.key for each in judge_all({})] == list(STATEMENTS)
    assert verdict("fgsm", table1=[{"network": "caffenet", "name": "c", "missing": "no weights"}]).verdict == UNKNOWN


def test_networks_that_are_not_in_the_paper_do_not_count():
    beside = {**row(), "network": "efficientnet-lite0"}
    assert verdict("fgsm", table1=[beside]).verdict == UNKNOWN


def test_five_times():
    assert verdict("fgsm", table1=[row(), row("lenet-cifar10")]).verdict == HOLDS
    equal = row("lenet-cifar10", fgsm={"rho": 0.03})
    assert verdict("fgsm", table1=[row(), equal]).verdict == PARTLY
    found = verdict("fgsm", table1=[equal])
    assert found.verdict == FAILS
    assert "1.0 times (paper 4.3)" in found.found
    assert "never" in verdict("fgsm", table1=[row(fgsm={"rho": None})]).found


def test_lbfgs_is_compared_on_the_same_samples():
    assert verdict("lbfgs", table1=[row()]).verdict == HOLDS
    # DeepFool's rho is larger over all samples, but not over the three that L-BFGS was run on.
    others = {**row()["deepfool"], "rho": 0.9, "ratios": [0.1, 0.1, 0.1, 9.0]}
    assert verdict("lbfgs", table1=[row(deepfool=others)]).verdict == HOLDS
    better = verdict("lbfgs", table1=[row(lbfgs={"ratios": [0.15, 0.15]}, thorough={"ratios": [0.1]})])
    assert better.verdict == FAILS
    assert "L-BFGS 0.15 on the same 2" in better.found
    assert "against a thorough L-BFGS 0.2 and 0.1 on 1" in better.found
    assert verdict("lbfgs", table1=[row(thorough={"ratios": [0.1]})]).verdict == PARTLY


def test_speed():
    assert verdict("faster", table1=[row()]).verdict == HOLDS
    slow = {"deepfool": {"ms": 10}, "fgsm": {"ms": 1}, "lbfgs": {"ms": 50}}
    assert verdict("faster", table1=[row(times=slow)]).verdict == FAILS


def test_iterations():
    assert verdict("iterations", table1=[row()]).verdict == HOLDS
    many = {**row()["deepfool"], "iterations": {"mean": 3.2, "max": 9}}
    assert verdict("iterations", table1=[row(deepfool=many)]).verdict == FAILS


def test_linf():
    assert verdict("linf", table2=[row()]).verdict == HOLDS
    assert verdict("linf", table2=[row(fgsm={"rho_linf": 0.1})]).verdict == FAILS


@pytest.mark.parametrize(
    ("rises", "expected"), [((0.5, 0.5), HOLDS), ((0.3, 0.26), HOLDS), ((0.5, 0.1), PARTLY), ((0.1, -0.1), FAILS)]
)
def test_rise_on_mnist(rises, expected):
    rows = [
        tuned(network, deepfool=curve(rise, rise + 0.02), clean=curve(0.0, 0.01))
        for network, rise in zip(("lenet-mnist", "fc500-mnist"), rises, strict=True)
    ]
    assert verdict("mnist", figure6=[*rows]).verdict == expected


def test_rise_of_nin():
    assert verdict("nin", figure6=[tuned("nin-cifar10", deepfool=curve(0.4), clean=curve(0.0))]).verdict == HOLDS
    found = verdict("nin", figure6=[tuned("nin-cifar10", deepfool=curve(0.02, 0.06), clean=curve(0.0))])
    assert found.verdict == FAILS
    assert "+4 % (+2 to +6 over the seeds)" in found.found


def test_one_network_is_enough_for_what_can_happen():
    up, down = tuned("lenet-mnist", fgsm=curve(0.2)), tuned("fc500-mnist", fgsm=curve(-0.2))
    assert verdict("lowers", figure6=[up, down]).verdict == HOLDS
    assert verdict("lowers", figure6=[up]).verdict == FAILS


def test_alpha():
    falling = tuned("lenet-mnist", **{"1": curve(0.3), "2": curve(0.1), "3": curve(-0.1)})
    mixed = tuned("fc500-mnist", **{"1": curve(0.3), "2": curve(0.4), "3": curve(-0.1)})
    assert verdict("magnified", figure7=[falling]).verdict == HOLDS
    assert verdict("magnified", figure7=[falling, mixed]).verdict == PARTLY
    assert verdict("magnified", figure7=[mixed]).verdict == FAILS


def test_a_gain_that_is_lost_again_is_named():
    one = curve(0.3)[0]
    one["epochs"].insert(1, {"epoch": 1, "error": 0.02, "rho": {"deepfool": 0.146}})
    found = verdict("nin", figure6=[tuned("nin-cifar10", deepfool=[one], clean=curve(0.0))]).found
    assert "+30 %, after epoch 1 +46 %, clean fine-tuning +0 %" in found  # and no range, as there is one seed


def test_errors_after_tuning():
    def with_errors(deepfool, fgsm, clean):
        each = {"deepfool": deepfool, "fgsm": fgsm, "clean": clean}
        return tuned("lenet-mnist", **{name: curve(0, errors=(0.02, error)) for name, error in each.items()})

    assert verdict("accuracy", figure6=[with_errors(0.018, 0.05, 0.02)]).verdict == HOLDS
    assert verdict("accuracy", figure6=[with_errors(0.03, 0.05, 0.02)]).verdict == FAILS
    assert verdict("accuracy", figure6=[with_errors(0.018, 0.01, 0.02)]).verdict == FAILS


def test_misjudging():
    def judged(ours, theirs):
        rhos = {"deepfool": 0.1, "fgsm": 0.2}, {"deepfool": ours, "fgsm": theirs}
        return tuned("nin-cifar10", fgsm=[{"seed": 0, "epochs": [{"rho": rho} for rho in rhos]}])

    assert verdict("misjudges", figure9=[judged(0.11, 0.4)]).verdict == HOLDS
    assert verdict("misjudges", figure9=[judged(0.11, 0.21)]).verdict == FAILS
    assert verdict("misjudges", figure9=[judged(0.11, None)]).verdict == HOLDS


def test_the_tables_show_ratio_and_order():
    cells = tabulate_robustness({"rows": [row(), {"network": "caffenet", "name": "CaffeNet", "missing": "no weights"}]})
    assert cells.lines[0].cells[4] == "1.00"
    assert cells.lines[1].missing == "no weights"
    assert all(len(line.cells) == len(cells.headers) - 1 for line in cells.lines if line.cells)
    methods = tabulate_methods({"rows": [row()]})
    assert len(methods.lines[0].cells) == len(methods.headers) - 1
    assert compare_order(row(lbfgs={"ratios": [0.1]})) == "L-BFGS < DeepFool < FGSM"
    both = tabulate_methods({"rows": [row(thorough={"ratios": [0.1]})]}).lines[0].cells[-1]
    assert both == "as in the paper; thorough: L-BFGS < DeepFool < FGSM"


def test_within_a_factor_of_one_and_a_half():
    far = {**row()["deepfool"], "rho": 0.2 * 1.6}
    assert count_reproduced({"rows": [row(), row(deepfool=far)]}) == (1, 2)


def test_rows_of_another_scale_say_so():
    rows = [tuned(name) | {"judged": 5, "train": 8} for name in ("nin-cifar10", "lenet-cifar10")]
    for each in rows:
        each["curves"] = {"fgsm": [one | {"learning_rate": 0.1} for one in curve(0.5)]}
    assert "scale" not in tabulate_gains({"rows": rows}, "figure9").note
    rows[0]["scale"] = "default"
    assert tabulate_gains({"rows": rows}, "figure9").note.endswith("NIN (CIFAR-10) is from the scale default.")
