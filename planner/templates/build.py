"""From a shape to its templates: times from the performance model, limits as capacity rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.calibration.corrections import (
    PHASES,
    Calibrated,
    Calibration,
    calibration_for,
)
from archipelago.perfmodel.capacity import operating
from archipelago.perfmodel.capacity import rows as capacity
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.model import FloatArray, PerformanceModel
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.kv_transfer import copy_speed
from archipelago.perfmodel.roofline.pipeline import (
    Pipeline,
    Section,
    TypicalRequest,
    layer_splits,
)
from archipelago.perfmodel.workload.lengths import RangeMoments

from ..plan import Part
from ..problem import Phase
from .template import FirstTokens, Template

if TYPE_CHECKING:
    from archipelago.perfmodel.catalogue.efficiency import EngineFit
    from archipelago.perfmodel.roofline.settings import EngineSettings

    from .shapes import Shape


def performance_model(
    shape: Shape, calibrations: Sequence[Calibration] = ()
) -> tuple[PerformanceModel, tuple[int, ...]]:
    """Return the performance model of an island, and the layers of each part of a pipeline.

    The roofline with the settings of the model's engine, corrected by the calibrations of the
    shape's accelerators, model and engine.

    Raises:
        DoesNotFit: the weights need more memory than the island has.
    """
    name = shape.demand.architecture.name
    corrections: list[Calibration] = []
    fits: list[tuple[str, EngineFit]] = []
    settings = shape.demand.settings
    engine = settings.engine, settings.version
    for pool, _ in shape.sections:
        calibration = calibration_for(calibrations, pool.accelerator.name, name, engine)
        if calibration is not None:
            corrections.append(calibration)
            fits.append((pool.accelerator.name, calibration.fit(pool.accelerator)))
    model, layers = _roofline(shape, replace(settings, fits=tuple(fits)))
    if not corrections:
        return model, layers
    learnt = [each.learnt(name, phase) for each in corrections for phase in PHASES]
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
    tp, lengths = shape.parallelism.tp, demand.lengths
    output = float(lengths.moments(demand.ranges).output[-1])
    typical = TypicalRequest(  # mean requests, and room for the longest one
        length=float(lengths.probability @ lengths.length),
        output=float(lengths.probability @ lengths.output),
        sequences=float(demand.max_sequences),
        longest=demand.ranges[-1].max - 1 + output,
    )
    layers, *_ = layer_splits(
        demand.architecture,
        stages,
        tp,
        str(shape.phase),
        typical,
        max_sequences=demand.max_sequences,
        settings=settings,
    )
    sections = [replace(stage, layers=n) for stage, n in zip(stages, layers, strict=True)]
    pipeline = Pipeline(sections, demand.architecture, tp, demand.max_sequences, settings=settings)
    return pipeline, layers


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
    moments = shape.demand.lengths.moments(shape.demand.ranges)
    if not moments.probability.any():
        longest = shape.demand.ranges[-1].max
        raise Unusable(f"no request is below {longest} tokens, the most that the model reads")
    precision = shape.demand.architecture.precision
    for pool, _ in shape.sections:
        for dtype in (precision.compute, precision.expert_compute):
            if why := pool.accelerator.unserved(dtype):
                raise Unusable(why)
    try:
        performance, layers = performance_model(shape, calibrations)
    except DoesNotFit as error:
        raise Unusable(str(error)) from None
    builder = _TemplateBuilder(shape, moments, performance, layers)
    return builder.prefill() if shape.phase is Phase.PREFILL else builder.decode()


class _TemplateBuilder:
    """Builds the templates of one shape: memory, times, and the capacity rows that follow."""

    def __init__(
        self,
        shape: Shape,
        moments: RangeMoments,
        performance: PerformanceModel,
        layers: tuple[int, ...],
    ) -> None:
        self.shape = shape
        self.demand = shape.demand
        self.performance = performance
        self.layers = layers
        self.moments = moments
        self.longest = np.array([r.max - 1 for r in self.demand.ranges], dtype=np.float64)

    def prefill(self) -> list[Template]:
        """Return the template of a prefill island: one row, for the time of prompts."""
        fits = self._fits(np.ones_like(self.longest))
        rho = self._prompt_share()
        servable = self._within_ttft(fits, rho)
        share = min(rho, self.demand.max_utilisation)
        seconds = self._prompt_seconds() / share
        template = self._template(1, ("time",), np.atleast_2d(seconds), servable)
        if self.demand.targets.ttft is None:
            return [template]
        first = FirstTokens(self.performance.prefill_time(self.longest), *self._service, share)
        return [replace(template, first=first)]

    def decode(self) -> list[Template]:
        """Return templates of a decode island, with rows for TPOT, memory and batch.

        On a mixed island, prompts and tokens share the time.
        """
        tpot, limit = self.demand.targets.tpot, self.demand.max_utilisation
        servable = self._fits(self.moments.output)
        if tpot is not None:
            servable = servable & (self._tpot_alone() <= tpot)
        prompt, share = None, 1.0
        if self.shape.phase is Phase.MIXED:
            servable = self._within_ttft(servable, self._prompt_share())
            prompt, share = self._prompt_seconds(), min(self._prompt_share(), limit)
        batches: tuple[int, ...] = ()
        if servable.any():
            batches = operating.candidate_batches(
                self.performance, self.moments, tpot, prompt, share
            )
        templates = []
        tokens = self.moments.probability * self.moments.output
        context = float(np.dot(tokens, self.moments.context) / tokens.sum())
        steps = capacity.affine_majorants(self.performance, batches, context) if batches else []
        longest = np.zeros(len(batches))  # steps that a prompt may have to wait for
        if prompt is not None and batches:
            full = np.array(float(self.performance.kv_capacity()))
            longest = self.performance.decode_step_time(np.array(batches, dtype=np.float64), full)
        for batch, step, longest_step in zip(batches, steps, longest, strict=True):
            if tpot is not None and step.a >= SATURATED * tpot:
                continue
            if prompt is None:
                names, rows = capacity.decode_rows(step, self.moments, tpot)
                rows = rows / limit
            else:
                blocked = min(float(longest_step), tpot or math.inf)  # a prompt may wait as long
                rho = min(self._prompt_share(blocked), limit)
                if rho <= 0:
                    continue
                names, rows = capacity.mixed_rows(step, self.moments, prompt, tpot, rho)
                rows[1:] /= limit
            templates.append(self._template(batch, names, rows, servable, prompt))
        if templates:
            return templates
        if tpot is None:
            raise Unusable(f"maxUtilisation {limit:g}: no room for one sequence beside its prompts")
        least = float(self._tpot_alone().min())
        raise Unusable(
            f"TPOT {tpot * 1e3:.0f} ms: a sequence alone takes {least * 1e3:.1f} ms per token",
            least / tpot,
        )

    def _template(
        self,
        max_batch: int,
        row_names: tuple[str, ...],
        rows: FloatArray,
        servable: NDArray[np.bool_],
        prompt: FloatArray | None = None,
    ) -> Template:
        total = self.demand.architecture.layers
        adapters = [  # bandwidth of each part [B/s], and its share of the layers
            (None if pool.nic_per_gpu is None else gpus * pool.nic_per_gpu, layers / total)
            for (pool, gpus), layers in zip(
                self.shape.sections, self.layers or (total,), strict=True
            )
        ]
        speeds = [speed / share for speed, share in adapters if speed is not None]
        if speeds and self.shape.phase is not Phase.MIXED:
            lengths, ranges = self.demand.lengths, self.demand.ranges
            size = self.demand.sent_bytes(self.performance)
            network = capacity.network_row(size, lengths, ranges, min(speeds))
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
            self.demand.started,
            copy_speed(adapters, self.shape.parallelism.dp),
        )

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
        return capacity.prefill_row(self.performance, self.demand.lengths, self.demand.ranges)

    def _prompt_share(self, blocked: float = 0.0) -> float:
        """Return rho: the share of time of prompts at which the mean TTFT is the target."""
        ttft = self.demand.targets.ttft
        return 1.0 if ttft is None else capacity.utilisation_within(ttft, blocked, *self._service)

    @cached_property
    def _service(self) -> tuple[float, float]:
        return capacity.prompt_service(self.performance, self.demand.lengths)

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
