"""From a shape to its templates: times from the performance model, limits as capacity rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel import capacity
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.planner.plan import Part
from archipelago.planner.problem import Phase
from archipelago.planner.template import Template
from archipelago.planner.times import times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.calibration import Calibration
    from archipelago.perfmodel.model import FloatArray, PerformanceModel
    from archipelago.planner.shapes import Shape

BALANCED = 0.999999
"""A row whose value at zero load reaches this share of its limit leaves no room for requests."""


class Unusable(Exception):  # noqa: N818  # control flow between this module and templates.py
    """The shape cannot be a template; the message says why, with the numbers.

    ``factor`` is need over limit, where that is known.
    """

    def __init__(self, why: str, factor: float = math.inf) -> None:
        super().__init__(why)
        self.factor = factor


def benchmark(shape: Shape, calibrations: Sequence[Calibration] = ()) -> list[Template]:
    """One template per operating point, by calibrated times where there are any.

    Raises:
        Unusable: the island could serve nothing within memory and targets.
    """
    if not shape.demand.lengths.moments(shape.demand.ranges).probability.any():
        longest = shape.demand.ranges[-1].max
        raise Unusable(f"no request is below {longest} tokens, the most that the model reads")
    try:
        performance, layers = times(shape, calibrations)
    except DoesNotFit as error:
        raise Unusable(str(error)) from None
    bench = _Bench(shape, performance, layers)
    if shape.phase is Phase.PREFILL:
        return bench.prefill()
    return bench.decode() if shape.phase is Phase.DECODE else bench.mixed()


class _Bench:
    """One island on the bench: what it holds, how fast it is, and the rows that follow."""

    def __init__(
        self, shape: Shape, performance: PerformanceModel, layers: tuple[int, ...]
    ) -> None:
        self.shape = shape
        self.demand = shape.demand
        self.performance = performance
        self.layers = layers
        self.moments = self.demand.lengths.moments(self.demand.ranges)
        self.longest = np.array([r.max - 1 for r in self.demand.ranges], dtype=np.float64)

    def prefill(self) -> list[Template]:
        """One row: the share of the time that prompts may take."""
        holds = self._held(np.ones_like(self.longest))
        rho = self._prompt_share(0.0)
        servable = self._in_ttft(holds, rho)
        seconds = self._prompt_seconds() / min(rho, self.demand.max_utilisation)
        return [self._template(1, ("time",), np.atleast_2d(seconds), servable)]

    def decode(self) -> list[Template]:
        """Rows for TPOT, memory and batch, at a few operating points."""
        servable = self._in_tpot(self._held(self.moments.output))
        tpot = self.demand.targets.tpot
        caps = capacity.batch_caps(self.performance, self.moments, tpot) if servable.any() else ()
        found = []
        for cap in caps:
            step = self._step(cap)
            if tpot is None or step.a < BALANCED * tpot:
                names, rows = capacity.decode_rows(step, self.moments, tpot)
                rows = rows / self.demand.max_utilisation
                found.append(self._template(cap, names, rows, servable))
        return found or self._too_slow()

    def mixed(self) -> list[Template]:
        """Rows of an island that serves requests whole: prompts share the time with tokens."""
        holds = self._held(self.moments.output)
        servable = self._in_ttft(self._in_tpot(holds), self._prompt_share(0.0))
        tpot, prompt = self.demand.targets.tpot, self._prompt_seconds()
        share = min(self._prompt_share(0.0), self.demand.max_utilisation)
        caps = (
            capacity.batch_caps(self.performance, self.moments, tpot, prompt, share)
            if servable.any()
            else ()
        )
        found = []
        for cap in caps:
            step, most = self._step(cap), self.demand.max_utilisation
            rho = min(self._prompt_share(self._longest_step(cap)), most)
            if rho > 0 and (tpot is None or step.a < BALANCED * tpot):
                names, rows = capacity.mixed_rows(step, self.moments, prompt, tpot, rho)
                rows[1:] /= most
                found.append(self._template(cap, names, rows, servable, prompt))
        return found or self._too_slow()

    def _template(
        self,
        max_batch: int,
        row_names: tuple[str, ...],
        rows: FloatArray,
        servable: NDArray[np.bool_],
        prompt: FloatArray | None = None,
    ) -> Template:
        nic = self._nic()
        if nic is not None and self.shape.phase is not Phase.MIXED:
            lengths, ranges = self.demand.lengths, self.demand.ranges
            moved = capacity.network_row(self.performance, lengths, ranges, nic)
            rows = np.vstack([rows, moved / self.demand.max_utilisation])
            row_names = (*row_names, "network")
        parts = tuple(
            Part(pool.name, gpus, layers)
            for (pool, gpus), layers in zip(self.shape.sections, self.layers, strict=False)
        )
        return Template(
            self.demand.name,
            self.shape.pool,
            self.shape.phase,
            self.shape.gpus,
            self.shape.parallelism,
            max_batch,
            row_names,
            rows,
            servable,
            self.performance,
            self.shape.domain_class,
            parts,
            self.shape.price,
            prompt,
        )

    def _nic(self) -> float | None:
        """Bytes per second that the island's adapters move, the slowest part deciding [B/s]."""
        total = self.demand.architecture.layers
        speeds = [
            gpus * pool.nic_per_gpu * total / layers
            for (pool, gpus), layers in zip(
                self.shape.sections, self.layers or (total,), strict=True
            )
            if pool.nic_per_gpu is not None
        ]
        return min(speeds, default=None)

    def _held(self, kept_output: FloatArray) -> NDArray[np.bool_]:
        """Ranges whose longest request fits into the KV memory of one copy, with its output."""
        per_copy = self.performance.kv_capacity() / self.shape.parallelism.dp
        holds = np.asarray(self.longest + kept_output <= per_copy)
        if not holds.any():
            need = self.longest[0] + kept_output[0]
            why = f"KV memory of one copy holds {per_copy:.0f} tokens, needs {need:.0f}"
            raise Unusable(why, need / per_copy if per_copy else math.inf)
        return holds

    def _prompt_seconds(self) -> FloatArray:
        return capacity.prefill_row(self.performance, self.demand.lengths, self.demand.ranges)

    def _prompt_share(self, blocked: float) -> float:
        """rho: the share of the time that prompts may take so that TTFT is kept."""
        lengths, ttft = self.demand.lengths, self.demand.targets.ttft
        return capacity.prefill_utilisation(self.performance, lengths, ttft, blocked)

    def _longest_step(self, cap: int) -> float:
        """What a prompt may find under way on a mixed island [s]."""
        full = np.array(float(self.performance.kv_capacity()))
        step = float(self.performance.decode_step_time(np.array(float(cap)), full))
        return min(step, self.demand.targets.tpot or math.inf)

    def _step(self, cap: int) -> capacity.AffineStep:
        tokens = self.moments.probability * self.moments.output
        context = float(np.dot(tokens, self.moments.context) / tokens.sum())
        return capacity.affine_majorant(self.performance, cap, context)

    def _in_ttft(self, holds: NDArray[np.bool_], rho: float) -> NDArray[np.bool_]:
        """Ranges whose longest prompt keeps TTFT on an idle island."""
        ttft = self.demand.targets.ttft
        if ttft is None:
            return holds
        alone = self.performance.prefill_time(self.longest)
        servable = holds & (alone <= ttft)
        if rho <= 0 or not servable.any():
            mix = self.performance.prefill_time(self.demand.lengths.length)
            mean = float(self.demand.lengths.probability @ mix)
            raise Unusable(
                f"TTFT {ttft * 1e3:.0f} ms: an idle island needs {alone[0] * 1e3:.0f} ms for the "
                f"shortest range and {mean * 1e3:.0f} ms on average",
                max(float(alone[0]), mean) / ttft,
            )
        return np.asarray(servable)

    def _alone(self) -> FloatArray:
        """TPOT with one of the longest requests of each range on every copy [s]."""
        copies = float(self.shape.parallelism.dp)
        context = self.longest + self.moments.output
        return self.performance.decode_step_time(np.full_like(context, copies), copies * context)

    def _in_tpot(self, holds: NDArray[np.bool_]) -> NDArray[np.bool_]:
        tpot = self.demand.targets.tpot
        return holds if tpot is None else np.asarray(holds & (self._alone() <= tpot))

    def _too_slow(self) -> list[Template]:
        if self.demand.targets.tpot is None:
            most = self.demand.max_utilisation
            raise Unusable(f"maxUtilisation {most:g}: no room for one sequence beside its prompts")
        least, limit = float(self._alone().min()), self.demand.targets.tpot
        raise Unusable(
            f"TPOT {limit * 1e3:.0f} ms: a sequence alone takes {least * 1e3:.1f} ms per token",
            least / limit,
        )
