"""The plot as text: the islands of each pool, and the groups that serve each input length.

Letters stand for the same groups as in the picture. Bars consist of these letters, so that the
text needs no colour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

from ..documents import Document, canonical, safe
from ..plan import MILLION, Plan, Route
from ..problem import STAGES, Phase, PlanningProblem, Pool
from .plot_marks import Mark, group_marks, headline, subline, used_of
from .show_plan import condensed

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
    yield from _pools(problem.pools, plan, marks)
    yield ""
    yield from _key(plan, marks)
    for model, routes in groupby(plan.routes, key=lambda route: route.model):
        yield ""
        yield from _lengths(model, list(routes), marks)


def plot_document(problem: PlanningProblem, plan: Plan) -> Document:
    """Return the same data for JSON: groups and letters, pools, and lengths."""
    marks = group_marks(plan)
    document: Document = canonical(
        {
            "kind": "Plot",
            "name": plan.name,
            "pools": [_pool_document(pool, plan, marks) for pool in problem.pools],
            "groups": [
                {"letter": marks[group.name].letter, "name": group.name, "phase": str(group.phase)}
                for group in plan.groups
            ],
            "lengths": [
                _block_document(model, block, marks)
                for model, routes in groupby(plan.routes, key=lambda route: route.model)
                for block in condensed(list(routes))
            ],
        }
    )
    return document


def _pool_document(pool: Pool, plan: Plan, marks: dict[str, Mark]) -> Document:
    gpus = {marks[g.name].letter: g.gpus_of(pool.name) * g.islands for g in plan.groups}
    used = {letter: count for letter, count in gpus.items() if count}
    return {
        "name": pool.name,
        "count": pool.count,
        "available": pool.available,
        "used": plan.used(pool.name),
        "gpus": used,
    }


def _block_document(model: str, block: list[Route], marks: dict[str, Mark]) -> Document:
    sides = {
        str(stage): {marks[name].letter: part for name, part in _weights(block, stage)}
        for stage in STAGES
    }
    first, last = block[0].range, block[-1].range
    share = sum(route.share for route in block)
    return {"model": model, "min": first.min, "max": last.max, "share": share, **sides}


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


def _pools(pools: tuple[Pool, ...], plan: Plan, marks: dict[str, Mark]) -> Iterator[str]:
    name_width = max(len(safe(pool.name)) for pool in pools)
    for pool in pools:
        used = _bar_of(pool, plan, marks)
        yield f"{safe(pool.name):<{name_width}}  {used}  {used_of(pool, plan)}"


def _bar_of(pool: Pool, plan: Plan, marks: dict[str, Mark]) -> str:
    """Return a bar of the GPUs that exist or can be rented: in islands, free, or not rented."""
    used = [(marks[g.name].letter, g.gpus_of(pool.name) * g.islands) for g in plan.groups]
    if pool.available > pool.count:
        used.append((FREE, max(pool.count - plan.used(pool.name), 0)))
        used.append((RENTABLE, pool.available - max(pool.count, plan.used(pool.name))))
    return bar((label, gpus / pool.available) for label, gpus in used)


def _key(plan: Plan, marks: dict[str, Mark]) -> Iterator[str]:
    letters = max((len(mark.letter) for mark in marks.values()), default=1)
    for group in plan.groups:
        used = f"{group.utilisation:.1%} of {safe(group.binding)}"
        gpus = "+".join(str(part.gpus) for part in group.sections)
        yield (
            f"{marks[group.name].letter:<{letters}}  {safe(group.name)}: {group.islands} x "
            f"{gpus} GPUs {group.phase} {group.parallelism}, {sum(group.rates):,.2f} req/s, "
            f"{used}"
        )


def _lengths(model: str, routes: list[Route], marks: dict[str, Mark]) -> Iterator[str]:
    """Yield for each block of ranges its requests, and the groups that serve them."""
    yield f"input tokens of {safe(model)}"
    blocks = condensed(routes)
    labels = [f"{b[0].range.min:,} - {b[-1].range.max - 1:,}" for b in blocks]
    indent = max(map(len, labels))
    for label, block in zip(labels, blocks, strict=True):
        share = sum(route.share for route in block)
        yield f"{label:>{indent}}  requests  {bar([(FILL, share)])}  {share:.1%}"
        for stage in STAGES:
            weights = _weights(block, stage)
            parts = [(marks[name].letter, part) for name, part in weights]
            text = ", ".join(f"{marks[name].letter} {part:.0%}" for name, part in weights)
            yield f"{'':{indent}}  {stage:<8}  {bar(parts)}  {text}"


def _weights(block: list[Route], stage: Phase) -> list[tuple[str, float]]:
    """Return the groups of a stage by name, with their share of the block's requests."""
    shares: defaultdict[str, float] = defaultdict(float)
    whole = sum(route.share for route in block)
    for route in block:
        part = route.share / whole if whole else 1 / len(block)
        for pair in route.pairs:
            shares[getattr(pair, stage)] += part * pair.weight / MILLION
    return sorted(shares.items())
