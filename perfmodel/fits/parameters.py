"""What a fit may vary: parameters in logarithms, each with a prior from what is known already.

At most eight per (accelerator, engine): more cannot be told apart by end-to-end times. Priors are
what kernels alone reach (docs/performance-model.md); ``learnt`` narrows them to what fits of other
accelerators found, which is worth more than further parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST = 8
"""Free parameters of one set."""

_LEAST_SPREAD = 0.05
"""A few accelerators that agree by chance do not say that the next one will."""


@dataclass(frozen=True)
class Parameter:
    """One free value of an ``EngineFit``: ``names`` that share it, and a log-normal prior.

    ``value``: median of the prior. ``spread``: its standard deviation in natural logarithms, so
    that 0.3 says +-35 % at one sigma. ``low`` and ``high`` bound the value. Units as in
    ``data/efficiencies.yaml``.
    """

    names: tuple[str, ...]
    value: float
    spread: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]


MFU = Parameter(("mfu",), 0.6, 0.35, 0.1, 1.0)
MBU = Parameter(("mbu",), 0.8, 0.1, 0.5, 1.0)
# Above 1 where reading the cache hides behind the query heads' work, which the roofline adds.
KV_MBU = Parameter(("kv_mbu",), 0.8, 0.2, 0.4, 1.5)
DECODE_ATTENTION = Parameter(("decode_attention_mfu",), 0.03, 0.7, 0.003, 0.3)
STEP = Parameter(("step",), 1.2e-3, 0.5, 1e-4, 2e-2)
SEQUENCE = Parameter(("sequence",), 2e-5, 0.8, 1e-6, 2e-4)
LAYER = Parameter(("decode_layer",), 8e-6, 0.5, 1e-6, 1e-4)
WAIT = Parameter(("all_reduce_wait",), 8e-6, 0.7, 5e-7, 1e-4)
INTERFERENCE = Parameter(("interference",), 1.0, 0.3, 0.3, 3.0)

BATCH = (MFU, MBU, KV_MBU, DECODE_ATTENTION, STEP, SEQUENCE, LAYER, WAIT)
"""Whole batches of many models on one engine: layers tell the gap per layer from that per step."""

LOOP = (MFU, MBU, KV_MBU, DECODE_ATTENTION, STEP, SEQUENCE, WAIT, INTERFERENCE)
"""Closed loops of one dense model: one depth, but prompts between the steps."""

SPARSE = (
    replace(MFU, names=("mfu", "expert_mfu", "prefill_attention_mfu"), value=0.5, low=0.05),
    MBU,
    Parameter(("expert_mbu",), 0.7, 0.5, 0.1, 1.2),
    STEP,
    SEQUENCE,
    WAIT,
    Parameter(("expert_layer",), 2e-5, 0.6, 1e-6, 3e-4),
    Parameter(("expert_spread",), 0.9, 0.2, 0.4, 1.0),
)
"""Closed loops of a mixture of experts with grouped attention."""

LATENT = (
    replace(MFU, names=("mfu", "expert_mfu", "latent_prefill_mfu"), value=0.5, low=0.05),
    Parameter(("mbu", "expert_mbu"), 0.8, 0.15, 0.3, 1.2),
    Parameter(("latent_mfu", "kv_mbu"), 0.6, 0.3, 0.05, 1.0),
    STEP,
    SEQUENCE,
    replace(WAIT, names=("all_reduce_wait", "all_to_all_wait")),
    Parameter(("expert_layer",), 2e-5, 0.6, 1e-6, 3e-4),
)
"""Closed loops of DeepSeek's architecture; users' traffic touches experts independently (g = 1)."""

PREFILL = (
    replace(MFU, low=0.2),
    Parameter(("prefill_attention_mfu",), 0.4, 0.4, 0.05, 1.0),
    Parameter(("dispatch",), 2e-4, 1.0, 1e-5, 5e-3),
    Parameter(("link",), 0.7, 0.5, 0.05, 1.2),
    replace(STEP, value=5e-3, spread=1.0, high=1e-1),
)
"""Prompts alone: what launching, multiplying, attending and adding up over GPUs cost."""


def learnt(
    parameters: Iterable[Parameter], fitted: Sequence[Mapping[str, float]]
) -> tuple[Parameter, ...]:
    """The same parameters with priors from fits of other accelerators.

    The median moves to the geometric mean of the fitted values and the prior's own median, which
    counts once; the spread becomes what those values have among them and around the prior.
    """
    return tuple(_learnt(p, [f[p.name] for f in fitted if p.name in f]) for p in parameters)


def _learnt(parameter: Parameter, values: Sequence[float]) -> Parameter:
    if not values:
        return parameter
    logs = [math.log(value) for value in values]
    count = len(logs)
    mean = (math.log(parameter.value) + sum(logs)) / (count + 1)
    squares = sum((each - mean) ** 2 for each in logs) + parameter.spread**2
    spread = max(_LEAST_SPREAD, math.sqrt(squares / (count + 1)))
    return replace(parameter, value=math.exp(mean), spread=min(spread, parameter.spread))
