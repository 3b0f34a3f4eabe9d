"""The catalogue's rows of kernels from tables, and how far a plan's operators are from these.

``python -m benchmarks.accuracy.kernels FOLDER`` prints ``perfmodel/catalogue/data/kernels.csv``
anew; FOLDER has a folder of each system, as ``systems/data`` of ai-dynamo/aiconfigurator.
``--bands`` prints the errors of the catalogue's values by table and size instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from archipelago.perfmodel.catalogue.efficiency import CLASSES
from benchmarks.accuracy.kernels import attention, experts, gemm
from benchmarks.accuracy.kernels.law import Law, Sample, band_medians, fitted
from benchmarks.accuracy.kernels.planned import WIDE, key, measured, seconds

OPERATORS = {
    gemm.LAW.name: "gemm",
    attention.DECODE.name: "decode_attention",
    attention.CONTEXT.name: "prefill_attention",
    experts.LAW.name: "experts",
}
"""The catalogue's class of operators by the name of a law."""

HEAD = ("accelerator", "engine", "version", "dtype", "operators", "uncertainty")
FIGURES = tuple(dict.fromkeys(name for each in OPERATORS.values() for name in CLASSES[each]))

_NOTHING = 1e-3
"""Least change of any time, for a value of 0 in place of the fitted one, that keeps it [1]."""
_WORST = 0.30
"""A law whose median misses a band by more does not describe the kernel: no row."""
_LEAST = 0.1
_ENOUGH = 300
"""Rows below which a table says too little: a test of a collector, mostly."""
_QUANTILE = 0.9


def samples(folder: Path) -> Iterator[tuple[Law, Sample]]:
    """Yield each kernel of each table with the law of its operator; the commonest of a type."""
    for law, found in measured(folder):
        largest: dict[tuple[str, str, str, str], Sample] = {}
        for sample in found:
            if sample.variant.startswith(WIDE) or len(sample.seconds) < _ENOUGH:
                continue  # of one shape alone
            held = largest.get(key(sample))
            if held is None or len(held.seconds) < len(sample.seconds):
                largest[key(sample)] = sample
        for sample in largest.values():
            yield law, sample


def row(law: Law, sample: Sample) -> Mapping[str, str] | None:
    """Return the catalogue's row of a sample; None if the law does not describe its kernel."""
    values = fitted(law, sample)
    predicted = law.seconds(sample.columns, values)
    ends = [
        (value <= 1.01 * p.low and p.unit.startswith("share")) or value >= 0.99 * p.high
        for p, value in zip(law.parameters, values, strict=True)
    ]
    if max(band_medians(law, sample, predicted).values()) > _WORST or any(ends):
        return None
    card, dtype, engine, version = key(sample)
    stated = {}
    for at, (parameter, value) in enumerate(zip(law.parameters, values, strict=True)):
        without = values.copy()
        without[at] = 0.0
        nothing = not parameter.unit.startswith("share") and (
            np.abs(law.seconds(sample.columns, without) / predicted - 1).max() < _NOTHING
        )
        stated[parameter.name] = "0" if nothing else f"{value:.3g}"
    logs = np.log(predicted / sample.seconds)
    width = max(_LEAST, float(np.expm1(np.quantile(np.abs(logs), _QUANTILE))))
    head = (card, engine, version, dtype, OPERATORS[law.name], f"{width:.2f}")
    return dict(zip(HEAD, head, strict=True)) | stated


def main() -> int:
    """Print the rows, or the errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bands", action="store_true")
    arguments = parser.parse_args()
    if not arguments.bands:
        print(",".join((*HEAD, *FIGURES)))
    for law, sample in samples(arguments.folder):
        if arguments.bands:
            errors = band_medians(law, sample, seconds(law, sample)).values()
            medians = [f"{median:6.1%}" for median in errors]
            print(*key(sample), OPERATORS[law.name], len(sample.seconds), *medians, flush=True)
        elif (found := row(law, sample)) is None:
            print("left out:", *key(sample), OPERATORS[law.name], file=sys.stderr, flush=True)
        else:
            print(",".join(found.get(name, "") for name in (*HEAD, *FIGURES)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
