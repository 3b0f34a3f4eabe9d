"""No name that a user chooses changes what Prometheus is asked."""

import re
from dataclasses import replace

import promql_parser
import pytest

from archipelago.operator.traffic.queries import (
    LONGEST,
    ModelFacts,
    PlanFacts,
    Query,
    build_queries,
    literal,
    quoted,
)
from archipelago.operator.traffic.signals import adapters
from archipelago.planner.problem import Phase
from tests.support.operator.badsource import source
from tests.support.prometheus.pages import Pages
from tests.support.prometheus.server import Prometheus, Target

PAYLOADS = [
    '"',
    '"}',
    '"} or vector(1) #',
    '"} or {__name__=~".+',
    '",namespace=~".*',
    '",namespace=~".*"} or up{a="',
    "\\",
    "\\\\",
    '\\"',
    '\\"} or up #',
    "'",
    "`",
    "`} or up{a=`",
    "\n",
    '\n"} or up',
    "\x00",
    "\x7f\x1b[2J",
    "# comment",
    "$1 ${x} {{ x }}",
    "\\x22} or up{a=\\x22",
    "\\u0022} or up",
    '"}[5m] offset 1d',
    '"} @ 0 + on() group_left() up',
    ".*|.+",
    "é\u202e\U0001f600",
]


def shape(expression: str) -> tuple[object, list[tuple[str, str, str]]]:
    """The syntax tree with the values of label matchers taken out, and these."""
    matchers: list[tuple[str, str, str]] = []

    def of(node: object) -> object:
        if isinstance(node, promql_parser.VectorSelector):
            labels = [(str(m.op), m.name, m.value) for m in node.matchers.matchers]
            matchers.extend(labels)
            assert not node.matchers.or_matchers
            assert node.offset is None
            assert node.at is None
            return "selector", node.name, [(op, name) for op, name, _ in labels]
        if isinstance(node, promql_parser.AggregateExpr):
            assert node.modifier is not None
            return "aggregate", str(node.op), node.modifier.labels, of(node.expr)
        if isinstance(node, promql_parser.BinaryExpr):
            return "binary", str(node.op), of(node.lhs), of(node.rhs)
        if isinstance(node, promql_parser.Call):
            return "call", node.func.name, [of(one) for one in node.args]
        if isinstance(node, promql_parser.ParenExpr):
            return of(node.expr)
        assert isinstance(node, promql_parser.StringLiteral | promql_parser.NumberLiteral), node
        return "literal", node.val

    return of(promql_parser.parse(expression)), matchers


def expressions(adapter: str, namespace: str, plan: str, model: str) -> list[str]:
    facts = PlanFacts(
        namespace,
        plan,
        {model: ModelFacts(adapter, {f"{model}-a": Phase.MIXED}, frozenset({model}))},
    )
    queries = build_queries(adapters()[adapter], facts, source("http://x"))
    return [*(query.text for query in queries.families), queries.freshness]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("adapter", ["vllm", "sglang", "dynamo", "llm-d"])
def test_no_name_changes_the_form_of_a_query(adapter: str, payload: str) -> None:
    """The same tree; in it the payload is the value of a matcher, character by character."""
    plain = [shape(one) for one in expressions(adapter, "ns", "plan", "m")]
    attacked = [shape(one) for one in expressions(adapter, payload, payload, payload)]
    assert [tree for tree, _ in attacked] == [tree for tree, _ in plain]
    for _, matchers in attacked:
        values = {value for _, name, value in matchers if name == "namespace"}
        assert values == {payload}
        for op, _, value in (m for m in matchers if m[1] == "archipelago_dev_plan"):
            if op.endswith("Equal"):
                assert value == payload
            else:
                assert re.fullmatch(value, payload)
                assert re.fullmatch(value, "")
                assert not re.fullmatch(value, payload + "x")


@pytest.mark.slow
def test_prometheus_itself_reads_every_query_and_every_value(
    prometheus: Prometheus, pages: Pages
) -> None:
    """A series is found by its label, whatever is in that; and by no other payload."""
    values = [payload for payload in PAYLOADS if "\x00" not in payload]  # no label can have it
    escaped = [
        value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in values
    ]
    lines = [f'a{{v="{text}"}} {i}' for i, text in enumerate(escaped)]
    pages.put({"/metrics": "\n".join(lines) + "\n"})
    prometheus.scrape([Target(pages.address)])
    prometheus.wait_for("a")
    for i, value in enumerate(values):
        assert prometheus.value(f"a{{v={quoted(value)}}}") == i
        assert prometheus.value(f"a{{v=~{quoted(literal(value))}}}") == i
    for adapter in adapters():
        for value in PAYLOADS:
            for one in expressions(adapter, value, value, value):
                assert prometheus.query(one) == []


def many(number: int, name: str = "island-{}") -> PlanFacts:
    """A plan of so many islands."""
    islands = {name.format(i): Phase.MIXED for i in range(number)}
    return PlanFacts("ns", "plan", {"m": ModelFacts("vllm", islands)})


def test_many_islands_are_queried_in_parts_and_each_once() -> None:
    """250 in three; what the pods of any other island say is in the one question about all."""
    queries = build_queries(adapters()["vllm"], many(250), source("http://x")).families
    about_all, *parts = queries
    assert about_all.islands == ()
    assert about_all.names == ("vllm:num_requests_running", "vllm:num_requests_swapped")
    by_family: dict[tuple[str, ...], list[str]] = {}
    for query in parts:
        by_family.setdefault(query.names, []).extend(query.islands)
    assert {len(query.islands) for query in parts} == {100, 50}
    assert all(sorted(islands) == sorted(set(islands)) for islands in by_family.values())
    assert {len(islands) for islands in by_family.values()} == {250}
    few = build_queries(adapters()["vllm"], many(100), source("http://x")).families
    assert {name for query in few for name in query.names} == {
        n for query in queries for n in query.names
    }
    assert all("archipelago_dev_island" not in query.text for query in few)


def test_the_length_of_a_query_is_bounded() -> None:
    """Names of 63 characters, and of dots, which are escaped: 8,000 characters of them at most."""
    for name in ("x" * 58 + "{:05}", "." * 58 + "{:05}"):
        queries = build_queries(adapters()["vllm"], many(300, name), source("http://x")).families
        assert max(len(query.text) for query in queries) < 20_000
        assert all(len("|".join(map(literal, query.islands))) <= LONGEST for query in queries)
        assert len({island for query in queries for island in query.islands}) == 300


def test_halves_are_about_the_same_islands() -> None:
    (whole, *_) = build_queries(adapters()["vllm"], many(5), source("http://x")).families
    first, second = whole.halves("island")
    assert first.islands + second.islands == whole.islands
    assert 'island=~"island-0|island-1"' in first.text
    assert replace(first, islands=("a",)).halves("island") == ()


@pytest.mark.slow
def test_an_island_is_found_by_its_name_alone(prometheus: Prometheus, pages: Pages) -> None:
    """A dot in a name is a dot."""
    lines = [f'a{{island="{name}"}} 1' for name in ("x.1", "xx1", "x-1")]
    pages.put({"/metrics": "\n".join(lines) + "\n"})
    prometheus.scrape([Target(pages.address)])
    prometheus.wait_for("a")
    text = Query(("a",), 'job="test"', ("x.1", "x-1"), "island").text
    assert {one["metric"]["island"] for one in prometheus.query(text)} == {"x.1", "x-1"}
