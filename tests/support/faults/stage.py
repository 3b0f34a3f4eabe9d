"""How a scenario is played.

Plans are prepared, the fault comes while they are created, edited and deleted, and everything that
was stored is judged.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.support.controlplane import Cluster, ControlPlane
from tests.support.e2e.operators import small
from tests.support.faults.bench import QUIET, Bench, started, steady
from tests.support.faults.invariants import Allowance, Report


class Phase(StrEnum):
    """What the user does while the fault is there."""

    CREATE = "create"
    EDIT = "edit"
    DELETE = "delete"
    RESTORE = "restore"  # somebody deletes the table


EVERY = tuple(Phase)
NO_DELETION = (Phase.CREATE, Phase.EDIT)


@dataclass
class Stage:
    """One play. ``names``: the plan of each phase; ``generations``: where they are to end."""

    bench: Bench
    seconds: float
    names: Mapping[Phase, str]
    generations: dict[Phase, int] = field(
        default_factory=lambda: dict.fromkeys(Phase, 1) | {Phase.EDIT: 2}
    )
    changed: float = 0.0  # when the user did it [monotonic s]
    over: float = 0.0  # when the disturbance ended [monotonic s]; 0: it has to be survived

    def change(self) -> None:
        """Create, edit, delete, and take a table away, as the phases say."""
        user, names = self.bench.user, self.names
        self.changed = time.monotonic()
        if Phase.CREATE in names:
            user.create(names[Phase.CREATE], small())
        if Phase.EDIT in names:
            user.edit(names[Phase.EDIT], {"budgetPerHour": "8"})
        if Phase.DELETE in names:
            user.delete(names[Phase.DELETE])
        if Phase.RESTORE in names:
            user.delete_table(names[Phase.RESTORE])

    def wait(self) -> None:
        """Let the fault last."""
        time.sleep(self.seconds)

    def end(self) -> None:
        """The disturbance is over: from now on things are as they should be."""
        self.over = time.monotonic()

    def rest(self, phase: Phase, within: float) -> float:
        """Wait until the phase's plan is as it should be; returns when that was."""
        if phase is Phase.DELETE:
            forgotten = self.bench.forgotten(self.names[phase], within)
            self.bench.gone(self.names[phase])  # the garbage collector takes its own time
            return forgotten
        if phase is Phase.RESTORE:
            return self.bench.restored(self.names[phase], within)
        return self.bench.rest(self.names[phase], self.generations[phase], within=within)

    def writes(self) -> dict[Phase, float]:
        """Requests to store a status or a table since the change, for each change."""
        edits = {Phase.EDIT: self.generations[Phase.EDIT] - 1}
        return {
            phase: len(self.bench.proxy.writes(name, self.changed)) / edits.get(phase, 1)
            for phase, name in self.names.items()
        }

    @property
    def plane(self) -> ControlPlane:
        """The control plane, where parts of it are to be stopped."""
        assert isinstance(self.bench.cluster, ControlPlane)
        return self.bench.cluster


@dataclass(frozen=True)
class Scenario:
    """A fault as a value. ``point``: of the page acceptance.md; ``words``: for recovery.md.

    ``seconds``: how long it lasts, ``full``: unscaled. ``bar`` [s]: from its end to rest; from the
    change, where the fault goes on. ``retries``: writes of a plan beyond three for each change.
    """

    id: str
    point: str
    words: str
    fault: Callable[[Stage], None]
    seconds: float = 0.0
    full: float = 0.0
    bar: float = 30.0
    retries: int = 2
    operators: int = 1
    phases: tuple[Phase, ...] = EVERY
    settings: Mapping[str, str] = field(default_factory=dict)
    full_settings: Mapping[str, str] | None = None
    own_plane: bool = False  # it stops parts of the control plane
    scaled: bool = True  # is played in the default run, too

    def lasts(self, *, full: bool) -> float:
        """Seconds of the fault."""
        return self.full or self.seconds if full else self.seconds

    def environment(self, *, full: bool) -> dict[str, str]:
        """Settings of the operator."""
        chosen = self.full_settings if full and self.full_settings is not None else self.settings
        return {"ARCHIPELAGO_PLANNERS": "1", "ARCHIPELAGO_RESYNC_SECONDS": "86400", **chosen}


@dataclass(frozen=True)
class Outcome:
    """What a play showed, by phase: seconds to rest, requests to write for each change.

    ``goes_on``: the fault did not end; seconds are from the change. ``report``: of the invariants.
    """

    seconds: dict[Phase, float]
    writes: dict[Phase, float]
    goes_on: bool
    report: Report


def play(
    scenario: Scenario, bench: Bench, tag: str = "", *, full: bool = False, quiet: float = QUIET
) -> Outcome:
    """Play a scenario once; fails where it is too slow or an invariant is broken."""
    names = {phase: f"{scenario.id}-{phase}{tag}" for phase in scenario.phases}
    stage = Stage(bench, scenario.lasts(full=full), names)
    prepare(stage)
    try:
        scenario.fault(stage)
        since = stage.over or stage.changed
        seconds = {
            phase: max(0.0, stage.rest(phase, scenario.bar) - since) for phase in scenario.phases
        }
    finally:
        bench.proxy.watches.heal()
    steady(bench)
    bench.quiet(quiet)
    allowance = Allowance(scenario.retries, scenario.operators)
    assert max(seconds.values()) <= scenario.bar, seconds
    report = bench.judge(*names.values(), allowance=allowance)
    return Outcome(seconds, stage.writes(), stage.over == 0, report)


def prepare(stage: Stage) -> None:
    """Make the plans that are there before the fault."""
    there = [phase for phase in stage.names if phase is not Phase.CREATE]
    for phase in there:
        stage.bench.user.create(stage.names[phase], small())
    for phase in there:
        stage.bench.rest(stage.names[phase], 1)
        stage.bench.told(stage.names[phase])  # so that no write of this one is still to come


def premiere(
    scenario: Scenario, cluster: Cluster, kubeconfig: Path, directory: Path, *, full: bool
) -> Outcome:
    """Play a scenario on a bench of its own."""
    with started(cluster, kubeconfig, directory, scenario.environment(full=full)) as bench:
        return play(scenario, bench, full=full)
