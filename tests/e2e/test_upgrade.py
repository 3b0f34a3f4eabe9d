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

from archipelago.operator.resources import crd
from tests.support.controlplane import ControlPlane, eventually
from tests.support.e2e.operators import (
    ACCOUNT,
    AS_DEPLOYED,
    HOME,
    ROOT,
    Operator,
    Plans,
    running,
    small,
)
from tests.support.e2e.stored import FOLDER, restore, specs

pytestmark = pytest.mark.cluster

PLANS = 20
PARTS = ("crds", "deploy", "operator", "planner", "perfmodel", "src")
SAID = "Plans change"
FAILING = "fails"  # the plan of `specs` without a table
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
    plane.wait_established("crd", "--all")
    return plane.service_account_kubeconfig(HOME, ACCOUNT)


def as_of(operator: Operator, release: Path) -> Operator:
    """The operator with the release's code: PYTHONPATH comes before what is installed."""
    path = {"PYTHONPATH": f"{release / 'src'}{os.pathsep}{AS_DEPLOYED['PYTHONPATH']}"}
    return replace(operator, settings={**operator.settings, **path}, process=None)


def spec(number: int) -> Mapping[str, Any]:
    """Plans that differ: sizes, prices, budgets."""
    pool = small()["pools"][0] | {
        "count": 4 + number % 5,
        "pricePerGPUHour": f"{2 + number % 3}.00",
    }
    return small(pools=[pool], **({"budgetPerHour": "16"} if number % 2 else {}))


def apply(plans: Plans) -> None:
    """Twenty plans, and the wait until each is Ready."""
    for number in range(PLANS):
        plans.apply(f"plan-{number:02}", spec(number))
    plans.kubectl("wait", "--for=condition=Ready", "splan", "--all", "--timeout=100s")


def stored(plans: Plans) -> dict[str, dict[str, Any]]:
    """The ConfigMaps of a namespace's tables, by name."""
    items = json.loads(plans.kubectl("get", "configmaps", "-o=json"))["items"]
    found = {
        item["metadata"]["name"]: item for item in items if "table.json" in item.get("data", {})
    }
    assert len(found) == PLANS
    return found


def contents(tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What the tables say, without whose and since when."""
    return {name: json.loads(t["data"]["table.json"])["content"] for name, t in tables.items()}


def announced(before: str) -> bool:
    """Whether the change log has a new line that says so."""
    added = git("diff", before, "--", "CHANGELOG.md") or ""
    return any(line.startswith("+") and SAID in line for line in added.splitlines())


def test_neither_upgrade_nor_downgrade_writes_a_table(
    plane: ControlPlane, release: Path, before: str, tmp_path: Path
) -> None:
    """Twenty plans of the release before, then this one, then that one: nothing is planned again.

    What is kept must also be what this release would plan: equal inputs, equal content.
    """
    if announced(before):
        pytest.skip(f"the change log says {SAID!r}")
    account = install(plane, release)
    new = Operator(account, tmp_path / "new.log", RESYNC)
    old = as_of(replace(new, log=tmp_path / "old.log"), release)
    with plane.namespace("kept") as kept, plane.namespace("fresh") as fresh:
        plans, others = Plans(plane, kept), Plans(plane, fresh)
        with running(old) as operator:
            assert loaded_from(operator) == str(release)
            apply(plans)
        tables = stored(plans)

        install(plane, ROOT)
        with running(new) as operator:
            assert plannings_at_rest(operator) == 0
            assert stored(plans) == tables
            apply(others)
        assert contents(stored(others)) == contents(tables)

        others.kubectl("delete", "splan", "--all")  # and nobody is asked for them any more
        install(plane, release)
        with running(as_of(replace(new, log=tmp_path / "again.log"), release)) as operator:
            assert plannings_at_rest(operator) == 0
        assert stored(plans) == tables
        ready = plans.kubectl("get", "splan", "-o=jsonpath={.items[*].status.observedGeneration}")
        assert ready.split() == ["1"] * PLANS


def plannings_at_rest(operator: Operator) -> float:
    """How often the planner was asked, once every plan was looked at more than once."""
    eventually(lambda: operator.metric("resyncs_total") >= 2, within=30)
    time.sleep(QUIET_SECONDS)
    return operator.metric("plannings_total")


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


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_what_a_release_stored_is_kept_and_so_beside_a_next_version(
    plane: ControlPlane, file: Path, tmp_path: Path
) -> None:
    """Without its code: its stored plans, status and tables. Then v1beta1 is added, and taken back.

    Both versions have the same schema, so the API server converts by itself (strategy None).
    """
    new = Operator(install(plane, ROOT), tmp_path / "log", RESYNC)
    with plane.namespace("kept") as namespace:
        plans = Plans(plane, namespace)
        restore(plans, json.loads(file.read_text()))
        before, tables = spec_and_status(plans, "v1alpha1"), tables_of(plans)
        assert len(tables) == len(specs()) - 1
        with running(new) as operator:

            def nothing_is_planned(version: str) -> None:
                # A plan without a table is planned at each start.
                eventually(lambda: operator.metric("plannings_total") >= 1, within=60)
                assert plannings_at_rest(operator) == 1
                assert tables_of(plans) == tables
                # The same "no", whose figures are those of this release.
                found = spec_and_status(plans, version)
                stated, said = before.pop(FAILING), found[FAILING]
                assert stated["spec"] == said["spec"]
                assert reasons(stated) == reasons(said)
                before[FAILING] = said
                assert found == before

            nothing_is_planned("v1alpha1")
            answered = dict(before)
            serve(plane, "v1alpha1", "v1beta1", stored="v1beta1")
            migrate(plans, "v1beta1")
            nothing_is_planned("v1beta1")

            serve(plane, "v1alpha1", "v1beta1", stored="v1alpha1")
            migrate(plans, "v1alpha1")
            serve(plane, "v1alpha1", stored="v1alpha1")
            nothing_is_planned("v1alpha1")
            assert before == answered  # it is planned once, not with each version


def reasons(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Type, status and reason of each condition."""
    return [(c["type"], c["status"], c["reason"]) for c in found["status"]["conditions"]]


def serve(plane: ControlPlane, *versions: str, stored: str) -> None:
    """Serve plans in these versions, all with the schema of today."""
    made = crd.definition()
    (today,) = made["spec"]["versions"]
    made["spec"]["versions"] = [
        {**today, "name": version, "storage": version == stored} for version in versions
    ]
    made["spec"]["conversion"] = {"strategy": "None"}
    text = json.dumps(made)
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)

    def is_served(version: str) -> bool:
        path = f"/apis/archipelago.dev/{version}/servingplans"
        return plane.kubectl("get", "--raw", path, check=False).returncode == 0

    eventually(lambda: all(map(is_served, versions)))


def migrate(plans: Plans, version: str) -> None:
    """Write every plan again, and say that no other version is stored: docs/how-to/upgrade.md."""
    kind = f"servingplans.{version}.archipelago.dev"
    versions = "-o=jsonpath={.items[*].metadata.resourceVersion}"
    before = plans.kubectl("get", kind, versions).split()
    for name in specs():
        plans.kubectl("patch", kind, name, "--type=merge", "-p", "{}")
    after = plans.kubectl("get", kind, versions).split()
    assert not set(before) & set(after)  # the API server wrote them, as another version
    name = "servingplans.archipelago.dev"
    patch = json.dumps({"status": {"storedVersions": [version]}})
    plans.kubectl("patch", "crd", name, "--subresource=status", "--type=merge", "-p", patch)


def spec_and_status(plans: Plans, version: str) -> dict[str, Any]:
    """All of every plan that is not the API server's own, read in a version."""
    path = f"/apis/archipelago.dev/{version}/namespaces/{plans.namespace}/servingplans"
    return {
        item["metadata"]["name"]: {"spec": item["spec"], "status": item["status"]}
        for item in plans.api("GET", path)["items"]
    }


def tables_of(plans: Plans) -> dict[str, str]:
    """Version of each table: it grows with any write."""
    items = json.loads(plans.kubectl("get", "configmaps", "-o=json"))["items"]
    return {
        item["metadata"]["name"]: item["metadata"]["resourceVersion"]
        for item in items
        if "table.json" in item.get("data", {})
    }
