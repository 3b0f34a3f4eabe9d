"""Seconds from the loss of nodes to the stored table without them, by the size of the table.

    python -m benchmarks.losses [--islands 1000 8000 40000] [--draws 5] [--seed 0] [--log FILE]

A real API server, nodes of eight GPUs, and one plan whose pool selects them, with islands of one
GPU. Each draw of the seed deletes a few nodes, or makes them not ready, at once. The clock runs
from the first of these requests until a reader has the whole new table and no island in it stands
on a lost node. The next draw follows when no more changes come. The exit code is 1 if one took
longer than ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipelago.planner.table.shards import assemble
from archipelago.planner.table.validate import validate_content
from tests.support.controlplane import ControlPlane
from tests.support.controlplane.api import Api
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.nodes import Nodes, each, nodes_of
from tests.support.e2e.operators import Operator, Plans, grant, running, small

GPUS = 8
"""Of a node."""
MOST = 12
"""Nodes that one draw may take."""
PLAN = "large"
PATIENCE = 300.0
"""Seconds until a table is given up."""
LIMIT = 2.0


@dataclass(frozen=True)
class Loss:
    """One draw: how many islands there were, which nodes went and how, and seconds until then."""

    islands: int
    nodes: tuple[str, ...]
    deleted: bool
    seconds: float


def main() -> int:
    """Print a line for each loss and each size; return 1 if one was slow."""
    parser = argparse.ArgumentParser(description="Time from lost nodes to the stored table.")
    parser.add_argument("--islands", type=int, nargs="+", default=[1000, 8000, 40000])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--log", type=Path, help="file for the operator's log")
    options = parser.parse_args()
    losses: list[Loss] = []
    with ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))) as plane:
        for islands in options.islands:
            found = []
            for loss in play(plane, islands, random.Random(options.seed), options):  # noqa: S311
                how = "deleted" if loss.deleted else "not ready"
                print(
                    f"{islands} islands, {len(loss.nodes)} {how}: {loss.seconds:.2f} s", flush=True
                )
                found.append(loss)
            seconds = [loss.seconds for loss in found]
            middle, worst = statistics.median(seconds), max(seconds)
            print(f"{islands} islands: median {middle:.2f} s, worst {worst:.2f} s", flush=True)
            losses += found
    return int(any(loss.seconds > options.limit for loss in losses))


def play(
    plane: ControlPlane, islands: int, draw: random.Random, options: argparse.Namespace
) -> Iterator[Loss]:
    """Yield the losses of one plan with so many islands at first."""
    with (
        tempfile.TemporaryDirectory() as room,
        plane.namespace() as namespace,
        nodes_of(Api.of(plane), namespace) as nodes,
    ):
        left = nodes.names(islands // GPUS)
        nodes.create(left)
        plans = Plans(plane, namespace)
        log = options.log or Path(room) / "operator.log"
        settings = {"ARCHIPELAGO_NAMESPACES": namespace, "ARCHIPELAGO_PLANNERS": "1"}
        with running(Operator(grant(plane), log.absolute(), settings)) as operator:
            plans.apply(PLAN, fleet(nodes))
            plans.wait_ready(PLAN, PATIENCE)
            for _ in range(options.draws):
                settle(plans, operator)
                count = len(plans.table(PLAN)["content"]["islands"])
                gone = tuple(draw.sample(left, draw.randint(1, min(MOST, len(left) // 4))))
                deleted = draw.random() < 0.5  # noqa: PLR2004
                started = time.monotonic()
                if deleted:
                    nodes.delete(gone)
                else:
                    each(lambda name: nodes.report(name, 1, ready="Unknown"), gone)
                seconds = until_without(plans, frozenset(gone)) - started
                left = [name for name in left if name not in gone]
                yield Loss(count, gone, deleted, seconds)


def fleet(nodes: Nodes) -> dict[str, Any]:
    """Return a plan of islands of one GPU on the nodes."""
    spec = small()
    (pool,) = spec["pools"]
    del pool["count"]
    spec["pools"] = [{**pool, "nodeSelector": nodes.labels, "islandSizes": [1]}]
    return spec


def stored(plans: Plans) -> dict[str, Any]:
    """Return the document that is stored: a table or a pointer."""
    document: dict[str, Any] = json.loads(
        plans.get("configmap", f"{PLAN}-routing")["data"]["table.json"]
    )
    return document


def whole(plans: Plans, document: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a stored document as a reader does."""
    return assemble(document, lambda name: plans.get("configmap", name)["data"]["shard.txt"])


def until_without(plans: Plans, gone: frozenset[str]) -> float:
    """Return when the whole table had no island on these nodes [monotonic s]."""
    end, before = time.monotonic() + PATIENCE, 0
    while time.monotonic() < end:
        document = stored(plans)
        if document["identity"]["sequence"] == before:
            time.sleep(0.02)
            continue
        seen, before = time.monotonic(), document["identity"]["sequence"]
        content = whole(plans, document)["content"]
        if not any(gone & set(island["nodes"]) for island in content["islands"]):
            if findings := validate_content(content):
                raise AssertionError(findings[:3])
            return seen
    raise AssertionError(f"the lost nodes are in the table after {PATIENCE} s")


def settle(plans: Plans, operator: Operator) -> None:
    """Wait until the plan is Ready and nothing was written for a while."""
    end, writes, since = time.monotonic() + PATIENCE, -1.0, time.monotonic()
    while time.monotonic() - since < QUIET and time.monotonic() < end:
        time.sleep(0.5)
        now = operator.metric("writes_total")
        if now != writes or plans.ready(PLAN)[0] != "True":
            writes, since = now, time.monotonic()


QUIET = 4.0
"""Seconds without a write before the next draw."""

if __name__ == "__main__":
    sys.exit(main())
