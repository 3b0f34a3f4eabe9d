"""The closed loop: a fleet in simulated time, its pages in real time, the program of its page."""

import json
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from archipelago.operator.traffic.samples import SeriesSelector
from archipelago.operator.traffic.signals import adapters
from archipelago.operator.traffic.window import count_window
from archipelago.planner.plan import Plan, Planned
from archipelago.planner.problem import Phase, PlanningProblem
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.simulate.run import Scenario, simulate
from archipelago.planner.simulate.traffic import poisson
from archipelago.planner.strategies import strategy
from archipelago.planner.table.write import routing_content
from benchmarks.closedloop.exposition import Histogram, token_bounds
from benchmarks.closedloop.fleet import ONLINE, RESTART, Fleet, World
from benchmarks.closedloop.live import Live
from benchmarks.closedloop.reading import Reader, from_exposition
from benchmarks.closedloop.scenario import FOLDER, load
from benchmarks.closedloop.serving import Serving, server
from benchmarks.closedloop.traffic import Mix, Spell, Traffic
from tests.docs.blocks import page

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-llama-on-two-pools.yaml"
MODEL = "llama-8b"


@pytest.fixture(scope="module")
def planned() -> tuple[PlanningProblem, Plan, dict]:  # type: ignore[type-arg]
    resource = load_resource(EXAMPLE.read_text())
    problem = to_problem(resource.metadata.name, resource.spec)
    outcome = strategy("exact").plan(problem)
    assert isinstance(outcome, Planned)
    return problem, outcome.plan, routing_content(resource.spec, outcome.plan)


def mix(problem: PlanningProblem) -> Mix:
    drawn = poisson(problem, np.ones(1), 20_000, np.random.default_rng(1))
    return Mix(drawn.inputs, drawn.outputs)


def traffic(problem: PlanningProblem, rate: float, minutes: int) -> Traffic:
    return Traffic((Spell(MODEL, 0.0, 60.0 * minutes, rate, mix(problem)),))


def world(problem: PlanningProblem, switch: str = "Online") -> World:
    return World(problem, {MODEL: switch})


@pytest.mark.slow
def test_it_serves_like_the_offline_simulation(
    planned: tuple[PlanningProblem, Plan, dict],  # type: ignore[type-arg]
) -> None:
    """Times to first token and per token of 80,000 requests at 70 % of the plan's capacity."""
    problem, plan, content = planned
    rate = 0.7 * plan.throughput
    fleet = Fleet(world(problem), content)
    fleet.advance(360.0, traffic(problem, rate, 6))
    lengths = mix(problem).lengths
    model = replace(problem.models[0], lengths=lengths)
    same = replace(problem, models=(model,))
    other = simulate(same, plan, Scenario(requests=40_000, load=0.7)).models[0]
    assert fleet.tally.ttft(60.0, 360.0) == pytest.approx(other.ttft.mean, rel=0.05)
    steps = [i.counters.per_token for i in fleet.islands.values() if i.phase is Phase.DECODE]
    mean = sum(h.total for h in steps) / sum(sum(h.counts) for h in steps)
    assert mean == pytest.approx(other.tpot.mean, rel=0.1)


@pytest.mark.slow
def test_nobody_is_lost_or_invented(
    planned: tuple[PlanningProblem, Plan, dict],  # type: ignore[type-arg]
) -> None:
    """Who came is served, refused, failed or inside, also when islands and nodes change."""
    problem, plan, content = planned
    fleet = Fleet(world(problem), content)
    source = traffic(problem, 0.7 * plan.throughput, 3)
    fleet.advance(60.0, source)
    fleet.apply(flipped(content))
    fleet.advance(120.0, source)
    fleet.lose(["h100-1"])
    fleet.advance(180.0, source)
    count = {
        name: fleet.tally.sums(name, 0.0, 240.0)  # what ends with the third minute is of the fourth
        for name in ("arrived", "served", "failed", "refused")
    }
    assert count["failed"] > 0
    assert count["arrived"] == sum(count.values()) - count["arrived"] + fleet.inside


def flipped(content: dict[str, Any]) -> dict[str, Any]:
    """The table with one prefill island of pool l40s listed as decode, without requests."""
    new: dict[str, Any] = json.loads(json.dumps(content))
    group = next(g for g in new["groups"] if g["phase"] == "prefill" and "l40s" in g["name"])
    name = group["members"].pop()
    new["groups"].append({**group, "name": "waiting", "phase": "decode", "members": [name]})
    island = next(i for i in new["islands"] if i["name"] == name)
    island.update(phase="decode", maxBatch=64)
    return new


@pytest.mark.parametrize(("switch", "delay"), [("Online", ONLINE), ("Restart", RESTART)])
def test_a_change_of_phase_takes_what_is_stated(
    planned: tuple[PlanningProblem, Plan, dict],  # type: ignore[type-arg]
    switch: str,
    delay: float,
) -> None:
    problem, _, content = planned
    fleet, nobody = Fleet(world(problem, switch), content), Traffic(())
    fleet.apply(flipped(content))
    assert fleet.unready() == [flipped(content)["groups"][-1]["members"][0]]
    fleet.advance(delay, nobody)
    assert fleet.unready()
    fleet.advance(delay + 2.0, nobody)
    assert fleet.unready() == []
    assert fleet.flips == 1
    assert fleet.restarts == (switch == "Restart")


def test_pages_count_what_users_see(
    planned: tuple[PlanningProblem, Plan, dict],  # type: ignore[type-arg]
) -> None:
    """Completions, arrivals and lengths that the operator reads of the pages, hand-over once."""
    problem, _, content = planned
    fleet, source = Fleet(world(problem), content), traffic(problem, 100.0, 2)
    scrapes = []
    for now in (60.0, 120.0):
        fleet.advance(now, source)
        samples = [
            sample
            for pod in fleet.pods()
            if pod.page
            for sample in from_exposition(
                pod.page.encode(), now, {"pod": pod.name, "archipelago_dev_island": pod.island}
            ).samples
        ]
        scrapes.append(replace(from_exposition(b"a 1\n", now), samples=tuple(samples)))
    phases = {i["name"]: Phase(i["phase"]) for i in content["islands"]}
    seen = count_window(
        scrapes, SeriesSelector(adapters()["vllm"], phases, frozenset({MODEL}))
    ).window
    # The last step of an island may end a moment after the scrape.
    assert seen.flow.completed == pytest.approx(fleet.tally.served(60.0, 120.0), abs=3)
    assert seen.flow.arrivals == pytest.approx(fleet.tally.sums("arrived", 60.0, 120.0), abs=15)
    assert sum(seen.inputs[0].counts) == seen.flow.completed
    assert seen.faults == ()


def test_pages_that_were_read_before_are_read_as_the_operator_reads_them(
    planned: tuple[PlanningProblem, Plan, dict],  # type: ignore[type-arg]
) -> None:
    problem, _, content = planned
    fleet, source, read = Fleet(world(problem), content), traffic(problem, 100.0, 1), Reader()
    for now in (5.0, 10.0, 15.0):
        fleet.advance(now, source)
        for pod in fleet.pods():
            assert pod.page
            labels = {"pod": pod.name, "archipelago_dev_island": pod.island}
            assert read(pod, now) == from_exposition(pod.page.encode(), now, labels)
    shorter = replace(pod, page="a 1\n")
    assert [sample.name for sample in read(shorter, 20.0).samples] == ["a"]


def test_vllm_buckets() -> None:
    assert token_bounds(1000)[:5] == (1, 2, 5, 10, 20)
    assert token_bounds(1000)[-1] == 1000
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 9.0):
        histogram.add(value)
    lines = list(histogram.lines("x", 'a="b"'))
    assert lines[1:4] == [
        'x_bucket{a="b",le="1.0"} 1.0',
        'x_bucket{a="b",le="2.0"} 2.0',
        'x_bucket{a="b",le="+Inf"} 3.0',
    ]


def test_every_target_has_a_page_and_the_labels_of_its_pod() -> None:
    scenario = load(FOLDER / "a-day-of-noise.yaml")
    serving = Serving(
        Fleet(scenario.world, scenario.content), scenario.traffic(), "noise", "default"
    )
    serving.tick(20.0)
    http = server(serving)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        with urlopen(f"http://127.0.0.1:{http.server_port}/targets", timeout=5) as reply:
            targets = json.load(reply)
        assert len(targets) == 12
        for target in targets:
            labels = target["labels"]
            url = f"http://{target['targets'][0]}{labels['__metrics_path__']}"
            with urlopen(url, timeout=5) as reply:
                assert 'vllm:num_requests_running{engine="0",model_name="llama-8b"}' in (
                    reply.read().decode()
                )
            assert labels["archipelago_dev_plan"] == "noise"
            assert labels["archipelago_dev_island"] in serving.fleet.islands
    finally:
        http.shutdown()
        http.server_close()


PAGE = Path(__file__).parents[2] / "benchmarks" / "closedloop" / "README.md"
SHARE = 0.1


@pytest.mark.slow
def test_the_block_of_the_page_is_played() -> None:
    text = PAGE.read_text()
    (block,) = [found for found in page("README.md", text).blocks if found.language == "python"]
    played = block.text.replace("conversation-to-code", "short-output-surge")
    assert played != block.text
    names: dict[str, Any] = {"FOLDER": FOLDER, "Live": Live}
    names["load"] = partial(load, scale=SHARE)
    exec(played, names)  # noqa: S102  # ours
    assert names["operator"].log
    served = names["outcome"].tally.served(*names["scenario"].shift)
    assert 0 < served <= names["best"].tally.served(*names["scenario"].shift) * 1.01
