"""The third act: a plan that finds its nodes, and one of them goes."""

import json
from pathlib import Path
from typing import Any

import click
import yaml

from examples.demo.first import stored
from examples.demo.stage import Stage, title
from tests.support.controlplane.api import Api
from tests.support.e2e.nodes import Nodes

NAME = "found"
COUNT = 4
REPAIRED_WITHIN = 10.0


def lose_a_node(stage: Stage) -> None:
    """Say how long a lost node stays in the table."""
    title(f"a node that is lost: {COUNT} node objects of 8 H100, and a plan that finds them")
    nodes = Nodes(Api.of(stage.cluster), "demo")
    names = nodes.names(COUNT)
    nodes.create(names)
    with stage.watch.lap("a third plan, with a nodeSelector in place of a count, until Ready"):
        stage.apply(_manifest(stage.directory, nodes.labels))
        stage.wait_ready(NAME)
    before, lost = _islands(stage), names[0]
    with stage.watch.lap(f"kubectl delete node {lost}, until no island of the table is on it"):
        nodes.delete([lost])
        stage.until(
            lambda: not _on(lost, _islands(stage)),
            REPAIRED_WITHIN,
            f"{lost} is still in the table",
        )
    nodes.close()
    left = len(_islands(stage))
    held = len(_on(lost, before))
    click.echo(f"{held} of {len(before)} islands stood on it; {left} serve all lengths now")


def _on(node: str, islands: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [island for island in islands if node in island["nodes"]]


def _manifest(directory: Path, labels: dict[str, str]) -> Path:
    """Llama-3.1-8B on whatever nodes have these labels."""
    plan: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("found.yaml").read_text())
    plan["spec"]["pools"][0]["nodeSelector"] = labels
    path = directory / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def _islands(stage: Stage) -> list[dict[str, Any]]:
    islands: list[dict[str, Any]] = json.loads(stored(stage, NAME))["content"]["islands"]
    return islands
