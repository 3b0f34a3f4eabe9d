"""From a shape to its templates: times from the performance model, limits as capacity rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.calibration.corrections import (
    PHASES,
    Calibrated,
    Calibration,
    calibration_for,
)
from archipelago.perfmodel.capacity import operating, rows
from archipelago.perfmodel.capacity import rows as capacity
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.model import FloatArray, PerformanceModel
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.pipeline import (
    Pipeline,
    Section,
    TypicalRequest,
    layer_splits,
)
from archipelago.perfmodel.roofline.settings import EngineSettings

from ..plan import Part
from ..problem import ModelDemand, Phase
from .template import Template

if TYPE_CHECKING:
    from .shapes import Shape


def performance_model(
    shape: Shape, calibrations: Sequence[Calibration] = ()
) -> tuple[PerformanceModel, tuple[int, ...]]:
    """Return the performance model of an island, and the layers of each part of a pipeline.

    The roofline, corrected by the calibrations of the shape's accelerators and model.

    Raises:
        DoesNotFit: the weights need more memory than the island has.
    """
    name = shape.demand.architecture.name
    corrections: dict[str, Calibration] = {}
    for pool, _ in shape.sections:
        accelerator = pool.accelerator.name
        if (calibration := calibration_for(calibrations, accelerator, name)) is not None:
            corrections[accelerator] = calibration
    fits = tuple((accelerator, each.fit()) for accelerator, each in corrections.items())
    model, layers = _roofline(shape, EngineSettings(fits=fits))
    if not corrections:
        return model, layers
    learnt = [each.learnt(name, phase) for each in corrections.values() for phase in PHASES]
    return Calibrated(model, filter(None, learnt)), layers


def _roofline(shape: Shape, settings: EngineSettings) -> tuple[PerformanceModel, tuple[int, ...]]:
    demand = shape.demand
    if len(shape.sections) == 1:
        pool = shape.sections[0][0]
        roofline = Roofline(
            pool.accelerator,
            demand.architecture,
            shape.parallelism,
            gpus_per_node=pool.gpus_per_node,
            max_sequences=demand.max_sequences,
            settings=settings,
        )
        return roofline, ()
    stages = [Section(p.accelerator, gpus, 0, p.gpus_per_node) for p, gpus in shape.sections]
    tp = shape.parallelism.tp
    layers, *_ = layer_splits(
        demand.architecture,
        stages,
        tp,
        str(shape.phase),
        _typical_requests(demand),
        max_sequences=demand.max_sequences,
        settings=settings,
    )
    sections = [
        Section(p.accelerator, gpus, n, p.gpus_per_node)
        for (p, gpus), n in zip(shape.sections, layers, strict=True)
    ]
    pipeline = Pipeline(sections, demand.architecture, tp, demand.max_sequences, settings=settings)
    return pipeline, layers


def _typical_requests(demand: ModelDemand) -> TypicalRequest:
    """Return what a pipeline is balanced for: mean requests, and room for the longest one."""
    lengths = demand.lengths
    longest = demand.ranges[-1].max - 1 + float(demand.lengths.moments(demand.ranges).output[-1])
    return TypicalRequest(
        length=float(lengths.probability @ lengths.length),
        output=float(lengths.probability @ lengths.output),
        sequences=float(demand.max_sequences),
        longest=longest,
    )


SATURATED = 0.999999
"""Share of its limit that a row may use at zero load: above it there is no room for requests."""


class Unusable(Exception):  # noqa: N818  # control flow, not an error of the caller
    """A shape that cannot serve anything; the message gives the reason with its numbers.

    ``factor``: need over limit, infinite if unknown.
    """

    def __init__(self, why: str, factor: float = math.inf) -> None:
        super().__init__(why)
        self.factor = factor


def build_templates(shape: Shape, calibrations: Sequence[Calibration] = ()) -> list[Template]:
    """Build one template per operating point of a shape.

    Raises:
        Unusable: the island could serve nothing within memory and targets.
    """
    if not shape.demand.lengths.moments(shape.demand.ranges).probability.any():
        longest = shape.demand.ranges[-1].max
        raise Unusable(f"no request is below {longest} tokens, the most that the model reads")
    try:
        performance, layers = performance_model(shape, calibrations)
    except DoesNotFit as error:
        raise Unusable(str(error)) from None
    builder = TemplateBuilder(shape, performance, layers)
    if shape.phase is Phase.PREFILL:
        return builder.prefill()
    return builder.decode() if shape.phase is Phase.DECODE else builder.mixed()


class TemplateBuilder:
    """Builds the templates of one shape: memory, times, and the capacity rows that follow."""

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
        """Return the template of a prefill island: one row, for the time of prompts."""
        fits = self._fits(np.ones_like(self.longest))
        rho = self._prompt_share(0.0)
        servable = self._within_ttft(fits, rho)
        seconds = self._prompt_seconds() / min(rho, self.demand.max_utilisation)
        return [self._template(1, ("time",), np.atleast_2d(seconds), servable)]

    def decode(self) -> list[Template]:
        """Return templates of a decode island, with rows for TPOT, memory and batch."""
        servable = self._within_tpot(self._fits(self.moments.output))
        tpot = self.demand.targets.tpot
        caps = (
            operating.candidate_batches(self.performance, self.moments, tpot)
            if servable.any()
            else ()
        )
        templates = []
        for cap in caps:
            step = self._step(cap)
            if tpot is None or step.a < SATURATED * tpot:
                names, rows = capacity.decode_rows(step, self.moments, tpot)
                rows = rows / self.demand.max_utilisation
                templates.append(self._template(cap, names, rows, servable))
        return templates or self._too_slow()

    def mixed(self) -> list[Template]:
        """Return templates of a mixed island, on which prompts and tokens share the time."""
        fits = self._fits(self.moments.output)
        servable = self._within_ttft(self._within_tpot(fits), self._prompt_share(0.0))
        tpot, prompt = self.demand.targets.tpot, self._prompt_seconds()
        share = min(self._prompt_share(0.0), self.demand.max_utilisation)
        caps = (
            operating.candidate_batches(self.performance, self.moments, tpot, prompt, share)
            if servable.any()
            else ()
        )
        templates = []
        for cap in caps:
            step, limit = self._step(cap), self.demand.max_utilisation
            rho = min(self._prompt_share(self._longest_step(cap)), limit)
            if rho > 0 and (tpot is None or step.a < SATURATED * tpot):
                names, rows = capacity.mixed_rows(step, self.moments, prompt, tpot, rho)
                rows[1:] /= limit
                templates.append(self._template(cap, names, rows, servable, prompt))
        return templates or self._too_slow()

    def _template(
        self,
        max_batch: int,
        row_names: tuple[str, ...],
        rows: FloatArray,
        servable: NDArray[np.bool_],
        prompt: FloatArray | None = None,
    ) -> Template:
        nic = self._adapter_bandwidth()
        if nic is not None and self.shape.phase is not Phase.MIXED:
            lengths, ranges = self.demand.lengths, self.demand.ranges
            network = capacity.network_row(self.performance, lengths, ranges, nic)
            rows = np.vstack([rows, network / self.demand.max_utilisation])
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

    def _adapter_bandwidth(self) -> float | None:
        """Return the rate of whole KV caches through the slowest part's adapters [B/s]."""
        total = self.demand.architecture.layers
        speeds = [
            gpus * pool.nic_per_gpu * total / layers
            for (pool, gpus), layers in zip(
                self.shape.sections, self.layers or (total,), strict=True
            )
            if pool.nic_per_gpu is not None
        ]
        return min(speeds, default=None)

    def _fits(self, output: FloatArray) -> NDArray[np.bool_]:
        """Return the ranges whose longest request, with its output, fits into one copy."""
        per_copy = self.performance.kv_capacity() / self.shape.parallelism.dp
        fits = np.asarray(self.longest + output <= per_copy)
        if not fits.any():
            need = self.longest[0] + output[0]
            why = f"KV memory of one copy holds {per_copy:.0f} tokens, needs {need:.0f}"
            raise Unusable(why, need / per_copy if per_copy else math.inf)
        return fits

    def _prompt_seconds(self) -> FloatArray:
        return rows.prefill_row(self.performance, self.demand.lengths, self.demand.ranges)

    def _prompt_share(self, blocked: float) -> float:
        """Return rho: the share of time of prompts at which the mean TTFT is the target."""
        lengths, ttft = self.demand.lengths, self.demand.targets.ttft
        return rows.prefill_utilisation(self.performance, lengths, ttft, blocked)

    def _longest_step(self, cap: int) -> float:
        """Return the longest step that a prompt may have to wait for on a mixed island [s]."""
        full = np.array(float(self.performance.kv_capacity()))
        step = float(self.performance.decode_step_time(np.array(float(cap)), full))
        return min(step, self.demand.targets.tpot or math.inf)

    def _step(self, cap: int) -> rows.AffineStep:
        tokens = self.moments.probability * self.moments.output
        context = float(np.dot(tokens, self.moments.context) / tokens.sum())
        return rows.affine_majorant(self.performance, cap, context)

    def _within_ttft(self, fits: NDArray[np.bool_], rho: float) -> NDArray[np.bool_]:
        """Return the fitting ranges whose longest prompt meets TTFT on an idle island."""
        ttft = self.demand.targets.ttft
        if ttft is None:
            return fits
        alone = self.performance.prefill_time(self.longest)
        servable = fits & (alone <= ttft)
        if rho <= 0 or not servable.any():
            mix = self.performance.prefill_time(self.demand.lengths.length)
            mean = float(self.demand.lengths.probability @ mix)
            raise Unusable(
                f"TTFT {ttft * 1e3:.0f} ms: an idle island needs {alone[0] * 1e3:.0f} ms for the "
                f"shortest range and {mean * 1e3:.0f} ms on average",
                max(float(alone[0]), mean) / ttft,
            )
        return np.asarray(servable)

    def _tpot_alone(self) -> FloatArray:
        """Return TPOT with one of the longest requests of each range on every copy [s]."""
        copies = float(self.shape.parallelism.dp)
        context = self.longest + self.moments.output
        return self.performance.decode_step_time(np.full_like(context, copies), copies * context)

    def _within_tpot(self, fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
        tpot = self.demand.targets.tpot
        return fits if tpot is None else np.asarray(fits & (self._tpot_alone() <= tpot))

    def _too_slow(self) -> list[Template]:
        if self.demand.targets.tpot is None:
            limit = self.demand.max_utilisation
            raise Unusable(f"maxUtilisation {limit:g}: no room for one sequence beside its prompts")
        least, tpot = float(self._tpot_alone().min()), self.demand.targets.tpot
        raise Unusable(
            f"TPOT {tpot * 1e3:.0f} ms: a sequence alone takes {least * 1e3:.1f} ms per token",
            least / tpot,
        )
