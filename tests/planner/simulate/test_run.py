"""The simulator against queues whose answer is known, islands computed by hand, and plans."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.capacity.operating import fixed_point
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.workload.lengths import RangeMoments
from archipelago.perfmodel.workload.traces import Trace
from archipelago.planner.documents import to_json
from archipelago.planner.errors import InputError
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.plan import Planned
from archipelago.planner.problem import Objective, Targets
from archipelago.planner.simulate.islands import (
    Batched,
    BatchedIsland,
    Prompts,
    StepTable,
    Window,
    prefill_queue,
)
from archipelago.planner.simulate.run import Scenario, Simulation, simulate
from archipelago.planner.simulate.traffic import poisson, replay
from tests.support.planner.affine import Affine
from tests.support.planner.command import Runner
from tests.support.planner.handmade import PLAN, build, problem, resource
from tests.support.planner.manykinds import KINDS, PROBLEM
from tests.support.planner.small import demand

ALWAYS = Window(0.0, 1e9)


def arrivals(rate: float, count: int, seed: int = 0) -> FloatArray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def waits(rate: float, seconds: FloatArray, copies: int = 1) -> float:
    at = arrivals(rate, len(seconds))
    return float((prefill_queue(at, seconds, seconds, copies) - at - seconds).mean())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_equal_prompts_wait_as_long_as_the_formula_says(load: float) -> None:
    """M/D/1: the mean wait is rho / (2 (1 - rho)) service times."""
    assert waits(load, np.ones(300_000)) == pytest.approx(load / (2 * (1 - load)), rel=0.04)


def test_prompts_of_two_lengths_wait_as_long_as_the_formula_says() -> None:
    """M/G/1: lambda E[S^2] / (2 (1 - rho)) with S 0.5 or 1.5: E[S] 1, E[S^2] 1.25; 1.25 / 1.2."""
    seconds = np.random.default_rng(1).choice([0.5, 1.5], 300_000)
    assert waits(0.5, seconds) == pytest.approx(0.5 * 1.25 / (2 * 0.5), rel=0.04)


def test_two_copies_take_prompts_as_they_are_free() -> None:
    first = prefill_queue(np.zeros(3), np.ones(3), np.ones(3), copies=2)
    assert first.tolist() == [1.0, 1.0, 2.0]


def test_overlapping_stages_start_the_next_prompt_early() -> None:
    """Two stages of half a second each: a prompt takes 1 s, one starts each half second."""
    first = prefill_queue(np.zeros(3), np.ones(3), np.full(3, 0.5))
    assert first.tolist() == [1.0, 1.5, 2.0]


def batched(  # one island of the affine model: a step takes 10 ms + 1 ms B + 1 us K
    at: list[float],
    inputs: list[float],
    outputs: list[float],
    *,
    max_batch: int = 64,
    kv: float = 100_000,
    mixed: bool = False,
) -> Batched:
    own, lengths = Affine(), np.array(inputs)
    seconds = own.prefill_time(lengths)
    prompts = Prompts(seconds, seconds) if mixed else None
    island = BatchedIsland(
        np.array(at), lengths, np.array(outputs), StepTable(own), max_batch, kv, ALWAYS, prompts
    )
    return island.run()


def test_one_sequence_by_hand() -> None:
    """Steps with 50 and then 51 cached tokens: 11.050 + 11.051 ms."""
    done = batched([1.0], [50.0], [2.0])
    assert done.last.tolist() == pytest.approx([1.022101])


def test_a_request_joins_between_two_steps() -> None:
    """The second comes during the first step of the first, which ends at 11.05 ms.

    Then both step once, with 51 + 100 tokens: 12.151 ms.
    """
    done = batched([0.0, 0.005], [50.0, 100.0], [2.0, 1.0])
    assert done.joined.tolist() == pytest.approx([0.0, 0.01105])
    assert done.last.tolist() == pytest.approx([0.023201, 0.023201])


def test_a_full_batch_lets_others_wait() -> None:
    done = batched([0.0, 0.0], [50.0, 50.0], [1.0, 1.0], max_batch=1)
    assert done.last.tolist() == pytest.approx([0.01105, 0.0221])


def test_where_caches_outgrow_memory_the_youngest_waits_and_goes_on() -> None:
    """100 of 110 tokens at first; after six steps 112: the second waits with its 56 tokens.

    The first ends after 20 steps with 70 tokens, then the second makes its last 14.
    """
    done = batched([0.0, 0.0], [50.0, 50.0], [20.0, 20.0], kv=110.0)
    assert done.preempted == 1
    together = sum(0.012 + 1e-6 * (100 + 2 * i) for i in range(6))
    alone = sum(0.011 + 1e-6 * (56 + i) for i in range(14))
    assert done.last.tolist() == pytest.approx([together + alone, together + 2 * alone])


def test_a_mixed_island_computes_prompts_before_the_next_token() -> None:
    """Prompts of 50 and 100 ms, then both step: 12 ms + 150 us; then the first alone: 11.051 ms."""
    done = batched([0.0, 0.01], [50.0, 100.0], [2.0, 1.0], mixed=True)
    assert done.first.tolist() == pytest.approx([0.05, 0.15])
    assert done.last.tolist() == pytest.approx([0.15 + 0.01215 + 0.011051, 0.15 + 0.01215])


def test_requests_without_output_leave_at_once() -> None:
    assert batched([1.0, 2.0], [50.0, 50.0], [0.0, 0.0]).last.tolist() == [1.0, 2.0]


def steady(own: Affine, rate: float, *, mixed: bool = False) -> tuple[Batched, float]:
    """30,000 requests of 100 + 100 tokens on one island, and their mean time per token [s]."""
    count = 30_000
    at, lengths = arrivals(rate, count, seed=3), np.full(count, 100.0)
    window = Window(float(at[1000]), float(at[-1000]))
    seconds = own.prefill_time(lengths)
    prompts = Prompts(seconds, seconds) if mixed else None
    done = BatchedIsland(at, lengths, lengths, StepTable(own), 256, 1e5, window, prompts).run()
    return done, float((done.last - done.first)[1000:-1000].mean()) / 100


def test_an_island_of_few_sequences_holds_as_many_as_its_queue() -> None:
    """With steps of a + c B an island is a queue of n sequences that each run at 1 / (a + c n).

    Its stationary state is negative binomial: with S = lambda o c its mean is
    (a / c + 1) S / (1 - S). Here c = 1 ms + 150 us and S = 0.69: 21.6 sequences, and each token
    takes (a + c) / (1 - S) = 36.0 ms. The planner's fixed point has no chance in it: 32.3 ms.
    """
    done, token = steady(Affine(), 6.0)
    assert done.sequences == pytest.approx(21.58, rel=0.03)
    assert token == pytest.approx(0.01115 / 0.31, rel=0.03)


@pytest.mark.parametrize("mixed", [False, True])
def test_an_island_of_many_sequences_settles_at_the_fixed_point(mixed: bool) -> None:
    """20 req/s: L = 2,000 tokens/s, c = 115 us, S = 0.23; a decode token takes 50 / 0.77 ms.

    With prompts of 6 ms u = 0.12, and a token takes 50 / 0.65 ms. c / a is 0.2 %.
    """
    own = Affine(per_token=6e-5, a=0.05, beta=1e-4, kappa=1e-7)
    done, token = steady(own, 20.0, mixed=mixed)
    busy = 0.12 if mixed else 0.0
    moments = RangeMoments(np.ones(1), np.full(1, 100.0), np.full(1, 150.0))
    point = fixed_point(own, np.array([20.0]), moments, busy)
    assert point.step_time == pytest.approx(0.05 / (0.77 - busy))
    assert done.prompts == pytest.approx(busy, rel=0.02)
    assert token == pytest.approx(point.step_time, rel=0.02)
    assert done.sequences == pytest.approx(point.sequences, rel=0.03)
    assert done.kv_tokens == pytest.approx(point.kv_tokens, rel=0.03)


def simulated(load: float = 1.0, seed: int = 0, requests: int = 20_000) -> Simulation:
    return simulate(problem(), PLAN, Scenario(requests, load, seed), build=build)


def test_requests_follow_the_routes() -> None:
    """Of 8 req/s half are short; a quarter of them decode on spare: 1 req/s."""
    simulation = simulated()
    rates = {group.group: group.requests / simulation.seconds for group in simulation.groups}
    assert rates == pytest.approx(
        {"short-prefill": 4, "long-prefill": 4, "main-decode": 7, "spare-decode": 1}, rel=0.05
    )


def test_islands_are_as_busy_as_the_plan_says() -> None:
    """The handmade plan: prefill busy 0.1 and 0.6 of the time; main-decode 70 tau sequences."""
    groups = {group.group: group for group in simulated().groups}
    for name, busy in (("short-prefill", 0.1), ("long-prefill", 0.6)):
        assert groups[name].expected_busy == pytest.approx(busy, rel=0.05)
        assert groups[name].busy == pytest.approx(groups[name].expected_busy, rel=0.02)
    main = groups["main-decode"]
    assert main.expected_step_time == pytest.approx(PLAN.groups[2].step_time, rel=0.01)
    assert main.sequences == pytest.approx(main.expected_sequences, rel=0.1)


def test_the_time_to_first_token_is_that_of_two_queues() -> None:
    """Short: 50 ms and M/D/1 at 0.1, 2.8 ms of waiting; long: 150 ms and at 0.6, 112.5 ms."""
    ttft = simulated().models[0].ttft
    expected = (0.05 + 0.05 * 0.1 / 1.8 + 0.15 + 0.15 * 0.6 / 0.8) / 2
    assert ttft.mean == pytest.approx(expected, rel=0.04)
    assert ttft.expected == pytest.approx(expected, rel=0.04)
    assert 0.05 <= ttft.p50 <= ttft.p90 <= ttft.p99


def test_equal_seeds_give_equal_answers() -> None:
    assert simulated(requests=2000) == simulated(requests=2000)
    assert simulated(requests=2000) != simulated(requests=2000, seed=1)


def test_mixed_groups_and_several_pools_are_served() -> None:
    """Half the requests and a third of the others are served whole: at 6 req/s 4 of them."""
    case = replace(PROBLEM, models=(demand(rate=4.0, targets=Targets(tpot=0.05)),))
    simulation = simulate(case, KINDS, Scenario(20_000, 1.0), build=build)
    groups = {group.group: group for group in simulation.groups}
    mixed = groups["m-a-4g-mixed"]
    assert mixed.requests / simulation.seconds == pytest.approx(4.0, rel=0.05)
    assert mixed.busy == pytest.approx(mixed.expected_busy, rel=0.03)
    # 3 short and 1 long req/s on two islands: (3 * 0.05 + 0.15) / 2 s of prompts a second
    assert mixed.expected_busy == pytest.approx(0.15, rel=0.05)
    # few sequences: steps of an island that is mostly empty are those with somebody in it
    assert mixed.expected_step_time < mixed.step_time < 1.2 * mixed.expected_step_time
    assert simulation.models[0].ttft.mean == pytest.approx(
        simulation.models[0].ttft.expected, rel=0.1
    )


def test_the_network_delays_the_first_token_and_not_those_after_it() -> None:
    """Caches of 5 and 15 MB over at most 72 % of 8 GPUs of 2.5 MB/s: a third of a second or more.

    On average 10 MB, over 2 GPUs of the slower side and more.
    """
    pools = (replace(problem().pools[0], nic_per_gpu=2.5e6), problem().pools[1])
    slow = simulate(replace(problem(), pools=pools), PLAN, Scenario(5000, 1.0), build=build).models[
        0
    ]
    fast = simulated(requests=5000).models[0]
    assert slow.ttft.mean - fast.ttft.mean > 0.34
    delays = [latency.expected - latency.mean for latency in (slow.ttft, fast.ttft)]
    assert delays[0] == pytest.approx(delays[1])  # every transfer is in both
    assert slow.tpot.mean == pytest.approx(fast.tpot.mean, rel=0.05)


def test_what_no_route_takes_is_refused() -> None:
    lengths = np.array([50.0, 150.0, 250.0, 50.0] * 500)
    trace = Trace(lengths, np.full(2000, 10.0), np.linspace(0, 250, 2000))
    simulation = simulate(problem(), PLAN, Scenario(2000), trace, build=build)
    assert simulation.rate == pytest.approx(8, rel=0.01)
    assert simulation.models[0].refused == pytest.approx(0.25, abs=0.01)


def test_a_trace_is_stretched_to_the_load() -> None:
    trace = Trace(np.full(11, 50.0), np.full(11, 10.0), np.linspace(0, 20, 11))
    requests = replay(problem(), trace, None, 11, 5.0)
    assert requests.arrivals.tolist() == pytest.approx([i / 5 for i in range(11)])


@pytest.mark.parametrize(
    ("times", "model", "message"),
    [
        (None, None, "no arrival times"),
        (np.zeros(3), None, "all requests arrive at the same time"),
        (np.array([0.0, 1.0, 2.0]), "n", "--model n: the plan serves m"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(
    times: FloatArray | None, model: str | None, message: str
) -> None:
    trace = Trace(np.full(3, 50.0), np.full(3, 10.0), times)
    with pytest.raises(InputError, match=message):
        replay(problem(), trace, model, 3, None)


def test_drawn_lengths_have_the_moments_of_the_workload() -> None:
    """Halves of 50 and 150 tokens; outputs with mean 10 and mean square 300."""
    lengths = replace(demand().lengths, output_square=np.full(2, 300.0))
    case = replace(problem(), models=(replace(demand(), lengths=lengths),))
    drawn = poisson(case, np.array([4.0]), 200_000, np.random.default_rng(0))
    assert drawn.inputs.mean() == pytest.approx(100, rel=0.01)
    assert drawn.outputs.mean() == pytest.approx(10, rel=0.01)
    assert (drawn.outputs**2).mean() == pytest.approx(300, rel=0.05)
    assert (drawn.outputs == np.floor(drawn.outputs)).all()


def test_stated_rates_are_simulated_where_there_are_any() -> None:
    """The plan sustains 2 times the stated 4 req/s; users send 4."""
    case = replace(problem(), models=(demand(rate=4.0),))
    plan = replace(PLAN, objective=Objective.HEADROOM, theta=2.0)
    assert simulate(case, plan, Scenario(20_000), build=build).rate == pytest.approx(4, rel=0.03)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan_document(resource(), Planned(PLAN, 0.1))))
    return path


def test_text_and_json_say_the_same_in_a_few_seconds(run: Runner, plan_file: Path) -> None:
    started = time.perf_counter()
    text = run("simulate", plan_file, "-q")
    assert time.perf_counter() - started <= 5  # 10,000 requests
    data = json.loads(run("simulate", plan_file, "-q", "-o", "json").out)
    assert (text.status, text.err) == (0, "")
    assert data["requests"] == pytest.approx(10_000, rel=0.05)
    ttft = data["models"][0]["ttftMilliseconds"]
    row = next(line for line in text.out.splitlines() if "TTFT" in line).split()
    assert row[2:6] == [f"{ttft[key]:,.1f}" for key in ("mean", "p50", "p90", "p99")]
    assert {group["name"] for group in data["groups"]} == {group.name for group in PLAN.groups}


def test_a_missed_target_exits_1(run: Runner, plan_file: Path) -> None:
    """A decode step of Llama-3.1-8B on H20 takes longer than a millisecond."""
    document = json.loads(plan_file.read_text())
    document["problem"]["models"][0]["slo"] = {"tpotMilliseconds": 1}
    plan_file.write_text(json.dumps(document))
    result = run("simulate", plan_file, "-q")
    assert result.status == 1
    row = next(line for line in result.out.splitlines() if "TPOT" in line)
    assert row.split()[-1] == "no"
