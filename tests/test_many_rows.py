"""Large runs: rows read as columns, what is kept of them beside the records, and intervals of many samples."""

import hashlib
import json
import math
import os
import sys

import numpy as np
import pytest

from deepfool import Status
from deepfool.errors import RunError
from deepfool.metrics import estimates, summarize
from deepfool.runs import columns, halves, kept
from deepfool.runs.columns import UnusualRowsError, read_part
from deepfool.runs.kept import COLUMNS
from deepfool.runs.records import RECORDS, Run, read_groups
from deepfool.runs.rows import Records, encode_row, find_fault


def make_row(index, /, **changes):
    norms = {f"{side}_{norm}": size * (1 + index % 7) for side, size in (("r", 0.25), ("x", 3.0)) for norm in
             ("l1", "l2", "linf", "p")}  # fmt: skip
    row = {
        "index": index, "true_label": index % 3, "label": index % 3, "adv_label": 3, "iterations": 2, "forwards": 3,
        "backwards": 9, "status": "FOOLED", **norms, "evidence": "gradients", "converged": False, "seconds": 0.01,
        "batch": 4,
    }  # fmt: skip
    return {name: value for name, value in (row | changes).items() if value is not ...}


LOST = {f"r_{norm}": None for norm in ("l1", "l2", "linf", "p")} | {
    "adv_label": -1, "evidence": ..., "converged": ..., "status": "STUCK", "reason": "flat",
}  # fmt: skip
KINDS = [
    {}, LOST, LOST | {"status": "EXHAUSTED", "reason": "not fooled in 50 steps"}, {"true_label": None},
    {"status": "MISCLASSIFIED", "adv_label": -1, "r_l1": 0, "r_l2": 0, "r_linf": 0, "r_p": 0.0},
    LOST | {"status": "MISCLASSIFIED"}, {"evidence": "scores", "reason": "by scores"}, {"converged": True}, {"x_l1": 4},
    {"proof": "CERTIFIED", "lower": 0.1, "proof_seconds": 0.5, "proof_limit": 1.0, "proof_reason": "slow"},
    {"proof": "EXACT", "lower": None, "proof_upper": 0.125}, {"evidence": ..., "converged": ...}, {"reason": ""},
    {"label": 2**40, "adv_label": 2**62}, {"proof_upper": 0.01},
]  # fmt: skip


def write_rows(path, rows):
    path.write_bytes(b"".join(map(encode_row, rows)))
    return path


def read_slowly(path):
    return Records.of((row for group, _ in read_groups(path) for row in group), 2.0)


def assert_same(found, wanted):
    ours, theirs = found.columns, wanted.columns
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    ours, theirs = ([(*each.reasons, "")[code] for code in each.reason.tolist()] for each in (found, wanted))
    assert ours == theirs


@pytest.mark.parametrize("at_once", [1, 1000, 2**21])
def test_columns_are_those_of_the_rows(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(columns, "AT_ONCE", at_once)
    rows = [make_row(7 * i % 64, **KINDS[i % len(KINDS)]) for i in range(64)]
    path = write_rows(tmp_path / "records.jsonl", rows)
    assert_same(read_part(path, 2.0).records, read_slowly(path))
    alike = write_rows(tmp_path / "alike.jsonl", [make_row(i) for i in range(64)])
    found = read_part(alike, 2.0).records
    assert_same(found, read_slowly(alike))
    assert found.proof_upper.strides == (0,)  # one number stands for all
    assert found.index.dtype == np.int32


@pytest.fixture
def two_cores(monkeypatch):
    """Every file is large, and there is a second core. The halves that were decoded here are listed."""
    monkeypatch.setattr(halves, "LARGE", 1)
    monkeypatch.setattr(halves, "count_cores", lambda: 2)
    here, decode = [], halves.decode

    def noted(path, start, *rest):
        here.append(start)
        return decode(path, start, *rest)

    monkeypatch.setattr(halves, "decode", noted)
    return here


@pytest.mark.parametrize("cut", [0, 100])
def test_two_processes_read_what_one_reads(tmp_path, two_cores, cut):
    rows = [make_row(7 * i % 64, **KINDS[(i if i < 32 else -i) % len(KINDS)]) for i in range(64)]
    path = write_rows(tmp_path / "records.jsonl", rows)
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) - cut])
    found, seen = [], []
    for read in (read_part, halves.read_in_two):
        digest = hashlib.sha256()
        found.append(read(path, 2.0, 0, digest.update))
        seen.append(digest.hexdigest())
    assert two_cores == [0]
    assert seen[0] == seen[1]
    assert_same(found[1].records, found[0].records)
    assert (found[1].end, found[1].read) == (found[0].end, found[0].read)


@pytest.mark.parametrize(
    ("python", "calls"), [(sys.executable, 2), ("/no/such/python", 0)], ids=["fails", "is not there"]
)
def test_a_helper_that_fails_is_not_needed(tmp_path, monkeypatch, two_cores, python, calls):
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(halves, "_HELPER", "raise SystemExit(3)")
    path = write_rows(tmp_path / "records.jsonl", [make_row(i) for i in range(64)])
    assert_same(halves.read_in_two(path, 2.0).records, read_slowly(path))
    assert len(two_cores) == calls


def test_a_wrong_row_in_the_second_half_is_refused(tmp_path, two_cores):
    path = write_rows(tmp_path / "records.jsonl", [make_row(i, r_p=-1.0 if i == 60 else 1.0) for i in range(64)])
    with pytest.raises(UnusualRowsError):
        halves.read_in_two(path, 2.0)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, two_cores):
    path = write_rows(tmp_path / "records.jsonl", [make_row(i) for i in range(64)])
    load = halves._load

    def change(answer):
        write_rows(path, [make_row(i, iterations=3) for i in range(64)])
        return load(answer)

    monkeypatch.setattr(halves, "_load", change)
    with pytest.raises(UnusualRowsError):
        halves.read_in_two(path, 2.0)


@pytest.mark.parametrize("cut", [1, 100, 1500, 5000])
def test_an_unfinished_batch_is_left_out(tmp_path, cut):
    path = write_rows(tmp_path / "records.jsonl", [make_row(i) for i in range(16)])
    path.write_bytes(path.read_bytes()[:-cut])
    found = read_part(path, 2.0)
    assert_same(found.records, read_slowly(path))
    assert found.end == max((end for _, end in read_groups(path)), default=0)
    assert len(found.records) % 4 == 0


WRONG = [
    {"index": -1}, {"index": 1.0}, {"index": True}, {"index": 2**63}, {"index": "1"}, {"index": None}, {"label": ...},
    {"label": -1}, {"true_label": -1}, {"true_label": 2.5}, {"true_label": False}, {"true_label": ...},
    {"adv_label": -2}, {"adv_label": -1}, {"adv_label": None}, {"x_p": -1.0}, {"x_p": None}, {"x_p": True},
    {"x_p": "3"}, {"x_p": 10**400}, {"x_p": ...}, {"seconds": -0.5}, {"seconds": ...}, {"r_p": -1.0}, {"r_p": None},
    {"r_p": ...}, {"r_p": True}, {"r_p": [1.0]}, {"status": "fooled"}, {"status": 0}, {"status": None},
    {"status": ...}, {"status": ["STUCK"]}, {"status": "STUCK"}, {"evidence": "hearsay"}, {"evidence": None},
    {"evidence": 0}, {"evidence": {}}, {"converged": 1}, {"converged": 0}, {"converged": None}, {"converged": "no"},
    {"reason": None}, {"reason": 3}, {"proof": "SURE"}, {"proof": "EXACT", "lower": -1}, {"batch": 0}, {"batch": 5},
    {"batch": 2}, {"batch": ...},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
def test_what_is_wrong_in_a_row_is_wrong_in_a_block(tmp_path, wrong):
    row = make_row(2, **wrong)
    assert find_fault(row) or "batch" in wrong
    path = write_rows(tmp_path / "records.jsonl", [make_row(0), make_row(1), row, make_row(3)])
    with pytest.raises(UnusualRowsError):
        read_part(path, 2.0)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"3",
        b"{}",
        b"nonsense",
        b'{"index":1',
        b"{} {}",
        b"{},{}",
        b"{},",
        b'{"a":[{}\n{}]},{}',
        b'{"index":NaN}',
        b"\xff",
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:12]),
)
def test_a_line_that_is_no_row(tmp_path, line):
    path = write_rows(tmp_path / "records.jsonl", [make_row(0), make_row(1)])
    path.write_bytes(path.read_bytes() + line + b"\n" + encode_row(make_row(2)) + encode_row(make_row(3)))
    with pytest.raises(UnusualRowsError):
        read_part(path, 2.0)


def test_rows_that_reach_into_the_next_line_are_refused(tmp_path):
    whole = encode_row(make_row(1)).rstrip()
    lines = [b'{"more":[' + whole[:-1] + b"}", whole + b"]," + whole[1:]]  # three rows if the lines were joined
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join([*lines, b""]))
    with pytest.raises(UnusualRowsError):
        read_part(path, 2.0)


def test_brackets_in_a_reason_are_fine(tmp_path):
    path = write_rows(tmp_path / "records.jsonl", [make_row(i, reason="[a] {b}") for i in range(4)])
    assert_same(read_part(path, 2.0).records, read_slowly(path))


def test_lines_written_by_another_hand_are_read_one_by_one(tmp_path, run):
    rows = [make_row(i, reason="schräg", evidence="scores") for i in range(40)]
    text = "".join(json.dumps(row, ensure_ascii=False) + " \n" for row in rows)
    (run.folder / RECORDS).write_text(text, encoding="utf-8")
    assert run.records().reasons == ("schräg",)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of 40 rows that is large enough to be kept."""
    monkeypatch.setattr(kept, "FROM", 8)
    data = {"sha256": "d" * 64, "samples": 40}
    knobs = {"max_iter": 50, "overshoot": 0.02, "bounds": None}
    identity = {
        "model": {"sha256": "m" * 64}, "data": data, "indices": "0-39", "p": 2.0, "dtype": "float32", "seed": 0,
        "attack": {"name": "deepfool", "knobs": knobs}, "perturbations": False,
    }  # fmt: skip
    manifest = {
        "format": 1, "identity": identity, "samples": 40, "model": {"spec": "net", "arch": None}, "sessions": [],
        "data": {"spec": None, "name": "some", "split": "test", "size": None, "classes": []},
    }  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_rows(folder / RECORDS, [make_row(39 - i, **KINDS[i % 9]) for i in range(40)])
    return Run(folder)


def forbid_decoding(monkeypatch):
    def refuse(*_):
        raise AssertionError("rows were decoded")

    monkeypatch.setattr(columns, "_read_usual", refuse)
    monkeypatch.setattr(columns, "_read_proved", refuse)


def test_rows_are_decoded_only_once(run, monkeypatch):
    wanted = read_slowly(run.folder / RECORDS)
    wanted = wanted.pick(np.argsort(wanted.index))
    assert_same(run.records(), wanted)
    forbid_decoding(monkeypatch)
    assert_same(run.records(), wanted)
    assert run.count == 40
    assert run.complete


def test_a_small_run_keeps_nothing(run, monkeypatch):
    monkeypatch.setattr(kept, "FROM", 41)
    run.records()
    assert not (run.folder / COLUMNS).exists()


def test_summaries_are_the_same_with_and_without(run):
    first = summarize(run)
    assert (run.folder / COLUMNS).exists()
    assert summarize(run) == first
    (run.folder / COLUMNS).unlink()
    assert summarize(run) == first


def test_rows_that_were_added_are_read(run, monkeypatch):
    path = run.folder / RECORDS
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:18]))  # four batches and two rows of another one
    assert len(run.records()) == 16
    path.write_bytes(b"".join(lines[:27]))
    seen = []
    read = columns._read_usual
    monkeypatch.setattr(columns, "_read_usual", lambda rows, reasons: seen.extend(rows) or read(rows, reasons))
    assert len(run.records()) == 24
    assert len(seen) == 11  # from the end of the last finished batch
    path.write_bytes(whole)
    found = run.records()
    wanted = read_slowly(path)
    assert_same(found, wanted.pick(np.argsort(wanted.index)))


def test_an_edit_that_leaves_size_and_time_alone_is_noticed(run):
    path = run.folder / RECORDS
    run.records()
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"iterations":2', b'"iterations":5', 3))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert run.records().iterations.tolist().count(5) == 3
    assert run.records().iterations.tolist().count(5) == 3


def test_damage_is_found_although_the_rows_were_kept(run):
    path = run.folder / RECORDS
    run.records()
    path.write_bytes(path.read_bytes().replace(b'"label":1', b'"label":x', 1))
    with pytest.raises(RunError, match="is damaged"):
        run.records()


def test_a_shorter_file_is_read_anew(run):
    path = run.folder / RECORDS
    run.records()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:12]))
    assert len(run.records()) == 12


def test_what_is_kept_may_be_damaged_anywhere(run):
    wanted, file = run.records(), run.folder / COLUMNS
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for place in [*range(0, 60, 7), *rng.integers(0, len(whole), 60).tolist()]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file.write_bytes(damaged)
        assert_same(run.records(), wanted)
    for damaged in (b"", whole[:100], whole[:-1], b"{}" * 50):
        file.write_bytes(damaged)
        assert_same(run.records(), wanted)


def test_samples_of_another_run_are_refused_from_what_is_kept_too(run):
    run.records()
    manifest = json.loads((run.folder / "manifest.json").read_text())
    manifest["identity"]["indices"], manifest["samples"] = "0-29", 30
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="which is not part of this run"):
        Run(run.folder).records()


def test_a_sample_twice_is_refused(run):
    path = run.folder / RECORDS
    write_rows(path, [make_row(i % 20) for i in range(40)])
    with pytest.raises(RunError, match="twice"):
        run.records()


def test_a_folder_that_cannot_be_written_is_read(run, monkeypatch):
    def refuse(path, *content):
        raise kept.DataError("no room")

    monkeypatch.setattr(kept.cache, "write", refuse)
    assert len(run.records()) == 40


def test_certificates_that_were_added_later_join_what_is_kept(run, monkeypatch):
    from deepfool.runs.proofs import CERTIFICATES, describe_question

    added = [{"index": i, "proof": "CERTIFIED", "lower": 0.2 + i / 100, "proof_limit": 2.0} for i in range(0, 40, 3)]
    lines = [{"certificates": describe_question(run.identity)}, *added, {"index": 1, "proof": "EXACT", "lower": None}]
    (run.folder / CERTIFICATES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = Records.of(run.rows(), run.p)
    wanted = wanted.pick(np.argsort(wanted.index))
    assert_same(run.records(), wanted)
    forbid_decoding(monkeypatch)
    assert_same(run.records(), wanted)
    assert np.isinf(wanted.lower[1])


SHAPES = {
    "gamma": lambda rng, n: rng.gamma(2.0, 0.1, n), "heavy": lambda rng, n: rng.pareto(2.2, n),
    "lognormal": lambda rng, n: rng.lognormal(0, 1.5, n), "ties": lambda rng, n: rng.integers(0, 3, n) * 0.5,
    "signed": lambda rng, n: rng.normal(0.01, 1.0, n), "lonely": lambda rng, n: np.r_[np.zeros(n - 3), 1.0, 5.0, 9.0],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_bins_give_the_same_bootstrap_as_samples(shape):
    n, resamples = 2000, 4000
    values = SHAPES[shape](np.random.default_rng(1), n)
    one = estimates._resample_samples(values, resamples, np.random.default_rng(2))
    other = estimates._resample_bins(values, resamples, np.random.default_rng(3))
    error = values.std() / math.sqrt(n)
    levels = np.array([0.025, 0.16, 0.5, 0.84, 0.975])
    # Two draws of a quantile of the same distribution: within 5 of their standard errors, about 0.03 to 0.04 here.
    noise = np.sqrt(2 * levels * (1 - levels) / resamples) / np.array([0.058, 0.24, 0.4, 0.24, 0.058])
    gaps = np.abs(np.quantile(one, levels) - np.quantile(other, levels)) / error
    assert (gaps <= 5 * noise + 1e-9).all() or shape == "lonely", gaps
    assert abs(one.mean() - other.mean()) <= 5 * error * math.sqrt(2 / resamples)
    assert abs(one.std() / other.std() - 1) <= 0.06
    if shape == "lonely":  # a few values only: the distributions themselves are compared
        places = np.linspace(0, values.max() * 4 / n, 30)
        shares = [np.searchsorted(np.sort(each), places + 1e-9) / resamples for each in (one, other)]
        assert np.abs(shares[0] - shares[1]).max() <= 5 * math.sqrt(0.5 / resamples)


@pytest.mark.parametrize("shape", ["gamma", "lognormal", "signed"])
def test_intervals_of_many_samples_are_the_same_to_two_digits(shape, monkeypatch):
    values = SHAPES[shape](np.random.default_rng(4), 12_000)
    fast = estimates.mean_with_interval(values)
    monkeypatch.setattr(estimates, "ONE_BY_ONE", 20_000)
    slow = estimates.mean_with_interval(values)
    width = slow.high - slow.low
    assert fast.value == slow.value
    for ours, theirs in ((fast.low, slow.low), (fast.high, slow.high)):
        assert abs(ours - theirs) <= 0.1 * width  # two draws of 2000 resamples differ by up to 0.08 of it
        if shape != "signed":
            assert ours == pytest.approx(theirs, rel=5e-3)


def test_an_interval_of_a_million_samples_is_that_of_the_normal_distribution():
    values = np.random.default_rng(5).gamma(3.0, 1.0, 1_000_000)
    found = estimates.mean_with_interval(values)
    half = 1.96 * values.std() / 1000
    assert found.low == pytest.approx(found.value - half, abs=0.15 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.15 * half)


def test_cautions_and_failures_are_counted_from_columns():
    from collections import Counter

    from deepfool.metrics.headline import count_failures
    from deepfool.metrics.health import count_cautions, why_cautioned

    rows = [make_row(i, **KINDS[i % 9]) for i in range(90)]
    records = Records.of(rows, 2.0)
    assert count_cautions(records) == Counter(why for row in rows if (why := why_cautioned(row)))
    ended = Counter(row.get("reason") or row["status"] for row in rows if row["status"] in ("STUCK", "EXHAUSTED"))
    assert count_failures(records) == ended
    assert records.count_reasons(records.status == Status.FOOLED)["by scores"] == 10
