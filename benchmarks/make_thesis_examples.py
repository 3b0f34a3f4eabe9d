"""Writes examples/thesis-*.yaml: three inventories, each for two production traces.

    python -m benchmarks.make_thesis_examples AZURE_2023_FOLDER

The folder holds the two traces of 2023 from github.com/Azure/AzurePublicDataset; without it the
committed files are all there is. A test compares them where the folder is at hand.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archipelago.perfmodel.workload.traces import Trace, read_trace

EXAMPLES = Path(__file__).parent.parent / "examples"
RANGES = 58
TRACES = {
    "code": "AzureLLMInferenceTrace_code.csv",
    "conversation": "AzureLLMInferenceTrace_conv.csv",
}
PRICES = {"h200": "4.00", "h800": "2.00", "h20": "1.00"}
INVENTORIES = {
    "a": {"h200": 64, "h800": 64, "h20": 128},
    "b": {"h200": 32, "h800": 128, "h20": 128},
    "c": {"h200": 128},
}

FILE = """\
# DeepSeek-V3 on inventory ({letter}) of the thesis, $512 per hour: {gpus}.
# Traffic: the {trace} trace of Azure/AzurePublicDataset at commit b469a11, of 16 November
# 2023 (Microsoft, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024). These are figures made from it:
# {requests} requests in {bins} bins with exact means, at most two in each of {ranges} ranges.
# Written by benchmarks/make_thesis_examples.py. No rate: the plan maximises throughput. The thesis
# states no latency targets; 50 ms per output token is our choice, and there is none for the first.
apiVersion: archipelago.dev/v1alpha1
kind: ServingPlan
metadata:
  name: thesis-{letter}-{trace}
spec:
  models:
  - name: deepseek-v3
    architecture: DeepSeek-V3
    precision: fp8
    slo: {{tpotMilliseconds: 50}}
    workload:
      ranges: {{count: {ranges}, spacing: Width}}
      histogram:
        bins:
{lines}
  pools:
{pools}
  budgetPerHour: "512"
"""


@dataclass(frozen=True)
class Bar:
    """One bin of the histogram, as it is written."""

    min: int
    max: int
    weight: int
    means: tuple[str, str, str]  # input, output, squared output

    def __str__(self) -> str:
        first, output, square = self.means
        return (
            f"        - {{min: {self.min}, max: {self.max}, weight: {self.weight}, "
            f'inputMean: "{first}", outputMean: "{output}", outputMeanSquare: "{square}"}}'
        )


def bars(trace: Trace) -> list[Bar]:
    """Return two bins for each range of equal width, so that every bin lies in one range."""
    width = -(-int(trace.inputs.max() + 1) // RANGES)
    edges = sorted({start + step for start in range(0, RANGES * width, width)
                    for step in (0, width // 2)} | {RANGES * width})  # fmt: skip
    where = np.searchsorted(edges, trace.inputs, side="right") - 1
    return [
        Bar(edges[i], edges[i + 1], int((where == i).sum()), _means(trace, where == i))
        for i in sorted(set(where.tolist()))
    ]


def _means(trace: Trace, inside: np.ndarray) -> tuple[str, str, str]:
    inputs, outputs = trace.inputs[inside], trace.outputs[inside]
    return _text(inputs.mean()), _text(outputs.mean()), _text((outputs**2).mean())


def _text(value: float) -> str:
    """Return six decimals at most, without needless zeros."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def example(letter: str, name: str, trace: Trace) -> str:
    """Return the file of one inventory and one trace."""
    pools, histogram = INVENTORIES[letter], bars(trace)
    return FILE.format(
        letter=letter,
        trace=name,
        gpus=" + ".join(f"{count} {pool.upper()}" for pool, count in pools.items()),
        requests=f"{len(trace.inputs):,}",
        bins=len(histogram),
        ranges=RANGES,
        lines="\n".join(map(str, histogram)),
        pools="\n".join(
            f"  - {{name: {pool}, accelerator: {pool.upper()}, count: {count}, gpusPerNode: 8, "
            f'pricePerGPUHour: "{PRICES[pool]}"}}'
            for pool, count in pools.items()
        ),
    )


def main() -> None:
    """Write all six files."""
    folder = Path(sys.argv[1])
    for name, file in TRACES.items():
        trace = read_trace(folder / file)
        for letter in INVENTORIES:
            (EXAMPLES / f"thesis-{letter}-{name}.yaml").write_text(example(letter, name, trace))


if __name__ == "__main__":
    main()
