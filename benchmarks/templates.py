"""Times of 2,000 templates for 58 ranges: prints seconds, beside one template after the other.

    python -m benchmarks.templates [--repeats N]

A template is an island at an operating point: accelerator, model, split, batch. Everything is
counted from accelerators, models and splits: memory, coefficients, prompt and step times of all
ranges. CPU seconds, for a busy machine makes the clock mean little; the least of the repeats.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice, product
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.accelerators import accelerators
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.lengths import log_normal
from archipelago.perfmodel.parallelism import candidates
from archipelago.perfmodel.ranges import equal_probability
from archipelago.perfmodel.roofline import EngineSettings, Roofline
from archipelago.perfmodel.sheet import Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.parallelism import Parallelism

TEMPLATES = 2000
RANGES = 58
BAR = 0.1
"""CPU seconds for all of them [s]."""
MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "gpt-oss-120b", "DeepSeek-V3")
SIZES = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (16, 64, 256)
"""Operating points of every island [sequences per copy]."""
SETTINGS = EngineSettings()


def splits() -> list[tuple[Accelerator, ModelArchitecture, Parallelism]]:
    """Accelerator, model and split of islands whose weights fit."""
    found = []
    models = [architecture(name) for name in MODELS]
    for model, card, gpus in product(models, accelerators(), SIZES):
        for split in candidates(model, card, gpus, 8, "decode"):
            try:
                Roofline(card, model, split, 8)
            except DoesNotFit:
                continue
            found.append((card, model, split))
    return found


def templates() -> list[tuple[tuple[Accelerator, ModelArchitecture, Parallelism], int]]:
    """The first 2,000 islands at operating points."""

    def every() -> Iterator[tuple[tuple[Accelerator, ModelArchitecture, Parallelism], int]]:
        for island, batch in product(splits(), BATCHES):
            yield island, batch * island[2].dp

    return list(islice(every(), TEMPLATES))


def contexts() -> tuple[FloatArray, FloatArray]:
    """Mean prompt and mean context of each of the 58 ranges [tokens]."""
    lengths = log_normal(1020, 1.0, 1, 16384, 211.0)
    ranges = equal_probability(lengths, RANGES, 16384)
    return lengths.expectation(lengths.length, ranges), lengths.moments(ranges).context


def together(
    wanted: list[tuple[tuple[Accelerator, ModelArchitecture, Parallelism], int]],
) -> tuple[FloatArray, FloatArray]:
    """All prompt and step times from one sheet."""
    prompts, context = contexts()
    at: dict[int, int] = {}
    islands: list[Roofline] = []
    for island, _ in wanted:
        if id(island) not in at:
            at[id(island)] = len(islands)
            card, model, split = island
            islands.append(Roofline(card, model, split, 8, settings=SETTINGS))
    rows = np.array([at[id(island)] for island, _ in wanted])
    sheet = Sheet(islands)
    batch = np.array([float(size) for _, size in wanted])[:, None]
    # Operating points of one island side by side: (islands, points, ranges) as (islands, columns).
    first = np.searchsorted(rows, np.arange(len(islands)))
    points = np.arange(len(rows)) - first[rows]
    batches = np.ones((len(islands), int(points.max()) + 1))
    batches[rows, points] = batch[:, 0]
    cached = batches[..., None] * context
    steps = sheet.decode_step_times(
        np.repeat(batches, len(context), axis=1), cached.reshape(len(islands), -1)
    ).reshape(cached.shape)
    return sheet.prefill_times(prompts)[rows], steps[rows, points]


def one_by_one(
    wanted: list[tuple[tuple[Accelerator, ModelArchitecture, Parallelism], int]],
) -> tuple[FloatArray, FloatArray]:
    """The same from one ``Roofline`` per template."""
    prompts, context = contexts()
    found = []
    for (card, model, split), batch in wanted:
        island = Roofline(card, model, split, 8, settings=SETTINGS)
        step = island.decode_step_time(np.array(float(batch)), batch * context)
        found.append((island.prefill_time(prompts), step))
    return np.array([f[0] for f in found]), np.array([f[1] for f in found])


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The least CPU seconds of several runs."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return min(taken)


def main() -> int:
    """Print the seconds; 1 where the bar is missed or the two disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    wanted = templates()
    ours, theirs = together(wanted), one_by_one(wanted)
    worst = max(float(np.abs(a / b - 1).max()) for a, b in zip(ours, theirs, strict=True))
    sheet = seconds(lambda: together(wanted), repeats)
    single = seconds(lambda: one_by_one(wanted), 1)
    print(f"{len(wanted):,} templates x {ours[0].shape[1]} ranges")
    print(f"one sheet   {sheet:8.3f} CPU s (bar {BAR:g})")
    print(f"one by one  {single:8.3f} CPU s")
    print(f"largest difference {worst:.1e}")
    return int(sheet > BAR or worst > 1e-9)  # noqa: PLR2004


if __name__ == "__main__":
    raise SystemExit(main())
