"""``make soak``: the phases one after the other, figures, a picture; 1 where a bar breaks.

python -m benchmarks.soak --minutes 120 --out build/soak
"""

import argparse
import csv
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.soak.api import Administrator
from benchmarks.soak.phases import Place, attack, burst, idle, unrest
from benchmarks.soak.probe import Probe, Sample
from tests.support.controlplane import ControlPlane
from tests.support.controlplane.api import Api
from tests.support.e2e.operators import Operator, grant, running

CRDS = Path(__file__).parents[2] / "crds"
PLANS, IDLE_PLANS, HOSTILE = 500, 200, 200


def main() -> int:
    """Run every phase; the time that is left after the fixed ones goes to changes and faults."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=120.0)
    options.add_argument("--out", type=Path, default=Path("build/soak"))
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))) as plane:
        figures, samples = soak(plane, arguments.minutes * 60, arguments.out)
    write(arguments.out, figures, samples)
    print(json.dumps(figures, indent=2))
    return 0 if all(figures["holds"].values()) else 1


def soak(plane: ControlPlane, seconds: float, out: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Return the phases in order; how each ended, and all samples."""
    with plane.namespace() as namespace, plane.namespace() as other:
        log = out / "operator.log"
        log.unlink(missing_ok=True)
        operator = Operator(grant(plane), log.absolute())
        place = Place(Administrator(Api.of(plane)), plane, operator, namespace, other)
        with running(operator), Probe(operator) as probe:
            figures: dict[str, Any] = {}
            for name, phase in phases(place, seconds):
                probe.phase = name
                figures[name] = asdict(phase())
                print(name, figures[name], flush=True)
    return figures | {"holds": judge(figures)}, probe.samples


def phases(place: Place, seconds: float) -> list[tuple[str, Any]]:
    """Return what is done and how much; a quarter of the time is idle, half of it unrest."""
    return [
        ("burst", lambda: burst(place, PLANS)),
        ("fewer", lambda: fewer(place)),
        ("idle", lambda: idle(place, max(30.0, seconds / 4))),
        ("attack", lambda: attack(place, HOSTILE, max(30.0, seconds / 8))),
        ("unrest", lambda: unrest(place, max(30.0, seconds / 2))),
    ]


def fewer(place: Place) -> Any:  # noqa: ANN401  # a dataclass
    """Keep as many plans as the idle phase is about, and wait until the others are gone."""
    for plan in place.api.plans(place.namespace)[IDLE_PLANS:]:
        place.api.delete(place.namespace, plan["metadata"]["name"])
    return idle(place, 5.0)


def judge(figures: dict[str, Any]) -> dict[str, bool]:
    """Return the bars."""
    first, rest, attacked = figures["burst"], figures["idle"], figures["attack"]
    return {
        "B14 all ready within 60 s, planning left out": (
            first["all_ready"] - first["planning"] / 2 <= 60
        ),
        "B14 fair: p99 at most 5 x p50": first["p99"] <= 5 * first["p50"],
        "B16 idle: no write": rest["writes"] == 0,
        "B16 idle: at most 1 request/s": rest["requests_per_second"] <= 1,
        "B40 each hostile plan is bounded": attacked["longest"] <= 1 + 2 + 1,
        "B40 others at most 2 x slower": attacked["beside"] <= 2 * attacked["alone"],
    }


def write(out: Path, figures: dict[str, Any], samples: list[Sample]) -> None:
    """figures.json, samples.csv and resources.png."""
    from benchmarks.soak.picture import draw, slopes  # noqa: PLC0415  # needs the extra plot

    figures["slopes per hour"] = {name: slopes(samples, name) for name in ("idle", "unrest")}
    figures["largest"] = {
        "rss_mib": max(sample.rss_mib for sample in samples),
        "descriptors": max(sample.descriptors for sample in samples),
        "tasks": max(sample.tasks for sample in samples),
    }
    (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    with (out / "samples.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(asdict(samples[0])))
        table.writeheader()
        table.writerows(asdict(sample) for sample in samples)
    draw(samples, out / "resources.png")


if __name__ == "__main__":
    sys.exit(main())
