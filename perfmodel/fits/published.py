"""Fits of the published engine points: the priors that ship with the package.

``python -m archipelago.perfmodel.fits.published DATA`` writes ``data/fits.yaml`` anew; DATA is
the folder of all data sets.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from archipelago.perfmodel.fits.engine import fit_engine
from archipelago.perfmodel.fits.series import loop_problem
from archipelago.perfmodel.measurements import engine_points

if TYPE_CHECKING:
    from archipelago.perfmodel.measurements.engine_points import EnginePoint

_HEADER = """\
# Fitted to whole engines: medians of priors for `archipelago calibrate`, by accelerator, engine and
# model. Written by `python -m archipelago.perfmodel.fits.published`; not to be edited.
#
# Source of every row: ai-dynamo/aiconfigurator @ 095f58a (Apache-2.0), end-to-end TPOT of closed
# loops, defects taken out as measurements/engine_points.py says. Units as in efficiencies.yaml.
# `error` is the median absolute relative error of the fit to its own rows.
"""


def series(root: Path) -> dict[tuple[str, str, str, str], list[EnginePoint]]:
    """Points that one set of efficiencies speaks of, by accelerator, engine, model, precision."""
    found = defaultdict(list)
    for point in engine_points.load(root).rows:
        found[point.series].append(point)
    return {key: found[key] for key in sorted(found) if len(found[key]) >= 5}  # noqa: PLR2004


def main(root: Path) -> None:
    """Print the file."""
    rows = []
    for (accelerator, engine, model, precision), points in series(root).items():
        fitted = fit_engine(loop_problem(points))
        rows.append(
            {
                "accelerator": accelerator,
                "engine": engine,
                "versions": sorted({point.version for point in points if point.version}),
                "model": model,
                "precision": precision,
                "rows": len(points),
                "error": round(float(np.median(np.abs(np.expm1(fitted.residuals)))), 3),
                "values": {name: float(f"{v:.4g}") for name, v in fitted.values.items()},
            }
        )
    body = yaml.safe_dump({"fits": rows}, sort_keys=False, default_flow_style=None, width=200)
    sys.stdout.write(_HEADER + body)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
