"""From the release before to this one and back, with twenty plans: nobody's table changes (A38).

The release before is the last commit (or, where the working tree has changes, the commit it stands
on): its CRD, its rights and its own code, taken from git. ``ARCHIPELAGO_UPGRADE_FROM`` names
another one. A change of plans on purpose is said in CHANGELOG.md by a new line with "Plans change".
"""

import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import ControlPlane, eventually
from tests.e2e.operators import ACCOUNT, HOME, ROOT, Operator, Plans, running, small

pytestmark = pytest.mark.cluster

PLANS = 20
PARTS = ("crds", "deploy", "operator", "planner", "perfmodel", "src")
SAID = "Plans change"
QUIET_SECONDS = 3.0  # of resyncs each second: time enough to write what should not be written
RESYNC = {"ARCHIPELAGO_RESYNC_SECONDS": "1"}


def git(*arguments: str) -> str | None:
    """What git prints; None where it refuses."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.fixture(scope="module")
def before() -> str:
    """The commit of the release before."""
    dirty = git("status", "--porcelain", "--untracked-files=no", *PARTS)
    revision = os.environ.get("ARCHIPELAGO_UPGRADE_FROM") or ("HEAD" if dirty else "HEAD^")
    commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is None:
        pytest.skip(f"no {revision} here: a clone without history, or no git")
    return commit


@pytest.fixture(scope="module")
def release(before: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its manifests and code."""
    folder = tmp_path_factory.mktemp("release")
    archive = subprocess.run(
        ["git", "archive", before, *PARTS], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture
def plane(controlplane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane of its own: its CRD goes back and forth."""
    del controlplane  # skipped on kind
    with ControlPlane.start() as plane:
        yield plane


def install(plane: ControlPlane, release: Path) -> Path:
    """The release's CRD, namespace, account and rights; returns the account's kubeconfig."""
    for part in (
        "crds",
        *(f"deploy/base/{n}.yaml" for n in ("namespace", "serviceaccount", "rbac")),
    ):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", release / part)
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return plane.service_account_kubeconfig(HOME, ACCOUNT)


def as_of(operator: Operator, release: Path) -> Operator:
    """The operator with the release's code: PYTHONPATH comes before what is installed."""
    path = {"PYTHONPATH": str(release / "src")}
    return replace(operator, settings={**operator.settings, **path}, process=None)


def spec(number: int) -> Mapping[str, Any]:
    """Plans that differ: sizes, prices, budgets."""
    pool = small()["pools"][0] | {
        "count": 4 + number % 5,
        "pricePerGPUHour": f"{2 + number % 3}.00",
    }
    return small(pools=[pool], **({"budgetPerHour": "16"} if number % 2 else {}))


def stored(plane: ControlPlane) -> dict[str, tuple[str, str]]:
    """Name of each table -> its resource version and its content."""
    listed = plane.kubectl("get", "configmaps", "-A", "-o=json").stdout
    tables = [item for item in json.loads(listed)["items"] if "table.json" in item.get("data", {})]
    return {
        item["metadata"]["name"]: (
            item["metadata"]["resourceVersion"],
            json.dumps(json.loads(item["data"]["table.json"])["content"], sort_keys=True),
        )
        for item in tables
    }


def announced(before: str) -> bool:
    """Whether the change log has a new line that says so."""
    added = git("diff", before, "--", "CHANGELOG.md") or ""
    return any(line.startswith("+") and SAID in line for line in added.splitlines())


def test_neither_upgrade_nor_downgrade_changes_a_table(
    plane: ControlPlane, release: Path, before: str, tmp_path: Path
) -> None:
    """Twenty plans of the release before, then this one, then that one again: not one write."""
    account = install(plane, release)
    new = Operator(account, tmp_path / "new.log", RESYNC)
    old = as_of(replace(new, log=tmp_path / "old.log"), release)
    with plane.namespace("upgrade") as namespace:
        plans = Plans(plane, namespace)
        with running(old) as operator:
            assert loaded_from(operator) == str(release)
            for number in range(PLANS):
                plans.apply(f"plan-{number:02}", spec(number))
            plans.kubectl("wait", "--for=condition=Ready", "splan", "--all", "--timeout=100s")
        tables = stored(plane)
        assert len(tables) == PLANS

        install(plane, ROOT)
        upgraded = settled(plane, replace(new, process=None))
        install(plane, release)
        downgraded = settled(plane, as_of(replace(new, log=tmp_path / "again.log"), release))

        if announced(before):
            pytest.skip("the change log says that plans change")
        assert changed(tables, upgraded) == []
        assert changed(tables, downgraded) == []
        ready = plans.kubectl("get", "splan", "-o=jsonpath={.items[*].status.observedGeneration}")
        assert ready.split() == ["1"] * PLANS


def loaded_from(operator: Operator) -> str:
    """The folder that the running operator's planner comes from."""
    assert operator.process is not None
    code = "import archipelago.planner as p, pathlib; print(pathlib.Path(p.__file__).parents[3])"
    done = subprocess.run(
        [operator.command[0], "-P", "-c", code],
        env={**os.environ, **operator.settings},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def settled(plane: ControlPlane, operator: Operator) -> dict[str, tuple[str, str]]:
    """The tables after the operator has looked at every plan more than once."""
    with running(operator) as started:
        eventually(lambda: started.metric("resyncs_total") >= 2, within=30)
        time.sleep(QUIET_SECONDS)
    return stored(plane)


def changed(one: Mapping[str, tuple[str, str]], other: Mapping[str, tuple[str, str]]) -> list[str]:
    """Names of tables that were written in between."""
    assert set(one) == set(other)
    return sorted(name for name in one if one[name] != other[name])
