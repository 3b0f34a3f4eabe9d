"""The frozen instances: they stay as they are, cover what they should, and can be planned."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from archipelago.planner.problem import Billing, Objective, Phase, PlanningProblem
from benchmarks.compare import COLUMNS as COMPARED
from benchmarks.compare import cells, read
from benchmarks.instances import INSTANCES
from benchmarks.markdown import put, table
from benchmarks.run import GAP, QUICK, Row, measure, summary

REPO = Path(__file__).parents[2]
FROZEN = REPO / "benchmarks" / "frozen"
PAGE = (REPO / "docs" / "evidence" / "benchmarks.md").read_text()
SMALL = ("l40s-8-llama8b", "h100-16-llama70b", "cost-h100-burst", "either-l40s-llama8b")


@pytest.fixture(scope="module")
def problems() -> dict[str, PlanningProblem]:
    return {instance.name: instance.build() for instance in INSTANCES}


def test_files_are_those_that_were_frozen() -> None:
    """SHA256SUMS lists every file, and each is as it was."""
    lines = (FROZEN / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    names = {path.name for path in FROZEN.glob("*.yaml")}
    thesis = {f"../../examples/{path.name}" for path in REPO.glob("examples/thesis-*.yaml")}
    assert listed.keys() == names | thesis
    for name, digest in listed.items():
        assert hashlib.sha256((FROZEN / name).read_bytes()).hexdigest() == digest, name


def test_fleets_are_those_that_were_frozen(problems: dict[str, PlanningProblem]) -> None:
    """Ten types in 3 or 32 racks of 4, 12 or 40 nodes of 8 GPUs; by hand 10 * 3 * 4 * 8 = 960."""
    sizes = {"fleet-1k": 960, "fleet-10k": 10_240, "fleet-30k": 30_720, "fleet-100k": 102_400}
    for name, gpus in sizes.items():
        assert sum(pool.count for pool in problems[name].pools) == gpus
        assert len(problems[name].models[0].ranges) == 58


def test_instances_cover_the_field(problems: dict[str, PlanningProblem]) -> None:
    every = list(problems.values())
    assert len(every) >= 36
    types = {len({pool.accelerator.name for pool in p.pools}) for p in every}
    assert {1, 2, 3, 4, 5, 6, 8, 10} <= types
    assert {len(p.models) for p in every} == {1, 2, 3, 4}
    assert {len({c for pool in p.pools for c in pool.classes}) for p in every} == {1, 2, 3, 4}
    sizes = [sum(pool.available for pool in p.pools) for p in every]
    assert min(sizes) <= 16
    assert max(sizes) >= 100_000
    assert {p.objective for p in every} == set(Objective)
    pools = [pool for p in every for pool in p.pools]
    assert {pool.billing for pool in pools} == set(Billing)
    assert any(pool.max_count for pool in pools)
    assert any(pool.nic_per_gpu for pool in pools)
    assert any(p.pipelines for p in every)
    assert any(p.links for p in every)
    assert {p.budget_per_hour is None for p in every} == {True, False}
    models = [model for p in every for model in p.models]
    assert {Phase.MIXED in model.phases for model in models} == {True, False}
    assert any(model.targets.ttft for model in models)
    assert any(model.max_utilisation < 1 for model in models)


@pytest.mark.parametrize("name", SMALL)
def test_small_instances_keep_their_bars(name: str) -> None:
    row = measure(next(i for i in INSTANCES if i.name == name))
    assert row.gap <= GAP
    assert row.seconds <= QUICK


def test_one_command_prints_the_table_and_the_summary() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--only", "l40s-8*"],
        cwd=REPO,
        check=True,
        capture_output=True,
        text=True,
    )
    header, line, last = done.stdout.splitlines()
    assert header.split()[0] == "instance"
    assert line.split()[0] == "l40s-8-llama8b"
    assert last.startswith("1 of 1 within 0.1 %, 1 within 5 s; slowest: l40s-8-llama8b")


def test_a_missed_bar_is_reported() -> None:
    facts = dict.fromkeys(Row.__dataclass_fields__, 1) | {"instance": "x", "objective": "cost"}
    row = Row(**{**facts, "gap": 0.2, "seconds": 31.0})  # type: ignore[arg-type]
    assert row.missed == ["gap > 0.1", "seconds > 30"]
    assert "MISSED" in str(row)
    assert summary([row]) == "0 of 1 within 0.1 %, 0 within 5 s; slowest: x, 31.0 s"


def test_the_page_shows_every_instance() -> None:
    shown = re.findall(r"^\| `([a-z0-9-]+)` \| (?:throughput|headroom|cost) ", PAGE, re.MULTILINE)
    assert shown == [instance.name for instance in INSTANCES]


def test_the_page_shows_the_comparison_that_is_kept() -> None:
    """Exact is nowhere worse and at least a hundred times sooner."""
    kept = read(REPO / "benchmarks" / "results" / "comparison.json")
    assert table(COMPARED, map(cells, kept)) in PAGE
    assert len(kept) == 6
    for case in kept:
        assert case.exact >= case.bayes
        assert case.sooner >= 100
        assert (case.iterations, case.batch) == (15, 16)


def test_a_table_replaces_its_marked_place_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- t: generated -->\nold\n<!-- end of t -->\nafter\n")
    put(page, "t", table(("a", "b"), [("x", 1)]))
    assert page.read_text() == (
        "before\n<!-- t: generated -->\n| a | b |\n| :-- | --: |\n| x | 1 |\n<!-- end of t -->\n"
        "after\n"
    )
    with pytest.raises(SystemExit, match="no place for the table other"):
        put(page, "other", "")
