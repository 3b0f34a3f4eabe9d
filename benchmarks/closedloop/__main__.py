"""The fleet in real time behind the table of a cluster.

    python -m benchmarks.closedloop --kubeconfig FILE --plan NAME --scenario FILE ...

Reads the routing table of the plan once a second and follows it; serves ``/metrics/POD`` for every
pod, ``/targets`` for Prometheus' ``http_sd`` and ``/seen``. The first line on standard output says
where. With ``--pods`` every island is a Pod object, Ready or not as its engine is: those are all
that is written. ``--speed`` lets more time pass in the fleet than outside.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.closedloop.cluster import Cluster
from benchmarks.closedloop.fleet import Fleet
from benchmarks.closedloop.scenario import load
from benchmarks.closedloop.serving import Serving, server

TICK = 0.25
"""How often the fleet goes on [s]."""
READ = 1.0
"""How often the table is read and pods are written [s]."""


def main(words: Sequence[str] | None = None) -> int:
    """Run until killed."""
    options = _parser().parse_args(words)
    scenario = load(options.scenario, options.scale)
    cluster = Cluster(options.kubeconfig, options.namespace, options.plan)
    content = _first(cluster)
    serving = Serving(
        Fleet(scenario.world, content), scenario.traffic(), options.plan, options.namespace
    )
    http = server(serving, options.port)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{http.server_port}", flush=True)
    with suppress(KeyboardInterrupt):
        follow(serving, cluster, content, time.monotonic, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.closedloop", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--plan", required=True, help="name of the ServingPlan")
    parser.add_argument("--scenario", type=Path, required=True, help="whose traffic is played")
    parser.add_argument("--scale", type=float, default=1.0, help="share of its length")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pods", action="store_true", help="write a Pod object for every island")
    return parser


def _first(cluster: Cluster) -> dict[str, Any]:
    """Return the first table, however long it takes."""
    while (content := cluster.content()) is None:
        time.sleep(READ)
    return content


def follow(
    serving: Serving,
    cluster: Cluster,
    content: dict[str, Any],
    clock: Callable[[], float],
    options: argparse.Namespace,
) -> None:
    """Serve, read the table, and say which pods are ready, for ever."""
    started, read = clock(), 0.0
    while True:
        now = clock() - started
        serving.tick(now * options.speed)
        if now - read >= READ:
            read, stored = now, cluster.content()
            if stored is not None and stored != content:
                content = stored
                serving.apply(content)
            if options.pods:
                cluster.write(serving.pods())
        time.sleep(TICK)


if __name__ == "__main__":
    sys.exit(main())
