"""``archipelago simulate``: simulate a plan file, request by request."""

from __future__ import annotations

import math
from dataclasses import asdict

from rich.console import Console

from archipelago.perfmodel.workload.traces import read_trace

from ...documents import Document, canonical, safe
from ...problem import Phase
from ...simulate.fleet import GroupResult
from ...simulate.run import Latency, ModelResult, Scenario, Simulation, simulate
from ..terminal import console, grid, progress
from .diff import read_plan
from .files import write_document

KEPT, MISSED = 0, 1


def run(path: str, form: str, scenario: Scenario, trace: str | None, quiet: bool) -> int:
    """Simulate a plan file; 1 if a mean latency is above its target."""
    stored = read_plan(path)
    with progress(quiet) as report:
        report("reading the trace", 0.0)
        arrivals = None if trace is None else read_trace(trace)
        result = simulate(stored.problem, stored.plan, scenario, arrivals, progress=report)
    if form == "table":
        show_simulation(console(), result)
    else:
        write_document(simulation_document(result, scenario), form)
    return MISSED if result.missed else KEPT


def simulation_document(result: Simulation, scenario: Scenario) -> Document:
    """Return the simulation for JSON; null stands for endless or not stated."""
    document: Document = canonical(
        {
            "kind": "Simulation",
            "name": result.name,
            "seed": scenario.seed,
            "requests": result.requests,
            "seconds": result.seconds,
            "requestsPerSecond": result.rate,
            "plannedRequestsPerSecond": result.promised,
            "missed": result.missed,
            "models": [_model(model) for model in result.models],
            "groups": [_group(group) for group in result.groups],
        }
    )
    return document


def _model(model: ModelResult) -> Document:
    return {
        "name": model.model,
        "requests": model.requests,
        "refused": model.refused,
        "ttftMilliseconds": _latency(model.ttft),
        "tpotMilliseconds": _latency(model.tpot),
    }


def _latency(item: Latency) -> Document:
    return {key: _milliseconds(value) for key, value in asdict(item).items()}


def _group(group: GroupResult) -> Document:
    common: Document = {
        "name": group.group,
        "phase": str(group.phase),
        "islands": group.islands,
        "requests": group.requests,
        "waitMilliseconds": _milliseconds(group.wait),
    }
    if Phase.PREFILL in group.phase.stages:
        common |= {"busy": group.busy, "expectedBusy": group.expected_busy}
    if Phase.DECODE in group.phase.stages:
        common |= {
            "sequences": group.sequences,
            "expectedSequences": _finite(group.expected_sequences),
            "kvTokens": group.kv_tokens,
            "kvCapacity": group.kv_capacity,
            "stepMilliseconds": _milliseconds(group.step_time),
            "expectedStepMilliseconds": _milliseconds(group.expected_step_time),
            "preempted": group.preempted,
        }
    return common


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else _finite(seconds * 1e3)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show_simulation(out: Console, result: Simulation) -> None:
    """Print what users see, then how busy the islands are."""
    out.print(safe(result.name), style="bold")
    out.print(
        f"  {result.requests:,} requests in {result.seconds:,.1f} s at {result.rate:,.2f} req/s; "
        f"the plan sustains {result.promised:,.2f} req/s",
        soft_wrap=True,
    )
    _models(out, result)
    _prompts(out, [group for group in result.groups if Phase.PREFILL in group.phase.stages])
    _batches(out, [group for group in result.groups if Phase.DECODE in group.phase.stages])


def _models(out: Console, result: Simulation) -> None:
    table = grid("MODEL", "MS", ">MEAN", ">P50", ">P90", ">P99", ">EXPECTED", ">TARGET", "KEPT")
    for model in result.models:
        for name, item in (("TTFT", model.ttft), ("TPOT", model.tpot)):
            figures = (item.mean, item.p50, item.p90, item.p99, item.expected, item.target)
            kept = "-" if item.target is None else ("no" if item.missed else "yes")
            table.add_row(safe(model.model), name, *map(_shown, figures), kept)
    out.print()
    out.print(table)
    for model in result.models:
        if model.refused:
            share = f"{model.refused:.2%} of the requests of {safe(model.model)}"
            out.print(f"  {share} are longer than every route: nobody serves them", soft_wrap=True)


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.1f}" if math.isfinite(seconds) else "no end"


def _prompts(out: Console, groups: list[GroupResult]) -> None:
    table = grid(
        "~PROMPTS IN", "PHASE", ">ISLANDS", ">REQUESTS", ">WAIT MS", ">BUSY", ">EXPECTED"
    )  # fmt: skip
    for group in groups:
        table.add_row(
            safe(group.group),
            str(group.phase),
            str(group.islands),
            f"{group.requests:,}",
            _shown(group.wait),
            f"{group.busy:.1%}",
            f"{group.expected_busy:.1%}",
        )
    out.print()
    out.print(table)


def _batches(out: Console, groups: list[GroupResult]) -> None:
    heads = (">BATCH", ">EXPECTED", ">KV USED", ">STEP MS", ">EXPECTED", ">PUT BACK")
    table = grid("~TOKENS IN", ">ISLANDS", ">REQUESTS", *heads)
    for group in groups:
        expected = group.expected_sequences
        table.add_row(
            safe(group.group),
            str(group.islands),
            f"{group.requests:,}",
            f"{group.sequences:,.1f}",
            f"{expected:,.1f}" if math.isfinite(expected) else "no end",
            f"{group.kv_tokens / group.kv_capacity:.1%}" if group.kv_capacity else "-",
            _shown(group.step_time),
            _shown(group.expected_step_time),
            f"{group.preempted:,}",
        )
    out.print()
    out.print(table)
