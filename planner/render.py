"""A plan for people: what it reaches, what stands where, what binds, and where requests go."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from archipelago.planner.plan import MILLION
from archipelago.planner.problem import Objective, Phase
from archipelago.planner.terminal import grid
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Group, Plan, Route
    from archipelago.planner.problem import PlanningProblem

RARE = 0.01
"""Share of a model's requests below which routes are shown together with their neighbours."""


def phrase(count: int, noun: str) -> str:
    """``1 island``, ``2 islands``; nouns in -y and -h are not needed here."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def show_plan(out: Console, problem: PlanningProblem, plan: Plan, document: Document) -> None:
    """Print a plan from the most to the least important."""
    _header(out, plan, document)
    _pools(out, problem, plan)
    _groups(out, plan)
    _routes(out, plan)
    _left_out(out, plan)


def show_infeasible(out: Console, document: Document) -> None:
    """Print why there is no plan, and the smallest changes that would make one."""
    out.print(f"{safe(document['name'])}: no plan ({document['reason']})", style="bold red")
    out.print(safe(document["message"]), soft_wrap=True)
    if document["relaxations"]:
        out.print("\nOne of these changes would make a plan possible:", style="bold")
    for item in document["relaxations"]:
        out.print(f"  - {safe(item['text'])}", soft_wrap=True)
    _reasons(out, [(item["template"], item["reason"]) for item in document["exclusions"]])


def _header(out: Console, plan: Plan, document: Document) -> None:
    proof = plan.certificate
    facts = [
        ("throughput", f"{plan.throughput:,.2f} req/s"),
        ("proof", f"at most {document['bound']:,.2f} req/s is possible, gap {proof.gap:.3%}"),
        ("cost", _cost(plan)),
        ("islands", _island_counts(plan)),
        ("found by", f"{plan.strategy} in {document['planSeconds']:.2f} s"),
        ("times from", plan.performance_model),
    ]
    if plan.objective is Objective.HEADROOM:
        facts.insert(0, ("headroom", f"{plan.theta:.4g} times the stated rates"))
    if not proof.complete:
        facts.insert(2, ("not final", safe(proof.reason)))
    facts.extend(
        (
            "unservable",
            f"{item.share:.4%} of {safe(item.model)}: prompts of {item.above:,} tokens and more",
        )
        for item in plan.unservable
    )
    out.print(safe(plan.name), style="bold")
    for name, text in facts:
        out.print(f"  {name:<12}{text}", soft_wrap=True)


def _cost(plan: Plan) -> str:
    return f"${plan.cost_per_hour:,.2f} per hour" if plan.cost_per_hour else "no prices stated"


def _island_counts(plan: Plan) -> str:
    counts = Counter[Phase]()
    for group in plan.groups:
        counts[group.phase] += group.islands
    return ", ".join(f"{counts[phase]} {phase}" for phase in Phase)


def _pools(out: Console, problem: PlanningProblem, plan: Plan) -> None:
    table = grid("POOL", "ACCELERATOR", ">GPUS USED", ">$/H", "~ISLANDS")
    for pool in problem.pools:
        groups = [group for group in plan.groups if group.pool == pool.name]
        used = sum(group.gpus * group.islands for group in groups)
        table.add_row(
            safe(pool.name),
            pool.accelerator.name,
            f"{used:,} of {pool.count:,}",
            f"{pool.price_per_gpu_hour * used:,.2f}",
            _stock(groups),
        )
    out.print()
    out.print(table)


def _stock(groups: list[Group]) -> str:
    """Islands of one pool in words: ``6 prefill of 8 GPUs, 1 decode of 16 GPUs``."""
    counts = Counter[tuple[Phase, int]]()
    for group in groups:
        counts[group.phase, group.gpus] += group.islands
    order = sorted(counts, key=lambda key: (list(Phase).index(key[0]), key[1]))
    parts = (f"{counts[key]} {key[0]} of {phrase(key[1], 'GPU')}" for key in order)
    return ", ".join(parts) or "none"


def _groups(out: Console, plan: Plan) -> None:
    several = len({group.model for group in plan.groups}) > 1
    heads = ["PHASE", ">ISLANDS", ">GPUS", "PARALLELISM", ">BATCH", ">REQ/S", ">USED", "BINDS"]
    table = grid("~GROUP", *(["MODEL"] if several else []), *heads, ">TPOT MS")
    for group in plan.groups:
        name = short_name(group.name, group.model, group.phase)
        table.add_row(name, *([safe(group.model)] if several else []), *_group_cells(group))
    out.print()
    out.print(table)


def _group_cells(group: Group) -> list[str]:
    decode = group.phase is Phase.DECODE
    return [
        str(group.phase),
        str(group.islands),
        str(group.gpus),
        str(group.parallelism),
        str(group.max_batch) if decode else "-",
        f"{sum(group.rates):,.2f}",
        f"{group.utilisation:.1%}",
        safe(group.binding),
        f"{group.step_time * 1e3:.2f}" if decode else "-",
    ]


def short_name(name: str, model: str, phase: Phase) -> str:
    """A group's name without the words that stand beside it anyway."""
    return safe(name.removeprefix(f"{model}-").replace(f"-{phase}", ""))


def _routes(out: Console, plan: Plan) -> None:
    """Routes of neighbouring ranges that go to the same groups, as one line."""
    for model, routes in groupby(plan.routes, key=lambda route: route.model):
        table = grid(">INPUT TOKENS", ">REQUESTS", "~PREFILL", "~DECODE")
        for block in condensed(list(routes)):
            table.add_row(
                f"{block[0].range.min:,} - {block[-1].range.max - 1:,}",
                f"{sum(route.share for route in block):.1%}",
                *(_shares(block, phase, model) for phase in Phase),
            )
        out.print()
        out.print(f"routes of {safe(model)}", style="bold")
        out.print(table)


def condensed(routes: list[Route]) -> list[list[Route]]:
    """Runs of neighbouring ranges that use the same groups, or that hardly anybody uses."""
    blocks: list[list[Route]] = []
    for route in sorted(routes, key=lambda route: route.range):
        if blocks and _used(blocks[-1][-1]) == _used(route):
            blocks[-1].append(route)
        else:
            blocks.append([route])
    return _without_rare(blocks)


def _without_rare(blocks: list[list[Route]]) -> list[list[Route]]:
    """Neighbours that are each rare become one block."""
    found: list[list[Route]] = []
    for rare, run in groupby(blocks, key=lambda block: sum(r.share for r in block) < RARE):
        together = list(run)
        found += [[route for block in together for route in block]] if rare else together
    return found


def _used(route: Route) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(getattr(pair, phase) for pair in route.pairs) for phase in Phase)


def _shares(block: list[Route], phase: Phase, model: str) -> str:
    """Groups of one side with their share of the block's requests, largest first."""
    weights: defaultdict[str, float] = defaultdict(float)
    whole = sum(route.share for route in block)
    for route in block:
        part = route.share / whole if whole else 1 / len(block)
        for pair in route.pairs:
            weights[getattr(pair, phase)] += part * pair.weight / MILLION
    order = sorted(weights, key=lambda name: (-weights[name], name))
    names = {name: short_name(name, model, phase) for name in order}
    if len(order) == 1:
        return names[order[0]]
    return ", ".join(f"{names[name]} {weights[name]:.0%}" for name in order)


def _left_out(out: Console, plan: Plan) -> None:
    _reasons(out, [(item.template, item.reason) for item in plan.exclusions])


def _reasons(out: Console, exclusions: Iterable[tuple[str, str]]) -> None:
    """Excluded templates counted by kind of reason."""
    kinds = Counter(kind_of(reason) for _, reason in exclusions)
    if not kinds:
        return
    out.print()
    text = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    out.print(
        f"{phrase(sum(kinds.values()), 'template')} left out: {text} "
        "(archipelago templates says why)",
        soft_wrap=True,
        style="dim",
    )


def kind_of(reason: str) -> str:
    """What an exclusion's reason is about, in a word or two."""
    kinds = {
        "dominated": "dominated",
        "TTFT": "above the TTFT target",
        "TPOT": "above the TPOT target",
        "KV": "without KV memory",
    }
    return kinds.get(reason.split(maxsplit=1)[0], "too small for the weights")
