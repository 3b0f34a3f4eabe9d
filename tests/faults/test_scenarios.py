"""Each fault while plans are created, edited and deleted: it recovers, and I1 to I9 hold."""

from collections.abc import Mapping
from concurrent.futures import Future

import pytest

from tests.support.faults.stage import Outcome, Scenario

pytestmark = pytest.mark.cluster


def test_it_recovers_and_every_invariant_holds(
    plays: Mapping[str, Future[Outcome]], scenario: Scenario
) -> None:
    """B1 to B8 and B11; what is asserted stands in ``stage.play`` and ``invariants``."""
    outcome = plays[scenario.id].result()

    seconds = {str(phase): round(taken, 2) for phase, taken in outcome.seconds.items()}
    print(f"\n{scenario.id}: {seconds} s, writes {dict(outcome.writes)}")  # noqa: T201
    assert outcome.report.violations == []
    checked = set(outcome.report.checks)
    assert checked >= {"I1", "I2", "I3", "I4", "I5", "I6", "I8", "I9"}
