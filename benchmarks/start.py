"""Seconds from the start of the operator's process until ``/readyz`` says that it is ready.

    python -m benchmarks.start [--starts 10] [--plans 20]

A real API server with some plans that are Ready, and the operator as it is deployed, alone: each
start ends with SIGTERM, which releases the lease. ``/readyz`` is read every 20 ms.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.controlplane import ControlPlane
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import Operator, Plans, grant, small

LIMIT = 60.0
PERIOD = 0.02


def main() -> int:
    """Print each start, the median and the worst."""
    parser = argparse.ArgumentParser(description="Time from the operator's start to ready.")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--plans", type=int, default=20)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as room,
        ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))) as plane,
        plane.namespace() as namespace,
    ):
        operator = Operator(grant(plane), Path(room) / "operator.log")
        plans = Plans(plane, namespace)
        names = [f"plan-{number}" for number in range(options.plans)]
        seconds = [until_ready(operator)]
        for name in names:
            plans.apply(name, small())
        for name in names:
            plans.wait_ready(name, LIMIT)
        operator.end()
        for _ in range(options.starts):
            seconds.append(until_ready(operator))
            operator.end()
    first, *later = seconds
    print(f"without plans: {first:.2f} s")
    print(f"with {options.plans} plans: {' '.join(f'{each:.2f}' for each in later)} s")
    print(f"median {statistics.median(later):.2f} s, worst {max(later):.2f} s")
    return 0


def until_ready(operator: Operator) -> float:
    """Start it; return the seconds until it is ready."""
    started = time.monotonic()
    operator.begin()
    while not operator.is_ready():
        if time.monotonic() > started + LIMIT:
            raise AssertionError(f"not ready after {LIMIT} s: {operator.log.read_text()[-2000:]}")
        time.sleep(PERIOD)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
