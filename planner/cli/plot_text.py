"""The plot as text: the islands of each pool, and the groups that serve each input length.

Letters stand for the same groups as in the picture. Bars consist of these letters, so that the
text needs no colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from ..documents import Document, canonical, safe
from ..plan import Plan
from ..problem import STAGES, PlanningProblem
from .plot_marks import group_marks, headline, subline
from .show_plan import condensed, stage_shares

WIDTH = 48
"""Characters of a full bar."""
FREE = "."
RENTABLE = "-"
"""GPUs that can be rented."""
FILL = "#"


def text_plot(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """Yield the lines of the plot; texts of the file are escaped."""
    marks = group_marks(plan)
    yield headline(plan)
    yield subline(plan)
    yield ""
    width = max(len(safe(pool.name)) for pool in problem.pools)
    for pool in problem.pools:
        used = plan.used(pool.name)
        text = f"{used:,} of {pool.count:,} GPUs"
        parts = [(marks[g.name].letter, g.gpus_of(pool.name) * g.islands) for g in plan.groups]
        if pool.available > pool.count:
            parts.append((FREE, max(pool.count - used, 0)))
            parts.append((RENTABLE, pool.available - max(pool.count, used)))
            rented = dict(plan.rented).get(pool.name, 0)
            text += f", {rented:,} of {pool.available - pool.count:,} rented"
        shares = ((label, gpus / pool.available) for label, gpus in parts)
        yield f"{safe(pool.name):<{width}}  {bar(shares)}  {text}"
    yield ""
    width = max((len(mark.letter) for mark in marks.values()), default=1)
    for group in plan.groups:
        gpus = "+".join(str(part.gpus) for part in group.sections)
        yield (
            f"{marks[group.name].letter:<{width}}  {safe(group.name)}: {group.islands} x "
            f"{gpus} GPUs {group.phase} {group.parallelism}, {sum(group.rates):,.2f} req/s, "
            f"{group.utilisation:.1%} of {safe(group.binding)}"
        )
    for model, routes in groupby(plan.routes, key=lambda route: route.model):
        yield ""
        yield f"input tokens of {safe(model)}"
        blocks = condensed(routes)
        labels = [f"{b[0].range.min:,} - {b[-1].range.max - 1:,}" for b in blocks]
        width = max(map(len, labels))
        for label, block in zip(labels, blocks, strict=True):
            share = sum(route.share for route in block)
            yield f"{label:>{width}}  requests  {bar([(FILL, share)])}  {share:.1%}"
            for stage in STAGES:
                by_name = sorted(stage_shares(block, stage).items())
                letters = [(marks[name].letter, part) for name, part in by_name]
                text = ", ".join(f"{letter} {part:.0%}" for letter, part in letters)
                yield f"{'':{width}}  {stage:<8}  {bar(letters)}  {text}"


def plot_document(problem: PlanningProblem, plan: Plan) -> Document:
    """Return the same data for JSON: groups and letters, pools, and lengths."""
    marks = group_marks(plan)
    pools, lengths = [], []
    for pool in problem.pools:
        gpus = {marks[g.name].letter: g.gpus_of(pool.name) * g.islands for g in plan.groups}
        pools.append(
            {
                "name": pool.name,
                "count": pool.count,
                "available": pool.available,
                "used": plan.used(pool.name),
                "gpus": {letter: count for letter, count in gpus.items() if count},
            }
        )
    for model, routes in groupby(plan.routes, key=lambda route: route.model):
        for block in condensed(routes):
            ends = {"min": block[0].range.min, "max": block[-1].range.max}
            length: Document = {"model": model, **ends, "share": sum(r.share for r in block)}
            for stage in STAGES:
                shares = sorted(stage_shares(block, stage).items())
                length[str(stage)] = {marks[name].letter: share for name, share in shares}
            lengths.append(length)
    document: Document = canonical(
        {
            "kind": "Plot",
            "name": plan.name,
            "pools": pools,
            "groups": [
                {"letter": marks[group.name].letter, "name": group.name, "phase": group.phase}
                for group in plan.groups
            ],
            "lengths": lengths,
        }
    )
    return document


def bar(parts: Iterable[tuple[str, float]], width: int = WIDTH) -> str:
    """Return a bar of labelled shares of 1, each as wide as its share; the rest is free.

    Widths are rounded so that the whole bar is exact; a label longer than its part is cut.
    """
    text, end = "", 0.0
    for label, share in parts:
        end += share
        columns = round(min(end, 1.0) * width) - len(text)
        text += (label * columns)[:columns]
    return text + FREE * (width - len(text))
