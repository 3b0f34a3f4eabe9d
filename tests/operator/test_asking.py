"""Sources by name: what of a file is used, and when connections are made anew."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from archipelago.operator.asking import Sources, UnknownSource
from archipelago.operator.promql import ModelFacts, PlanFacts
from archipelago.operator.sources import SourcesFile
from archipelago.planner.livedemand.faults import Reason
from archipelago.planner.problem import Phase
from tests.operator.badsource import LOCAL, PLAN, Got, answering, fault, ok, vector

TWO = PlanFacts(
    "ns",
    "plan",
    {
        "m": ModelFacts("vllm", {"a": Phase.MIXED}),
        "n": ModelFacts("vllm", {"b": Phase.MIXED}),
        "o": ModelFacts("dynamo", {"c": Phase.MIXED}),
    },
)


def configured(path: Path, got: Got, **more: str) -> SourcesFile:
    """A file with one source; written anew it is another file, as a ConfigMap's is."""
    lines = [f"  address: http://127.0.0.1:{got.port}", f"  allowAddresses: {list(LOCAL)}"]
    lines += [f"  {name}: {value}" for name, value in more.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(["sources:", "- name: cluster", "  kind: prometheus", *lines]))
    new.replace(path)
    return SourcesFile(path)


def running(island: str) -> tuple[dict[str, str], str]:
    labels = {"archipelago_dev_island": island, "pod": f"{island}-0"}
    return {"__name__": "vllm:num_requests_running", **labels}, "3"


async def test_models_get_their_own_islands_and_what_nobody_knows(tmp_path: Path) -> None:
    """Two models of one engine are one reading; one of a router another, with all its series."""
    rows = [running(island) for island in ("a", "b", "x")]
    async with answering(ok(vector(rows))) as got:
        sources = Sources(configured(tmp_path / "s.yaml", got))
        found = await sources.ask("cluster", TWO)
        await sources.close()
    islands = {
        model: {dict(s.labels)["archipelago_dev_island"] for s in scrape.samples}
        for model, scrape in found.items()
    }
    assert islands == {"m": {"a", "x"}, "n": {"b", "x"}, "o": {"a", "b", "x"}}
    assert {scrape.at for scrape in found.values()} == {1000.0}  # the server's clock
    plans = {form["query"].count("archipelago_dev_plan=") for form in got.forms}
    assert plans <= {0, 1, 2}
    assert sources.skew["cluster"] < -1e9  # that clock stands at 1970


async def test_connections_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    async with answering(ok(vector([]))) as first, answering(ok(vector([]))) as second:
        sources = Sources(configured(path, first))
        for _ in range(2):
            await sources.ask("cluster", PLAN)
        asked = len(first.forms)
        assert first.connections <= 5  # four at once, and the one that asked for the time
        configured(path, second, timeoutSeconds="3")
        await sources.ask("cluster", PLAN)
        assert len(first.forms) == asked
        assert {form["timeout"] for form in second.forms} == {"3s"}
        path.write_text("sources: []")
        with pytest.raises(UnknownSource):
            await sources.ask("cluster", PLAN)
        await sources.close()


async def test_a_reading_under_way_when_the_file_changes_ends_with_a_fault(tmp_path: Path) -> None:
    """The old connections are closed under it; the new reading is not disturbed."""
    path = tmp_path / "s.yaml"

    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await ok(vector([running("a")]))(writer)

    async with answering(slowly) as got:
        sources = Sources(configured(path, got))
        before = asyncio.create_task(sources.ask("cluster", PLAN))
        await asyncio.sleep(0.1)
        configured(path, got, timeoutSeconds="3")
        assert (await sources.ask("cluster", PLAN))["m"].faults == ()
        assert {one.reason for one in (await before)["m"].faults} == {Reason.SOURCE_FAILED}
        await sources.close()


async def test_a_certificate_file_that_is_none_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "ca.crt"
    bad.write_text("no certificate")
    path = tmp_path / "s.yaml"
    path.write_text(
        "sources: [{name: cluster, kind: prometheus, address: 'https://127.0.0.1:1',"
        f" caFile: {bad}}}]"
    )
    sources = Sources(SourcesFile(path), wall=lambda: 7.0)
    found = await sources.ask("cluster", TWO)
    assert set(found) == set(TWO.models)
    for scrape in found.values():
        assert scrape.at == 7.0
        assert fault(scrape) == (
            Reason.SOURCE_FAILED,
            "caFile, clientCertFile or clientKeyFile cannot be used",
        )
    await sources.close()


async def test_plans_that_are_asked_at_once_share_connections_and_nothing_else(
    tmp_path: Path,
) -> None:
    """Twenty plans at once through sixteen connections; each has the answers to its questions."""

    def answer_of(got: Callable[[], Got]) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
        async def answer(writer: asyncio.StreamWriter) -> None:
            plan = got().forms[-1]["query"].partition('archipelago_dev_plan="')[2].partition('"')[0]
            await ok(vector([running(plan)]))(writer)

        return answer

    servers: list[Got] = []
    async with answering(answer_of(lambda: servers[0])) as got:
        servers.append(got)
        sources = Sources(configured(tmp_path / "s.yaml", got))
        plans = [
            PlanFacts("ns", f"p{i}", {"m": ModelFacts("vllm", {f"p{i}": Phase.MIXED})})
            for i in range(20)
        ]
        found = await asyncio.gather(*(sources.ask("cluster", plan) for plan in plans))
        await sources.close()
    for plan, scrapes in zip(plans, found, strict=True):
        islands = {dict(s.labels)["archipelago_dev_island"] for s in scrapes["m"].samples}
        assert islands == {plan.label}
    assert got.connections <= 16
    assert threading.active_count() < 40
