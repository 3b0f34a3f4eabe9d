"""A real operator asks sources that lie, one for each plan: nothing ends, nothing is written twice.

Other seeds and a longer time: ``ARCHIPELAGO_HOSTILE_SEED=7000 ARCHIPELAGO_HOSTILE_SECONDS=300``.
"""

import json
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from archipelago.planner.kubernetes.labels import label_value
from tests.support.controlplane import Cluster
from tests.support.e2e.operators import grant
from tests.support.faults.bench import Bench, started
from tests.support.faults.history import PLAN, TABLE
from tests.support.operator.hostile import Hostile, served
from tests.support.operator.live import plan_of

pytestmark = pytest.mark.cluster

SEED = int(os.environ.get("ARCHIPELAGO_HOSTILE_SEED", "1"))
SECONDS = float(os.environ.get("ARCHIPELAGO_HOSTILE_SECONDS", "40"))
PLANS = int(os.environ.get("ARCHIPELAGO_HOSTILE_PLANS", "12"))
NAMES = tuple(f"lied-to-{seed}" for seed in range(SEED, SEED + PLANS))
SPEC = yaml.safe_load("""
models:
- name: llama
  architecture: Llama-3.1-8B
  requestsPerSecond: "6"
  workload:
    logNormal: {median: 700, sigma: "0.8", max: 8192}
    outputTokens: {mean: "150"}
    ranges: {count: 2}
pools: [{name: h100, accelerator: H100, count: 2, gpusPerNode: 2}]
planner: {timeLimitSeconds: 5}
""")
MOST_WRITES = 5
"""Of a source that is right and wrong by chance: once, and after 1, 1, 2 and 4 equal windows."""
WINDOW = 5  # [s], the least that there is


@pytest.fixture(scope="module")
def sources() -> dict[str, Hostile]:
    resource = {"apiVersion": "archipelago.dev/v1alpha1", "kind": "ServingPlan", "spec": SPEC}
    reply = plan_of(resource | {"metadata": {"name": "p"}})
    islands = json.loads(reply["steps"][-1]["content"])["islands"]
    names = tuple(label_value(island["name"]) for island in islands)
    return {name: Hostile(SEED + i, names, plan=name) for i, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, sources: dict[str, Hostile]
) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("hostile")
    with served(sources) as port:
        listed = [
            {
                "name": name,
                "kind": "prometheus",
                "address": f"http://127.0.0.1:{port}/{name}",
                "allowAddresses": ["127.0.0.0/8"],
            }
            for name in sources
        ]
        file: Path = directory / "sources.yaml"
        file.write_text(yaml.safe_dump({"sources": listed}))
        settings = {"ARCHIPELAGO_SOURCES": str(file)}
        with started(cluster, grant(cluster), directory, settings) as made:
            yield made


def test_sources_that_lie_end_nothing_and_write_nothing(
    bench: Bench, sources: dict[str, Hostile]
) -> None:
    for name in NAMES:
        replanning = {"source": name, "windowSeconds": WINDOW}
        bench.user.create(name, SPEC | {"replanning": replanning})
    bench.user.create("canary", SPEC)
    for name in (*NAMES, "canary"):
        bench.rest(name, 1)
    published = {name: bench.rest(name, 1) for name in NAMES}
    edits, generation, end = [], 1, time.monotonic() + SECONDS
    while time.monotonic() < end:
        generation += 1
        begun = time.monotonic()
        bench.user.edit("canary", {"planner": {"timeLimitSeconds": 5, "seed": generation}})
        edits.append(bench.rest("canary", generation) - begun)
        time.sleep(2)
    writes, wrong = {}, []
    with bench.history.changed:
        versions = list(bench.history.versions)
    for name in NAMES:
        later = [v for v in versions if v.plan == name and v.at > published[name]]
        said = [v.conditions["MetricsAvailable"] for v in later if v.kind == PLAN]
        tables = [v for v in later if v.kind == TABLE]
        decided = [v.status["lastDecision"] for v in later if v.status.get("lastDecision")]
        writes[name] = len(said)
        lines = [f"{c['status']} {c['reason']}: {c['message']}" for c in said]
        if tables or decided or len(said) != 1:
            wrong.append((name, sorted(sources[name].habits or ()), lines, decided[:2]))
    metrics = bench.operator.get("/metrics")
    ended = re.findall(r'planner_replacements_total\{reason="(\w+)"\} ([0-9.]+)', metrics)
    print(  # noqa: T201  # the figures
        f"\nstatus writes: {sorted(Counter(writes.values()).items())} of {len(writes)} plans; "
        f"planner processes ended: {ended}; answers: {sum(s.answers for s in sources.values())}; "
        f"canary: {len(edits)} edits, median {statistics.median(edits):.2f} s, "
        f"most {max(edits):.2f} s",
        *wrong,
        sep="\n",
    )
    assert bench.operator.is_running()
    assert {reason for reason, _ in ended} <= {"Cancelled"}
    assert max(writes.values()) <= MOST_WRITES
    assert sum(writes.values()) <= 1.5 * len(writes)
