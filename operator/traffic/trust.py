"""Whether the windows of a source are believed, and what the condition says meanwhile; pure.

A source that changes its mind in every window would rewrite the status in every window, and change
tables in those windows that happen to look right. So the condition follows the windows with a
patience that grows with every change:

* a window that is unusable is dropped at once, whatever the condition says;
* the first two times, the condition becomes False or True at once: that is one outage and its end.
  After that it takes 2, then 4, then 8 windows in a row that say the same;
* another fault, or another message, is reported after ``STEADY`` times as many;
* windows are believed again when the condition is no longer of an unusable one, so that no table is
  changed by figures that the status calls unusable;
* after ``CALM`` windows in a row that say the same, the patience is that of the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..resources.status import Finding

STEADY: Final = 10
"""Windows in a row for another message while the status of the condition stays."""
MOST: Final = 8
"""Largest factor of the patience: a source that recovers is believed within eight windows."""
CALM: Final = 20
"""Windows in a row that say the same, after which earlier changes are forgotten."""


@dataclass(frozen=True)
class Report:
    """What one window says of its source. ``usable``: whether its figures are."""

    finding: Finding
    usable: bool


@dataclass(frozen=True)
class Trust:
    """What a plan's windows have said of its source.

    ``reported``: in the condition; None before the first window. ``last``: of the last window, the
    ``run``-th in a row. ``changes`` of the condition, not counting the first report.
    """

    reported: Report | None = None
    last: Report | None = None
    run: int = 0
    changes: int = 0

    @property
    def finding(self) -> Finding | None:
        """What the condition says."""
        return self.reported.finding if self.reported else None

    @property
    def is_believed(self) -> bool:
        """Whether the figures of the last window may be used."""
        return all(report is not None and report.usable for report in (self.reported, self.last))

    def after(self, report: Report) -> Trust:
        """Return the value after another window."""
        run = self.run + 1 if report == self.last else 1
        trust = replace(self, last=report, run=run)
        if self.reported is None:
            return replace(trust, reported=report)
        if report == self.reported:
            return replace(trust, changes=0) if run >= CALM else trust
        same = report.finding.status is self.reported.finding.status
        patience = (STEADY if same else 1) * min(MOST, 2 ** max(0, self.changes - 1))
        if run < patience:
            return trust
        return replace(trust, reported=report, changes=self.changes + 1)


UNKNOWN: Final = Trust()
"""Before the first window."""
