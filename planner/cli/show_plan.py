"""Print a plan: figures, pools, groups with their binding limits, and routes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby

from rich.console import Console

from ..documents import Document, listed, safe
from ..explain.provenance import precisions
from ..formats.calibrations import describe
from ..plan import MILLION, Group, Plan, Route, ThetaInterval
from ..problem import DEFAULT_CLASS, STAGES, Billing, Objective, Phase, PlanningProblem, Pool
from .terminal import print_table

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
    pools = (
        (
            pool.name,
            pool.accelerator.name,
            f"{plan.used(pool.name):,} of {pool.count:,}"
            + (f" + {pool.available - pool.count:,}" if pool.available > pool.count else ""),
            f"{pool.price_per_gpu_hour * _paid(pool, plan):,.2f}",
            _islands_of(pool.name, plan.groups),
        )
        for pool in problem.pools
    )
    print_table(out, ("POOL", "ACCELERATOR", ">GPUS USED", ">$/H", "~ISLANDS"), pools)
    _groups(out, plan)
    for model, routes in groupby(plan.routes, key=lambda route: route.model):
        blocks = (
            (
                f"{block[0].range.min:,} - {block[-1].range.max - 1:,}",
                f"{sum(route.share for route in block):.1%}",
                *(_shares(block, stage, model) for stage in STAGES),
            )
            for block in condensed(routes)
        )
        out.print(f"\nroutes of {safe(model)}", style="bold")
        print_table(out, (">INPUT TOKENS", ">REQUESTS", "~PREFILL", "~DECODE"), blocks, gap=0)
    if (changes := plan.changes) is not None:
        out.print("\nagainst the running plan", style="bold")
        out.print(f"  kept     {phrase(len(changes.kept), 'island')}", soft_wrap=True)
        for word in ("moved", "started", "stopped"):
            names = getattr(changes, word)
            text = phrase(len(names), "island")
            if names:
                text += f": {listed([safe(name) for name in names], NAMES)}"
            out.print(f"  {word:<9}{text}", soft_wrap=True)
        gpus = phrase(changes.moved_gpus, "GPU")
        out.print(f"  restart  {gpus} of the islands that start or move", soft_wrap=True)
    _exclusions(out, [item.reason for item in plan.exclusions])


def show_infeasible(out: Console, document: Document) -> None:
    """Print why there is no plan, and the smallest changes that would make one."""
    out.print(f"{safe(document['name'])}: no plan ({document['reason']})", style="bold red")
    out.print(safe(document["message"]), soft_wrap=True)
    if document["relaxations"]:
        out.print("\nOne of these changes would make a plan possible:", style="bold")
    for item in document["relaxations"]:
        out.print(f"  - {safe(item['text'])}", soft_wrap=True)
    _exclusions(out, [item["reason"] for item in document["exclusions"]])


def _header(out: Console, problem: PlanningProblem, plan: Plan, document: Document) -> None:
    """Print throughput or cost of the plan with its proof, then the other figures."""
    throughput = ("throughput", f"{plan.throughput:,.2f} req/s")
    headroom = ("headroom", f"{plan.theta:.4g} times the stated rates")
    gap = f"gap {plan.certificate.gap:.3%}"
    if plan.objective is Objective.COST:
        target = f"{problem.min_headroom or 1:.4g} times the stated rates"
        least = f"${plan.certificate.bound:,.2f} per hour"
        facts = [
            ("least cost", f"${plan.cost_per_hour:,.2f} per hour for {target}"),
            ("proof", f"at least {least} is needed, {gap}"),
            headroom,
            throughput,
        ]
    else:
        cost = f"${plan.cost_per_hour:,.2f} per hour" if plan.cost_per_hour else "no prices stated"
        facts = [
            *([headroom] if plan.objective is Objective.HEADROOM else []),
            throughput,
            ("proof", f"at most {document['bound']:,.2f} req/s is possible, {gap}"),
            ("cost", cost),
        ]
    if not plan.certificate.complete:
        facts.insert(2, ("not final", plan.certificate.reason))
    if plan.rented:
        rented = ", ".join(f"{phrase(gpus, 'GPU')} of {pool}" for pool, gpus in plan.rented)
        facts.append(("rented", rented))
    counts = Counter[Phase]()
    for group in plan.groups:
        counts[group.phase] += group.islands
    facts += [
        ("islands", ", ".join(f"{counts[phase]} {phase}" for phase in Phase if counts[phase])),
        ("found by", f"{plan.strategy} in {document['planSeconds']:.2f} s"),
        ("times from", plan.performance_model),
        *(("", f"measured: {describe(calibration)}") for calibration in problem.calibrations),
    ]
    facts += [("precision", sentence) for sentence in precisions(problem, plan)]
    if plan.interval:
        facts.append(("uncertain", interval_text(plan.interval, plan.objective)))
    for item in plan.unservable:
        prompts = f"prompts of {item.above:,} tokens and more"
        facts.append(("unservable", f"{item.share:.4%} of {item.model}: {prompts}"))
    out.print(safe(plan.name), style="bold")
    for name, text in facts:
        out.print(f"  {name:<12}{safe(text)}", soft_wrap=True)


def interval_text(spread: ThetaInterval, objective: Objective) -> str:
    """Return the interval of theta, and the accelerator that dominates it."""
    what = "req/s" if objective is Objective.THROUGHPUT else "times the stated rates"
    return (
        f"{spread.low:.4g} to {spread.high:.4g} {what} with 90 % probability; the times of "
        f"{safe(spread.dominated_by)} matter most"
    )


def _paid(pool: Pool, plan: Plan) -> int:
    """Return the billed GPUs of a pool: those of islands, or of every node with an island."""
    if pool.billing is Billing.PER_GPU or pool.gpus_per_node is None:
        return plan.used(pool.name)
    groups = {group.name: group for group in plan.groups}
    nodes: set[str] = set()
    for island in plan.islands:
        # Each of several parts is on one node, in their order.
        parts = groups[island.group].parts
        pools = [part.pool for part in parts] or [groups[island.group].pool] * len(island.nodes)
        nodes.update(node for of, node in zip(pools, island.nodes, strict=False) if of == pool.name)
    return len(nodes) * pool.gpus_per_node


def _islands_of(pool: str, groups: Iterable[Group]) -> str:
    """Return the islands of a pool: ``6 prefill of 8 GPUs, 1 decode of 4 GPUs with 8 of h20``."""
    counts = Counter[tuple[int, int, str]]()
    order = list(Phase)
    for group in groups:
        if gpus := group.gpus_of(pool):
            others = (f"{p.gpus} of {safe(p.pool)}" for p in group.parts if p.pool != pool)
            counts[order.index(group.phase), gpus, " and ".join(others)] += group.islands
    parts = (
        f"{counts[key]} {order[key[0]]} of {phrase(key[1], 'GPU')}"
        + f" with {key[2]}" * bool(key[2])
        for key in sorted(counts)
    )
    return ", ".join(parts) or "none"


def _groups(out: Console, plan: Plan) -> None:
    """Print the groups; columns that say the same of each group are left out."""
    several = len({group.model for group in plan.groups}) > 1
    classes = {group.domain_class for group in plan.groups} != {DEFAULT_CLASS}
    uncertain = any(group.times_within > 1 for group in plan.groups)
    rows = []
    for group in plan.groups:
        decode = Phase.DECODE in group.phase.stages
        rows.append(
            [
                short_name(group.name, group.model, group.phase),
                *[group.model] * several,
                *[group.domain_class] * classes,
                group.phase,
                group.islands,
                "+".join(str(part.gpus) for part in group.sections),
                group.parallelism,
                group.max_batch if decode else "-",
                f"{sum(group.rates):,.2f}",
                f"{group.utilisation:.1%}",
                group.binding,
                f"{group.step_time * 1e3:.2f}" if decode else "-",
                *[f"x {group.times_within:.2f}"] * uncertain,
            ]
        )
    optional = [*["MODEL"] * several, *["CLASS"] * classes]
    heads = ["PHASE", ">ISLANDS", ">GPUS", "PARALLELISM", ">BATCH", ">REQ/S", ">USED", "BINDS"]
    last = [">TPOT MS", *[">TIMES WITHIN"] * uncertain]
    print_table(out, ("~GROUP", *optional, *heads, *last), rows)


def short_name(name: str, model: str, phase: Phase) -> str:
    """Return a group's name without the words of its other columns."""
    return safe(name.removeprefix(f"{model}-").replace(f"-{phase}", ""))


def condensed(routes: Iterable[Route]) -> list[list[Route]]:
    """Return runs of neighbouring ranges that use the same groups, or that are rare."""
    ordered = sorted(routes, key=lambda route: route.range)
    blocks = [list(run) for _, run in groupby(ordered, key=_groups_of)]
    merged: list[list[Route]] = []
    for rare, run in groupby(blocks, key=lambda block: sum(r.share for r in block) < RARE):
        together = list(run)
        merged += [[route for block in together for route in block]] if rare else together
    return merged


def _groups_of(route: Route) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(getattr(pair, stage) for pair in route.pairs) for stage in STAGES)


def stage_shares(block: list[Route], stage: Phase) -> dict[str, float]:
    """Return the groups of a stage by name, with their share of the block's requests."""
    shares: defaultdict[str, float] = defaultdict(float)
    whole = sum(route.share for route in block)
    for route in block:
        part = route.share / whole if whole else 1 / len(block)
        for pair in route.pairs:
            shares[getattr(pair, stage)] += part * pair.weight / MILLION
    return shares


def _shares(block: list[Route], stage: Phase, model: str) -> str:
    """Return the groups of a stage with their shares, largest first."""
    shares = sorted(stage_shares(block, stage).items(), key=lambda item: (-item[1], item[0]))
    if len(shares) == 1:
        return short_name(shares[0][0], model, stage)
    return ", ".join(f"{short_name(name, model, stage)} {share:.0%}" for name, share in shares)


def _exclusions(out: Console, reasons: list[str]) -> None:
    """Print the number of excluded templates for each kind of reason."""
    if not reasons:
        return
    kinds = {
        "dominated": "dominated",
        "TTFT": "above the TTFT target",
        "TPOT": "above the TPOT target",
        "KV": "without KV memory",
        "no": "that no engine serves",
    }
    counts = Counter(
        kinds.get(reason.split(maxsplit=1)[0], "too small for the weights") for reason in reasons
    )
    text = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    out.print(
        f"\n{phrase(len(reasons), 'template')} left out: {text} (archipelago templates says why)",
        soft_wrap=True,
        style="dim",
    )
