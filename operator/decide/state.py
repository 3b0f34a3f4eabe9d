"""What is remembered of a live plan between decisions; lost at a restart, and rebuilt.

After a restart the stored table is taken as it lies there. A roll-out that was under way is planned
to its end anew, and what windows showed is counted from nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.livefacts import ALONE, Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.conditions import Finding
    from archipelago.operator.livefacts import Ask, Live, Lying
    from archipelago.operator.status import Status

FIRST_RETRY: Final = 5.0
LONGEST_RETRY: Final = 300.0
"""Seconds after which a question that failed is asked again, doubled with each failure."""


@dataclass(frozen=True)
class LiveState:
    """Memory of one live plan. Times are monotonic seconds.

    ``asking``: name of the question under way, ``inputs``: those of the plan when it was asked,
    ``mark``: of the table that it may lead to, ``about``: hash of the content that it is about.
    ``hurt``: the lost islands that a repair was asked for last; where it had no answer to them,
    only a new plan has. ``helpless``: hash of a content that stands on lost nodes and of which
    nothing is left without them.

    ``memory``: what the answer wants to be told next time. ``used``: end of the last window that
    was decided about. ``wanted``: what the last answer asks to be asked. ``decision``: what the
    status says of the last change, ``untold`` until it does, ``said``: findings that it said.
    ``approved``: the proposal whose approval was passed on.

    ``stepped``: when the last table was stored; ``rolling``: whether others come after it;
    ``rolled``: when the last table of a roll-out was stored.

    ``over``: hash of the stored content that was asked about, ``beside``: of the one that was
    planned beside, empty where there was none; None: nobody asked, or it does not matter.
    ``tried``: the sequence that was last written, with whatever success. ``lying``: what is stored;
    None: nobody has looked.
    """

    asking: str | None = None
    inputs: str = ""
    mark: Mark = Mark.REPLANNED
    hurt: frozenset[str] = frozenset()
    about: str = ""
    helpless: str = ""
    asked: int = 0
    memory: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    answered: float = -math.inf
    used: float = -math.inf
    wanted: Ask | None = None
    stepped: float = 0.0
    rolling: bool = False
    rolled: float = -math.inf
    decision: Mapping[str, Any] = field(default_factory=lambda: ALONE)
    untold: bool = False
    said: frozenset[Finding] = frozenset()
    approved: str = ""
    failures: int = 0
    retry_at: float = 0.0
    over: str | None = None
    beside: str | None = None
    tried: int = 0
    lying: Lying | None = None

    def with_question(
        self,
        kind: Ask,
        inputs: str,
        window: float | None,
        approved: str,
        mark: Mark = Mark.REPLANNED,
    ) -> LiveState:
        """A question is under way, about a window that ended then."""
        number = self.asked + 1
        used = self.used if window is None else window
        return replace(
            self,
            asking=f"{kind}-{number}",
            inputs=inputs,
            mark=mark,
            asked=number,
            used=used,
            wanted=None,
            approved=approved,
        )

    def with_table(self, now: float, *, more: bool) -> LiveState:
        """A table was stored, one of a roll-out where more come or it came after another."""
        rolled = now if more or self.rolling else self.rolled
        return replace(self, stepped=now, rolling=more, rolled=rolled)

    def with_told(self, status: Status, live: Live | None) -> LiveState:
        """That is said. Another operator may say something else afterwards: let it.

        ``live``: what was known then; what another operator had the word about stays as it was.
        """
        found = () if live is None else (live.inventory, live.metrics)
        said = (f for f in found if f and (f in self.said or _says(status, f)))
        told = dict(status.last_decision) == dict(self.decision)
        return replace(self, said=frozenset(said), untold=self.untold and not told)

    def without_question(self) -> LiveState:
        """Nobody waits for an answer any more."""
        return replace(self, asking=None)

    def with_failure(self, now: float) -> LiveState:
        """The question had no answer: later again, and what was seen stays as it is."""
        delay = min(FIRST_RETRY * 2.0 ** min(self.failures, 16), LONGEST_RETRY)
        return replace(self, asking=None, failures=self.failures + 1, retry_at=now + delay)

    def with_answer(
        self,
        memory: Mapping[str, Any],
        wanted: Ask | None,
        decision: Mapping[str, Any],
        now: float,
    ) -> LiveState:
        """The question was answered; ``decision`` empty: nothing that the status should say."""
        news = is_news(decision, self.decision)
        return replace(
            self,
            asking=None,
            memory=memory,
            answered=now,
            wanted=wanted,
            decision=decision if news else self.decision,
            untold=news or self.untold,
            failures=0,
            retry_at=0.0,
        )


def _says(status: Status, finding: Finding) -> bool:
    return any(condition.says(finding) for condition in status.conditions)


def is_news(decision: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether the status should say it: figures that change with every window are no news.

    A change that was made always is; a proposal where it is another one; too little headroom where
    it was not the last thing said.
    """
    if not decision:
        return False
    if decision.get("proposal"):
        return bool(decision["proposal"]["hash"] != (before.get("proposal") or {}).get("hash"))
    made = decision["trigger"] == "Repair" or decision["rung"] != "Keep"
    return made or before.get("rung") != "Keep" or before.get("trigger") == "Repair"
