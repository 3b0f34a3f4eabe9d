"""No name that a user chooses changes what Prometheus is asked."""

import re

import promql_parser
import pytest

from archipelago.operator.promql import ModelFacts, PlanFacts, questions, quoted
from archipelago.operator.signals import adapters
from archipelago.planner.problem import Phase
from tests.operator.badsource import source
from tests.prometheus.pages import Pages
from tests.prometheus.server import Prometheus, Target

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
            found = [(str(m.op), m.name, m.value) for m in node.matchers.matchers]
            matchers.extend(found)
            assert not node.matchers.or_matchers
            assert node.offset is None
            assert node.at is None
            return "selector", node.name, [(op, name) for op, name, _ in found]
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
    asked = questions(adapters()[adapter], facts, source("http://x"))
    return [*asked.families, asked.freshness]


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
        assert prometheus.value(f"a{{v=~{quoted(re.escape(value))}}}") == i
    for adapter in adapters():
        for value in PAYLOADS:
            for one in expressions(adapter, value, value, value):
                assert prometheus.query(one) == []
