"""The bytes of a cache on the wire, and the time of its transfer."""

from dataclasses import replace

import numpy as np
import pytest

from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.roofline.kv_transfer import (
    CacheLayout,
    Way,
    adapter_share,
    copy_speed,
    latency,
)

THOUSAND = np.array(1000.0)


def test_kv_heads_alone_are_sent_and_quantised_ones_have_scales() -> None:
    """Llama-3.1-70B: 2 x 8 x 128 elements, 80 layers; 4 B of scales for each 32 elements."""
    model, elements = architecture("Llama-3.1-70B"), 2 * 8 * 128 * 80 * 1000
    for bits, each in ((None, 2.0), (16, 2.0), (8, 1.125), (4, 0.625)):
        assert float(CacheLayout.of(model, bits).size(THOUSAND)) == each * elements


def test_nothing_is_sent_wider_than_it_is_stored() -> None:
    model = architecture("Llama-3.1-8B")
    stored = replace(model, precision=replace(model.precision, kv=1.0))
    sizes = [float(CacheLayout.of(stored, bits).size(THOUSAND)) for bits in (None, 16, 8, 4)]
    assert sizes == [65_536_000, 65_536_000, 65_536_000, 0.625 * 65_536_000]


def test_a_latent_is_two_percent_of_what_its_heads_would_be() -> None:
    """DeepSeek-V3: 576 elements, 61 layers, 2 B: 70,272 B per token; 128 heads of 2 x 128 more."""
    assert float(CacheLayout.of(architecture("DeepSeek-V3")).size(np.array(1.0))) == 70_272
    assert pytest.approx(0.018, abs=1e-3) == 576 / (128 * 2 * 128)


def test_equation_1_has_one_layer_of_full_heads() -> None:
    """4,096 wide, 512 tokens, 40 Gb/s, 1 ms: 1 ms + 8.4 MB / 5 GB/s."""
    size = CacheLayout(elements=2 * 4096).size(np.array(512.0))
    assert float(Way(1e-3, 5e9).seconds(size)) == pytest.approx(1e-3 + 2 * 512 * 4096 * 2 / 5e9)


def test_a_copy_has_its_part_of_the_adapters_and_the_slowest_part_counts() -> None:
    """10 us and 72 % of the adapters: microsoft/vidur's send_recv, 36 of 50 GB/s on H100."""
    assert (latency(), adapter_share()) == (10e-6, 0.72)
    assert copy_speed([(50e9, 1.0)], 1) == pytest.approx(36e9)
    assert copy_speed([(50e9, 1.0)], 4) == pytest.approx(9e9)
    # 25 GB/s for a quarter of the layers are 100 GB/s of whole caches, 30 GB/s for the rest 40.
    assert copy_speed([(25e9, 0.25), (30e9, 0.75)], 1) == pytest.approx(0.72 * 40e9)
    assert copy_speed([(None, 1.0)], 2) == np.inf


def test_bits_and_ways_out_of_range_are_refused() -> None:
    with pytest.raises(OutOfRange, match="16, 8, 4 bits"):
        CacheLayout.of(architecture("Llama-3.1-8B"), 3)
    with pytest.raises(OutOfRange, match="beta > 0"):
        Way(0.0, 0.0)
