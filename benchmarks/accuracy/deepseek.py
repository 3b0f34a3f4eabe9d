"""DeepSeek's published figures: its profile, its production day, and tables of its kernels.

Sources: deepseek-ai/open-infra-index (day 6), DeepSeek profile data as derived by the SGLang team
(LMSYS blog, 2025-05-05), DeepEP docs/legacy.md, DeepGEMM README. Nothing is fitted to any of them;
efficiencies are the catalogue's.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.model import PerformanceModel
from archipelago.perfmodel.roofline.communication import Network, expert_copies
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.operators import Kernels
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.settings import EngineSettings, Speculation
from benchmarks.accuracy.case import Bar, Case, Point, Report

FOLDER = "measured/published"

_PASS = 16_384
"""Tokens of a prefill pass on each GPU (SGLang team's reading of the profile)."""
_MANY = 1e9
"""Prompts that are due, so that every pass is full."""
_LARGEST = 1024
"""Sequences on one GPU that are not exceeded."""
_NEAR = 0.15

_DAY = 86_400.0
_INPUT, _HIT, _OUTPUT = 608e9, 0.563, 168e9
"""Tokens of the day: input, share of it from the cache on disk, output (open-infra-index)."""
_LENGTH = 4383.0
"""Mean prompt: with 1,210 tokens out it gives the day's ratio and its mean cache of 4,989."""
_SPREAD = 0.92
"""Variance of prompts' lengths over their mean squared: Azure's conversations of 2023 have 0.92,
its code prompts 0.93; DeepSeek states none."""
_NODES_OF_RULE = 20
_CONTEXT = 4989.0
_PACE = 1 / 21
"""Seconds per token of a user: 20-22 tokens/s are stated."""
_PREFILL_GPUS, _DECODE_GPUS = 32, 144
_NODES = 226.9
"""Nodes of eight H800 that the day's tokens need at the stated rates."""

_FEW = 256
"""Rows of a product from which the table's sizes are large."""

_SKEW = 1.1
"""What popular experts add to the busiest GPU, as in the catalogue."""

_USED = 0.8
"""Share of its capacity that an operated fleet takes: the default of replanning.targetUtilisation,
above which the operator adds. The day's figures are means over hours, those of the profile are of
full batches."""


@dataclass(frozen=True)
class Assumption:
    """What the published figures do not say, fixed before anything is compared.

    ``overlap``: two batches. ``imbalance``: load of the busiest GPU over the mean. ``drafts``:
    tokens drafted per step, of which ``_SPECULATING`` are accepted.
    """

    name: str
    overlap: bool
    imbalance: float
    drafts: int = 0


PUBLISHED = Assumption("overlap, skew 1.1", overlap=True, imbalance=_SKEW)
"""What DeepSeek says of its system, profile and production alike; all figures are judged by it."""

ASSUMPTIONS = (
    PUBLISHED,
    Assumption("overlap, balanced", overlap=True, imbalance=1.0),
    Assumption("overlap, skew 1.5", overlap=True, imbalance=1.5),
    Assumption("no overlap, balanced", overlap=False, imbalance=1.0),
    Assumption("no overlap, skew 1.1", overlap=False, imbalance=_SKEW),
)

_SPECULATING = 0.6
"""Share of drafted tokens that the profile's decode is taken to accept (SGLang team)."""


def speculating(assumption: Assumption) -> Assumption:
    """Return the same with one drafted token per step."""
    return replace(assumption, name=f"{assumption.name}, one draft token", drafts=1)


def island(assumption: Assumption, gpus: int, hit: float = 0.0) -> Roofline:
    """Return the island: attention in as many copies as GPUs, experts spread over all."""
    card = accelerator("H800")
    settings = EngineSettings(
        chunk=_PASS,
        prefix_hit=hit,
        fit=engine_fit(card).replaced({"expert_imbalance": assumption.imbalance}),
        speculation=Speculation(assumption.drafts, _SPECULATING) if assumption.drafts else None,
        two_batch_overlap=assumption.overlap,
    )
    shape = Parallelism(dp=gpus, ep=gpus)
    return Roofline(card, architecture("DeepSeek-V3"), shape, 8, settings=settings)


def prefill_rate(model: Roofline, length: float, spread: float = 0.0) -> float:
    """Return prompt tokens per second and GPU [1/s] of prompts in a queue.

    ``length``: their mean [tokens], with a log-normal ``spread``: variance over mean squared.
    """
    sigma = math.sqrt(math.log1p(spread))
    at, weights = np.polynomial.hermite_e.hermegauss(_NODES_OF_RULE)
    lengths = length * np.exp(sigma * at - sigma**2 / 2)
    seconds = weights @ model.prefill_together(lengths, np.array(_MANY)) / weights.sum()
    return length / float(seconds) / model.parallelism.gpus


def decode_rate(model: Roofline, batch: float, context: float) -> float:
    """Return output tokens per second and GPU [1/s] with ``batch`` sequences on each."""
    return batch / _step(model, batch, context)


def batch_at(model: Roofline, pace: float, context: float) -> float:
    """Return the largest batch per GPU with a time per token within ``pace`` [s]."""
    fitting = bisect_right(
        range(1, _LARGEST), pace, key=lambda batch: _step(model, float(batch), context)
    )
    return float(max(1, fitting))


def _step(model: Roofline, batch: float, context: float) -> float:
    running = batch * model.parallelism.gpus
    return float(model.decode_step_time(np.array(running), np.array(running * context)))


@dataclass(frozen=True)
class Figure:
    """A published figure: predicted and stated, and half the width of the prediction [log]."""

    name: str
    predicted: float
    stated: float
    width: float

    @property
    def error(self) -> float:
        """Return predicted / stated - 1."""
        return self.predicted / self.stated - 1

    @property
    def holds(self) -> bool:
        """Return whether it is within 15 %, or the stated figure inside the interval."""
        return abs(self.error) <= _NEAR or abs(math.log1p(self.error)) <= self.width


def published(assumption: Assumption = PUBLISHED) -> tuple[Figure, ...]:
    """Return every published rate, and the nodes of the day, by one rule."""
    reads, hits = island(assumption, _PREFILL_GPUS), island(assumption, _PREFILL_GPUS, _HIT)
    answers, wide = island(assumption, 128), island(assumption, _DECODE_GPUS)
    batch = batch_at(wide, _PACE, _CONTEXT)
    new = _USED * (1 - _HIT) * prefill_rate(hits, _LENGTH, _SPREAD)
    out = _USED * decode_rate(wide, batch, _CONTEXT)
    nodes = _INPUT * (1 - _HIT) / _DAY / (8 * new), _OUTPUT / _DAY / (8 * out)
    widths = {
        "D3": _width(reads, lambda model: prefill_rate(model, 4096.0), "prefill"),
        "D4": _width(answers, lambda model: decode_rate(model, 128.0, 4096.0), "decode"),
        "D1b": _width(hits, lambda model: prefill_rate(model, _LENGTH, _SPREAD), "prefill"),
        "D2": _width(wide, lambda model: decode_rate(model, batch, _CONTEXT), "decode"),
    }
    shares = np.array(nodes) / sum(nodes)
    both = float(shares @ (widths["D1b"], widths["D2"]))
    return (
        Figure("D3: prefill rate", prefill_rate(reads, 4096.0), 7839.0, widths["D3"]),
        Figure("D4: decode rate", decode_rate(answers, 128.0, 4096.0), 2324.8, widths["D4"]),
        Figure("D1b: prefill rate of a day", new, 4025.8, widths["D1b"]),
        Figure("D2: decode rate of a day", out, 1850.0, widths["D2"]),
        Figure("nodes of a day", sum(nodes), _NODES, both),
    )


def _width(model: Roofline, rate: Callable[[Roofline], float], phase: str) -> float:
    def seconds(of: PerformanceModel) -> float:
        if not isinstance(of, Roofline):
            raise TypeError("rates are of one island of one pool")
        return 1 / rate(of)

    (width,) = log_half_widths(model, seconds, phase).values()
    return width


def profile(_: Path) -> Iterator[Report]:
    """Yield prefill and decode of the profile, judged; and every figure by each assumption."""
    every = [(each, published(each)) for each in (*ASSUMPTIONS, *map(speculating, ASSUMPTIONS))]
    yield Report(
        "DeepSeek D3 and D4: prefill and decode of the profile",
        Bar(largest=0.15),
        "nothing is fitted; two batches overlap, as the profile states",
        {},
        [_point(PUBLISHED, figure) for figure in published()[:2]],
        ("two batches: attention beside combine, experts and shared expert beside dispatch",),
    )
    note = (
        "no goal here, the page before this has it: imbalance and speculation in production are "
        f"not published. Rates of a day are {_USED:.0%} of those of full batches; decode batches "
        "are as large as 21 tokens/s per user allow; prompts spread as Azure's do"
    )
    points = [_point(assumption, figure) for assumption, figures in every for figure in figures]
    name = "DeepSeek's figures under each assumption"
    yield Report(name, Bar(), "nothing is fitted", {}, points, (note,))


def _point(assumption: Assumption, figure: Figure) -> Point:
    phase = "prefill" if "prefill" in figure.name else "decode"
    key = ("H800", "deepseek", f"{figure.name}: {assumption.name}", phase, "rate per GPU")
    ends = (figure.predicted * math.exp(sign * figure.width) for sign in (-1, 1))
    return Point(figure.name, *key, figure.predicted, figure.stated, "token/s", *ends)


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
        efficiency = kernels_.fit.fp8_block
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
    Case("deepseek-kernels", "DeepSeek's kernels", (FOLDER,), kernels),
)
