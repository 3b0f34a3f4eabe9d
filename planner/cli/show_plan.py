"""Print a plan: figures, pools, groups with their binding limits, and routes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby

from rich.console import Console

from ..documents import Document, listed, safe
from ..formats.calibrations import describe
from ..plan import MILLION, Changes, Group, Plan, Route, ThetaInterval
from ..problem import DEFAULT_CLASS, STAGES, Billing, Objective, Phase, PlanningProblem, Pool
from .terminal import grid

RARE = 0.01
"""Share of a model's requests below which routes are shown together with their neighbours."""
NAMES = 12
"""Islands that a change lists; the plan file has all."""


def phrase(count: int, noun: str) -> str:
    """Return ``1 island``, ``2 islands``; for nouns with a plural in -s."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def show_plan(out: Console, problem: PlanningProblem, plan: Plan, document: Document) -> None:
    """Print a plan from the most to the least important."""
    _header(out, problem, plan, document)
    _pools(out, problem, plan)
    _groups(out, plan)
    _routes(out, plan)
    if plan.changes is not None:
        _changes(out, plan.changes)
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


def _header(out: Console, problem: PlanningProblem, plan: Plan, document: Document) -> None:
    facts = _reached(problem, plan, document)
    if not plan.certificate.complete:
        facts.insert(2, ("not final", safe(plan.certificate.reason)))
    facts += [
        *([("rented", _rented(plan))] if plan.rented else []),
        ("islands", _island_counts(plan)),
        ("found by", f"{plan.strategy} in {document['planSeconds']:.2f} s"),
        ("times from", plan.performance_model),
        *(("", f"measured: {safe(describe(one))}") for one in problem.calibrations),
        *([("uncertain", interval_text(plan.interval, plan.objective))] if plan.interval else []),
    ]
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


def _reached(problem: PlanningProblem, plan: Plan, document: Document) -> list[tuple[str, str]]:
    """Return throughput or cost of the plan, and its proof."""
    throughput = ("throughput", f"{plan.throughput:,.2f} req/s")
    headroom = ("headroom", f"{plan.theta:.4g} times the stated rates")
    gap = f"gap {plan.certificate.gap:.3%}"
    if plan.objective is Objective.COST:
        target = f"{problem.min_headroom or 1:.4g} times the stated rates"
        least = f"${plan.certificate.bound:,.2f} per hour"
        return [
            ("least cost", f"${plan.cost_per_hour:,.2f} per hour for {target}"),
            ("proof", f"at least {least} is needed, {gap}"),
            headroom,
            throughput,
        ]
    proof = ("proof", f"at most {document['bound']:,.2f} req/s is possible, {gap}")
    first = [headroom] if plan.objective is Objective.HEADROOM else []
    return [*first, throughput, proof, ("cost", _cost(plan))]


def interval_text(spread: ThetaInterval, objective: Objective) -> str:
    """Return the interval of theta, and the accelerator that dominates it."""
    what = "req/s" if objective is Objective.THROUGHPUT else "times the stated rates"
    return (
        f"{spread.low:.4g} to {spread.high:.4g} {what} with 90 % probability; the times of "
        f"{safe(spread.dominated_by)} matter most"
    )


def _rented(plan: Plan) -> str:
    return ", ".join(f"{phrase(gpus, 'GPU')} of {safe(pool)}" for pool, gpus in plan.rented)


def _cost(plan: Plan) -> str:
    return f"${plan.cost_per_hour:,.2f} per hour" if plan.cost_per_hour else "no prices stated"


def _island_counts(plan: Plan) -> str:
    counts = Counter[Phase]()
    for group in plan.groups:
        counts[group.phase] += group.islands
    return ", ".join(f"{counts[phase]} {phase}" for phase in Phase if counts[phase])


def _pools(out: Console, problem: PlanningProblem, plan: Plan) -> None:
    table = grid("POOL", "ACCELERATOR", ">GPUS USED", ">$/H", "~ISLANDS")
    for pool in problem.pools:
        table.add_row(
            safe(pool.name),
            pool.accelerator.name,
            f"{plan.used(pool.name):,} of {_offered(pool)}",
            f"{pool.price_per_gpu_hour * _paid(pool, plan):,.2f}",
            _islands_of(pool.name, plan.groups),
        )
    out.print()
    out.print(table)


def _offered(pool: Pool) -> str:
    """Return the GPUs that exist, plus those that can be rented."""
    more = pool.available - pool.count
    return f"{pool.count:,}" + (f" + {more:,}" if more else "")


def _paid(pool: Pool, plan: Plan) -> int:
    """Return the billed GPUs of a pool: those of islands, or of every node with an island."""
    if pool.billing is Billing.PER_GPU or pool.gpus_per_node is None:
        return plan.used(pool.name)
    groups = {group.name: group for group in plan.groups}
    nodes: set[str] = set()
    for island in plan.islands:
        nodes.update(_nodes_of(pool.name, groups[island.group], island.nodes))
    return len(nodes) * pool.gpus_per_node


def _nodes_of(pool: str, group: Group, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes of an island in a pool; each of several parts is on one node, in order."""
    if not group.parts:
        return nodes if group.pool == pool else ()
    at = [part.pool for part in group.parts]
    return tuple(node for of, node in zip(at, nodes, strict=False) if of == pool)


def _islands_of(pool: str, groups: Iterable[Group]) -> str:
    """Return the islands of a pool: ``6 prefill of 8 GPUs, 1 decode of 4 GPUs with 8 of h20``."""
    counts = Counter[tuple[int, int, str]]()
    order = list(Phase)
    for group in groups:
        if mine := group.gpus_of(pool):
            others = (f"{p.gpus} of {safe(p.pool)}" for p in group.parts if p.pool != pool)
            counts[order.index(group.phase), mine, " and ".join(others)] += group.islands
    parts = (
        f"{counts[key]} {order[key[0]]} of {phrase(key[1], 'GPU')}"
        + f" with {key[2]}" * bool(key[2])
        for key in sorted(counts)
    )
    return ", ".join(parts) or "none"


def _groups(out: Console, plan: Plan) -> None:
    several = len({group.model for group in plan.groups}) > 1
    classes = {group.domain_class for group in plan.groups} != {DEFAULT_CLASS}
    heads = ["PHASE", ">ISLANDS", ">GPUS", "PARALLELISM", ">BATCH", ">REQ/S", ">USED", "BINDS"]
    optional = [name for name, shown in (("MODEL", several), ("CLASS", classes)) if shown]
    uncertainty = [">TIMES WITHIN"] if any(group.times_within > 1 for group in plan.groups) else []
    table = grid("~GROUP", *optional, *heads, ">TPOT MS", *uncertainty)
    for group in plan.groups:
        facts = {"MODEL": group.model, "CLASS": group.domain_class}
        name = short_name(group.name, group.model, group.phase)
        within = [f"x {group.times_within:.2f}"] if uncertainty else []
        table.add_row(name, *(safe(facts[key]) for key in optional), *_group_cells(group), *within)
    out.print()
    out.print(table)


def _group_cells(group: Group) -> list[str]:
    decode = Phase.DECODE in group.phase.stages
    return [
        str(group.phase),
        str(group.islands),
        "+".join(str(part.gpus) for part in group.sections),
        str(group.parallelism),
        str(group.max_batch) if decode else "-",
        f"{sum(group.rates):,.2f}",
        f"{group.utilisation:.1%}",
        safe(group.binding),
        f"{group.step_time * 1e3:.2f}" if decode else "-",
    ]


def short_name(name: str, model: str, phase: Phase) -> str:
    """Return a group's name without the words of its other columns."""
    return safe(name.removeprefix(f"{model}-").replace(f"-{phase}", ""))


def _routes(out: Console, plan: Plan) -> None:
    """Print neighbouring ranges with the same groups as one line."""
    for model, routes in groupby(plan.routes, key=lambda route: route.model):
        table = grid(">INPUT TOKENS", ">REQUESTS", "~PREFILL", "~DECODE")
        for block in condensed(list(routes)):
            table.add_row(
                f"{block[0].range.min:,} - {block[-1].range.max - 1:,}",
                f"{sum(route.share for route in block):.1%}",
                *(_shares(block, stage, model) for stage in STAGES),
            )
        out.print()
        out.print(f"routes of {safe(model)}", style="bold")
        out.print(table)


def condensed(routes: list[Route]) -> list[list[Route]]:
    """Return runs of neighbouring ranges that use the same groups, or that are rare."""
    blocks: list[list[Route]] = []
    for route in sorted(routes, key=lambda route: route.range):
        if blocks and _used(blocks[-1][-1]) == _used(route):
            blocks[-1].append(route)
        else:
            blocks.append([route])
    return _without_rare(blocks)


def _without_rare(blocks: list[list[Route]]) -> list[list[Route]]:
    """Merge neighbouring blocks that are rare."""
    merged: list[list[Route]] = []
    for rare, run in groupby(blocks, key=lambda block: sum(r.share for r in block) < RARE):
        together = list(run)
        merged += [[route for block in together for route in block]] if rare else together
    return merged


def _used(route: Route) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(getattr(pair, stage) for pair in route.pairs) for stage in STAGES)


def _shares(block: list[Route], stage: Phase, model: str) -> str:
    """Return the groups of one side with their share of the block's requests, largest first."""
    weights: defaultdict[str, float] = defaultdict(float)
    whole = sum(route.share for route in block)
    for route in block:
        part = route.share / whole if whole else 1 / len(block)
        for pair in route.pairs:
            weights[getattr(pair, stage)] += part * pair.weight / MILLION
    order = sorted(weights, key=lambda name: (-weights[name], name))
    names = {name: short_name(name, model, stage) for name in order}
    if len(order) == 1:
        return names[order[0]]
    return ", ".join(f"{names[name]} {weights[name]:.0%}" for name in order)


def _changes(out: Console, changes: Changes) -> None:
    """Print the changes to the running islands."""
    out.print("\nagainst the running plan", style="bold")
    kinds = {
        "kept": changes.kept,
        "moved": changes.moved,
        "started": changes.started,
        "stopped": changes.stopped,
    }
    for word, names in kinds.items():
        shown = listed([safe(name) for name in names], NAMES)
        suffix = "" if word == "kept" or not names else f": {shown}"
        out.print(f"  {word:<9}{phrase(len(names), 'island')}{suffix}", soft_wrap=True)
    gpus = phrase(changes.moved_gpus, "GPU")
    out.print(f"  {'restart':<9}{gpus} of the islands that start or move", soft_wrap=True)


def _left_out(out: Console, plan: Plan) -> None:
    _reasons(out, [(item.template, item.reason) for item in plan.exclusions])


def _reasons(out: Console, exclusions: Iterable[tuple[str, str]]) -> None:
    """Print the number of excluded templates for each kind of reason."""
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
    """Return the subject of an exclusion's reason, in a word or two."""
    kinds = {
        "dominated": "dominated",
        "TTFT": "above the TTFT target",
        "TPOT": "above the TPOT target",
        "KV": "without KV memory",
    }
    return kinds.get(reason.split(maxsplit=1)[0], "too small for the weights")
