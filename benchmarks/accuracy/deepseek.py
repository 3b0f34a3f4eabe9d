"""DeepSeek's published figures: its profile, its production day, and tables of its kernels.

Sources: deepseek-ai/open-infra-index (day 6), DeepSeek profile data as derived by the SGLang team
(LMSYS blog, 2025-05-05), DeepEP docs/legacy.md, DeepGEMM README. Nothing is fitted to any of them;
efficiencies are the catalogue's.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.roofline.communication import Network, expert_copies
from archipelago.perfmodel.roofline.operators import Kernels
from benchmarks.accuracy.case import Bar, Case, Point, Report
from benchmarks.accuracy.wideep import Assumption, WideIsland

FOLDER = "measured/published"

_MULTIPROCESSORS, _COMMUNICATING = 132, 20
"""Of an H800, and those of them that communicate in prefill (DeepSeek-V3, section 3.2.1)."""

_DAY = 86_400.0
_INPUT, _HIT, _OUTPUT = 608e9, 0.563, 168e9
"""Tokens of the day: input, share of it from the cache on disk, output (open-infra-index)."""
_LENGTH, _NEW = 4383.0, 1210.0
"""Mean request: as many in and out as give the day's ratio and its mean cache of 4,989 tokens."""
_CONTEXT = 4989.0
_PACE = 1 / 21
"""Seconds per token of a user: 20-22 tokens/s are stated."""
_PREFILL_GPUS, _DECODE_GPUS = 32, 144
_NODES = 226.9
"""Nodes of eight H800 that the day's tokens need at the stated rates."""

_FEW = 256
"""Rows of a product from which the table's sizes are large."""

_STATED_PREFILL, _STATED_DECODE = 73_700.0, 14_800.0
"""Tokens per second and node of the day, hits included (open-infra-index)."""

_RESERVED = _COMMUNICATING / _MULTIPROCESSORS

_SKEW = 1.1
"""What popular experts add to the busiest GPU, as in the catalogue."""

PROFILED = Assumption("overlap, 20 SMs reserved, skew 1.1", True, _RESERVED, _SKEW)
"""What DeepSeek says of its system, profile and production alike; all figures are judged by it."""

PLANNED = Assumption("no overlap, skew 1.1", False, 0.0, _SKEW)
"""What the planner's roofline assumes."""

ASSUMPTIONS = (
    PROFILED,
    Assumption("overlap, 20 SMs reserved, balanced", True, _RESERVED, 1.0),
    Assumption("overlap, 20 SMs reserved, skew 1.5", True, _RESERVED, 1.5),
    Assumption("no overlap, balanced", False, 0.0, 1.0),
    PLANNED,
)

_SPECULATING = 0.6
"""Share of drafted tokens that the profile's decode is taken to accept (SGLang team)."""


def speculating(assumption: Assumption) -> Assumption:
    """Return the same with one drafted token per step: two rows of products, 1.6 tokens kept."""
    name = f"{assumption.name}, one draft token"
    spread = (assumption.overlap, assumption.reserved, assumption.imbalance)
    return Assumption(name, *spread, tokens_per_step=1 + _SPECULATING, rows=2.0)


def profile(_: Path) -> Iterator[Report]:
    """Yield prefill and decode of the profile, D3 and D4: judged; production D1b, D2: reported."""
    d3 = _point("D3", PROFILED, _island(PROFILED, 32).prefill_rate(16384, 4096), 7839.0)
    d4 = _point("D4", PROFILED, _island(PROFILED, 128).decode_rate(128, 4096), 2324.8)
    yield Report(
        "DeepSeek D3 and D4: prefill and decode of the profile",
        Bar(largest=0.15),
        "nothing is fitted; overlap and reserved multiprocessors as the profile states",
        {},
        [d3, d4],
        ("two micro-batches: attention beside combine, experts and shared expert beside dispatch",),
    )
    note = (
        "no goal: overlap, imbalance and speculation in production are not published, and the "
        "mean of a day is below the rate of full batches"
    )
    yield Report(
        "DeepSeek D1b, D2, D3, D4 under each assumption",
        Bar(),
        "nothing is fitted",
        {},
        list(_assumed()),
        (note,),
    )


def _assumed() -> Iterator[Point]:
    for assumption in ASSUMPTIONS:
        island = _island(assumption, 32)
        yield _point("D3", assumption, island.prefill_rate(16384, 4096), 7839.0)
        yield _point("D1b", assumption, island.prefill_rate(16384, _LENGTH), 4025.8)
    for assumption in (*ASSUMPTIONS, *map(speculating, ASSUMPTIONS)):
        island = _island(assumption, 128)
        yield _point("D4", assumption, island.decode_rate(128, 4096), 2324.8)
        wide = _island(assumption, _DECODE_GPUS)
        paced = wide.decode_rate(wide.batch_at(_PACE, _CONTEXT), _CONTEXT)
        yield _point("D2", assumption, paced, 1850.0)


def _island(assumption: Assumption, gpus: int) -> WideIsland:
    return WideIsland(accelerator("H800"), architecture("DeepSeek-V3"), gpus, assumption)


def _point(what: str, assumption: Assumption, predicted: float, measured: float) -> Point:
    phase = "decode" if what in ("D2", "D4") else "prefill"
    key = ("H800", "deepseek", f"{what}: {assumption.name}", phase, "rate per GPU")
    return Point(what, *key, predicted, measured, "token/s")


@dataclass(frozen=True)
class Fleet:
    """Nodes that a day needs: prefill and decode, as they come and in whole islands."""

    prefill: float
    decode: float

    @property
    def continuous(self) -> float:
        """Return fractions of nodes."""
        return self.prefill + self.decode

    @property
    def whole(self) -> float:
        """Return whole islands of 4 prefill nodes and 18 decode nodes."""
        return _whole(self.prefill, _PREFILL_GPUS // 8) + _whole(self.decode, _DECODE_GPUS // 8)


def _whole(nodes: float, island: int) -> float:
    return float(math.ceil(nodes / island) * island)


def fleet(assumption: Assumption) -> Fleet:
    """Return the day's nodes from predicted rates of full islands under an assumption."""
    prefill = _island(assumption, _PREFILL_GPUS).prefill_rate(16384, _LENGTH, _HIT)
    island = _island(assumption, _DECODE_GPUS)
    decode = island.decode_rate(island.batch_at(_PACE, _CONTEXT), _CONTEXT)
    return Fleet(_INPUT / _DAY / (8 * prefill), _OUTPUT / _DAY / (8 * decode))


_LOSSES = (
    "no goal here, the page before this has it: by the rule of the profile what is missing are the "
    "losses of a day, whose nodes were held through hours of little load. Without overlap, "
    "which production has, errors cancel"
)


def day(_: Path) -> Iterator[Report]:
    """Yield the day's nodes from predicted rates, continuous and in whole islands."""
    yield Report(
        "DeepSeek's day from predicted node rates",
        Bar(),
        "nothing is fitted; rates of full islands by the rule of the profile",
        {},
        list(_nodes(PROFILED)),
        (
            "decode batches are as large as 21 tokens/s per user allow; prompts are of mean length",
            _phases(fleet(PROFILED)),
            _LOSSES,
        ),
    )
    every = (*ASSUMPTIONS, *map(speculating, ASSUMPTIONS))
    others = [assumption for assumption in every if assumption != PROFILED]
    yield Report(
        "DeepSeek's day under other assumptions",
        Bar(),
        "nothing is fitted",
        {},
        [point for assumption in others for point in _nodes(assumption)],
    )


def published() -> dict[str, float]:
    """Return predicted / stated - 1 [1] of each published figure, by its name, by one rule."""
    d3 = _island(PROFILED, 32).prefill_rate(16384, 4096) / 7839.0
    d4 = _island(PROFILED, 128).decode_rate(128, 4096) / 2324.8
    day_ = fleet(PROFILED).continuous / _NODES
    return {"prefill rate": d3 - 1, "decode rate": d4 - 1, "nodes of a day": day_ - 1}


def _phases(points: Fleet) -> str:
    stated = _INPUT / _DAY / _STATED_PREFILL, _OUTPUT / _DAY / _STATED_DECODE
    return (
        f"the phases err apart: prefill {points.prefill:.1f} nodes where the stated rate "
        f"gives {stated[0]:.1f}, decode {points.decode:.1f} for {stated[1]:.1f}"
    )


def _nodes(assumption: Assumption) -> Iterator[Point]:
    points = fleet(assumption)
    for metric, nodes in (("continuous", points.continuous), ("whole islands", points.whole)):
        key = ("H800", "deepseek", assumption.name, "both", metric)
        yield Point("day", *key, nodes, _NODES, "node")


def kernels(data: Path) -> Iterator[Report]:
    """Yield DeepGEMM's products and DeepEP's transfers by the catalogue's efficiencies."""
    folder = data / FOLDER
    products = csv.DictReader((folder / "deepgemm_h800_fp8.csv").read_text().splitlines())
    split = "nothing is fitted"
    yield Report("DeepGEMM on H800", Bar(), split, {}, [_product(row) for row in products])
    transfers = list(csv.DictReader((folder / "deepep_v1_h800.csv").read_text().splitlines()))
    timed = [row for row in transfers if row["latency_us"]]
    rule = "normal mode: bandwidth of the bottleneck only, no time"
    untimed = {rule: len(transfers) - len(timed)}
    yield Report("DeepEP on H800", Bar(), split, untimed, [_transfer(row) for row in timed])


def _product(row: dict[str, str]) -> Point:
    """Return seconds [s] of a product, or of one for each group of rows."""
    card = accelerator("H800")
    kernels_ = Kernels(card, architecture("DeepSeek-V3"), engine_fit(card))
    m, n, k = (float(row[name]) for name in ("m_or_m_per_group", "n", "k"))
    groups = float(row["groups"] or 1)
    if row["kind"] == "dense":
        seconds = float(kernels_.product("product", k, n).seconds(np.array(m), np.array(0.0)))
    else:
        efficiency = kernels_.efficiency("fp8")
        operations = 2 * m * n * k / (efficiency.expert_mfu * card.peak("fp8"))
        moved = (n * k + m * k + 2 * m * n) / (efficiency.expert_mbu * card.bandwidth)
        seconds = groups * max(operations, moved)
    measured = 2 * groups * m * n * k / (float(row["tflops"]) * 1e12)
    size = f"{row['kind'].replace('_', ', ')}, {'64-128 rows' if m < _FEW else '256 rows and more'}"
    key = (f"{n:.0f}x{k:.0f}", card.name, f"deepgemm {row['readme_date']}", size, "GEMM", "time")
    return Point(*key, 1e6 * seconds, 1e6 * measured, "us")


def _transfer(row: dict[str, str]) -> Point:
    card = accelerator("H800")
    gpus, tokens = int(row["ep"]), float(row["tokens_per_gpu"])
    inside, outside = expert_copies(gpus, 8, int(row["topk"]), None, "low_latency")
    size = tokens * float(row["hidden"]) * (1.0 if "fp8" in row["op"] else 2.0)
    moved = Network(card, 8).all_to_all(
        np.array(size * inside), np.array(size * outside), "low_latency"
    )
    key = (f"ep {gpus}", card.name, "deepep v1", row["op"], "all-to-all", "time")
    return Point(*key, 1e6 * float(moved), float(row["latency_us"]), "us")


CASES = (
    Case("deepseek", "DeepSeek: profile and production", (FOLDER,), profile),
    Case("deepseek-day", "DeepSeek's day", (FOLDER,), day),
    Case("deepseek-kernels", "DeepSeek's kernels", (FOLDER,), kernels),
)
