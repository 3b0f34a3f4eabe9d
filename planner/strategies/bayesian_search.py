"""The outer loop of the thesis: Ax with BoTorch over two numbers per pool.

Rignall (2025), section 4.9.2: an integer n_t and a float s_t per GPU type, and a ``SingleTaskGP``
as surrogate. The first batch is random (Sobol), the thesis' warm start.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from ax.generators.torch.botorch_modular.surrogate import ModelConfig, SurrogateSpec
from botorch.models import SingleTaskGP

from .bayesian_division import SKEW, Division

METRIC = "throughput"
RESTARTS, RAW_SAMPLES = 4, 128
"""Effort to maximise the acquisition function. With Ax's larger defaults, a batch of 16 took up to
two minutes on two busy cores."""


class Outer:
    """Proposes divisions of the pools and learns from their throughput; deterministic by seed.

    ``most``: largest island count of each pool. ``warmup``: number of random proposals.
    """

    def __init__(self, most: Mapping[str, int], warmup: int, seed: int) -> None:
        # Names of pools may hold any character of a label: parameters are numbered.
        self._pools = dict(enumerate(sorted(most)))
        with _contained():
            torch.manual_seed(seed)
            self._client = Client(random_seed=seed)
            self._client.configure_experiment(
                parameters=[p for i, name in self._pools.items() for p in _range(i, most[name])]
            )
            self._client.configure_optimization(objective=METRIC)
            self._client.set_generation_strategy(_strategy(warmup, seed))

    def propose(self, count: int) -> dict[int, dict[str, Division]]:
        """Return up to ``count`` proposals by number, each a division of every pool."""
        with _contained():
            trials = self._client.get_next_trials(max_trials=count)
        return {
            int(number): {
                name: Division(int(values[f"n{i}"]), float(values[f"s{i}"]))
                for i, name in self._pools.items()
            }
            for number, values in trials.items()
        }

    def attach(self, divisions: Mapping[str, Division]) -> int:
        """Add a given proposal (a warm start) and return its number."""
        values: dict[str, int | float] = {}
        for i, name in self._pools.items():
            division = divisions.get(name, Division(0))
            values |= {f"n{i}": division.islands, f"s{i}": division.skew}
        with _contained():
            return int(self._client.attach_trial(parameters=values))

    def report(self, number: int, throughput: float) -> None:
        """Report the throughput of a proposal [req/s]; 0 if it cannot serve the workload."""
        with _contained():
            self._client.complete_trial(number, raw_data={METRIC: throughput})


def _range(index: int, most: int) -> tuple[RangeParameterConfig, RangeParameterConfig]:
    return (
        RangeParameterConfig(name=f"n{index}", parameter_type="int", bounds=(0, most)),
        RangeParameterConfig(name=f"s{index}", parameter_type="float", bounds=(-SKEW, SKEW)),
    )


def _strategy(warmup: int, seed: int) -> GenerationStrategy:
    """Return the strategy: Sobol for the first ``warmup`` proposals, then a Gaussian process."""
    surrogate = SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=SingleTaskGP)])
    effort = {"num_restarts": RESTARTS, "raw_samples": RAW_SAMPLES}
    return GenerationStrategy(
        name="divider",
        nodes=[
            GenerationNode(
                name="random",
                generator_specs=[
                    GeneratorSpec(generator_enum=Generators.SOBOL, generator_kwargs={"seed": seed})
                ],
                transition_criteria=[
                    MinTrials(
                        threshold=warmup, transition_to="bayesian", use_all_trials_in_exp=True
                    )
                ],
            ),
            GenerationNode(
                name="bayesian",
                generator_specs=[
                    GeneratorSpec(
                        generator_enum=Generators.BOTORCH_MODULAR,
                        generator_kwargs={"surrogate_spec": surrogate},
                        generator_gen_kwargs={"model_gen_options": {"optimizer_kwargs": effort}},
                    )
                ],
            ),
        ],
    )


@contextmanager
def _contained() -> Iterator[None]:
    """Run Ax and BoTorch in one thread, without their logs and warnings.

    One thread: the same sums in the same order; for matrices this small it is also faster.
    """
    before, threads = logging.root.manager.disable, torch.get_num_threads()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        logging.disable(before)
