"""Caches on the wire: bytes by hand for real layouts, and the time of a pair of domains."""

import numpy as np
import pytest

from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import OutOfRange, UnknownName
from archipelago.perfmodel.kvtransfer import CacheLayout, DomainLink, DomainLinks
from archipelago.perfmodel.stage import handed_over

THOUSAND = np.array(1000.0)


def test_grouped_heads_send_theirs_only() -> None:
    """Llama-3.1-70B: 2 x 8 x 128 elements, 80 layers, 2 B: 327,680 B per token."""
    model = architecture("Llama-3.1-70B")
    assert float(CacheLayout.of(model).size(THOUSAND)) == 327_680_000
    assert float(CacheLayout.of(model, 8).size(THOUSAND)) == 163_840_000
    assert float(CacheLayout.of(model, 4).size(THOUSAND)) == 81_920_000


def test_a_latent_is_two_percent_of_what_its_heads_would_be() -> None:
    """DeepSeek-V3: 576 elements, 61 layers, 2 B: 70,272 B per token; 128 heads of 2 x 128 more."""
    assert float(CacheLayout.of(architecture("DeepSeek-V3")).size(np.array(1.0))) == 70_272
    assert pytest.approx(0.018, abs=1e-3) == 576 / (128 * 2 * 128)


def test_scales_are_part_of_what_is_sent() -> None:
    """4 bits in groups of 32 with 4 B for each: 0.5 + 0.125 B per element."""
    layout = CacheLayout.of(architecture("Llama-3.1-8B"), 4, group=32)
    assert layout.element_bytes == pytest.approx(0.625)


def test_16_bits_are_what_the_performance_models_hand_over() -> None:
    for name in ("Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-120b"):
        model = architecture(name)
        lengths = np.array([50.0, 5000.0])
        sent = CacheLayout.of(model).size(lengths)
        assert sent == pytest.approx(handed_over(model, lengths))


def test_equation_1_has_one_layer_of_full_heads() -> None:
    """4,096 wide, batch 2, 512 tokens, 40 Gb/s, 1 ms: 1 ms + 16.8 MB / 5 GB/s, 32 layers."""
    mha = CacheLayout(elements=2 * 4096, full=1, windowed=0, window=0)
    link = DomainLink(1e-3, 5e9)
    one = float(link.seconds(mha.size(np.array(512.0), 2)))
    assert one == pytest.approx(1e-3 + 2 * 2 * 512 * 4096 * 2 / 5e9)
    whole = CacheLayout(elements=2 * 4096, full=32, windowed=0, window=0)
    assert float(link.seconds(whole.size(np.array(512.0), 2))) - 1e-3 == pytest.approx(
        32 * (one - 1e-3)
    )


def test_every_pair_of_domains_has_its_own_time() -> None:
    links = DomainLinks(
        {
            ("east", "east"): DomainLink(10e-6, 50e9),
            ("east", "west"): DomainLink(2e-3, 5e9),
            ("west", "west"): DomainLink(10e-6, 50e9),
        }
    )
    layout = CacheLayout.of(architecture("Llama-3.1-8B"))
    seconds = links.seconds(layout, THOUSAND, ["east", "west"], ["east", "west"])
    near, far = 10e-6 + 131_072_000 / 50e9, 2e-3 + 131_072_000 / 5e9
    assert seconds == pytest.approx(np.array([[near, far], [far, near]]))
    with pytest.raises(UnknownName, match="no link between 'east' and 'north'"):
        links.between("east", "north")


def test_bits_and_links_out_of_range_are_refused() -> None:
    with pytest.raises(OutOfRange, match="16, 8, 4 bits"):
        CacheLayout(1, 1, 0, 0, bits=3)
    with pytest.raises(OutOfRange, match="beta > 0"):
        DomainLink(0.0, 0.0)
