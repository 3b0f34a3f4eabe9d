"""Live questions for tests: a planned example, windows of requests with known lengths, replies."""

import json
from collections.abc import Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from archipelago.operator.liveanswer import live_answer
from archipelago.operator.scraped import Scraped
from archipelago.operator.windowdoc import window_document
from archipelago.operator.worker import answer
from archipelago.perfmodel.model import FloatArray
from archipelago.planner.livedemand.buckets import Buckets, from_cumulative
from archipelago.planner.livedemand.faults import Fault
from archipelago.planner.livedemand.window import Flow, Window
from archipelago.planner.table import validate_content

EXAMPLES = Path(__file__).parents[2] / "examples"
VLLM = tuple(float(d * 10**e) for e in range(5) for d in (1, 2, 5) if d * 10**e <= 20_000)
SECONDS = 60.0
MOST = 50_000
"""Requests that are made one by one; where there were more, each stands for several."""
HASH = "0" * 64


@cache
def planned(name: str) -> tuple[str, str]:
    """An example's resource and the content of its table, as texts."""
    resource = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    return json.dumps(resource), answer(resource)["planned"]["content"]


def request(name: str, **parts: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    """A question about the example as it was planned, with nothing lost and nothing seen.

    ``replanning`` goes into the spec, ``engine`` into every model, all else into the request.
    """
    resource, content = planned(name)
    body = json.loads(resource)
    body["spec"]["replanning"] = {"source": "metrics", **parts.pop("replanning", {})}
    for model in body["spec"]["models"]:
        model["engine"] = parts.pop("engine", {})
    plain = {
        "resource": body,
        "content": content,
        "nodes": {},
        "lost": [],
        "unready": [],
        "window": None,
        "memory": {},
        "age": SECONDS,
        "solve": False,
        "approved": None,
        "inputs": HASH,
        "seed": 7,
    }
    return {"live": plain | parts}


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
) -> Scraped:
    """A minute in which these requests ended, each so many times, ``growth`` fewer than came."""
    flow = Flow(SECONDS, times * len(inputs), growth, growth, 0.0)
    lengths = (histogram(inputs, times),), (histogram(outputs, times),)
    return Scraped(Window(flow, *lengths, faults))


def window(models: Mapping[str, Scraped]) -> dict[str, Any]:
    document: dict[str, Any] = window_document(models, SECONDS)
    return document


def like_planned(name: str, rate: float, *, factor: float = 1.0) -> dict[str, Any]:
    """A minute of the planned lengths, each input ``factor`` times as long, at a rate [req/s]."""
    from archipelago.planner.spec import load_resource, to_problem  # noqa: PLC0415

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
    reply = json.loads(json.dumps(live_answer(json.loads(json.dumps(question))), allow_nan=False))
    assert "live" in reply, reply
    live: dict[str, Any] = reply["live"]
    for step in live["steps"]:
        assert validate_content(json.loads(step["content"])) == []
    return live
