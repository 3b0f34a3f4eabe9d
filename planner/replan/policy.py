"""Which rung is taken, and why: safety first, then gain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from archipelago.planner.replan.facts import Rung, Trigger
from archipelago.planner.replan.limits import forbidden

if TYPE_CHECKING:
    from archipelago.planner.replan.facts import Limits, Reached, State

MOST_GAIN = 1e6
"""What stands for the gain over a table that serves nothing."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The rung to take (None: keep), why, and what to say.

    ``degraded``: share of the mean demand that fits, where not all of it does and nothing restores
    safety. ``wanted``: the planner may find better.
    """

    reached: Reached | None
    trigger: Trigger
    message: str
    degraded: float | None = None
    wanted: bool = False


@dataclass(frozen=True, eq=False)
class Case:
    """One window: rungs in order, ``KEEP`` first, and the state with this window counted."""

    rungs: tuple[Reached, ...]
    state: State
    limits: Limits
    now: float
    gpus: int

    @property
    def keep(self) -> Reached:
        """The published table."""
        return self.rungs[0]

    @cached_property
    def ready(self) -> list[Reached]:
        """Rungs above ``KEEP`` that have a table."""
        return [r for r in self.rungs[1:] if r.plan is not None and not r.bound_only]

    def may_ask(self, least: float) -> bool:
        """Whether a bound leaves hope for so much headroom, and nobody asked a moment ago.

        Never where no GPU may move: what is left then, the lower rungs find.
        """
        if not self.limits.moved_gpus:
            return False
        hope = any(r.bound_only and r.theta >= least for r in self.rungs)
        sure = self.state.unsafe >= self.limits.confirm or not self.state.unsafe
        return hope and sure and self.now - self.state.asked >= self.limits.cool_down

    def stop(self, reached: Reached, trigger: Trigger) -> str | None:
        """Why a rung is not taken now; None where it may be."""
        unsure = self.state.unsafe < self.limits.confirm
        if trigger is Trigger.SAFETY and reached.rung > Rung.REROUTE and unsure:
            return f"unsafe in {self.state.unsafe} of {self.limits.confirm} windows"
        return forbidden(reached, trigger, self.state, self.limits, self.now)


def safety(case: Case) -> Choice:
    """The lowest rung that restores the headroom asked for, or the best there is."""
    stops = []
    for reached in case.ready:
        if reached.low >= case.limits.safe:
            why = case.stop(reached, Trigger.SAFETY)
            if why is None:
                message = f"headroom {case.keep.low:.3f} to {reached.low:.3f}"
                return Choice(reached, Trigger.SAFETY, message)
            stops.append(f"{reached.rung.name} would restore safety: {why}")
    ask = not stops and case.may_ask(case.keep.theta * (1 + case.limits.hysteresis))
    return _best_there_is(case, stops, ask=ask)


def _best_there_is(case: Case, stops: list[str], *, ask: bool) -> Choice:
    """Nothing restores safety now: what helps meanwhile, without restarts that may be in vain.

    While the mean demand fits, other weights alone, judged by the lower end of what they may reach.
    Where it does not, requests are lost already: then by the mean, since an interval that is wide
    for every rung must not keep it so.
    """
    over = case.keep.theta < 1
    patient = ask or bool(stops) or not over
    able = [
        r
        for r in case.ready
        if _reach(r, over=over) > _reach(case.keep, over=over) * (1 + _least(case.limits, r))
        and not (patient and r.rung > Rung.REROUTE)
        and case.stop(r, Trigger.SAFETY) is None
    ]
    best = max(able, key=lambda r: (_reach(r, over=over), -r.rung), default=None)
    best = (_lowest_that_fits(able) if over else None) or best
    left = best or case.keep
    degraded = None if stops or left.theta >= 1 else left.theta
    fits = f"{degraded:.1%} of the demand fits" if degraded else "the mean demand fits"
    said = "; ".join(stops) or f"no rung restores safety, {fits}"
    return Choice(best, Trigger.SAFETY if best else Trigger.NONE, said, degraded, ask)


def _lowest_that_fits(able: list[Reached]) -> Reached | None:
    """The lowest rung that carries the demand for sure, else the lowest that carries its mean."""
    sure = [r for r in able if r.low >= 1]
    return min(sure or [r for r in able if r.theta >= 1], key=lambda r: r.rung, default=None)


def _reach(reached: Reached, *, over: bool) -> float:
    return reached.theta if over else reached.low


def _least(limits: Limits, reached: Reached) -> float:
    """Improvement that is worth a change that does not restore safety; a restart takes more."""
    if reached.rung is Rung.REROUTE:
        return limits.hysteresis
    return max(limits.hysteresis, limits.tolerance)


def gain(case: Case) -> Choice:
    """The lowest rung worth its disruption; a higher one where it adds enough to pay for more."""
    taken, wanted, stops = case.keep, False, []
    for reached in case.rungs[1:]:
        if not _worth(case, reached, taken):
            continue
        if reached.bound_only:
            wanted = case.may_ask(0.0)
        elif reached.plan is not None:
            why = case.stop(reached, Trigger.GAIN)
            taken = reached if why is None else taken
            stops += [] if why is None else [f"{reached.rung.name} is worth it: {why}"]
    if wanted and taken.rung > Rung.REROUTE:
        taken = case.keep  # one disruption, after the planner's answer, rather than two
    if taken is case.keep:
        return Choice(None, Trigger.NONE, "; ".join(stops) or "nothing to change", wanted=wanted)
    message = f"gains at least {taken.gain_low:.1%} for {taken.disruption:.0f} GPU-seconds"
    return Choice(taken, Trigger.GAIN, message, wanted=wanted)


def gainful(reached: Reached, limits: Limits) -> bool:
    """Whether a rung's gain is beyond doubt in this window."""
    return reached.rung > Rung.KEEP and reached.gain_low > limits.tolerance


def _worth(case: Case, reached: Reached, taken: Reached) -> bool:
    """Whether a rung's gain over the one below pays for what it disrupts more, often enough."""
    extra = min(reached.gain_low, MOST_GAIN) - min(taken.gain_low, MOST_GAIN)
    disrupted = reached.disruption - taken.disruption
    seen = sum(reached.rung in rungs for rungs in case.state.gainful)
    return (
        gainful(reached, case.limits)
        and seen >= case.limits.windows[0]
        and extra > case.limits.tolerance
        and extra * case.gpus * case.limits.horizon > disrupted
        and (reached.rung is Rung.REROUTE or case.keep.low < case.limits.ample)
    )
