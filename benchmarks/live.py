"""Seconds of one live question, JSON in and JSON out, on a standing fleet of about 1,000 islands.

    python -m benchmarks.live [--repeats N] [--racks N]

The fleet is that of ``fleet-10k`` as a ServingPlan: ten accelerator types in racks, DeepSeek-V3 in
58 ranges. Asked are a repair (no window), a calm window that keeps the table, a window with longer
prompts that changes weights, and one that flips; each as a planner process gets it, the first time
(nothing known) and again (spec and table read before, a bound proven within the cool-down). CPU
seconds, because other work on the machine does not count. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from archipelago.operator.islandtimes import IslandTimes, times_document
from archipelago.operator.liveanswer import live_answer
from archipelago.operator.scraped import Scraped
from archipelago.operator.windowdoc import ISLANDS, window_document
from archipelago.operator.worker import answer
from archipelago.perfmodel.lengths import log_normal
from archipelago.planner.livedemand.buckets import Buckets
from archipelago.planner.livedemand.window import Flow, Window
from benchmarks.instances import FLEET, NODE, PRICES

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

Document: TypeAlias = dict[str, Any]

MODEL = "deepseek-v3"
OUTPUT = 211.0
SECONDS = 60.0
BARS = {"repair": 0.15, "keep": 0.5, "reroute": 2.0, "flip": 2.0}
"""CPU seconds of a question that is asked again [s]; from the window to the table 2 s in all."""
LONGEST = 20_000
VLLM = tuple(float(d * 10**e) for e in range(5) for d in (1, 2, 5) if d * 10**e <= LONGEST)
EDGES = (0.0, *(bound + 1 for bound in VLLM), float("inf"))


@dataclass(frozen=True)
class Row:
    """One kind of question; CPU seconds and bytes."""

    name: str
    first: float
    again: float
    bytes: int
    said: str

    def __str__(self) -> str:
        mark = "  MISSED" if self.again > BARS[self.name] else ""
        times = f"{self.first * 1e3:>9.0f} {self.again * 1e3:>9.0f} {self.bytes / 1024:>9.0f}"
        return f"{self.name:8} {times}   {self.said}{mark}"


def resource(racks: int) -> Document:
    """The fleet as a ServingPlan."""
    pools = [
        {
            "name": name.lower(),
            "accelerator": name,
            "count": racks * 4 * NODE,
            "pricePerGPUHour": price,
            "gpusPerNode": NODE,
            "domains": [{"name": f"{name.lower()}-rack-{i:02d}", "nodes": 4} for i in range(racks)],
        }
        for name, price in zip(FLEET, PRICES, strict=True)
    ]
    workload = {
        "logNormal": {"median": 1020, "sigma": "1.0", "min": 1, "max": 16384},
        "outputTokens": {"mean": f"{OUTPUT:g}"},
        "ranges": {"count": 58, "spacing": "Probability"},
    }
    model = {
        "name": MODEL,
        "architecture": "DeepSeek-V3",
        "requestsPerSecond": "1",
        "slo": {"tpotMilliseconds": 50},
        "workload": workload,
    }
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "fleet"},
        "spec": {
            "models": [model],
            "pools": pools,
            "replanning": {"source": "metrics"},
            "planner": {"timeLimitSeconds": 30},
        },
    }


def buckets(lengths: FloatArray, share: FloatArray, requests: float) -> Buckets:
    """So many requests of these lengths on vLLM's grid."""
    counts, _ = np.histogram(lengths, bins=(*EDGES[:-1], 1e9), weights=share * requests)
    return Buckets(EDGES, tuple(counts.tolist()), float(requests * (share @ lengths)))


def window(rate: float, factor: float) -> Document:
    """A minute at a rate [req/s], each prompt ``factor`` times as long as planned."""
    planned = log_normal(1020, 1.0, 1, 16384, OUTPUT)
    inputs = np.minimum(np.round(planned.length * factor), 16383.0)
    requests = rate * SECONDS
    lengths = buckets(inputs, planned.probability, requests)
    outputs = buckets(np.array([OUTPUT]), np.ones(1), requests)
    flow = Flow(SECONDS, requests, 0.0, 0.0, 0.0)
    return dict(window_document({MODEL: Scraped(Window(flow, (lengths,), (outputs,)))}, SECONDS))


def with_islands(document: Document, content: Document, seed: int) -> Document:
    """The window with what each island took, at about half of its batch."""
    random = np.random.default_rng(seed)
    batches = {island["name"]: island["maxBatch"] for island in content["islands"]}
    noise = np.exp(random.normal(0, 0.05, (len(batches), 2)))
    times = {
        name: IslandTimes(1000.0, 0.1 * prefill, 0.03 * step, 0.5 * batch, 0.4)
        for (name, batch), (prefill, step) in zip(batches.items(), noise.tolist(), strict=True)
    }
    entry = {**document["models"][MODEL], ISLANDS: times_document(times)}
    return {**document, "models": {MODEL: entry}}


def timed(question: Document, repeats: int) -> tuple[list[float], Document, int]:
    """CPU seconds of every repeat, the last reply and its bytes."""
    text, taken, reply = json.dumps(question), [], ""
    for _ in range(repeats):
        start = time.process_time()
        reply = json.dumps(live_answer(json.loads(text)))
        taken.append(time.process_time() - start)
    return taken, json.loads(reply)["live"], len(reply)


def ask(name: str, question: Document, repeats: int, *, lasts: bool = True) -> Row:
    """A question without memory, then again with it; ``lasts``: as the next window, else as it is.

    What was proven and observed is remembered in both cases.
    """
    first, cold, _ = timed({"live": question}, 1)
    memory = cold["memory"] if lasts else {**cold["memory"], "unsafe": 0, "asked": None}
    again, reply, size = timed({"live": question | {"memory": memory, "age": 1.0}}, repeats)
    said = f"{reply['trigger']}: {reply['message']}"
    return Row(name, first[0], statistics.median(again), size, said)


def main() -> None:
    """Print one line per kind of question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--racks", type=int, default=32)
    options = parser.parse_args()
    spec = resource(options.racks)
    planned = answer(spec)["planned"]
    theta = float(planned["summary"]["throughput"])
    names = [island["name"] for island in json.loads(planned["content"])["islands"]]
    plain: Document = {
        "resource": spec,
        "content": planned["content"],
        "nodes": {},
        "lost": [],
        "unready": [],
        "window": None,
        "memory": {},
        "age": 0.0,
        "solve": False,
        "approved": None,
        "inputs": "0" * 64,
        "seed": 7,
    }
    print(f"{len(names)} islands, table of {len(planned['content']) / 1024:.0f} KiB; CPU ms")
    print(f"{'':8} {'first':>9} {'again':>9} {'reply KiB':>9}")
    content = json.loads(planned["content"])
    calm, heavy = (
        with_islands(window(share * theta, factor), content, 1)
        for share, factor in ((0.5, 1.0), (0.8, 1.4))
    )
    rows = [
        ask("repair", plain | {"lost": names[::97]}, options.repeats),
        ask("keep", plain | {"window": calm}, options.repeats),
        ask("reroute", plain | {"window": heavy}, options.repeats, lasts=False),
        ask("flip", plain | {"window": heavy}, options.repeats),
    ]
    for row in rows:
        print(row, flush=True)
    sys.exit(any(row.again > BARS[row.name] for row in rows))


if __name__ == "__main__":
    main()
