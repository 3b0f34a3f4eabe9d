"""Decisions over windows: which level, when it is held back, and that noise moves nothing."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from archipelago.planner.plan import Plan
from archipelago.planner.problem import Phase
from archipelago.planner.replan.candidates import evaluate_candidates
from archipelago.planner.replan.deployed import DeployedIslands
from archipelago.planner.replan.policy import decide
from archipelago.planner.replan.types import (
    Candidate,
    Change,
    Decision,
    Level,
    Limits,
    Mode,
    Observation,
    PolicyState,
    Trigger,
)
from tests.support.planner import standing

SAFE = Limits(tolerance=0.05, hysteresis=0.0, windows=(2, 3), confirm=1)
TABLE = standing.one_and_three().plan
ISLAND = frozenset({"d-2"})


def reached(level: Level, low: float, keep: float = 1.0, **more: object) -> Candidate:
    """A level with this headroom, certain, over a table with another."""
    gain = low / keep - 1
    facts = {"plan": TABLE, "gain": gain, "gain_low": gain} | more
    return Candidate(level, low, low, **facts)  # type: ignore[arg-type]


def seen(*lows: float, keep: float, **more: object) -> Observation:
    """A window in which keep, reroute, flip ... reach these headrooms."""
    levels = tuple(
        reached(
            level,
            low,
            keep,
            changed=ISLAND if level > Level.REROUTE else frozenset(),
            disruption=157.0 if level > Level.REROUTE else 0.0,
        )
        for level, low in zip(Level, (keep, *lows), strict=False)
    )
    return Observation(standing.problem(), TABLE, levels=levels, **more)  # type: ignore[arg-type]


def windows(
    observations: list[Observation], limits: Limits = SAFE, state: PolicyState | None = None
) -> list[Decision]:
    """Decisions of windows of 60 s, the published table never changing."""
    found: list[Decision] = []
    for i, window in enumerate(observations):
        last = found[-1].state if found else state or PolicyState()
        found.append(decide(window, last, 60.0 * i, limits))
    return found


# --- safety ---


def test_a_table_with_enough_headroom_stays() -> None:
    """1 / 0.8 = 1.25 and a hundredth more."""
    assert windows([seen(1.26, 1.26, keep=1.26)])[0].level is Level.KEEP


def test_the_lowest_level_that_restores_safety_is_taken() -> None:
    """A flip would reach more, but other weights suffice."""
    found = windows([seen(1.3, 2.0, keep=1.2)])[0]
    assert (found.level, found.trigger) == (Level.REROUTE, Trigger.SAFETY)
    assert found.plan is TABLE


def test_a_flip_is_taken_if_weights_do_not_restore_safety() -> None:
    found = windows([seen(1.22, 1.3, keep=1.2)])[0]
    assert (found.level, found.trigger) == (Level.FLIP, Trigger.SAFETY)


def test_degraded_is_the_share_of_the_demand_that_fits() -> None:
    found = windows([seen(0.7, 0.9, keep=0.6)])[0]
    assert found.level is Level.FLIP
    assert found.degraded == pytest.approx(0.9)
    assert "90.0% of the demand fits" in found.message


def test_one_unsafe_window_restarts_no_island() -> None:
    """Nor the second of two that are not in a row.

    A window just after a change holds both kinds of traffic: a phase chosen by it would be the
    wrong one, and dwell for a quarter of an hour.
    """
    twice = replace(SAFE, confirm=2)
    unsafe, safe = seen(1.2, 1.3, keep=1.2), seen(1.3, 1.3, keep=1.3)
    levels = [d.level for d in windows([unsafe, safe, unsafe, unsafe], twice)]
    assert levels == [Level.KEEP, Level.KEEP, Level.KEEP, Level.FLIP]
    over = [d.level for d in windows([seen(0.9, 1.3, keep=0.9)] * 2, twice)]
    assert over == [Level.KEEP, Level.FLIP]


def test_a_reroute_does_not_reset_the_count_of_unsafe_windows() -> None:
    twice = replace(SAFE, confirm=2)
    levels = [d.level for d in windows([seen(0.95, 1.3, keep=0.8)] * 2, twice)]
    assert levels == [Level.REROUTE, Level.FLIP]


def test_levels_compare_by_the_mean_if_the_mean_demand_does_not_fit() -> None:
    """All intervals are wide, and keeping loses a quarter of the requests for sure."""

    def level(which: Level, low: float, theta: float) -> Candidate:
        return replace(reached(which, low), theta=theta)

    keep, flip = level(Level.KEEP, 0.7, 0.75), level(Level.FLIP, 0.65, 1.1)
    window = replace(seen(keep=0.7), levels=(keep, flip))
    assert windows([window])[0].level is Level.FLIP

    surer = level(Level.RESHAPE, 1.03, 1.2)
    assert windows([replace(window, levels=(keep, flip, surer))])[0].level is Level.RESHAPE
    no_surer = level(Level.RESHAPE, 0.9, 1.2)
    assert windows([replace(window, levels=(keep, flip, no_surer))])[0].level is Level.FLIP

    light = replace(window, levels=(replace(keep, theta=1.1), flip))
    assert windows([light])[0].level is Level.KEEP


def test_an_unsafe_table_is_safe_again_above_the_hysteresis_only() -> None:
    """With 2 %: below 1.25 it is unsafe, and until 1.275."""
    margin = replace(SAFE, hysteresis=0.02, confirm=9)
    states = [
        d.state.unsafe
        for d in windows([seen(keep=low) for low in (1.26, 1.24, 1.26, 1.28, 1.26)], margin)
    ]
    assert states == [0, 1, 2, 0, 0]


def test_a_reshape_is_requested_if_only_it_could_restore_safety() -> None:
    """Meanwhile weights, which cost nothing, but no flip that may be in vain."""
    window = seen(0.7, 0.8, keep=0.6)
    bound = reached(Level.RESHAPE, 2.0, plan=None, bound_only=True)
    found = windows([replace(window, levels=(*window.levels, bound))] * 2)
    assert [d.requested_level for d in found] == [
        Level.RESHAPE,
        None,
    ]  # not again within the cool-down
    assert found[0].level is Level.REROUTE
    assert found[0].regret == pytest.approx(0.7)  # 1 - 0.6 / 2


# --- gain ---


def test_a_gain_is_taken_after_enough_windows() -> None:
    """Two of three: no, yes, and after the act the count starts again."""
    window = seen(1.5, 1.5, keep=1.3)
    found = [(d.level, d.trigger) for d in windows([window] * 2)]
    assert found == [(Level.KEEP, Trigger.NONE), (Level.REROUTE, Trigger.GAIN)]
    assert windows([window] * 2)[1].state.gainful == ()


def test_a_gain_within_the_tolerance_is_not_taken() -> None:
    assert {d.level for d in windows([seen(1.35, 1.35, keep=1.3)] * 9)} == {Level.KEEP}


def test_a_flip_must_pay_for_its_disruption() -> None:
    """4 GPUs x 10 % x horizon against 157 GPU-s: from 392.5 s on."""
    window = seen(1.3, 1.43, keep=1.3)
    for horizon, level in ((390.0, Level.KEEP), (395.0, Level.FLIP)):
        assert windows([window] * 2, replace(SAFE, horizon=horizon))[1].level is level


def test_no_island_restarts_for_a_gain_with_ample_headroom() -> None:
    """But other weights may come."""
    assert windows([seen(2.5, 5.0, keep=2.5)] * 2)[1].level is Level.KEEP
    assert windows([seen(3.0, 5.0, keep=2.5)] * 2)[1].level is Level.REROUTE


def test_a_higher_level_must_gain_over_the_lower_one() -> None:
    """11 % by weights, 12 % by a flip: the one per cent is not worth a restart."""
    assert windows([seen(1.44, 1.456, keep=1.3)] * 2)[1].level is Level.REROUTE


# --- limits ---


def acted(
    at: float, level: Level = Level.FLIP, changed: frozenset[str] = frozenset()
) -> PolicyState:
    return PolicyState(changes=(Change(at, level, Trigger.GAIN, tuple(changed)),))


def test_a_flip_waits_for_the_cool_down() -> None:
    found = windows([seen(1.2, 1.3, keep=1.2)], state=acted(-200.0))[0]
    assert found.level is Level.KEEP
    assert "the cool-down lasts another 100 s" in found.message


def test_an_island_keeps_its_phase_for_the_dwell_time() -> None:
    for changed, level in ((ISLAND, Level.KEEP), (frozenset({"d-1"}), Level.FLIP)):
        state = acted(-400.0, changed=changed)
        assert windows([seen(1.2, 1.3, keep=1.2)], state=state)[0].level is level


def test_no_more_changes_than_allowed_in_an_hour() -> None:
    acts = tuple(Change(at, Level.FLIP, Trigger.SAFETY) for at in (-3700.0, -3500.0, -1000.0))
    for most, level in ((2, Level.KEEP), (3, Level.FLIP)):
        limits = replace(SAFE, per_hour=most)
        assert (
            windows([seen(1.2, 1.3, keep=1.2)], limits, PolicyState(changes=acts))[0].level is level
        )


NONE = "spec.replanning.budgets[0] allows 0 to change until 2026-11-23T17:00:00Z"


def test_a_change_beyond_its_budget_is_held_back_and_said_so() -> None:
    flip = seen(1.22, 1.3, keep=1.2)
    for allowed, held in (({"Safety": (0, NONE)}, True), ({"Safety": (1, NONE)}, False),
                          ({"Gain": (0, NONE)}, False)):  # fmt: skip
        found = windows([flip], replace(SAFE, allowed=allowed))[0]
        assert (found.level is Level.FLIP) != held
        assert found.held == (f"Flip for Safety: {NONE}" if held else "")
    gain = [seen(1.4, 1.6, keep=1.4)] * 3
    found = windows(gain, replace(SAFE, allowed={"Gain": (0, NONE)}))[-1]
    assert (found.level, found.held) == (Level.KEEP, f"Flip for Gain: {NONE}")
    assert Level.FLIP in [decision.level for decision in windows(gain)]


def test_a_cheaper_plan_has_a_budget_of_its_own() -> None:
    flip = seen(1.4, 1.6, keep=1.4).levels[2]
    limits = replace(SAFE, allowed={"Cost": (0, NONE)})
    assert limits.reason_to_hold(flip, Trigger.GAIN) is None
    cheapest = replace(limits, required=1.0)
    assert cheapest.reason_to_hold(flip, Trigger.GAIN) == NONE
    assert cheapest.reason_to_hold(flip, Trigger.SAFETY) is None


def test_what_would_help_is_named_even_if_nothing_restores_safety() -> None:
    found = windows([seen(0.7, 0.9, keep=0.6)], replace(SAFE, allowed={"Safety": (0, NONE)}))[0]
    assert found.level is Level.REROUTE
    assert found.held == f"Flip for Safety: {NONE}"


def test_what_is_held_back_is_compared_as_what_is_chosen() -> None:
    """By the mean if not even that fits: the lower ends of wide intervals are all alike."""
    window = seen(0.93, 1.19, keep=0.93)
    lows = (0.856, 0.856, 0.89)
    levels = tuple(replace(c, low=low) for c, low in zip(window.levels, lows, strict=True))
    window = replace(window, levels=levels)
    assert windows([window])[0].level is Level.FLIP
    found = windows([window], replace(SAFE, allowed={"Safety": (0, NONE)}))[0]
    assert (found.level, found.held) == (Level.KEEP, f"Flip for Safety: {NONE}")


def test_an_island_that_must_not_be_disturbed_is_not_changed_by_choice() -> None:
    pinned = replace(SAFE, pinned=ISLAND)
    found = windows([seen(1.22, 1.3, keep=1.2)], pinned)[0]
    assert found.level is not Level.FLIP
    assert found.held == "Flip for Safety: island d-2 has the annotation do-not-disrupt"
    other = windows([seen(1.22, 1.3, keep=1.2)], replace(SAFE, pinned=frozenset({"d-1"})))[0]
    assert other.level is Level.FLIP


def test_budgets_and_annotations_hold_no_weights_and_no_repair_back() -> None:
    calm = replace(SAFE, pinned=ISLAND, allowed={"Safety": (0, NONE), "Gain": (0, NONE)})
    assert windows([seen(1.3, 1.3, keep=1.2)], calm)[0].level is Level.REROUTE
    lost = seen(keep=1.3, lost=ISLAND)
    assert windows([lost], calm)[0].trigger is Trigger.REPAIR


def test_no_limit_applies_to_repairs_and_reroutes_for_safety() -> None:
    state = acted(-1.0)
    assert windows([seen(1.3, keep=1.2)], state=state)[0].level is Level.REROUTE
    lost = seen(1.3, keep=1.2, lost=frozenset({"d-0"}))
    assert windows([lost], replace(SAFE, mode=Mode.OFF), state)[0].trigger is Trigger.REPAIR


# --- what is not to be believed, and modes ---


def test_a_repair_comes_first_and_requests_another_decision() -> None:
    found = windows([seen(1.3, keep=1.2, lost=frozenset({"d-0"}), demand_trusted=False)])[0]
    assert (found.trigger, found.requested_level) == (Trigger.REPAIR, Level.REROUTE)
    assert found.plan is not None
    assert "d-0" not in {island.name for island in found.plan.islands}


@pytest.mark.parametrize(
    "more",
    [
        {"demand_trusted": False},
        {"nodes_trusted": False, "lost": frozenset({"d-0"})},
        {"lost": frozenset({"p-0"})},  # no prefill left
    ],
)
def test_the_table_stays_if_nothing_can_be_decided(more: dict[str, object]) -> None:
    found = windows([seen(1.3, keep=1.2, **more)])[0]
    assert (found.plan, found.trigger) == (None, Trigger.NONE)
    assert found.message


def test_mode_off_changes_nothing() -> None:
    found = windows([seen(1.3, 2.0, keep=1.2)], replace(SAFE, mode=Mode.OFF))[0]
    assert found.plan is None
    assert [r.theta for r in found.candidates] == [1.2, 1.3, 2.0]


ADVISE = replace(SAFE, mode=Mode.ADVISE)


def test_a_proposal_is_carried_out_if_its_hash_is_approved() -> None:
    window = seen(1.3, 2.0, keep=1.2)
    first = windows([window], ADVISE)[0]
    assert first.plan is None
    assert first.proposal is not None
    wrong = decide(replace(window, approved="0" * 64), first.state, 60.0, ADVISE)
    assert wrong.plan is None
    assert wrong.proposal is first.proposal  # the same hash, although the demand is another
    right = decide(replace(window, approved=first.proposal.hash), wrong.state, 120.0, ADVISE)
    assert (right.level, right.plan) == (Level.REROUTE, first.proposal.candidate.plan)
    assert right.state.proposal is None


@pytest.mark.parametrize("cause", ["table", "inputs", "time"])
def test_a_proposal_expires_with_its_base_or_time(cause: str) -> None:
    window = seen(1.3, 2.0, keep=1.2)
    first = windows([window], ADVISE)[0]
    assert first.proposal is not None
    other = {
        "table": replace(window, plan=standing.two_pools().plan),
        "inputs": replace(window, inputs="another spec"),
        "time": window,
    }[cause]
    now = 3601.0 if cause == "time" else 60.0
    found = decide(replace(other, approved=first.proposal.hash), first.state, now, ADVISE)
    assert found.plan is None


# --- windows of real traffic ---


@dataclass
class Cluster:
    """A table under Poisson traffic; windows of 60 s, decided on the posterior of the rates.

    The posterior of a range's rate is Gamma(n0 + n, T0 + T): the mean of ``prior`` windows before,
    as the planned histogram is a prior, and this window.
    """

    standing: DeployedIslands
    limits: Limits
    random: np.random.Generator
    prior: float = 5.0
    state: PolicyState = field(default_factory=PolicyState)

    def window(self, at: float, rates: tuple[float, float]) -> Decision:
        counts = self.random.poisson(np.array(rates) * 60.0)
        shape = self.prior * 60.0 * np.array(rates) + counts
        draws = self.random.gamma(shape, 1 / (60.0 * (1 + self.prior)), (200, 2))
        mean = shape / (60.0 * (1 + self.prior))
        observed = standing.problem(float(mean.sum()), tuple((mean / mean.sum()).tolist()))
        here = replace(self.standing, problem=observed)
        levels = evaluate_candidates(here, self.limits, draws)
        window = Observation(observed, here.plan, draws, levels=levels)
        found = decide(window, self.state, at, self.limits)
        self.state = found.state
        if found.plan is not None:
            self.standing = replace(self.standing, plan=found.plan)
        return found


def eight(rate: float, prefill: int = 4) -> DeployedIslands:
    """Eight islands: prefill at 10 req/s each for the planned mix, decode at 20."""
    templates = (
        standing.template("a", Phase.PREFILL, 0.05, 0.15),
        standing.template("a", Phase.DECODE, 0.05, 0.05),
    )
    table = standing.plan(
        {"p": ("a", Phase.PREFILL, prefill), "d": ("a", Phase.DECODE, 8 - prefill)}
    )
    return DeployedIslands(standing.problem(rate), table, templates)


@pytest.mark.slow
def test_noise_causes_no_change() -> None:
    """Four hours at 70 % of the best table: 35 req/s where prefill carries 50 and decode 60."""
    cluster = Cluster(eight(35.0, prefill=5), Limits(), np.random.default_rng(1))
    acts = Counter(cluster.window(60.0 * i, (17.5, 17.5)).level for i in range(240))
    assert acts == {Level.KEEP: 240}


def test_a_shift_of_the_mix_causes_one_flip() -> None:
    """Long prompts triple: prefill carries 28 req/s at 0.125 s each on 4 islands, 40 on 5 to 6.

    Mean prompt 0.05 * 7/28 + 0.15 * 21/28 = 0.125 s: h = 4 / (28 * 0.125) = 1.14, below 1.25. With
    six prefill islands 1.71, and two decode islands give 40 / 28 = 1.43.
    """
    cluster = Cluster(eight(28.0), Limits(), np.random.default_rng(2))
    found = [cluster.window(60.0 * i, (7.0, 21.0)) for i in range(60)]
    flips = [d for d in found if d.level is Level.FLIP]
    assert len(flips) == 1
    assert flips[0].trigger is Trigger.SAFETY
    assert found[-1].candidates[0].theta == pytest.approx(1.43, rel=0.06)


@pytest.mark.slow
def test_swings_of_the_mix_flip_no_island_within_its_dwell_time() -> None:
    """Demand swings between mixes every 12 minutes for two hours."""
    limits = Limits()
    cluster = Cluster(eight(28.0), limits, np.random.default_rng(3))
    changed: dict[str, float] = {}
    for i in range(120):
        mix = (3.0, 24.0) if i // 12 % 2 else (30.0, 3.0)
        found = cluster.window(60.0 * i, mix)
        if found.level is Level.FLIP:
            act = found.state.changes[-1]
            for name in act.changed:
                assert act.at - changed.get(name, -limits.dwell) >= limits.dwell
                changed[name] = act.at
    assert changed  # something did flip
    assert isinstance(cluster.standing.plan, Plan)


# --- nobody changes the pods ---

ALONE = replace(SAFE, carried=False)


def test_without_anybody_to_change_the_pods_a_flip_is_proposed_under_auto() -> None:
    """And made once its hash is approved, as under Advise."""
    window = seen(1.0, 1.3, keep=1.0)
    (found,) = windows([window], ALONE)
    assert (found.level, found.plan) == (Level.KEEP, None)
    assert found.proposal is not None
    assert found.proposal.candidate.level is Level.FLIP

    approved = replace(window, approved=found.proposal.hash)
    made = decide(approved, found.state, 60.0, ALONE)
    assert (made.level, made.plan) == (Level.FLIP, TABLE)


def test_weights_help_at_once_where_only_a_flip_would_do() -> None:
    """Reroute reaches less than it takes to be safe, but more than the table in force."""
    (found,) = windows([seen(1.2, 1.3, keep=0.9)], ALONE)
    assert (found.level, found.trigger, found.proposal) == (Level.REROUTE, Trigger.SAFETY, None)
    assert windows([seen(1.2, 1.3, keep=0.9)])[0].level is Level.FLIP


def test_off_proposes_nothing_whoever_changes_the_pods() -> None:
    (found,) = windows([seen(1.0, 1.3, keep=1.0)], replace(ALONE, mode=Mode.OFF))
    assert (found.level, found.proposal) == (Level.KEEP, None)
