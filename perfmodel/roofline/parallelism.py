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


@dataclass(frozen=True)
class Splits:
    """The splits that an operator of an engine admits; by default all.

    ``tp``, ``pp``, ``dp``, ``ep``: the only degree, None for any. ``copies``: whether there may be
    data-parallel copies (None), must be (True), or must not be (False).
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    copies: bool | None = None

    @property
    def pinned(self) -> bool:
        """Return whether a degree is pinned."""
        return any(degree is not None for degree in (self.tp, self.pp, self.dp, self.ep))

    def admits(self, split: Parallelism) -> bool:
        """Return whether a split is one of them."""
        degrees = (
            (self.tp, split.tp),
            (self.pp, split.pp),
            (self.dp, split.dp),
            (self.ep, split.ep),
        )
        if any(wanted is not None and wanted != degree for wanted, degree in degrees):
            return False
        return self.copies is None or self.copies == (split.dp > 1)


ANY_SPLIT = Splits()


def candidates(
    architecture: ModelArchitecture,
    accelerator: Accelerator,
    gpus: int,
    gpus_per_node: int | None,
    phase: str,
    *,
    splits: Splits = ANY_SPLIT,
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
        splits: Those that are admitted. If a degree is pinned and none of the usual ones has it,
            every possible split that has it.
    """
    local, heads = accelerator.local_gpus(gpus_per_node), architecture.attention.heads
    widths = [t for t in range(min(gpus, heads, local), 0, -1) if gpus % t == 0 and heads % t == 0]
    admitted = filter(splits.admits, _usual(architecture, accelerator, gpus, widths, phase))
    found = tuple(sorted(admitted))
    if found or not splits.pinned:
        return found
    return tuple(sorted(filter(splits.admits, _possible(architecture, gpus, widths, splits))))


def _possible(
    architecture: ModelArchitecture, gpus: int, widths: list[int], allowed: Splits
) -> set[Parallelism]:
    """Return every split; a dense model has copies inside an island only if they are pinned."""
    experts = architecture.experts
    routed = experts.routed if experts else 0
    splits = set()
    for tp in widths:
        for dp in range(1, gpus // tp + 1):
            pp, rest = divmod(gpus // tp, dp)
            if rest or pp > architecture.layers or (dp > 1 and not routed and allowed.dp is None):
                continue
            splits.add(Parallelism(tp, pp, dp))
            if 1 < tp * dp <= routed:
                splits.add(Parallelism(tp, pp, dp, tp * dp))
    return splits


def _usual(
    architecture: ModelArchitecture,
    accelerator: Accelerator,
    gpus: int,
    widths: list[int],
    phase: str,
) -> set[Parallelism]:
    """Return the splits that can be best; ``widths``: tensor degrees, the widest first."""
    splits: set[Parallelism] = set()
    if architecture.experts is None:
        # The widest tensor split and half of it, the rest as stages. Without a scale-up link the
        # all-reduce is slow, so stages alone are tried as well.
        narrow = [1] if accelerator.scale_up is None else []
        for tp in (*widths[:2], *narrow):
            if gpus // tp <= architecture.layers:
                splits.add(Parallelism(tp=tp, pp=gpus // tp))
        return splits
    # Experts sliced (one copy inside a domain), or spread over all GPUs at several tp. Decode gains
    # from tp = 1 (the latent cache is not replicated) and from the widest tp (lowest latency);
    # prefill of long prompts may want a middle one.
    if widths[0] == gpus:
        splits.add(Parallelism(tp=gpus))
    if 1 < gpus <= architecture.experts.routed:
        middle = [t for t in widths if t not in (1, widths[0])][:1] if phase != "decode" else []
        splits |= {Parallelism(tp=t, dp=gpus // t, ep=gpus) for t in (widths[0], *middle, 1)}
    return splits
