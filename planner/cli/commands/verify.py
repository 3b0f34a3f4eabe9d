"""``archipelago verify``: the independent checker on a plan file."""

from __future__ import annotations

from ...check.checker import CheckResult, check_document
from ...documents import INFEASIBLE, safe
from ...errors import PlanFileError
from ..show_plan import phrase
from ..terminal import console
from .files import errors_of, parse_document, read_text, write_document

DONE, FAILED = 0, 1
SHOWN = 20
"""Findings of one subject that the table prints; ``-o json`` has all."""


def run(path: str, form: str) -> int:
    """Print every subject with ok or fail; 1 if there is a finding."""
    document = parse_document(read_text(path), path)
    if document.get("kind") == INFEASIBLE:
        raise PlanFileError(f"{path}: kind Infeasible: there is no plan to verify")
    with errors_of(path):
        checked = check_document(document)
    good = not any(item.findings for item in checked)
    if form == "json":
        write_document(
            {
                "name": document["name"],
                "ok": good,
                "checks": [
                    {"subject": item.subject, "ok": not item.findings, "findings": [*item.findings]}
                    for item in checked
                ],
            },
            form,
        )
    else:
        _show(checked, str(document["name"]))
    return DONE if good else FAILED


def _show(checked: list[CheckResult], name: str) -> None:
    out = console()
    for item in checked:
        mark, style = ("fail", "bold red") if item.findings else ("ok", "green")
        out.print(f"{mark:<5}", style=style, end="")
        out.print(item.subject)
        for finding in item.findings[:SHOWN]:
            out.print(f"     {safe(finding)}", soft_wrap=True)
        if len(item.findings) > SHOWN:
            out.print(f"     ... and {len(item.findings) - SHOWN} more; -o json lists all")
    wrong = sum(len(item.findings) for item in checked)
    verdict = phrase(wrong, "finding") if wrong else "the plan holds"
    out.print(f"{safe(name)}: {verdict}", style="bold")
