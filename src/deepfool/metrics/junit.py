"""Verdicts as JUnit XML, which CI servers show as test results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from deepfool.metrics.conditions import Verdict

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file may hold, not even escaped; texts from a run folder may."""


def to_junit(verdicts: Sequence[Verdict], name: str) -> str:
    """The verdicts as JUnit XML: a test case for each condition, with what was found.

    >>> print(to_junit([Verdict("min-rho", False, "0.1 < 0.2")], "run"))
    <?xml version="1.0" encoding="utf-8"?>
    <testsuites><testsuite name="deepfool check" tests="1" failures="1" errors="0" skipped="0"><testcase classname="run"
    name="min-rho"><failure message="0.1 &lt; 0.2" type="not met">0.1 &lt;
    0.2</failure></testcase></testsuite></testsuites>
    """
    root = ElementTree.Element("testsuites")
    failures = sum(not verdict.passed for verdict in verdicts)
    suite = ElementTree.SubElement(
        root, "testsuite", name="deepfool check", tests=str(len(verdicts)), failures=str(failures), errors="0",
        skipped="0",
    )  # fmt: skip
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name=verdict.name)
        text = _clean(verdict.sentence)
        if verdict.passed:
            ElementTree.SubElement(case, "system-out").text = text
        else:
            ElementTree.SubElement(case, "failure", message=text, type=verdict.outcome).text = text
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
