"""The docs say what is so: the site builds with no broken link, code blocks run, command lines parse.

A Python block that cannot run on what ships with the package has a comment on the line above it that says why:

    <!-- not run: needs timm -->
"""

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.commands import Refused, find, parse

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?P<before>[^\n]*\n)?(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)\n(?P=indent)```", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")


def blocks(page):
    """(kind, the line before, text) of every fenced block of a page."""
    for match in FENCE.finditer(page.read_text()):
        indent = match["indent"]
        text = "\n".join(line.removeprefix(indent) for line in match["text"].splitlines())
        yield match["kind"].split(" ")[0].strip(), match["before"] or "", text


def name(page):
    return str(page.relative_to(ROOT))


def programs(page):
    return [text for kind, before, text in blocks(page) if kind == "python" and not NOT_RUN.search(before)]


def command_lines(page):
    """The `deepfool ...` lines of its blocks, without prompts and comments, continued lines joined."""
    for kind, _, text in blocks(page):
        if kind in ("python", "yaml", "xml", "toml", "text"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith("deepfool "):
                yield " ".join(shlex.split(line, comments=True)) if "'" not in line else line


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEEPFOOL_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace = {"__name__": "docs"}
    before = set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # some pages show what is warned of
        for text in programs(page):
            exec(compile(text, name(page), "exec"), namespace)
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", None)):
            del sys.modules[module]


@pytest.mark.parametrize("page", [page for page in PAGES if list(command_lines(page))], ids=name)
def test_command_lines_parse(page):
    for line in command_lines(page):
        try:
            parse(line)
        except Refused as error:
            pytest.fail(f"{name(page)}: {line}\n{error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_the_text_exist(page):
    """`deepfool NAME --option` in a sentence: the command has that name and those options."""
    text = FENCE.sub("", page.read_text())
    for line in re.findall(r"`deepfool ([a-z][^`]*)`", text):
        command, rest = find(line.replace("\n", " ").split())
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for word in rest:
            option = re.match(r"--?[a-z][\w-]*", word)
            assert not option or option[0] in known | {"--help"}, f"{name(page)}: deepfool {line}"


def test_blocks_are_told_apart(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\na = 1\n```\n<!-- not run: needs a GPU -->\n```python\nb\n```\n```\n$ deepfool show X # y\n```\n"
    )
    assert programs(page) == ["a = 1"]
    assert list(command_lines(page)) == ["deepfool show X"]


def test_the_site_builds_strictly(tmp_path):
    """Broken links, missing pages and unknown names in the API reference are warnings, and warnings fail (but with
    --quiet, where they are not counted)."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert "deepfool" in home
    _check_hosts(tmp_path / "site")


def _check_hosts(site):
    """A reader's browser asks nothing of other hosts: links may lead there, but nothing is loaded from there."""
    loading = re.compile(r'<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)="?(https?:)?//[^">]*')
    for page in site.rglob("*.html"):
        found = [each[0] for each in loading.finditer(page.read_text()) if 'rel="canonical"' not in each[0]]
        assert not found, f"{page.relative_to(site)} loads {found}"


def test_readme_links_lead_somewhere():
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), f"README.md links to {link}"


def test_pictures_are_small():
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 300_000, picture


def test_every_page_is_in_the_navigation():
    """A page that nobody links to from the side is not found; generated ones are listed by their index."""
    import yaml

    def pages(entry):
        if isinstance(entry, str):
            yield entry
        for value in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from pages(value)

    listed = set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    generated = {page for page in there if page.split("/")[0] in ("reproduction", "benchmarks")}
    assert there - generated <= listed
    assert listed <= there
