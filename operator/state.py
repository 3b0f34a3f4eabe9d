"""What the operator remembers about one key between decisions; lost at a restart, and no harm."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import Reason
from archipelago.operator.livefacts import Ask, Mark
from archipelago.operator.livestate import LiveState
from archipelago.operator.manifests import timestamp
from archipelago.operator.question import next_table
from archipelago.operator.verdict import Failed, Planned, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from archipelago.operator.livefacts import Step
    from archipelago.operator.observe import SeenPlan
    from archipelago.operator.upkeep import Due
    from archipelago.operator.verdict import Decided

STRIKES: Final = 3
"""Crashes in a row before the plan is called PlannerCrashed and its tries get rarer."""
FIRST_RETRY: Final = 60.0
LONGEST_RETRY: Final = 1800.0
RECHECK: Final = 15.0
"""Seconds after which an object in our way is looked at again: no watch tells us about it."""
FIRST_REFUSED: Final = 1.0
LONGEST_REFUSED: Final = 30.0
"""Seconds after which a write that was refused is tried again, doubled with each refusal."""


@dataclass(frozen=True)
class Now:
    """The time: ``wall`` to write down, ``monotonic`` [s] to wait by."""

    wall: datetime
    monotonic: float


@dataclass(frozen=True)
class State:
    """Memory of one key. Times are monotonic seconds.

    ``planning``: hash of the inputs that the planner works on, None when it does not.
    ``reserved``: the sequence that the status has promised to the next table, 0 where it has not.
    ``refusal``: what the API server said to the last write of the table, None when it took it;
    ``refusals``: how often in a row it said no.
    ``spare``: shards that no table needs any more, by name, and when they may go. ``live``: of a
    live plan.
    """

    planning: str | None = None
    verdict: Verdict | None = None
    strikes: int = 0
    retry_at: float = 0.0
    recheck_at: float = 0.0
    reserved: int = 0
    refusal: str | None = None
    refusals: int = 0
    refused_until: float = 0.0
    spare: Mapping[str, Due] = field(default_factory=dict)
    live: LiveState = field(default_factory=LiveState)

    def verdict_on(self, inputs_hash: str) -> Verdict | None:
        """Return the verdict, if it is about these inputs."""
        known = self.verdict
        return known if known is not None and known.inputs_hash == inputs_hash else None

    def with_planning(self, inputs_hash: str, beside: str | None = None) -> State:
        """The planner works on these inputs now, of a live plan beside that stored content."""
        fresh = self.verdict_on(inputs_hash) is None
        live = replace(self.live.without_question(), beside=beside)
        return replace(self, planning=inputs_hash, strikes=0 if fresh else self.strikes, live=live)

    def without_planning(self) -> State:
        """The planner was told to stop."""
        return replace(self, planning=None)

    def with_verdict(self, verdict: Verdict, now: Now) -> State:
        """The planner is done; what may pass later is tried again, each time later."""
        failed = isinstance(verdict, Failed) and verdict.may_pass_later
        strikes = self.strikes + 1 if failed else 0
        live = self.live
        if isinstance(verdict, Planned):
            live = live.without_question()
            verdict = verdict if verdict.taken else replace(verdict, base=live.beside)
        return replace(
            self,
            planning=None,
            verdict=verdict,
            strikes=strikes,
            retry_at=now.monotonic + retry_delay(verdict, strikes),
            live=live,
        )

    def with_reserved(self, sequence: int) -> State:
        """The status promises that sequence; it is good for one try."""
        return replace(self, reserved=sequence)

    def with_try(self, sequence: int) -> State:
        """A table of that sequence is written. It is used up: the answer may be lost."""
        return replace(self, reserved=0, live=replace(self.live, tried=sequence))

    def with_table_written(self, now: Now) -> State:
        """The table is stored; its content is there to be read, not here."""
        verdict = self.verdict
        kept = verdict.without_content() if isinstance(verdict, Planned) else verdict
        if isinstance(kept, Planned) and kept.mark is Mark.OWED:
            kept = None
        more = isinstance(kept, Planned) and bool(kept.steps)
        live = self.live.with_table(now.monotonic, more=more)
        return replace(self, verdict=kept, refusal=None, refusals=0, live=live)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Tables of a roll-out that come after the one that is stored."""
        verdict = self.verdict
        stored = isinstance(verdict, Planned) and verdict.content is None
        return verdict.steps if stored and isinstance(verdict, Planned) else ()

    def with_next_step(self, limit: int) -> State:
        """The next table of the roll-out is due."""
        if not self.steps or not isinstance(self.verdict, Planned):
            return self
        return replace(self, verdict=next_table(self.verdict, limit))

    def without_steps(self) -> State:
        """The roll-out ends here: what it waited for did not come."""
        if not isinstance(self.verdict, Planned):
            return self
        return replace(self, verdict=replace(self.verdict, steps=()))

    def with_decision(self, decided: Decided, plan: SeenPlan, now: Now) -> State:
        """The answer about a live plan: perhaps a table for the inputs that it has."""
        when = timestamp(now.wall)
        decision = {**decided.decision, "time": when} if decided.decision else {}
        live = self.live.with_answer(decided.memory, decided.wanted, decision, now.monotonic)
        if decided.planned is None:
            repair = (self.live.asking or "").startswith(Ask.REPAIR)
            return replace(self, live=replace(live, helpless=live.about if repair else ""))
        table = replace(
            decided.planned,
            inputs_hash=plan.inputs_hash,
            seconds=decided.seconds,
            mark=self.live.mark,
            base=self.live.over,
        )
        return replace(self, live=live, verdict=table, planning=None)

    def with_spare(self, dues: Mapping[str, Due]) -> State:
        """What is spare now; the clock of anything else starts anew."""
        return self if dues == self.spare else replace(self, spare=dues)

    def with_refusal(self, message: str, now: Now) -> State:
        """The API server did not take the table."""
        delay = min(FIRST_REFUSED * 2.0 ** min(self.refusals, 32), LONGEST_REFUSED)
        until = now.monotonic + delay
        return replace(self, refusal=message, refusals=self.refusals + 1, refused_until=until)

    def with_recheck(self, now: Now) -> State:
        """The object of the table's name was read just now."""
        return replace(self, recheck_at=now.monotonic + RECHECK)


def retry_delay(verdict: Verdict, strikes: int) -> float:
    """Seconds until the same inputs are planned again: the first crashes are forgiven."""
    if isinstance(verdict, Failed) and verdict.reason is Reason.PLANNER_CRASHED:
        strikes -= STRIKES - 1
    return 0.0 if strikes < 1 else min(FIRST_RETRY * 2.0 ** (strikes - 1), LONGEST_RETRY)
