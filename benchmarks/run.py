"""Plans every frozen instance in a process of its own and prints time, gap, nodes and memory.

    python -m benchmarks.run [NAME ...]

``seconds`` is the whole plan, templates included; imports and reading files are not. The exit
code is 1 when an instance misses its bar.
"""

import argparse
import json
import resource
import subprocess
import sys

from benchmarks.instances import INSTANCES, Instance

HEADER = f"{'instance':28} {'GPUs':>7} {'theta':>10} {'bound':>10} {'gap %':>8} {'s':>6} {'MB':>5}"


def measure(instance: Instance) -> dict[str, object]:
    """Plan once in this process."""
    from archipelago.planner.plan import Planned  # noqa: PLC0415
    from archipelago.planner.strategies import strategy  # noqa: PLC0415

    problem = instance.build()
    outcome = strategy("exact").plan(problem)
    if not isinstance(outcome, Planned):
        raise SystemExit(f"{instance.name}: {outcome.message}")
    plan = outcome.plan
    return {
        "instance": instance.name,
        "gpus": sum(pool.count for pool in problem.pools),
        "theta": plan.theta,
        "bound": plan.certificate.bound,
        "gap": plan.certificate.gap,
        "islands": len(plan.islands),
        "templates": len({(g.pool, g.gpus, g.phase, g.parallelism) for g in plan.groups}),
        "seconds": outcome.seconds,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def line(row: dict[str, object]) -> str:
    """One row of the table."""
    return (
        f"{row['instance']:28} {row['gpus']:>7} {row['theta']:>10.4f} {row['bound']:>10.4f} "
        f"{100 * float(str(row['gap'])):>8.4f} {row['seconds']:>6.2f} {row['megabytes']:>5.0f}"
    )


def main() -> int:
    """Run the chosen instances, or one in this process with ``--here``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="instances; all when none is named")
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON")
    arguments = parser.parse_args()
    chosen = [i for i in INSTANCES if not arguments.names or i.name in arguments.names]
    if arguments.here:
        print(json.dumps(measure(chosen[0])))
        return 0
    print(HEADER, flush=True)
    return max([_report(instance) for instance in chosen], default=0)


def _report(instance: Instance) -> int:
    command = [sys.executable, "-m", "benchmarks.run", "--here", instance.name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row = json.loads(done.stdout)
    missed = [
        f"{what} {row[what]:.4g} > {bar:g}"
        for what, bar in (
            ("seconds", instance.seconds),
            ("megabytes", instance.megabytes),
            ("gap", 1e-3),
        )
        if row[what] > bar
    ]
    print(line(row), "MISSED " + ", ".join(missed) if missed else "", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
