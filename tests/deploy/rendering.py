"""Objects as kubectl's kustomize and as Helm make them, and what both are compared by."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from tests.support.controlplane import binaries
from tests.support.controlplane.errors import BinariesMissing

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "deploy"
BASE = DEPLOY / "base"
NAMESPACED = DEPLOY / "overlays" / "namespaced"
CHART = DEPLOY / "chart"
HOME = "archipelago-system"
NAME = "archipelago-operator"

Object: TypeAlias = dict[str, Any]


def kustomize(folder: Path) -> list[Object]:
    """The objects that kubectl's own kustomize makes of a folder."""
    kubectl = binaries.locate(["kubectl"])["kubectl"]
    return _objects([kubectl, "kustomize", folder])


def helm() -> str:
    """Return the path of Helm 3; the test is skipped if it is not there."""
    try:
        return str(binaries.locate(["helm"])["helm"])
    except BinariesMissing as error:
        reason = str(error)
    pytest.skip(reason)


def chart(values: Mapping[str, Any] | None = None, namespace: str = HOME) -> list[Object]:
    """The objects that Helm makes of the chart with these values."""
    return _objects(
        [helm(), "template", "archipelago", CHART, f"--namespace={namespace}", "--values=-"],
        values=values,
    )


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says of values that it refuses; empty where it takes them."""
    done = subprocess.run(
        [helm(), "template", "archipelago", CHART, "--values=-"],
        input=json.dumps(dict(values)),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Those objects of one kind."""
    return [found for found in objects if found["kind"] == kind]


def by_name(objects: Sequence[Object]) -> dict[tuple[str, str, str], Object]:
    """(kind, namespace, name) -> object; the order of a container's variables has no meaning."""
    named: dict[tuple[str, str, str], Object] = {}
    for found in objects:
        about = found["metadata"]
        named[found["kind"], about.get("namespace", ""), about["name"]] = found
    for deployment in of_kind(objects, "Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            container["env"].sort(key=lambda variable: variable["name"])
    assert len(named) == len(objects)
    return named


def _objects(
    command: Sequence[str | os.PathLike[str]], values: Mapping[str, Any] | None = None
) -> list[Object]:
    done = subprocess.run(
        command, input=json.dumps(dict(values or {})), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]
