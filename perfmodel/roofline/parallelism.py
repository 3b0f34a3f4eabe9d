"""Parallelism: how an island splits a model over its GPUs, and the splits worth a template."""

from __future__ import annotations

from dataclasses import dataclass

from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import ModelArchitecture
from ..errors import PerfModelError


@dataclass(frozen=True, order=True)
class Parallelism:
    """Degrees of tensor, pipeline, data and expert parallelism [GPUs, stages, copies, GPUs].

    ``dp`` copies of the attention work on different requests; each is ``tp`` x ``pp`` GPUs. With
    ``ep`` = tp * dp the routed experts of a pipeline stage are spread over all its GPUs; with
    ``ep`` = 1 every copy slices every expert over its ``tp`` GPUs.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        if min(self.tp, self.pp, self.dp, self.ep) < 1:
            raise PerfModelError(f"parallelism {self}: every degree is at least 1")
        if self.ep not in (1, self.tp * self.dp):
            raise PerfModelError(
                f"parallelism {self}: ep must be 1 or tp x dp = {self.tp * self.dp}, the GPUs of "
                f"one pipeline stage"
            )

    @property
    def gpus(self) -> int:
        """Return the GPUs of the island [GPUs]: tp pp dp; experts share them.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.tp * self.pp * self.dp

    @property
    def stage_gpus(self) -> int:
        """Return the GPUs of one pipeline stage over all copies [GPUs]: tp dp.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.tp * self.dp

    def __str__(self) -> str:
        degrees = (("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep))
        return "-".join(f"{name}{n}" for name, n in degrees if n > 1) or "tp1"


def candidates(
    architecture: ModelArchitecture,
    accelerator: Accelerator,
    gpus: int,
    gpus_per_node: int | None,
    phase: str,
) -> tuple[Parallelism, ...]:
    """Return the few splits of ``gpus`` GPUs that can be best for a phase, in canonical order.

    Tensor parallelism stays inside the scale-up domain and divides the heads: across nodes its two
    all-reduces per layer would wait for the network. Copies of a dense model are islands of their
    own, so a dense island has dp = 1. A mixture of experts either slices its experts with tp, or
    spreads them over all GPUs with data-parallel attention. The weights of a candidate may not fit.

    Args:
        architecture: The model.
        accelerator: The GPU type.
        gpus: GPUs of the island.
        gpus_per_node: None if the GPUs come one by one.
        phase: ``prefill``, ``decode`` or ``mixed``; a mixed island tries what is good for either.
    """
    local, heads = accelerator.local_gpus(gpus_per_node), architecture.attention.heads
    widths = [t for t in range(min(gpus, heads, local), 0, -1) if gpus % t == 0 and heads % t == 0]
    splits: set[Parallelism] = set()
    if architecture.experts is None:
        # The widest tensor split and half of it, the rest as stages. Without a scale-up link the
        # all-reduce is slow, so stages alone are tried as well.
        narrow = [1] if accelerator.scale_up is None else []
        for tp in (*widths[:2], *narrow):
            if gpus // tp <= architecture.layers:
                splits.add(Parallelism(tp=tp, pp=gpus // tp))
        return tuple(sorted(splits))
    # Experts sliced (one copy inside a domain), or spread over all GPUs at several tp. Decode gains
    # from tp = 1 (the latent cache is not replicated) and from the widest tp (lowest latency);
    # prefill of long prompts may want a middle one.
    if widths[0] == gpus:
        splits.add(Parallelism(tp=gpus))
    if 1 < gpus <= architecture.experts.routed:
        middle = [t for t in widths if t not in (1, widths[0])][:1] if phase != "decode" else []
        splits |= {Parallelism(tp=t, dp=gpus // t, ep=gpus) for t in (widths[0], *middle, 1)}
    return tuple(sorted(splits))
