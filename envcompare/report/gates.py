"""The verdicts of gates for people and for programs: a first line, JUnit, and annotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from envcompare.analysis.two_runs import Finding, GateResult
from envcompare.report import Line, PlainBlock, markdown
from envcompare.text import counted, flat, visible

_INCOMPLETE: Final = "the run is not complete, or a comparison could not be judged"
_LEVELS: Final[dict[Finding, str]] = {"hit": "error", "unjudged": "error", "open": "notice"}
# Of a property; of a message, colons and commas are no separators.
_ENCODED: Final = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})


def answer(results: Sequence[GateResult], exit_code: int) -> Line:
    """Return PASS, FAIL or NOT JUDGED, with the number of gates."""
    hit = [result for result in results if result.is_hit]
    if hit:
        names = ", ".join(result.gate for result in hit)
        return Line(strong="FAIL", text=f"{counted(len(hit), 'gate')} hit: {names}", style="failed")
    if exit_code:
        return Line(strong="NOT JUDGED", text=_INCOMPLETE, style="failed")
    judged = max((result.comparisons for result in results), default=0)
    text = f"{counted(judged, 'comparison')} judged by {counted(len(results), 'gate')}"
    doubtful = sum(finding.finding == "open" for result in results for finding in result.findings)
    doubt = f"; {doubtful} may still exceed the bound" if doubtful else ""
    return Line(strong="PASS", text=f"{text}{doubt}", style="equivalent")


def comment(first: Iterable[PlainBlock], details: Iterable[PlainBlock]) -> str:
    """Return Markdown for a pull request, with folded details."""
    return (
        f"{markdown(first)}\n<details><summary>Details</summary>\n\n"
        f"{markdown(details)}\n</details>\n"
    )


def junit(results: Sequence[GateResult], exit_code: int, *, name: str) -> bytes:
    """Return a JUnit test suite: a test case for each gate, which fails if the gate is hit.

    What could not be judged is an error. The form is that of Apache Ant's JUnit task.
    """
    suite = Element("testsuite", name=visible(name))
    if _is_only_incomplete(results, exit_code):
        case = SubElement(suite, "testcase", classname="envcompare.gates", name="complete")
        SubElement(case, "error", message=_INCOMPLETE)
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


def github_lines(results: Sequence[GateResult], exit_code: int) -> str:
    """Return workflow commands of GitHub Actions: an annotation for each finding."""
    first = f"::error title=gates::{_INCOMPLETE}\n"
    lines = (
        f"::{_LEVELS[finding.finding]} title={f'gate {result.gate}'.translate(_ENCODED)}::"
        f"{flat(finding.sentence).replace('%', '%25')}"
        for result in results
        for finding in result.findings
    )
    said = "".join(f"{line}\n" for line in lines)
    return first + said if _is_only_incomplete(results, exit_code) else said


def _is_only_incomplete(results: Iterable[GateResult], exit_code: int) -> bool:
    """Return whether no finding says why the gates do not pass."""
    findings = {finding.finding for result in results for finding in result.findings}
    return bool(exit_code) and findings.isdisjoint({"hit", "unjudged"})
