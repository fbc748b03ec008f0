"""The verdicts of gates for people and for programs: a first line, JUnit, and annotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from envcompare.analysis.two_runs import Finding, GateResult
from envcompare.report import Line, PlainBlock, markdown
from envcompare.text import counted, flat, visible

_LEVELS: Final[dict[Finding, str]] = {"hit": "error", "unjudged": "error", "open": "notice"}
# Of a property; of a message, colons and commas are no separators.
_ENCODED: Final = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})


def answer(results: Sequence[GateResult], exit_code: int) -> Line:
    """Return PASS, FAIL or NOT JUDGED, with the number of gates."""
    hit = [one for one in results if one.is_hit]
    if hit:
        names = ", ".join(one.gate for one in hit)
        return Line(strong="FAIL", text=f"{counted(len(hit), 'gate')} hit: {names}", style="failed")
    if exit_code:
        return Line(strong="NOT JUDGED", text="not all comparisons could be judged", style="failed")
    judged = sum(one.comparisons for one in results)
    text = f"{counted(len(results), 'gate')}, {counted(judged, 'comparison')} judged"
    return Line(strong="PASS", text=text, style="equivalent")


def comment(first: Iterable[PlainBlock], details: Iterable[PlainBlock]) -> str:
    """Return Markdown for a pull request, with folded details."""
    return (
        f"{markdown(first)}\n<details><summary>Details</summary>\n\n"
        f"{markdown(details)}\n</details>\n"
    )


def junit(results: Iterable[GateResult], *, name: str) -> bytes:
    """Return a JUnit test suite: a test case for each gate, which fails if the gate is hit.

    A comparison that could not be judged is an error. The form is that of Apache Ant's JUnit task.
    """
    suite = Element("testsuite", name=name)
    for result in results:
        case = SubElement(suite, "testcase", classname="envcompare.gates", name=result.gate)
        for finding, tag in (("hit", "failure"), ("unjudged", "error")):
            texts = [one.sentence for one in result.findings if one.finding == finding]
            if texts and case.find("failure") is None:  # a test case has one result
                SubElement(case, tag, message=visible("; ".join(texts)))
        SubElement(case, "system-out").text = visible(result.sentence)
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        suite.set(attribute, str(sum(1 for _ in suite.iter(tag))))
    text: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def github_lines(results: Iterable[GateResult]) -> str:
    """Return workflow commands of GitHub Actions: an annotation for each finding."""
    lines = (
        f"::{_LEVELS[finding.finding]} title={f'gate {result.gate}'.translate(_ENCODED)}::"
        f"{flat(finding.sentence).replace('%', '%25')}"
        for result in results
        for finding in result.findings
    )
    return "".join(f"{line}\n" for line in lines)
