"""A sheet of islands says what every one of them says."""

import numpy as np
import pytest

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.efficiency import engine_fit
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.roofline import EngineSettings, Roofline, Speculation
from archipelago.perfmodel.sheet import Sheet
from tests.perfmodel.models import ISLANDS

LENGTHS = np.array([1.0, 40.0, 700.0, 5000.0, 20_000.0, 100_000.0])


def islands() -> list[Roofline]:
    """Every kind of island of the conformance suite, and some with settings of their own."""
    plain = [
        Roofline(accelerator(card), architecture(model, precision), split, 8)
        for card, model, precision, split in ISLANDS.values()
    ]
    h100 = accelerator("H100")
    changed = engine_fit(h100).replaced(
        {"ramp_rows": 64, "expert_spread": 0.7, "expert_pair": 1e-8}
    )
    special = [
        EngineSettings(engine="tensorrt-llm"),
        EngineSettings(prefix_hit=0.4, chunk=2048),
        EngineSettings(fit=changed),
    ]
    return plain + [
        Roofline(h100, architecture(model), split, 8, settings=settings)
        for settings in special
        for model, split in (
            ("Llama-3.1-8B", Parallelism(tp=2)),
            ("DeepSeek-V3", Parallelism(dp=16, ep=16)),
            ("gpt-oss-120b", Parallelism(tp=2, dp=2, ep=4)),
        )
    ]


def test_every_row_is_what_the_island_says() -> None:
    several = islands()
    sheet = Sheet(several)
    batches = np.array([0.0, 1.0, 7.0, 64.0, 900.0])
    prompts, occupied = sheet.prefill_times(LENGTHS), sheet.prefill_occupancies(LENGTHS)
    steps = sheet.decode_step_times(batches[None, :], 1000 * batches[None, :])
    assert prompts.shape == (len(several), len(LENGTHS))
    for at, island in enumerate(several):
        assert prompts[at] == pytest.approx(island.prefill_time(LENGTHS), rel=1e-9)
        assert occupied[at] == pytest.approx(island.prefill_occupancy(LENGTHS), rel=1e-9)
        alone = island.decode_step_time(batches, 1000 * batches)
        assert steps[at] == pytest.approx(alone, rel=1e-9)


def test_batches_of_their_own_per_island() -> None:
    several = islands()
    batch = np.arange(1.0, len(several) + 1)[:, None]
    cached = batch * np.array([[100.0, 3000.0]])
    steps = Sheet(several).decode_step_times(batch, cached)
    for at, island in enumerate(several):
        assert steps[at] == pytest.approx(island.decode_step_time(batch[at], cached[at]), rel=1e-9)


def test_speculation_is_refused() -> None:
    drafting = EngineSettings(speculation=Speculation(1, 0.5))
    island = Roofline(
        accelerator("H100"), architecture("Llama-3.1-8B"), Parallelism(), settings=drafting
    )
    with pytest.raises(PerfModelError, match="one by one"):
        Sheet([island])
