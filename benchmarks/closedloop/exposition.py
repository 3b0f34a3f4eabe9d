"""The ``/metrics`` page of one vLLM pod: its real names, labels and bucket grids.

After vLLM 0.33 ``vllm/v1/metrics/loggers.py``: what the adapter of the operator reads, and enough
beside it that a page looks like one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""Upper bounds of the time to first token [s]."""
PER_TOKEN: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
"""Upper bounds of times per output token [s]."""
REASONS: Final = ("abort", "error", "length", "repetition", "stop")


def token_bounds(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to the longest sequence that the engine takes [tokens]."""
    bounds, unit = [], 1
    while unit <= longest:
        bounds += [float(m * unit) for m in (1, 2, 5) if m * unit <= longest]
        unit *= 10
    return tuple(bounds)


@dataclass
class Histogram:
    """Counts up to every bound and beyond, with their sum."""

    bounds: Sequence[float]
    counts: list[float] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        """All zero."""
        self.counts = [0.0] * (len(self.bounds) + 1)

    def add(self, value: float, times: float = 1.0) -> None:
        """Add a value, seen so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """In the exposition format, cumulative."""
        yield f"# TYPE {name} histogram"
        so_far = 0.0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {so_far}'
        yield f"{name}_count{{{labels}}} {so_far}"
        yield f"{name}_sum{{{labels}}} {self.total}"


@dataclass
class Counters:
    """What one process of vLLM counts from its start on."""

    longest: int
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    preempted: int = 0
    inputs: Histogram = field(init=False)
    outputs: Histogram = field(init=False)
    ttft: Histogram = field(init=False)
    inter_token: Histogram = field(init=False)
    per_token: Histogram = field(init=False)

    def __post_init__(self) -> None:
        """Empty histograms on vLLM's grids."""
        bounds = token_bounds(self.longest)
        self.inputs, self.outputs = Histogram(bounds), Histogram(bounds)
        self.ttft, self.inter_token = Histogram(TTFT), Histogram(PER_TOKEN)
        self.per_token = Histogram(PER_TOKEN)

    def end(self, inputs: float, outputs: float, reason: str, decoding: float = 0.0) -> None:
        """Count a finished request; ``decoding`` [s] from its first to its last token here."""
        self.finished[reason] += 1
        self.inputs.add(inputs)
        self.outputs.add(outputs)
        if outputs > 1:
            self.per_token.add(decoding / (outputs - 1))

    def page(self, model: str, running: int, waiting: int, cache: float) -> str:
        """Return the whole page. ``cache``: share of the KV cache in use."""
        labels = f'engine="0",model_name="{model}"'
        lines = [
            *_one("vllm:num_requests_running", "gauge", labels, running),
            *_one("vllm:num_requests_waiting", "gauge", labels, waiting),
            *_one("vllm:kv_cache_usage_perc", "gauge", labels, cache),
            *_one("vllm:num_preemptions_total", "counter", labels, self.preempted),
            *_one("vllm:prompt_tokens_total", "counter", labels, self.inputs.total),
            *_one("vllm:generation_tokens_total", "counter", labels, self.outputs.total),
            "# TYPE vllm:request_success_total counter",
            *(
                f'vllm:request_success_total{{{labels},finished_reason="{why}"}} {count}'
                for why, count in self.finished.items()
            ),
            *self.inputs.lines("vllm:request_prompt_tokens", labels),
            *self.outputs.lines("vllm:request_generation_tokens", labels),
            *self.ttft.lines("vllm:time_to_first_token_seconds", labels),
            *self.inter_token.lines("vllm:inter_token_latency_seconds", labels),
            *self.per_token.lines("vllm:request_time_per_output_token_seconds", labels),
        ]
        return "\n".join(lines) + "\n"


class Uncounted(Counters):
    """Of a process whose page nobody reads."""

    def __post_init__(self) -> None:
        """Histograms that stay empty."""
        self.inputs = self.outputs = self.ttft = self.inter_token = self.per_token = _Empty(())

    def end(self, inputs: float, outputs: float, reason: str, decoding: float = 0.0) -> None:
        """Not counted."""


class _Empty(Histogram):
    def add(self, value: float, times: float = 1.0) -> None:
        """Not counted."""


def _one(name: str, kind: str, labels: str, value: float) -> tuple[str, str]:
    return f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}"
