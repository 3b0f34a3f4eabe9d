"""What the planner process says about one set of inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from archipelago.operator.conditions import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.livefacts import Ask, Mark, Step
    from archipelago.operator.status import Summary
    from archipelago.planner.shards import Piece

# The process failed, not the question: the same inputs may succeed later.
PROCESS_FAILURES = frozenset(
    {Reason.PLANNER_TIMEOUT, Reason.PLANNER_OOM, Reason.PLANNER_CRASHED, Reason.SOLVER_FAILED}
)


@dataclass(frozen=True)
class Planned:
    """A plan that the independent checker let pass.

    ``content``: the table's content as canonical JSON; None once it is published, for memory's
    sake. ``content_hash`` stays. ``nodes``: those that its islands stand on, of live plans.
    ``pieces``: how it is cut into shards, none where one ConfigMap holds it. ``seconds``: how long
    planning took. ``steps``: tables that come after it, before the change is whole. ``mark``: how
    it came to be, of live plans. ``event``: what people are told happened, where it is not that a
    plan was made. ``base``: hash of the stored content that it was made over, empty where there was
    none; over any other it is not stored. None: over whatever lies there. ``taken``: somebody else
    stored what lies there, and has the word.
    """

    inputs_hash: str
    summary: Summary
    message: str
    content_hash: str
    content_bytes: int
    content: str | None
    pieces: tuple[Piece, ...] = ()
    seconds: float = 0.0
    steps: tuple[Step, ...] = ()
    mark: Mark | None = None
    event: Reason | None = None
    nodes: frozenset[str] = frozenset()
    base: str | None = None
    taken: bool = False

    def without_content(self) -> Planned:
        """Keep what the status needs."""
        return replace(self, content=None)


@dataclass(frozen=True)
class Failed:
    """There is no plan, and why."""

    inputs_hash: str
    reason: Reason
    message: str
    seconds: float = 0.0

    @property
    def may_pass_later(self) -> bool:
        """Whether the same inputs are worth another try."""
        return self.reason in PROCESS_FAILURES


Verdict: TypeAlias = Planned | Failed


@dataclass(frozen=True)
class Decided:
    """What a planner process says about a live plan; ``inputs_hash`` is the question's name.

    ``planned``: the first table of a change, None where nothing changes. ``wanted``: what to ask
    next. ``memory``: to be handed over with the next question. ``decision``: what the status says,
    empty where there is nothing new to say. ``facts``: the answer, but for tables and memory.
    """

    inputs_hash: str
    planned: Planned | None
    wanted: Ask | None
    memory: Mapping[str, Any]
    decision: Mapping[str, Any]
    facts: Mapping[str, Any]
    message: str
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0


Answer: TypeAlias = Verdict | Decided
"""Whatever a planner process may say."""
