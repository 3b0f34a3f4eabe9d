"""Live questions for tests: a planned example, windows of requests with known lengths, replies."""

import json
from collections.abc import Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import TypeAdapter

from archipelago.operator.planning import worker
from archipelago.perfmodel.model import FloatArray
from archipelago.planner.demand.counters import Buckets, from_cumulative
from archipelago.planner.demand.faults import Fault
from archipelago.planner.demand.window import (
    Flow,
    ModelMetrics,
    ModelWindow,
    ObservedWindow,
    Window,
)
from archipelago.planner.service.messages import CONFIG
from archipelago.planner.table.validate import validate_content

EXAMPLES = Path(__file__).parents[3] / "examples"
VLLM = tuple(float(d * 10**e) for e in range(5) for d in (1, 2, 5) if d * 10**e <= 20_000)
SECONDS = 60.0
MOST = 50_000
"""Requests that are made one by one; where there were more, each stands for several."""
HASH = "0" * 64


@cache
def planned(name: str) -> tuple[str, str]:
    """An example's resource and the content of its table, as texts."""
    resource = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return json.dumps(resource), plan_of(resource)["steps"][-1]["content"]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The planner process's reply to a request, from JSON to JSON."""
    reply: dict[str, Any] = json.loads(worker.answer(json.dumps(request)))
    return reply


def plan_of(resource: Mapping[str, Any], **parts: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """The reply to a request to plan; it must be a plan."""
    reply = answer({"kind": "plan", "resource": resource, **parts})
    assert reply["kind"] == "planned", reply
    return reply


def request(name: str, **parts: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """A question about the example as it was planned, with nothing lost and nothing seen.

    ``replanning`` and ``islands`` go into the spec, ``engine`` into every model, all else into the
    request. Somebody changes the pods, and changes are made, unless they say otherwise.
    """
    resource, content = planned(name)
    body = json.loads(resource)
    usual = {"source": "metrics", "mode": "Auto"}
    body["spec"]["replanning"] = {**usual, **parts.pop("replanning", {})}
    body["spec"]["islands"] = parts.pop("islands", {"changedBy": "tests"})
    for model in body["spec"]["models"]:
        model["engine"] = parts.pop("engine", {})
    plain = {
        "kind": "replan",
        "resource": body,
        "content": content,
        "nodes": {},
        "lost": [],
        "unready": [],
        "window": None,
        "state": {},
        "age": SECONDS,
        "solve": False,
        "approved": None,
        "inputs": HASH,
        "seed": 7,
    }
    return plain | parts


def plan_request(name: str, **parts: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """A request to plan the example beside its table."""
    asked = request(name, **parts)
    names = ("resource", "content", "nodes", "lost", "unready", "state", "age")
    return {"kind": "plan", **{field: asked[field] for field in names}}


def histogram(values: FloatArray, times: float = 1.0) -> Buckets:
    """Each value so many times."""
    upper = {bound: times * float((values <= bound).sum()) for bound in (*VLLM, inf)}
    buckets, _ = from_cumulative(upper, times * float(values.sum()))
    assert buckets is not None
    return buckets


def seen(
    inputs: FloatArray,
    outputs: FloatArray,
    *,
    faults: tuple[Fault, ...] = (),
    growth: float = 0.0,
    times: float = 1.0,
) -> ModelMetrics:
    """A minute in which these requests ended, each so many times, ``growth`` fewer than came."""
    flow = Flow(SECONDS, times * len(inputs), growth, growth, 0.0)
    lengths = (histogram(inputs, times),), (histogram(outputs, times),)
    return ModelMetrics(Window(flow, *lengths, faults))


def window(models: Mapping[str, ModelMetrics]) -> dict[str, Any]:
    observed = ObservedWindow(SECONDS, {name: ModelWindow(m) for name, m in models.items()})
    adapter = TypeAdapter(ObservedWindow | None, config=CONFIG)
    document: dict[str, Any] = json.loads(adapter.dump_json(observed, by_alias=True))
    return document


def like_planned(name: str, rate: float, *, factor: float = 1.0) -> dict[str, Any]:
    """A minute of the planned lengths, each input ``factor`` times as long, at a rate [req/s]."""
    from archipelago.planner.servingplan import load_resource, to_problem  # noqa: PLC0415

    loaded = load_resource(json.loads(planned(name)[0]))
    problem = to_problem("x", loaded.spec)
    found = {}
    for model in problem.models:
        count = min(MOST, round(rate * SECONDS))
        at = (np.arange(count) + 0.5) / count
        index = np.searchsorted(np.cumsum(model.lengths.probability), at)
        index = np.minimum(index, len(model.lengths.length) - 1)
        longest = model.ranges[-1].max - 1
        inputs = np.minimum(np.round(model.lengths.length[index] * factor), longest)
        outputs = np.maximum(1, np.round(model.lengths.output[index]))
        found[model.name] = seen(inputs, outputs, times=rate * SECONDS / count)
    return window(found)


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """The reply, through JSON as between processes; every table in it is valid."""
    reply = answer(question)
    assert reply["kind"] == "replanned", reply
    for step in reply["steps"]:
        assert validate_content(json.loads(step["content"])) == []
    return reply
