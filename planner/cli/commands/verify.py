"""``archipelago verify``: the independent checker on a plan file."""

from __future__ import annotations

from ...check.checker import check_document
from ...documents import INFEASIBLE, safe
from ...errors import PlanFileError
from ..show_plan import phrase
from ..terminal import console
from .files import errors_of, parse_document, read_text, write_document

SHOWN = 20
"""Findings of one subject that the table prints; ``-o json`` has all."""


def run(path: str, form: str) -> int:
    """Print every subject with ok or fail; 1 if there is a finding."""
    document = parse_document(read_text(path), path)
    if document.get("kind") == INFEASIBLE:
        raise PlanFileError(f"{path}: kind Infeasible: there is no plan to verify")
    with errors_of(path):
        results = check_document(document)
    findings = sum(len(result.findings) for result in results)
    if form == "json":
        checks = [
            {"subject": item.subject, "ok": not item.findings, "findings": [*item.findings]}
            for item in results
        ]
        write_document({"name": document["name"], "ok": not findings, "checks": checks}, form)
        return 1 if findings else 0
    out = console()
    for result in results:
        mark, style = ("fail", "bold red") if result.findings else ("ok", "green")
        out.print(f"{mark:<5}", style=style, end="")
        out.print(result.subject)
        for finding in result.findings[:SHOWN]:
            out.print(f"     {safe(finding)}", soft_wrap=True)
        if len(result.findings) > SHOWN:
            out.print(f"     ... and {len(result.findings) - SHOWN} more; -o json lists all")
    verdict = phrase(findings, "finding") if findings else "the plan holds"
    out.print(f"{safe(document['name'])}: {verdict}", style="bold")
    return 1 if findings else 0
