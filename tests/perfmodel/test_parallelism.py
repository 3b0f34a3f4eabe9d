"""Which splits are considered, and which are refused."""

import pytest

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import architecture, architectures
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.parallelism import Parallelism, candidates


def test_a_split_is_written_without_degrees_of_one() -> None:
    assert str(Parallelism(tp=8, dp=2, ep=16)) == "tp8-dp2-ep16"
    assert str(Parallelism()) == "tp1"
    assert Parallelism(tp=8, pp=2).gpus == 16


@pytest.mark.parametrize("degrees", [{"tp": 0}, {"tp": 8, "dp": 2, "ep": 8}, {"ep": 4}])
def test_a_split_that_makes_no_island_is_refused(degrees: dict[str, int]) -> None:
    with pytest.raises(PerfModelError, match="parallelism"):
        Parallelism(**degrees)


def test_a_dense_model_slices_inside_the_node_and_stacks_nodes_as_stages() -> None:
    model, h100 = architecture("Llama-3.1-70B"), accelerator("H100")
    found = candidates(model, h100, 16, 8, "decode")
    assert found == (Parallelism(tp=4, pp=4), Parallelism(tp=8, pp=2))


def test_cards_without_a_scale_up_link_may_use_stages_alone() -> None:
    found = candidates(architecture("Llama-3.1-8B"), accelerator("L40S"), 4, 8, "prefill")
    assert Parallelism(pp=4) in found


def test_a_mixture_of_experts_spreads_over_every_gpu() -> None:
    model, h800 = architecture("DeepSeek-V3"), accelerator("H800")
    found = candidates(model, h800, 32, 8, "decode")
    assert found == (Parallelism(dp=32, ep=32), Parallelism(tp=8, dp=4, ep=32))


def test_a_rack_scale_domain_may_slice_across_nodes() -> None:
    found = candidates(architecture("DeepSeek-V3"), accelerator("GB200"), 16, 4, "decode")
    assert Parallelism(tp=16) in found


def test_a_mixed_island_may_split_as_prefill_or_as_decode() -> None:
    for name, gpus in (("DeepSeek-V3", 32), ("Llama-3.1-70B", 8), ("Mixtral-8x7B", 4)):
        model, h100 = architecture(name), accelerator("H100")
        split = {p: candidates(model, h100, gpus, 8, p) for p in ("prefill", "decode", "mixed")}
        assert split["mixed"] == tuple(sorted({*split["prefill"], *split["decode"]}))


@pytest.mark.parametrize("gpus", [1, 2, 3, 6, 8, 24, 72, 128])
@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_every_candidate_is_an_island_of_that_size_and_there_are_few(gpus: int, phase: str) -> None:
    for model in architectures():
        for name in ("H200", "GB200", "L40S"):
            found = candidates(model, accelerator(name), gpus, 8, phase)
            assert 1 <= len(found) <= 5 or model.experts is not None
            assert len(found) <= 5
            for parallelism in found:
                assert parallelism.gpus == gpus
                assert model.attention.heads % parallelism.tp == 0
