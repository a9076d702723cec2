"""Results of benchmarks are kept in one file beside their page."""

import json

from benchmarks.kept import pack, unpack


def write(folder, path, result):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(json.dumps(result))


def test_results_come_back_where_they_were(tmp_path):
    write(tmp_path / "work", "net/l2/mine.json", {"attack": "mine", "norms": [0.123456789, None], "left": [True, 3]})
    write(tmp_path / "work", "net/l2/radii.json", [1e-7, 2])
    pack(tmp_path / "work", tmp_path / "pages" / "kept.json")
    unpack(tmp_path / "pages" / "kept.json", tmp_path / "again")
    mine = json.loads((tmp_path / "again/net/l2/mine.json").read_text())
    assert mine == {"attack": "mine", "norms": [0.123457, None], "left": [True, 3]}
    assert json.loads((tmp_path / "again/net/l2/radii.json").read_text()) == [1e-7, 2]
    pack(tmp_path / "again", tmp_path / "second.json")
    assert (tmp_path / "second.json").read_text() == (tmp_path / "pages" / "kept.json").read_text()


def test_what_was_measured_since_or_is_to_be_measured_anew_stays(tmp_path):
    for name in ("mine", "theirs"):
        write(tmp_path / "work", f"{name}.json", {"attack": name, "norms": [1.0]})
    pack(tmp_path / "work", tmp_path / "kept.json")
    write(tmp_path / "now", "theirs.json", {"attack": "theirs", "norms": [0.5]})
    unpack(tmp_path / "kept.json", tmp_path / "now", unless=lambda result: result["attack"] == "mine")
    assert json.loads((tmp_path / "now/theirs.json").read_text())["norms"] == [0.5]
    assert not (tmp_path / "now/mine.json").exists()


def test_without_a_file_there_is_nothing_to_put_back(tmp_path):
    unpack(tmp_path / "missing.json", tmp_path / "work")
    assert not (tmp_path / "work").exists()
