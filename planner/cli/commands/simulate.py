"""``archipelago simulate``: simulate a plan file, request by request."""

from __future__ import annotations

import math
from dataclasses import asdict

from rich.console import Console

from archipelago.perfmodel.workload.traces import read_trace

from ...documents import Document, canonical, safe
from ...problem import Phase
from ...simulate.run import Scenario, Simulation, simulate
from ..terminal import console, print_table, progress
from .diff import read_plan
from .files import write_document


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
    return 1 if result.missed else 0


def simulation_document(result: Simulation, scenario: Scenario) -> Document:
    """Return the simulation for JSON; null stands for endless or not stated."""
    models = []
    for model in result.models:
        ttft, tpot = (
            {key: _milliseconds(seconds) for key, seconds in asdict(latency).items()}
            for latency in (model.ttft, model.tpot)
        )
        row = {"name": model.model, "requests": model.requests, "refused": model.refused}
        models.append(row | {"ttftMilliseconds": ttft, "tpotMilliseconds": tpot})
    groups = []
    for group in result.groups:
        fields: Document = {
            "name": group.group,
            "phase": group.phase,
            "islands": group.islands,
            "requests": group.requests,
            "waitMilliseconds": _milliseconds(group.wait),
        }
        if Phase.PREFILL in group.phase.stages:
            fields |= {"busy": group.busy, "expectedBusy": group.expected_busy}
        if Phase.DECODE in group.phase.stages:
            sequences = group.expected_sequences
            fields |= {
                "sequences": group.sequences,
                "expectedSequences": sequences if math.isfinite(sequences) else None,
                "kvTokens": group.kv_tokens,
                "kvCapacity": group.kv_capacity,
                "stepMilliseconds": _milliseconds(group.step_time),
                "expectedStepMilliseconds": _milliseconds(group.expected_step_time),
                "preempted": group.preempted,
            }
        groups.append(fields)
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
            "models": models,
            "groups": groups,
        }
    )
    return document


def _milliseconds(seconds: float | None) -> float | None:
    return seconds * 1e3 if seconds is not None and math.isfinite(seconds) else None


def show_simulation(out: Console, result: Simulation) -> None:
    """Print what users see, then how busy the islands are."""
    out.print(safe(result.name), style="bold")
    out.print(
        f"  {result.requests:,} requests in {result.seconds:,.1f} s at {result.rate:,.2f} req/s; "
        f"the plan sustains {result.promised:,.2f} req/s",
        soft_wrap=True,
    )
    latencies = []
    for model in result.models:
        for name, item in (("TTFT", model.ttft), ("TPOT", model.tpot)):
            figures = (item.mean, item.p50, item.p90, item.p99, item.expected, item.target)
            verdict = "-" if item.target is None else ("no" if item.missed else "yes")
            latencies.append((model.model, name, *map(_shown, figures), verdict))
    heads = ("MODEL", "MS", ">MEAN", ">P50", ">P90", ">P99", ">EXPECTED", ">TARGET", "KEPT")
    print_table(out, heads, latencies)
    for model in result.models:
        if model.refused:
            share = f"{model.refused:.2%} of the requests of {safe(model.model)}"
            out.print(f"  {share} are longer than every route: nobody serves them", soft_wrap=True)

    prompts = (
        (
            group.group,
            group.phase,
            group.islands,
            f"{group.requests:,}",
            _shown(group.wait),
            f"{group.busy:.1%}",
            f"{group.expected_busy:.1%}",
        )
        for group in result.groups
        if Phase.PREFILL in group.phase.stages
    )
    columns = ("PHASE", ">ISLANDS", ">REQUESTS", ">WAIT MS", ">BUSY", ">EXPECTED")
    print_table(out, ("~PROMPTS IN", *columns), prompts)
    batches = (
        (
            group.group,
            group.islands,
            f"{group.requests:,}",
            f"{group.sequences:,.1f}",
            _shown(group.expected_sequences, 1),
            f"{group.kv_tokens / group.kv_capacity:.1%}" if group.kv_capacity else "-",
            _shown(group.step_time),
            _shown(group.expected_step_time),
            f"{group.preempted:,}",
        )
        for group in result.groups
        if Phase.DECODE in group.phase.stages
    )
    columns = (">REQUESTS", ">BATCH", ">EXPECTED", ">KV USED", ">STEP MS", ">EXPECTED")
    print_table(out, ("~TOKENS IN", ">ISLANDS", *columns, ">PUT BACK"), batches)


def _shown(value: float | None, scale: float = 1e3) -> str:
    """Return a value times ``scale``; seconds as milliseconds by default."""
    if value is None:
        return "-"
    return f"{value * scale:,.1f}" if math.isfinite(value) else "no end"
