"""The report on graded exercises: for a terminal, as JUnit XML and as Markdown; and the exit status of a policy."""

import re
from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree

import ddplab.grading as grading
from ddplab.grading import Report, Row

SIGNS = {"correct": "✓", "not yet": "✗", "not started": "·", "cannot check here": "?"}  # all others: !
POLICIES = {  # which states pass
    "complete": {"correct", "cannot check here"},
    "started": {"correct", "cannot check here", "not started"},
    "report": {"correct", "cannot check here", "not started", "not yet", grading.DID_NOT_RUN},
}


def counted(rows: Iterable[Row]) -> str:
    """How many exercises are in each state: "3 correct, 1 not yet"."""
    counts = Counter(row.state for row in rows)
    order = [*SIGNS, grading.DID_NOT_RUN, grading.OUT_OF_DATE, grading.NO_NOTEBOOK, grading.NOT_BELIEVED]
    return ", ".join(f"{counts[state]} {state}" for state in order if counts[state]) or "no exercises"


def status(rows: list[Row], policy: str) -> int:
    """The exit status: 0 where there are exercises and each is in a state that the policy lets pass, else 1."""
    return 0 if rows and all(row.state in POLICIES[policy] for row in rows) else 1


def text(report: Report) -> str:
    """What the terminal shows of one notebook, below its name."""
    lines = []
    for row in report.rows:
        name = f"{row.id} {row.title}".strip()
        lines.append(f"  {SIGNS.get(row.state, '!')} {name}: {row.state}" + (f": {row.message}" if row.message else ""))
        lines += [f"      hint: {row.hint}"] if row.hint else []
    lines += [f"  note: {note}" for notes in report.notes.values() for note in notes]
    return "\n".join(lines)


def markdown(reports: list[Report], about: str) -> str:
    """The report as a table for GitHub and the like. `about` is a line on how it was made."""
    rows = [row for report in reports for row in report.rows]
    lines = ["## Exercises", "", f"**{counted(rows)}**", "", "| | Exercise | | What to do |", "|-|-|-|-|"]
    for before, row in zip([None, *rows], rows, strict=False):
        if before is None or before.notebook != row.notebook:
            own = [it for it in rows if it.notebook == row.notebook]
            lines.append(f"| | **{_escaped(row.notebook)}** | | {counted(own)} |")
        what = _escaped(row.message) + (f"<br>*Hint:* {_escaped(row.hint)}" if row.hint else "")
        name = _escaped(f"{row.id} {row.title}".strip())
        lines.append(f"| {SIGNS.get(row.state, '!')} | {name} | {row.state} | {what} |")
    notes = [(name, note) for report in reports for name, of in report.notes.items() for note in of]
    lines += ["", *(f"- {_escaped(name)}: {_escaped(note)}" for name, note in notes)]
    return "\n".join([*lines, "", _escaped(about), ""])


def _escaped(words: str) -> str:
    """A learner's words, so that they stay words: no tag, no link, no cell of the table, nobody is mentioned."""
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~#!])", r"\\\1", words).replace("@", "@\u200b")


def junit(reports: list[Report], policy: str) -> bytes:
    """The report as JUnit XML: a test suite for each notebook, a test for each exercise.

    What the policy lets pass is no failure: what was not started or cannot be checked here is skipped.
    """
    root = ElementTree.Element("testsuites", name="exercises")
    suites: dict[str, ElementTree.Element] = {}
    for row in [row for report in reports for row in report.rows]:
        if row.notebook not in suites:
            suites[row.notebook] = ElementTree.SubElement(root, "testsuite", name=_legal(row.notebook))
        seconds = {"time": f"{row.seconds:.3f}"}
        name = _legal(f"{row.id} {row.title}".strip())
        case = ElementTree.SubElement(
            suites[row.notebook], "testcase", classname=_legal(row.notebook), name=name, **seconds
        )
        if row.state == "correct":
            continue
        passes = row.state in POLICIES[policy]
        kind = "skipped" if passes else "failure" if row.state in ("not yet", "not started") else "error"
        said = ElementTree.SubElement(case, kind, message=_legal(": ".join(filter(None, (row.state, row.message)))))
        said.text = _legal(f"hint: {row.hint}") if row.hint else None
    for suite in suites.values():
        suite.set("tests", str(len(suite)))
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _legal(words: str) -> str:
    """Words without the characters that XML cannot hold; a file's name may have them."""
    return "".join(sign if sign.isprintable() else " " for sign in words)
