"""``archipelago verify``: the independent checker on a plan file, and the proof of its bound."""

from __future__ import annotations

import math

from ...check.checker import check_stored
from ...documents import INFEASIBLE, safe
from ...errors import PlanFileError
from ...explain.audit import Proof, audit
from ...formats.plan_file import read_stored
from ..show_plan import phrase
from ..terminal import console
from .files import errors_of, parse_document, read_text, write_document

SHOWN = 20
"""Findings of one subject that the table prints; ``-o json`` has all."""

CLOSE = 5e-6
"""Difference of two gaps that is not told: half of the last digit that is printed."""


def run(path: str, form: str) -> int:
    """Print every subject with ok or fail; 1 if there is a finding."""
    document = parse_document(read_text(path), path)
    if document.get("kind") == INFEASIBLE:
        raise PlanFileError(f"{path}: kind Infeasible: there is no plan to verify")
    with errors_of(path):
        stored = read_stored(document)
    results = check_stored(stored)
    audited, proof = audit(stored)
    results += audited
    findings = sum(len(result.findings) for result in results)
    if form == "json":
        checks = [
            {"subject": item.subject, "ok": not item.findings, "findings": [*item.findings]}
            for item in results
        ]
        parts = {
            "gap": proof.gap,
            "byPrices": proof.by_prices if math.isfinite(proof.by_prices) else None,
        }
        answer = {"name": document["name"], "ok": not findings, "proof": parts, "checks": checks}
        write_document(answer, form)
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
    out.print(f"{safe(document['name'])}: {_words(proof)}", soft_wrap=True)
    verdict = phrase(findings, "finding") if findings else "the plan holds"
    out.print(f"{safe(document['name'])}: {verdict}", style="bold")
    return 1 if findings else 0


def _words(proof: Proof) -> str:
    """Return what of the gap follows from the file, and what is taken on trust."""
    if not math.isfinite(proof.by_prices):
        return f"no prices prove a bound; the gap of {proof.gap:.3%} is the solver's word"
    if proof.by_prices <= proof.gap + CLOSE:
        return f"prices prove the gap of {proof.gap:.3%}"
    return (
        f"prices prove a gap of {proof.by_prices:.3%}; that it is {proof.gap:.3%} is the solver's "
        "word"
    )
