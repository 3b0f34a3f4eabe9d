"""The first act: from ``kubectl apply`` to a proven routing table, and the same on a laptop."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from examples.demo.stage import REPO, DemoError, Stage, shown, title

HEAD_ENTRIES = 3
WIDTH = 160


def first_example() -> Path:
    """Return the example whose number is 01."""
    return min((REPO / "examples").glob("01-*.yaml"))


def name_of(example: Path) -> str:
    """Name of the ServingPlan in a file."""
    name: str = yaml.safe_load(example.read_text())["metadata"]["name"]
    return name


def first_path(stage: Stage, example: Path) -> None:
    """Apply the example, show what came of it, and plan the same with no cluster."""
    name = name_of(example)
    with stage.watch.lap(f"kubectl apply -f {shown(example)}, until Ready"):
        stage.apply(example)
        stage.wait_ready(name)
    stage.show_kubectl("get", "splan")
    plot = stage.directory / "plan.png"
    title(f"$ archipelago plan -f {shown(example)} --plot {shown(plot)}")
    with stage.watch.lap("the same plan on a laptop, with no cluster"):
        page = _plan(example, plot)
    click.echo(page)
    title(f"the routing table in configmap/{name}-routing, in outline")
    click.echo(_outline(stage, name))


def _plan(example: Path, plot: Path) -> str:
    archipelago = Path(sys.executable).with_name("archipelago")
    done = subprocess.run(  # noqa: S603
        [archipelago, "plan", "-f", example, "--plot", plot],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise DemoError(done.stderr)
    return done.stdout


def stored(stage: Stage, name: str) -> str:
    """Text of a plan's routing table."""
    path = r"-o=jsonpath={.data.table\.json}"
    return stage.cluster.kubectl("get", f"configmap/{name}-routing", path).stdout


def _outline(stage: Stage, name: str) -> str:
    """Return the stored table: its identity, and the first entries of each list."""
    text = stored(stage, name)
    table = json.loads(text)
    content = table["content"]
    routes = [
        {"model": model["name"], **route}
        for model in content["models"]
        for route in model["routes"]
    ]
    return "\n".join(
        [
            f"identity: {json.dumps(table['identity'])}",
            *_first("routes", routes),
            *_first("groups", content["groups"]),
            *_first("islands", content["islands"]),
            f"({len(text)} bytes stored)",
        ]
    )


def _first(field: str, entries: Sequence[object]) -> list[str]:
    """Return the first entries of a list, one line each, cut to the width of a page."""
    lines = [f"  {json.dumps(entry)}" for entry in entries[:HEAD_ENTRIES]]
    cut = [line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..." for line in lines]
    return [f"{field}: {len(entries)}, the first of them", *cut]
