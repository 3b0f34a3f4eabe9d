"""Frozen benchmark instances: same name, same problem, for ever.

Six are the examples of the thesis; four are made here, fleets of ten accelerator types in equal
racks from a thousand to a hundred thousand GPUs, planned in 58 ranges; the others are files of
``benchmarks/frozen``, each a ServingPlan with a sentence on who would run it. Sizes, seeds and
time limits stand in the files. A file is never edited: what should change becomes a new one
(``tests/benchmarks/test_benchmarks.py`` compares with ``SHA256SUMS``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.workload.lengths import log_normal
from archipelago.perfmodel.workload.ranges import equal_probability
from archipelago.planner.problem import (
    Domain,
    ModelDemand,
    PlanningProblem,
    Pool,
    SolverSettings,
    Targets,
)

REPOSITORY = Path(__file__).parent.parent
FILES = (
    *sorted((REPOSITORY / "examples").glob("thesis-*.yaml")),
    *sorted((REPOSITORY / "benchmarks" / "frozen").glob("*.yaml")),
)
FLEET = ("A100-80GB", "B200", "GB200", "H100", "H20", "H200", "H800", "L40S", "MI300X", "MI325X")
PRICES = ("1.6", "2.3", "2.8", "1.7", "1", "4", "2", "0.9", "1.4", "1.6")
"""$/GPU-h; round figures near public rental prices of 2025-2026, for the order only."""
NODE = 8
TIME_LIMIT = 30.0
"""What every instance states as its time limit [s]; those of the thesis state none: 10."""


@dataclass(frozen=True)
class Instance:
    """One frozen instance."""

    name: str
    build: Callable[[], PlanningProblem]


def read(path: Path) -> PlanningProblem:
    """Return the problem that a ServingPlan file states."""
    from archipelago.planner.servingplan import load_resource, to_problem  # noqa: PLC0415  # slow to load

    resource = load_resource(path.read_text())
    return to_problem(resource.metadata.name, resource.spec)


def fleet(domains: int, nodes: int) -> PlanningProblem:
    """Return ten types in ``domains`` racks of ``nodes`` nodes of 8 GPUs, for DeepSeek-V3."""
    lengths = log_normal(1020, 1.0, 1, 16384, 211.0)
    racks = tuple(Domain(f"rack-{i:02d}", nodes) for i in range(domains))
    pools = tuple(
        Pool(
            name.lower(),
            accelerator(name),
            domains * nodes * NODE,
            Decimal(price),
            NODE,
            tuple(Domain(f"{name.lower()}-{rack.name}", rack.nodes) for rack in racks),
        )
        for name, price in zip(FLEET, PRICES, strict=True)
    )
    model = ModelDemand(
        "deepseek-v3",
        architecture("DeepSeek-V3"),
        lengths,
        equal_probability(lengths, 58, 16384),
        targets=Targets(tpot=0.05),
    )
    return PlanningProblem("fleet", (model,), pools, solver=SolverSettings(time_limit=TIME_LIMIT))


INSTANCES = (
    *(Instance(path.stem, partial(read, path)) for path in FILES),
    Instance("fleet-1k", partial(fleet, 3, 4)),
    Instance("fleet-10k", partial(fleet, 32, 4)),
    Instance("fleet-30k", partial(fleet, 32, 12)),
    Instance("fleet-100k", partial(fleet, 32, 40)),
)
