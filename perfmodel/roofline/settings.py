"""How an engine runs a model: which efficiencies, which form of a computation, which shortcuts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.efficiency import ANY, engine_fit
from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.memory import MemoryPolicy

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.efficiency import EngineFit
    from archipelago.perfmodel.model import FloatArray


class LatentForm(StrEnum):
    """Where the up-projections of latent attention are folded into its queries and outputs.

    Absorbed, a head works on the latent itself: fewer bytes, more operations per pair. Expanded,
    keys and values are made first. DeepSeek-V2 (arXiv:2405.04434), section 2.1.2.
    """

    DECODE = "absorbed in decode"  # what engines do
    ALWAYS = "absorbed in prefill too"
    NEVER = "expanded in decode too"

    def absorbed(self, phase: str) -> bool:
        """Whether a ``phase`` (``prefill`` or ``decode``) runs absorbed."""
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
        """Tokens that a step computes per sequence."""
        return self.drafted + 1

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of a sequence and step: (1 - a^(g + 1)) / (1 - a) (equation 1)."""
        return sum(self.acceptance**n for n in range(self.rows))

    @property
    def seconds_per_step(self) -> float:
        """Factor on the time of a step: 1 + g c (theorem 3.8) over the tokens that it makes."""
        return (1 + self.drafted * self.draft_cost) / self.tokens_per_step


@dataclass(frozen=True)
class EngineSettings:
    """How the engine runs the model.

    ``engine`` and ``version``: key of the efficiencies; ``fit``: explicit values in their place,
    for one accelerator (a fit to measurements); ``fits``: the same by accelerator, for islands of
    several. ``chunk``: tokens of a prefill pass; longer
    prompts run in several (vLLM's default for servers). ``prefix_hit``: share of a prompt whose
    cache is already there, in [0, 1). ``latent``: the form of multi-head latent attention.
    ``speculation``: None where every step makes one token per sequence.
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

    def __post_init__(self) -> None:
        if self.chunk < 1 or not 0 <= self.prefix_hit < 1:
            raise OutOfRange(
                f"chunk is {self.chunk} and prefix_hit {self.prefix_hit}; "
                f"valid are chunk >= 1 and 0 <= prefix_hit < 1"
            )

    @property
    def rows(self) -> int:
        """Tokens that a decode step computes per sequence."""
        return self.speculation.rows if self.speculation else 1

    @property
    def per_token(self) -> float:
        """Seconds per token over seconds per step."""
        return self.speculation.seconds_per_step if self.speculation else 1.0

    def on(self, accelerator: Accelerator) -> EngineFit:
        """What the engine reaches and costs on ``accelerator``."""
        found = self.fit or dict(self.fits).get(accelerator.name)
        return found or engine_fit(accelerator, self.engine, self.version)


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine computes it: ``passes`` passes of ``tokens`` new tokens each.

    Passes are not rounded, so that the time grows smoothly with ``length`` [tokens].
    """

    length: FloatArray
    tokens: FloatArray
    passes: FloatArray

    @classmethod
    def of(cls, length: FloatArray, settings: EngineSettings) -> Prompt:
        """What is left to compute of ``length`` tokens, in chunks."""
        length = np.asarray(length, dtype=np.float64)
        new = length * (1 - settings.prefix_hit)
        passes = np.maximum(1.0, new / settings.chunk)
        return cls(length, np.maximum(1.0, new / passes), passes)
