"""`check` from the command line: options, files for CI, criteria."""

import json
from xml.etree import ElementTree

import pytest

from deepfool import Run
from deepfool.errors import DataError, InputError, RunError
from deepfool.metrics.criteria import NAMES, Criteria, read_criteria
from tests.calling import call
from tests.test_gates import healthy, pair_of_runs, stretch

HOSTILE = "\x1b[31m<failure/>&\x00]]>"


@pytest.fixture
def run(tmp_path):
    return healthy(tmp_path / "run")


def test_a_gate_that_holds(run):
    done = call("check", run, "--min-rho", 0.1, "--max-fooled", "0.5@eps=0.3", "--min-accuracy", 0.9)
    assert done.stderr == "passed: 8 conditions\n"
    assert done.stdout.count("met ") == 8
    assert "rho_adv in l2 <= " in done.stdout


def test_a_gate_that_does_not(run, tmp_path):
    rho = float(Run(run).records().ratio("p").mean())
    done = call("check", run, "--min-rho", rho, code=1)
    assert done.stderr == "failed: min-rho (not met)\n"
    assert "NOT MET" in done.stdout
    call("check", run, "--min-rho", 0.99 * rho, "--point")
    call("check", run, "--max-fooled", "0.5@eps=9", code=1)
    call("check", run, "--min-accuracy", "0.9", "--min-accuracy", "0.9@eps=9", code=1)
    call("check", run, "--min-samples", 61, code=1)
    call("check", healthy(tmp_path / "lost", censored=1), "--max-cautioned", 0, code=1)
    call("check", tmp_path / "lost", "--max-cautioned", 1)


def test_the_baseline(tmp_path):
    before, after = pair_of_runs(tmp_path, 0.9)
    done = call("check", after, "--baseline", before, code=1)
    assert "less robust beyond chance" in " ".join(done.stdout.split())
    call("check", before, "--baseline", after, "--max-drop", "1%")


def test_json_says_everything(run):
    found = json.loads(call("check", run, "--min-rho", 9, "--json", code=1).stdout)
    assert found["run"] == str(run)
    assert found["passed"] is False
    *health, rho = found["verdicts"]
    assert [each["outcome"] for each in health] == ["met"] * 5
    assert rho["required"] == "a lower end of the interval of at least 9"
    assert (rho["name"], rho["outcome"]) == ("min-rho", "not met")


def test_junit(run, tmp_path):
    call("check", run, "--min-rho", 9, "--max-fooled", "1@eps=1", "--junit", tmp_path / "new" / "j.xml", code=1)
    suite = ElementTree.parse(tmp_path / "new" / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("7", "1")
    cases = {case.get("name"): case for case in suite}
    (failure,) = cases["min-rho"]
    assert failure.get("type") == "not met"
    assert "required: a lower end of the interval of at least 9" in failure.get("message")
    assert "60 of 60 samples were measured" in cases["complete"].find("system-out").text
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        call("check", run, "--min-rho", 0, "--junit", tmp_path / "file" / "j.xml")


def test_sarif(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("check", run, "--min-rho", 9, "--max-fooled", "1@eps=1", "--sarif", "s.sarif", code=1)
    log = json.loads((tmp_path / "s.sarif").read_text())
    assert log["version"] == "2.1.0"
    (found,) = log["runs"]
    rules = found["tool"]["driver"]["rules"]
    (result,) = found["results"]
    assert result["level"] == "error"
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "min-rho"
    assert "at least 9" in result["message"]["text"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "run/manifest.json", "relative, as code scanning needs it"
    assert place["region"]["startLine"] == 1
    call("check", run, "--min-rho", 0, "--sarif", "s.sarif")
    assert json.loads((tmp_path / "s.sarif").read_text())["runs"][0]["results"] == []


def test_hostile_words_of_a_run_stay_words(tmp_path):
    session = {"scores": {"repeatable": False, "difference": 0.5}}
    folder = healthy(tmp_path / "run", sessions=[session])
    rows = (folder / "records.jsonl").read_text().splitlines()
    rows[0] = json.dumps(json.loads(rows[0]) | {"reason": HOSTILE})
    (folder / "records.jsonl").write_text("\n".join(rows) + "\n")
    words = ("--junit", tmp_path / "j.xml", "--sarif", tmp_path / "s.json")
    done = call("check", folder, "--min-rho", 0, *words, code=1)
    assert "\x1b" not in done.output
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert suite.get("failures") == "2"
    told = next(case for case in suite if case.get("name") == "max-cautioned")[0]
    assert len(told) == 0, "markup in a reason is text"
    assert "<failure/>&" in told.text
    assert json.loads((tmp_path / "s.json").read_text())


# criteria.toml


def write(tmp_path, text):
    (tmp_path / "criteria.toml").write_text(text)
    return tmp_path / "criteria.toml"


AGREED = """
title = "Release 3"
by = "the safety team"
date = 2026-01-04
min_rho = 0.1
min_accuracy = ["0.9", "0.99@eps=9"]
min_samples = 50
baseline = "before"
max_drop = "5%"
require_audit = true

[measured]
attack = "deepfool"
bounds = "none"
"""


def test_criteria(tmp_path):
    before, after = pair_of_runs(tmp_path, 1.1)
    file = write(tmp_path, AGREED)
    done = call("check", after, "--criteria", file, "--json", code=1)
    outcomes = [(each["name"], each["outcome"]) for each in json.loads(done.stdout)["verdicts"]]
    assert outcomes == [
        ("complete", "met"), ("min-samples", "met"), ("max-cautioned", "met"), ("audit", "not known"),
        ("repeatable", "met"), ("measured", "met"), ("min-rho", "met"), ("min-accuracy", "met"),
        ("min-accuracy", "not met"), ("baseline", "met"),
    ]  # fmt: skip
    found = read_criteria(file)
    assert (found.title, found.by, found.date.year, len(found.sha256)) == ("Release 3", "the safety team", 2026, 64)
    assert not found.is_late(Run(after))
    assert read_criteria(write(tmp_path, "date = 2026-01-06\nmin_rho = 0.1")).is_late(Run(after))
    stretch(after, 0.5, 60)
    assert not Criteria(file, "", {"baseline": before}).judge(after)[-1].passed


def test_options_do_not_change_criteria(run, tmp_path):
    with pytest.raises(InputError, match="--criteria holds all conditions; --max-cautioned"):
        call("check", run, "--criteria", write(tmp_path, "min_rho = 0.1"), "--max-cautioned", 5)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("min_rho = ", "cannot be read"),
        ("", "no condition was given"),
        ('title = "x"', "no condition was given"),
        ("min_roh = 1", "no criterion called 'min_roh'"),
        ('min_rho = "high"', "min_rho must be a number"),
        ('min_rho = 0.1\ndate = "soon"', "date must be a date"),
        ("min_rho = 0.1\ntitle = 3", "title must be a text"),
        ('min_accuracy = "lots"', "expected a share"),
        ("min_rho = 0.1\nmax_drop = 1", "needs a baseline"),
        ("[measured]\nspeed = 1", "measured may name"),
    ],
)
def test_what_is_no_criteria_file(tmp_path, text, match):
    with pytest.raises(DataError, match=match):
        read_criteria(write(tmp_path, text))
    with pytest.raises(DataError, match="no such file"):
        read_criteria(tmp_path / "absent.toml")


def test_every_condition_has_an_option_or_is_for_files():
    from tests.commands import find

    command, _ = find(["check"])
    options = {name.removeprefix("--").replace("-", "_") for each in command.params for name in each.opts}
    assert set(NAMES) - options == {"measured"}
