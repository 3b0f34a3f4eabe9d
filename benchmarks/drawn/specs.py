"""A ServingPlan from a number: models, pools, classes, objective, targets, prices, all at random.

One number gives one spec on every machine, until a figure of the catalogue changes (a test has the
digest of some). Sizes and rates are such that most specs have a plan, some are tight, and some have
none. Prices and efficiencies give the order only.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations, pairwise
from random import Random
from typing import Any, Final, TypeAlias

from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.architectures import ModelArchitecture, architecture
from archipelago.planner.problem import DEFAULT_CLASS
from archipelago.planner.servingplan.schema import API_VERSION, KIND

Body: TypeAlias = dict[str, Any]
"""A part of the resource as YAML has it."""

MODELS: Final = (1, 1, 2, 2, 3, 4, 5, 6, 8)
CLASSES: Final = (1, 1, 1, 2, 3, 4, 6, 8)
POOLS: Final = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 10)
OBJECTIVES: Final = ("throughput", "headroom", "cost")
FLEETS: Final = {"small": (8, 64), "medium": (64, 512), "large": (512, 4096)}
"""Name of a fleet -> fewest and most GPUs that are drawn for a pool."""
SERVINGS: Final = ("Disaggregated", "Collocated", "Either", "mixed")
"""What all models do; mixed: drawn for each."""

ACCELERATORS: Final = (
    *("A100-40GB", "A100-80GB", "A30", "A40", "B200", "B300", "GB200", "GB300", "GH200", "Gaudi3"),
    *("H100", "H100-PCIe", "H20", "H200", "H800", "L4", "L40", "L40S", "MI300X", "MI325X"),
    *("MI355X", "RTX-A6000", "RTX-PRO-6000", "V100-32GB"),
)
NODES: Final = {"GB200": 4, "GB300": 4, "GH200": 1, "A30": 4}
"""GPUs of one node where they are not 8."""
ARCHITECTURES: Final = (
    *("DeepSeek-R1", "DeepSeek-V3", "Llama-3.1-70B", "Llama-3.1-8B", "Mixtral-8x7B"),
    *("Qwen3-235B-A22B", "Qwen3-32B", "gpt-oss-120b"),
)
RANGES: Final = (4, 8, 12, 16, 24, 32, 58, 100)
MOST_RANGES: Final = 160
"""Of all models together."""
ROOM: Final = 0.5
"""Share of the GPUs' memory that one copy of every model may take, for most specs."""
PREFILL: Final = 0.4
DECODE: Final = 0.05
"""Shares of the matrix peak that prompts and answers reach, crudely."""


class _Dice(Random):
    """Random numbers that are equal on every machine and Python."""

    def gives(self, share: float) -> bool:
        """Return whether something happens that happens with this probability."""
        return self.random() < share


@dataclass(frozen=True)
class Stratum:
    """What a spec is counted under.

    ``models`` and ``classes`` (of domains) are numbers; ``fleet``: by the largest pool;
    ``serving``: of all models, or mixed.
    """

    models: int
    classes: int
    objective: str
    fleet: str
    serving: str


@dataclass(frozen=True)
class Drawn:
    """One drawn ServingPlan: ``spec`` is the whole resource, ready for YAML and the loader."""

    seed: int
    spec: Body
    stratum: Stratum


def draw(seed: int) -> Drawn:
    """Return the ServingPlan of that number."""
    dice = _Dice(seed)
    fleet, objective = dice.choice(tuple(FLEETS)), dice.choice(OBJECTIVES)
    count, classes = dice.choice(MODELS), dice.choice(CLASSES)
    pools = _pools(dice, fleet, classes)
    used = _classes(pools)
    serving = dice.choice(SERVINGS)
    models = _models(dice, count, serving, pools)
    spec: Body = {"models": models, "pools": pools}
    floor = "0"
    if objective == "throughput":
        for model in models:
            model["weight"] = dice.choice((1, 1, 2, 4, 8, 20))
    else:
        least, most = (-1.3, 0.4) if objective == "headroom" else (-1.8, 0.0)
        _state_rates(dice, models, pools, 10 ** dice.uniform(least, most))
        floor = dice.choice(("0", "0", "0.5", "1", "1.2"))
    if objective == "cost":
        spec["objective"] = "MinimiseCost"
        floor = dice.choice(("0", "1.1", "1.2", "1.5"))
    if floor != "0":
        spec["minHeadroom"] = floor
    if dice.gives(0.25):
        everything = sum(pool["count"] * Decimal(pool["pricePerGPUHour"]) for pool in pools)
        spec["budgetPerHour"] = f"{float(everything) * dice.uniform(0.2, 0.9):.2f}"
    elif objective != "cost" and dice.gives(0.1):
        for pool in pools:
            del pool["pricePerGPUHour"]
    if dice.gives(0.1):
        spec["maxUnservable"] = dice.choice(("0", "0.01"))
    if len(used) > 1 and (links := _links(dice, used)):
        spec["network"] = {"links": links}
    if len(used) == 1 and len(pools) > 1 and dice.gives(0.1):
        parts = dice.sample([pool["name"] for pool in pools], min(len(pools), dice.choice((2, 3))))
        spec["pipelines"] = [{"name": "line", "pools": parts}]
    resource = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"drawn-{seed}"},
        "spec": spec,
    }
    return Drawn(seed, resource, stratum(resource))


def stratum(resource: Body) -> Stratum:
    """Return the stratum of any ServingPlan that states the GPUs of its pools."""
    spec = resource["spec"]
    models, pools = spec["models"], spec["pools"]
    objective = "headroom" if "requestsPerSecond" in models[0] else "throughput"
    if spec.get("objective") == "MinimiseCost":
        objective = "cost"
    largest = max(pool["count"] for pool in pools)
    sizes = (name for name, (_, most) in FLEETS.items() if largest <= most)
    servings = {model.get("serving", SERVINGS[0]) for model in models}
    serving = servings.pop() if len(servings) == 1 else SERVINGS[-1]
    return Stratum(len(models), len(_classes(pools)), objective, next(sizes, "large"), serving)


def _classes(pools: list[Body]) -> list[str]:
    alone: list[Body] = [{}]
    domains = (domain for pool in pools for domain in pool.get("domains") or alone)
    return sorted({domain.get("class", DEFAULT_CLASS) for domain in domains})


def _pools(dice: _Dice, fleet: str, classes: int) -> list[Body]:
    """Return pools of one scale; with several classes each has domains, of which one is of each."""
    least, most = FLEETS[fleet]
    pools = []
    for index in range(dice.choice(POOLS)):
        gpu = accelerator(dice.choice(ACCELERATORS))
        node = NODES.get(gpu.name, 8)
        size = 2 ** dice.randint(round(math.log2(least)), round(math.log2(most)))
        if dice.gives(0.25):  # most fleets are powers of two, some are not
            size = dice.randint(least, most)
        nodes = max(1, size // node)
        pool: Body = {
            "name": f"p{index}",
            "accelerator": gpu.name,
            "count": nodes * node,
            "pricePerGPUHour": f"{_price(gpu) * dice.uniform(0.7, 1.3):.2f}",
        }
        pools.append(pool)
        if classes == 1 and dice.gives(0.04):
            continue  # GPUs that come one by one
        pool["gpusPerNode"] = node
        if dice.gives(0.3):
            pool["nicGigabitsPerSecond"] = dice.choice(("25", "50", "100", "200", "400", "3200"))
        sizes = [size for size in _sizes(dice, node) if size <= pool["count"]]
        if dice.gives(0.1) and sizes:
            pool["islandSizes"] = sizes
        if classes > 1 or dice.gives(0.6):
            pool["domains"] = _domains(dice, nodes, classes, index)
        has_one_class = len({domain.get("class") for domain in pool.get("domains", ())}) <= 1
        if has_one_class and dice.gives(0.1):
            pool["maxCount"] = pool["count"] * dice.choice((2, 3))
        if dice.gives(0.15):
            pool["billing"] = "PerNode"
        elif "maxCount" not in pool and node > 1 and dice.gives(0.05):
            _share(dice, pool, node)
    return pools


def _price(gpu: Accelerator) -> float:
    """Return a price in the order of public rental prices [$/GPU-h]."""
    return 0.3 + 1.2 * gpu.half / 1e15 + 0.005 * gpu.memory / 2**30


def _sizes(dice: _Dice, node: int) -> list[int]:
    """Return sizes of islands of which each divides the next, and a node or is a multiple of it."""
    first = dice.choice([size for size in (1, 2, 4, 8) if size <= node])
    return [first * 2**step for step in range(dice.choice((1, 2, 3, 4)))]


def _domains(dice: _Dice, nodes: int, classes: int, pool: int) -> list[Body]:
    """Return domains that share the nodes; the pool's number says with which class it begins."""
    count = min(nodes, max(dice.choice((1, 2, 2, 4, 4, 8)), classes if dice.gives(0.5) else 1))
    cuts = [0, *sorted(dice.sample(range(1, nodes), count - 1)), nodes]
    if nodes % count == 0 and dice.gives(0.6):
        cuts = list(range(0, nodes + 1, nodes // count))
    first = pool if dice.gives(0.7) else dice.randrange(classes)
    domains = []
    for index, (start, end) in enumerate(pairwise(cuts)):
        domain: Body = {"name": f"d{index}", "nodes": end - start}
        if classes > 1:
            domain["class"] = f"z{(first + index) % classes}"
        domains.append(domain)
    return domains


def _share(dice: _Dice, pool: Body, node: int) -> None:
    """Add nodes to a pool of which others hold some GPUs."""
    domains = pool.setdefault("domains", [{"name": "d0", "nodes": pool["count"] // node}])
    free, nodes = dice.randrange(1, node), dice.randint(1, 4)
    dice.choice(domains)["sharedNodes"] = [{"gpus": free, "nodes": nodes}]
    pool["count"] += free * nodes


def _models(dice: _Dice, count: int, serving: str, pools: list[Body]) -> list[Body]:
    """Return models without rate or weight; most often a copy of each fits into the pools."""
    room = ROOM * sum(pool["count"] * accelerator(pool["accelerator"]).memory for pool in pools)
    models = []
    for index in range(count):
        left = room / (count - index)
        fitting = [name for name in ARCHITECTURES if _weight_bytes(architecture(name)) <= left]
        if not fitting or dice.gives(0.05):
            fitting = list(ARCHITECTURES)
        name = dice.choice(fitting)
        room -= _weight_bytes(architecture(name))
        model: Body = {
            "name": f"m{index}",
            "architecture": name,
            "serving": dice.choice(SERVINGS[:3]) if serving == "mixed" else serving,
            "workload": _workload(dice, MOST_RANGES // count),
        }
        if dice.gives(0.15):
            model["precision"] = dice.choice(("fp8", "fp8", "bf16"))
        if slo := _targets(dice):
            model["slo"] = slo
        if dice.gives(0.2):
            model["maxSequences"] = dice.choice((128, 256, 512))
        if dice.gives(0.2):
            model["maxUtilisation"] = dice.choice(("0.8", "0.9", "0.95"))
        models.append(model)
    return models


def _weight_bytes(model: ModelArchitecture) -> float:
    return model.parameters * model.precision.expert


def _targets(dice: _Dice) -> dict[str, int]:
    """Return targets [ms]: both, one or none."""
    slo = {}
    if dice.gives(0.55):
        slo["ttftMilliseconds"] = dice.choice((800, 1000, 2000, 3000, 5000, 10_000))
    if dice.gives(0.75):
        slo["tpotMilliseconds"] = dice.choice((20, 30, 40, 50, 60, 80, 100))
    return slo


def _workload(dice: _Dice, most: int) -> Body:
    """Return input lengths, log-normal or as bins, with outputs, in at most ``most`` ranges."""
    longest = dice.choice((8192, 16_384, 24_576, 32_768))
    median, sigma = round(10 ** dice.uniform(2.0, math.log10(6000))), dice.uniform(0.4, 1.4)
    mean = 10 ** dice.uniform(1.3, 3.2)
    outputs = {"mean": f"{mean:.0f}"}
    if dice.gives(0.3):
        outputs["meanSquare"] = f"{dice.uniform(1.1, 4.0) * round(mean) ** 2:.0f}"
    workload: Body = {"outputTokens": outputs}
    if dice.gives(0.25):
        workload["histogram"] = {"bins": _bins(dice, longest, median, sigma, mean)}
    else:
        workload["logNormal"] = {"median": median, "sigma": f"{sigma:.2f}", "max": longest}
    workload["ranges"] = {
        "count": dice.choice([count for count in RANGES if count <= most]),
        "spacing": dice.choice(("Probability", "Probability", "Width", "Loss")),
    }
    return workload


def _bins(dice: _Dice, longest: int, median: int, sigma: float, mean: float) -> list[Body]:
    """Return counts of requests in bins of equal ratio: two humps, and some bins of none."""
    count, second = dice.choice((8, 16, 32)), median * dice.uniform(2.0, 8.0)
    ratio = (longest / 16) ** (1 / count)
    edges = [0, *(round(16 * ratio**step) for step in range(1, count)), longest]
    states_outputs, bins = dice.gives(0.5), []
    for start, end in pairwise(edges):
        at = math.log((start + end) / 2)
        humps = (
            share * math.exp(-(((at - math.log(centre)) / sigma) ** 2) / 2)
            for share, centre in ((0.7, median), (0.3, second))
        )
        one: Body = {"min": start, "max": end, "weight": round(1000 * sum(humps))}
        if dice.gives(0.5):
            one["inputMean"] = f"{start + (end - 1 - start) * dice.uniform(0.3, 0.7):.2f}"
        if states_outputs:  # longer prompts, shorter answers
            one["outputMean"] = f"{max(1.0, mean * (1.5 - at / math.log(longest))):.1f}"
        bins.append(one)
    bins[count // 2]["weight"] += 1
    return bins


def _state_rates(dice: _Dice, models: list[Body], pools: list[Body], load: float) -> None:
    """Give every model a rate, so that all need about ``load`` times what the pools can do."""
    parts = [dice.uniform(0.2, 1.0) ** 2 for _ in models]
    for model, part in zip(models, parts, strict=True):
        shape = architecture(model["architecture"], model.get("precision"))
        rate = load * part / sum(parts) / _gpu_seconds(shape, model["workload"], pools)
        model["requestsPerSecond"] = f"{max(rate, 1e-3):.3f}"


def _gpu_seconds(model: ModelArchitecture, workload: Body, pools: list[Body]) -> float:
    """Return the seconds that all pools together need for one request, crudely."""
    peak: float = sum(
        pool["count"] * accelerator(pool["accelerator"]).peak(model.precision.expert_compute)
        for pool in pools
    )
    prompt: float
    if shape := workload.get("logNormal"):
        prompt = shape["median"] * math.exp(float(shape["sigma"]) ** 2 / 2)
    else:
        bins = workload["histogram"]["bins"]
        total = sum(one["weight"] for one in bins)
        prompt = sum(one["weight"] * (one["min"] + one["max"]) / 2 for one in bins) / total
    answer = float(workload["outputTokens"]["mean"])
    return 2 * model.active_parameters * (prompt / PREFILL + answer / DECODE) / peak


def _links(dice: _Dice, classes: list[str]) -> list[Body]:
    """Return links between some pairs of the classes, at most 28 of 8 classes."""
    share = dice.choice((0.3, 0.6, 1.0))
    return [
        {
            "name": f"{one}-{other}",
            "classes": [one, other],
            "gigabitsPerSecond": dice.choice(("5", "10", "40", "100", "400")),
        }
        for one, other in combinations(classes, 2)
        if dice.gives(share)
    ]
