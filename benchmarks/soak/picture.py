"""The samples as a picture: memory, descriptors and tasks over time, phases shaded."""

from itertools import groupby
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.soak.probe import Sample, slope

mpl.use("Agg")

ROWS = (("rss_mib", "memory [MiB]"), ("descriptors", "file descriptors"), ("tasks", "tasks"))


def draw(samples: list[Sample], path: Path) -> None:
    """Write a PNG."""
    figure, axes = plt.subplots(len(ROWS), 1, sharex=True, figsize=(9, 7), layout="constrained")
    seconds = [sample.seconds for sample in samples]
    for axis, (name, label) in zip(axes, ROWS, strict=True):
        values = [float(getattr(sample, name)) for sample in samples]
        axis.plot(seconds, values, linewidth=1)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        for number, (phase, group) in enumerate(groupby(samples, lambda sample: sample.phase)):
            times = [sample.seconds for sample in group]
            axis.axvspan(times[0], times[-1], color=f"C{number}", alpha=0.08)
            if axis is axes[0]:
                axis.text(times[0], 0, f" {phase}", fontsize=8, va="bottom")
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def slopes(samples: list[Sample], phase: str) -> dict[str, float]:
    """Growth per hour in the second half of that phase: the first half warms up."""
    of = [sample for sample in samples if sample.phase == phase]
    half = of[len(of) // 2 :]
    return {
        name: slope([(sample.seconds, float(getattr(sample, name))) for sample in half])
        for name, _ in ROWS
    }
