"""A search for ServingPlans that are hard to plan: what the schema accepts, mutated to cost more.

    python -m tests.support.planner.adversarial --cases 200 --limit 1 --seed 1 --keep 20

A case is a few knobs, so that it fits on a line of YAML; ``resource`` turns it into a ServingPlan,
the same one every time. The search draws cases at random, then turns one to three knobs of the
worst ones found so far. The worst go into ``adversarial.yaml``, which the tests plan again.
"""

from __future__ import annotations

import argparse
import json
import random
import resource as limits
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.check.checker import check_plan
from archipelago.planner.errors import SolverError, SpecError
from archipelago.planner.plan import Infeasible
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.validate import validate_content
from archipelago.planner.table.write import routing_content

Case: TypeAlias = dict[str, Any]

WORST = Path(__file__).with_suffix(".yaml")
ACCELERATORS = ("H200", "H20", "H100", "L4", "A30", "V100-32GB", "B200", "GB200", "MI300X", "L40S")
ARCHITECTURES = ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3", "Qwen3-235B-A22B", "Mixtral-8x7B")

KNOBS: Final[dict[str, tuple[Any, ...]]] = {
    "seed": tuple(range(8)),
    "models": (1, 2, 4, 16),
    "architectures": (1, 2, 5),  # different ones
    "pools": (1, 2, 4, 16, 64),
    "accelerators": (1, 2, 10),  # different ones
    "nodes": (1, 3, 16, 121, 900),  # of a pool
    "node": (None, 1, 4, 8, 12, 1024),  # GPUs of a node
    "sizes": (0, 1, 4, 11, 16),  # island sizes stated; 0: the default chain
    "domains": (0, 1, 8, 64),  # of a pool
    "classes": (1, 2, 8, 64),
    "links": (0, 1, 8, 32),
    "gigabits": ("0.000001", "0.5", "400", "999999999"),
    "nic": (None, "0.000001", "40", "999999999"),
    "pipelines": (0, 1, 4, 16),
    "across": (2, 3, 4),  # pools of a pipeline
    "rented": (0, 1, 50),  # nodes
    "billing": ("PerGPU", "PerNode"),
    "price": (None, "0", "0.000001", "4", "1000000", "mixed"),
    "budget": (None, "0.000001", "50", "5000", "999999999"),
    "objective": ("Maximise", "MinimiseCost"),
    "headroom": (None, "0.000001", "1", "30", "1000000"),
    "rate": (None, "0.000001", "0.01", "7", "500", "999999999", "mixed"),
    "weight": ("equal", "mixed"),
    "serving": ("Disaggregated", "Collocated", "Either", "mixed"),
    "utilisation": ("1", "0.7", "0.000001"),
    "sequences": (1, 64, 1024, 65_536),
    "ttft": (None, 1, 80, 2000, 3_600_000),
    "tpot": (None, 1, 7, 25, 60_000),
    "lengths": ("logNormal", "bins", "rare", "gaps"),
    "longest": (2, 3000, 131_072, 16_777_216),
    "outputs": ("0.000001", "1", "250", "100000", "999999999"),
    "bins": (1, 7, 32, 256),
    "ranges": (1, 8, 58, 256),
    "spacing": ("Width", "Probability", "Loss"),
    "unservable": ("0", "0.001", "0.5", "1"),
    "gap": (1, 1000, 1_000_000),  # parts per million
}
"""What a case can be; ``resource`` says what each stands for where the name does not."""


CALM: Final[Case] = {
    "seed": 0, "models": 1, "architectures": 1, "pools": 2, "accelerators": 1, "nodes": 16,
    "node": 8, "sizes": 0, "domains": 0, "classes": 1, "links": 0, "gigabits": "400", "nic": None,
    "pipelines": 0, "across": 2, "rented": 0, "billing": "PerGPU", "price": "4", "budget": None,
    "objective": "Maximise", "headroom": None, "rate": None, "weight": "equal",
    "serving": "Disaggregated", "utilisation": "1", "sequences": 64, "ttft": None, "tpot": None,
    "lengths": "logNormal", "longest": 3000, "outputs": "250", "bins": 7, "ranges": 8,
    "spacing": "Probability", "unservable": "0.001", "gap": 1000,
}  # fmt: skip
"""An easy one, with a plan."""


def resource(case: Case, seconds: int = 1) -> dict[str, Any]:
    """The ServingPlan of a case, to be planned within ``seconds``.

    Knobs that cannot go together give way, so that nearly every case is one that the schema takes.
    """
    rng = random.Random(case["seed"])  # noqa: S311
    pools = [_pool(case, rng, index) for index in range(case["pools"])]
    links = _links(case, pools)
    spec: dict[str, Any] = {
        "models": [_model(case, rng, index) for index in range(case["models"])],
        "pools": pools,
        "pipelines": _pipelines(case, rng),
        "objective": case["objective"],
        "maxUnservable": case["unservable"],
        "planner": {
            "timeLimitSeconds": seconds,
            "gapPartsPerMillion": case["gap"],
            "seed": case["seed"],
        },
    }
    if links:
        spec["network"] = {"links": links}
    if case["budget"] is not None and case["price"] is not None:
        spec["budgetPerHour"] = case["budget"]
    if case["headroom"] is not None and case["rate"] is not None:
        spec["minHeadroom"] = case["headroom"]
    if case["rate"] is None or case["price"] is None:
        spec["objective"] = "Maximise"
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "adversarial"},
        "spec": spec,
    }


def _pool(case: Case, rng: random.Random, index: int) -> dict[str, Any]:
    node = case["node"]
    count = case["nodes"] * (node or 1)
    kind = ACCELERATORS[index % case["accelerators"]]
    pool: dict[str, Any] = {"name": f"p{index:02}", "accelerator": kind, "count": count}
    if node is not None:
        pool["gpusPerNode"] = node
        pool["billing"] = case["billing"]
        pool["domains"] = _domains(case, index)
    if case["rented"] and len({d["class"] for d in pool.get("domains", ())}) <= 1:
        pool["maxCount"] = count + case["rented"] * (node or 1)
    if case["price"] is not None:
        fixed = case["price"] != "mixed"
        pool["pricePerGPUHour"] = case["price"] if fixed else f"{10 ** rng.uniform(-5, 5):.5f}"
    if case["nic"] is not None:
        pool["nicGigabitsPerSecond"] = case["nic"]
    pool["islandSizes"] = _sizes(case, rng, pool.get("maxCount", count))
    return pool


def _sizes(case: Case, rng: random.Random, most: int) -> list[int]:
    """A chain: up to a node sizes that divide it, then whole nodes."""
    node = case["node"] or 1
    within = [size for size in range(1, node + 1) if node % size == 0]
    chain = [size for at, size in enumerate(within) if all(size % s == 0 for s in within[:at])]
    while len(chain) < case["sizes"]:
        chain.append(chain[-1] * rng.choice((2, 3)) if chain[-1] >= node else node)
    return [size for size in chain[: case["sizes"]] if size <= most]


def _domains(case: Case, index: int) -> list[dict[str, Any]]:
    count = min(case["domains"], case["nodes"], 512 // case["pools"])
    parts = [case["nodes"] // count + (i < case["nodes"] % count) for i in range(count)]
    return [
        {"name": f"d{i:02}", "nodes": nodes, "class": f"c{(index + i) % case['classes']:02}"}
        for i, nodes in enumerate(parts)
    ]


def _links(case: Case, pools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    classes = sorted({d["class"] for pool in pools for d in pool.get("domains", ())})
    pairs = [[a, b] for at, a in enumerate(classes) for b in classes[at + 1 :]][: case["links"]]
    return [
        {"name": f"l{at}", "classes": pair, "gigabitsPerSecond": case["gigabits"]}
        for at, pair in enumerate(pairs)
    ]


def _pipelines(case: Case, rng: random.Random) -> list[dict[str, Any]]:
    names = [f"p{index:02}" for index in range(case["pools"])]
    across = min(case["across"], len(names))
    if across < 2:  # a pipeline takes two pools
        return []
    chosen = {tuple(sorted(rng.sample(names, across))) for _ in range(case["pipelines"])}
    return [{"name": f"x{at}", "pools": list(pools)} for at, pools in enumerate(sorted(chosen))]


def _model(case: Case, rng: random.Random, index: int) -> dict[str, Any]:
    kinds = ("Disaggregated", "Collocated", "Either")
    model: dict[str, Any] = {
        "name": f"m{index:02}",
        "architecture": ARCHITECTURES[index % case["architectures"]],
        "serving": rng.choice(kinds) if case["serving"] == "mixed" else case["serving"],
        "maxUtilisation": case["utilisation"],
        "maxSequences": case["sequences"],
        "workload": _workload(case, rng),
        "slo": {"ttftMilliseconds": case["ttft"], "tpotMilliseconds": case["tpot"]},
    }
    if case["rate"] is not None:
        fixed = case["rate"] != "mixed"
        model["requestsPerSecond"] = case["rate"] if fixed else f"{10 ** rng.uniform(-5, 8):.5f}"
    elif case["weight"] == "mixed":
        model["weight"] = rng.choice((1, 30, 1_000_000))
    return model


def _workload(case: Case, rng: random.Random) -> dict[str, Any]:
    longest = case["longest"]
    cut = {"count": case["ranges"], "spacing": case["spacing"]}
    outputs = {"mean": case["outputs"]}
    if case["lengths"] == "logNormal" and longest > 2:  # two lengths
        shape = {"median": max(1, longest // 40), "sigma": "1.2", "max": longest}
        return {"logNormal": shape, "outputTokens": outputs, "ranges": cut}
    count = max(1, min(case["bins"], longest, 512 // case["models"]))
    edges = [round(longest * at / count) for at in range(count + 1)]
    weights = [rng.randint(1, 1000) for _ in range(count)]
    if case["lengths"] == "rare":  # all but one bin next to nothing
        weights = [1_000_000_000, *[1] * (count - 1)]
    if case["lengths"] == "gaps":
        weights = [weight if at % 3 == 0 else 0 for at, weight in enumerate(weights)]
    bins = [
        {"min": low, "max": high, "weight": weight}
        for (low, high), weight in zip(pairwise(edges), weights, strict=True)
    ]
    return {"histogram": {"bins": bins}, "outputTokens": outputs, "ranges": cut}


@dataclass(frozen=True)
class Trial:
    """What became of a case. ``seconds``: of ``plan`` alone; ``before`` and ``after`` it [s]."""

    outcome: str  # plan, incumbent, infeasible, out of time, refused, or an exception
    seconds: float = 0.0
    before: float = 0.0
    after: float = 0.0
    findings: tuple[str, ...] = ()
    mebibytes: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether the planner broke its word in any way but time."""
        good = ("plan", "incumbent", "infeasible", "out of time", "refused")
        return self.outcome not in good or bool(self.findings)


def attempt(case: Case, seconds: int = 1) -> Trial:
    """Plan a case and check what comes back.

    A spec that is refused, with a remedy, is an answer; an exception of any other kind is a defect
    and is let through.
    """
    started = time.perf_counter()
    body = resource(case, seconds)
    try:
        loaded = load_resource(body)
        problem = to_problem("adversarial", loaded.spec)
    except SpecError as error:
        return Trial("refused", findings=() if str(error) else ("a refusal without a word",))
    begun = time.perf_counter()
    before = begun - started
    try:
        outcome = strategy("exact").plan(problem)
    except SolverError as error:
        spent = time.perf_counter() - begun
        wrong = () if "timeLimitSeconds" in str(error) else (f"no remedy: {error}",)
        return Trial("out of time", spent, before, findings=wrong)
    ended = time.perf_counter()
    if isinstance(outcome, Infeasible):
        wrong = () if outcome.message else ("infeasible without a word",)
        return Trial("infeasible", ended - begun, before, findings=wrong)
    found = [
        *check_plan(loaded.spec, outcome.plan),
        *validate_content(routing_content(loaded.spec, outcome.plan)),
    ]
    kind = "plan" if outcome.plan.certificate.complete else "incumbent"
    after = time.perf_counter() - ended
    return Trial(kind, ended - begun, before, after, tuple(found[:5]))


def attempt_apart(case: Case, seconds: int, patience: float) -> Trial:
    """``attempt`` in a process of its own, which is killed after ``patience`` [s]."""
    command = [
        sys.executable,
        "-m",
        "tests.support.planner.adversarial",
        "--case",
        json.dumps(case),
    ]
    try:
        done = subprocess.run(
            [*command, "--limit", str(seconds)],
            capture_output=True, text=True, timeout=patience, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Trial("killed", seconds=patience)
    if done.returncode:
        return Trial(f"exception: {done.stderr.strip().splitlines()[-1][:300]}")
    return Trial(**json.loads(done.stdout.splitlines()[-1]))


def draw(rng: random.Random) -> Case:
    """A case at random: a calm one with a few or most of its knobs turned."""
    turned = rng.sample(sorted(KNOBS), rng.randint(3, len(KNOBS)))
    return {**CALM, **{knob: rng.choice(KNOBS[knob]) for knob in turned}}


def mutate(case: Case, rng: random.Random) -> Case:
    """The case with one to three knobs turned."""
    turned = rng.sample(sorted(KNOBS), rng.randint(1, 3))
    return {**case, **{knob: rng.choice(KNOBS[knob]) for knob in turned}}


def search(cases: int, seconds: int, seed: int, patience: float) -> list[tuple[Case, Trial]]:
    """All cases tried, worst first."""
    rng = random.Random(seed)  # noqa: S311
    tried: list[tuple[Case, Trial]] = []
    while len(tried) < cases:
        parents = sorted(tried, key=_rank)[:12]
        fresh = len(tried) < cases * 0.35 or rng.random() < 0.1
        case = draw(rng) if fresh else mutate(rng.choice(parents)[0], rng)
        trial = attempt_apart(case, seconds, patience)
        tried.append((case, trial))
        if trial.bad or trial.seconds > seconds * 1.1 + 0.5:
            _say(len(tried), trial, json.dumps(case))
    return sorted(tried, key=_rank)


def _rank(entry: tuple[Case, Trial]) -> tuple[bool, float]:
    """What is wrong comes first, then the most seconds before, in and after the planner.

    Running out of time in the benchmarks is easily had, so that what gets further counts more.
    """
    trial = entry[1]
    reached = {"incumbent": 1.0, "plan": 0.5}.get(trial.outcome, 0.0)
    return not trial.bad, -(reached + trial.before + trial.seconds + trial.after)


def _say(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Search, say what was found, and keep the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--limit", type=int, default=1, help="time limit of each plan [s]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=int, default=0, help="cases to write to adversarial.yaml")
    parser.add_argument("--patience", type=float, default=20.0, help="then it is killed [s]")
    parser.add_argument("--case", help="plan this one and print what became of it as JSON")
    given = parser.parse_args()
    if given.case:
        trial = attempt(json.loads(given.case), given.limit)
        peak = limits.getrusage(limits.RUSAGE_SELF).ru_maxrss / 1024
        _say(json.dumps({**asdict(trial), "mebibytes": round(peak, 1)}))
        return
    tried = search(given.cases, given.limit, given.seed, given.patience)
    for case, trial in tried[:30]:
        _say(trial, json.dumps(case))
    outcomes = [trial.outcome for _, trial in tried]
    _say({outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})
    if given.keep:
        lines = [
            yaml.safe_dump(case, default_flow_style=True, width=10_000, sort_keys=False)
            for case, _ in tried[: given.keep]
        ]
        WORST.write_text("".join(f"- {line}" for line in lines))


if __name__ == "__main__":
    try:
        main()
    except ArchipelagoError as error:
        sys.exit(f"{type(error).__name__}: {error}")
