"""Plays the live scenarios whole and writes what they came to.

    python -m benchmarks.live [--only NAME ...] [--scale SHARE] [--from-results]

``benchmarks/results/live.json`` holds the results, ``docs/live/NAME.svg`` served requests by minute
(ours, with full knowledge at once, never changed), and the table of ``docs/live.md`` the sums.
``--from-results`` draws again without playing. A whole scenario takes half a minute to two, a day
of noise five. The exit code is 1 where something is not as its file expected beforehand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.closedloop.results import from_document, play_all
from tests.closedloop.scenario import AbsentError, files, load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.closedloop.results import Result

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "live.json"
PAGE = REPOSITORY / "docs" / "live.md"
PLOTS = REPOSITORY / "docs" / "live"
DWELL = 900
"""Seconds of dwell time where a scenario states none."""
MARKS = "<!-- scenarios: written by benchmarks/live.py -->", "<!-- end of scenarios -->"
HEAD = (
    "| scenario | played | expected: rung, ratio | reached: first, highest rung "
    "| served: ours / instant | never changed / instant | flips, restarts "
    "| dollars: ours, instant, never changed | CPU ms of a window: median, most | verdict |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Play, or read, then write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--from-results", action="store_true")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for file in files() if not options.from_results else ():
        if options.only and file.stem not in options.only:
            continue
        try:
            result, _ = play_all(load(file, options.scale))
        except AbsentError as absent:
            print(f"{file.stem}: skipped, {absent}")
            continue
        known[file.stem] = {"scale": options.scale, **result.document()}
        RESULTS.write_text(json.dumps(known, sort_keys=True, indent=1) + "\n")
        print(f"{file.stem}: {result.ratio:.4f} of instant, never changed {result.still_ratio:.4f}")
    return write(known)


def write(known: dict[str, Any]) -> int:
    """The plots and the table of all results; 1 where one is not as expected."""
    rows, failed = [], 0
    for name, document in sorted(known.items()):
        plain = {key: value for key, value in document.items() if key != "scale"}
        result = from_document(plain)
        draw(result, PLOTS / f"{name}.svg")
        file = next(file for file in files() if file.stem == name)
        scenario = yaml.safe_load(file.read_text())
        dwell = scenario["plan"]["replanning"].get("dwellSeconds", DWELL)
        broken = result.broken(scenario["expected"], dwell)
        failed |= bool(broken)
        rows.append(_row(result, document["scale"], scenario, "; ".join(broken) or "as expected"))
    before, rest = PAGE.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{HEAD}\n{_lines(rows)}\n{MARKS[1]}{after}")
    return int(failed)


def _lines(rows: Iterable[str]) -> str:
    return "\n".join(rows)


def _row(result: Result, scale: float, scenario: dict[str, Any], verdict: str) -> str:
    expected, name = scenario["expected"], result.name
    paid = [f"{one.dollars:.2f}" for one in (result.ours, result.instant, result.still)]
    cheapest = scenario["plan"].get("objective") == "MinimiseCost"
    return (
        f"| [{name}](../tests/scenarios/live/{name}.yaml) | {scale:.0%} of its length "
        f"| {expected['rung']}, {expected['ratio']} | {result.first}, {result.highest} "
        f"| {result.ours.served:,} / {result.instant.served:,} = {result.ratio:.3f} "
        f"| {result.still_ratio:.3f} | {result.ours.flips}, {result.ours.restarts} "
        f"| {', '.join(paid) if cheapest else ''} "
        f"| {1000 * result.cpu_median:.0f}, {1000 * result.cpu_most:.0f} | {verdict} |"
    )


def draw(result: Result, path: Path) -> None:
    """Served requests per second by minute, three ways."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "archipelago"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    ways = (
        (result.instant, f"full knowledge at once ({result.instant_rung.lower()})", "#2a6f97", "-"),
        (result.ours, "Archipelago", "#d1495b", "-"),
        (result.still, "never changed", "#888888", "--"),
    )
    for played, label, colour, style in ways:
        rates = [count / 60 for count in played.minutes]
        axes.plot(range(len(rates)), rates, style, color=colour, label=label, linewidth=1.4)
    axes.axvline(result.start / 60, color="black", linewidth=0.6)
    for at in sorted({one.at for one in result.decided if one.rung != "Keep"}):
        axes.axvline(at / 60, color="#d1495b", linewidth=0.4, linestyle=":")
    axes.set(xlabel="minute", ylabel="served [req/s]", title=result.name.replace("-", " "))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
