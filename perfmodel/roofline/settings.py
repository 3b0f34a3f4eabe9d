"""Engine settings: efficiencies, chunk size, prefix hits, form of latent attention, speculation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np

from ..catalogue.accelerators import Accelerator
from ..catalogue.efficiency import ANY, EngineFit, engine_fit
from ..errors import OutOfRange
from ..model import FloatArray
from .memory import MemoryPolicy


class LatentForm(StrEnum):
    """Where the up-projections of latent attention are folded into its queries and outputs.

    Absorbed, a head works on the latent itself: fewer bytes, more operations per pair. Expanded,
    keys and values are made first. DeepSeek-V2 (arXiv:2405.04434), section 2.1.2.
    """

    DECODE = "absorbed in decode"  # what engines do
    ALWAYS = "absorbed in prefill too"
    NEVER = "expanded in decode too"

    def absorbed(self, phase: str) -> bool:
        """Return whether a ``phase`` (``prefill`` or ``decode``) runs absorbed."""
        return self is LatentForm.ALWAYS or (self is LatentForm.DECODE and phase == "decode")


@dataclass(frozen=True)
class Speculation:
    """A draft proposes tokens that one step of the model then checks.

    ``drafted`` tokens per step, each of which is accepted with probability ``acceptance`` if those
    before it were. ``draft_cost``: time of one drafted token over that of a step of the model.
    Leviathan et al. (arXiv:2211.17192), whose letters are gamma, alpha and c.
    """

    drafted: int
    acceptance: float
    draft_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.drafted < 1 or not 0 <= self.acceptance <= 1 or self.draft_cost < 0:
            raise OutOfRange(
                f"{self}: valid are drafted >= 1, acceptance from 0 to 1, draft_cost >= 0"
            )

    @property
    def rows(self) -> int:
        """Return the tokens that a step computes per sequence [tokens]: gamma + 1.

        Source: arXiv:2211.17192 (Leviathan et al.), section 2.1.
        """
        return self.drafted + 1

    @property
    def tokens_per_step(self) -> float:
        """Return expected tokens per step [tokens]: (1 - alpha^(gamma + 1)) / (1 - alpha).

        Valid for independent acceptances, 0 <= alpha <= 1 (gamma + 1 at alpha = 1).

        Source: arXiv:2211.17192 (Leviathan et al.), equation 1.
        """
        return sum(self.acceptance**n for n in range(self.rows))

    @property
    def seconds_per_step(self) -> float:
        """Return seconds per token over seconds per step [1]: (1 + gamma c) / tokens per step.

        Source: arXiv:2211.17192 (Leviathan et al.), theorem 3.8.
        """
        return (1 + self.drafted * self.draft_cost) / self.tokens_per_step


@dataclass(frozen=True)
class EngineSettings:
    """How the engine runs the model.

    ``engine`` and ``version``: key of the efficiencies; ``fit``: explicit values in their place,
    for one accelerator (a fit to measurements); ``fits``: the same by accelerator, for islands of
    several. ``chunk``: tokens of a prefill pass; longer
    prompts run in several (vLLM's default for servers). ``prefix_hit``: share of a prompt whose
    cache is already there, in [0, 1). ``prefix_hits``: in its place for shorter prompts, by
    (longest prompt [tokens], share), ascending. ``latent``: the form of multi-head latent
    attention. ``speculation``: None if every step makes one token per sequence.
    ``two_batch_overlap``: experts that other copies hold are reached while another half of the
    batch computes.
    """

    engine: str = ANY
    chunk: int = 8192
    prefix_hit: float = 0.0
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    version: str = ANY
    fit: EngineFit | None = None
    latent: LatentForm = LatentForm.DECODE
    speculation: Speculation | None = None
    fits: tuple[tuple[str, EngineFit], ...] = ()
    prefix_hits: tuple[tuple[float, float], ...] = ()
    two_batch_overlap: bool = False

    def __post_init__(self) -> None:
        if self.chunk < 1 or not 0 <= self.prefix_hit < 1:
            raise OutOfRange(
                f"chunk is {self.chunk} and prefix_hit {self.prefix_hit}; "
                f"valid are chunk >= 1 and 0 <= prefix_hit < 1"
            )
        ends = [0.0, *(end for end, _ in self.prefix_hits)]
        rising = all(low < high for low, high in pairwise(ends))
        if not rising or not all(0 <= share < 1 for _, share in self.prefix_hits):
            raise OutOfRange(
                f"prefix_hits are {self.prefix_hits}; valid are pairs of ascending lengths above 0 "
                "and shares from 0 to below 1"
            )

    def new_tokens(self, length: FloatArray) -> FloatArray:
        """Return the tokens of a prompt of ``length`` [tokens] that are left to compute [tokens].

        max(l (1 - h_j), e_i (1 - h_i) for i < j): h_j is the share of the prompt's range, e_i and
        h_i are ends and shares of the ranges below. Without the maximum, a longer prompt would be
        done sooner if a share rises at the end of a range.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        length = np.asarray(length, dtype=np.float64)
        if not self.prefix_hits:
            return np.asarray(length * (1 - self.prefix_hit))
        ends, shares = np.array(self.prefix_hits).T
        at = np.searchsorted(ends, length)  # a prompt at the end of a range is in it
        computed = length * (1 - np.append(shares, self.prefix_hit)[at])
        least = np.maximum.accumulate(np.append(0.0, ends * (1 - shares)))
        return np.asarray(np.maximum(computed, least[at]))

    @property
    def rows(self) -> int:
        """Return the tokens per sequence of a decode step [tokens]; 1 without speculation.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.speculation.rows if self.speculation else 1

    @property
    def per_token(self) -> float:
        """Return seconds per token over seconds per step [1]; 1 without speculation.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return self.speculation.seconds_per_step if self.speculation else 1.0

    def on(self, accelerator: Accelerator) -> EngineFit:
        """Return what the engine reaches and costs on ``accelerator``."""
        fit = self.fit or dict(self.fits).get(accelerator.name)
        return fit or engine_fit(accelerator, self.engine, self.version)


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine computes it: ``passes`` passes of ``tokens`` new tokens each.

    Passes are not rounded, so that the time grows smoothly with ``length`` [tokens], of which
    ``cached`` are in the cache before the first pass.
    """

    length: FloatArray
    tokens: FloatArray
    passes: FloatArray
    cached: FloatArray | float = 0.0

    @classmethod
    def of(cls, length: FloatArray, settings: EngineSettings) -> Prompt:
        """Return what is left to compute of ``length`` tokens, in chunks."""
        length = np.asarray(length, dtype=np.float64)
        new = settings.new_tokens(length)
        passes = np.maximum(1.0, new / settings.chunk)
        return cls(length, np.maximum(1.0, new / passes), passes, length - new)
