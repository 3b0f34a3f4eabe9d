"""B18 on a real API server: one plan led through specs that differ in any field."""

import json
from random import Random

import pytest

from archipelago.operator.worker import answer
from tests.controlplane import eventually
from tests.e2e.operators import Operator, Plans, resource
from tests.operator.fields import BASES, Variant, variants

pytestmark = pytest.mark.cluster

STEPS = 24


def chosen() -> list[Variant]:
    """Some of every base, in an order that nobody would think of."""
    random = Random(36)  # noqa: S311
    found: list[Variant] = []
    for base in BASES:
        here = [v for v in variants() if v.base == base and not v.path.endswith("architecture")]
        found += random.sample(here, STEPS // len(BASES))
    random.shuffle(found)
    return found


def test_a_plan_is_led_through_many_specs_and_each_is_answered(
    plans: Plans, operator: Operator
) -> None:
    last: object = None
    for generation, variant in enumerate(chosen(), start=1):
        # Replaced, not merged: what the last spec had and this one has not must go.
        verb = "create" if generation == 1 else "replace"
        spec = variant.spec | {"suspend": variant.spec.get("suspend", False)}
        plans.kubectl(verb, "-f", "-", input=json.dumps(resource("chat", spec)))
        eventually(lambda: _is_answered(plans), within=40)

        reply = answer(resource("chat", spec))
        table = plans.table("chat").get("content")
        if "planned" in reply and not spec["suspend"]:
            assert plans.ready("chat")[0] == "True", variant
            assert table == json.loads(reply["planned"]["content"]), variant
        else:
            assert plans.ready("chat")[0] == "False", variant
            assert table == last, variant  # I8
        last = table
    assert operator.is_running()
    assert not [line for line in operator.lines() if line["level"] == "ERROR"]


def _is_answered(plans: Plans) -> bool:
    generation = plans.plan("chat")["metadata"]["generation"]
    truth, _, observed = plans.ready("chat")
    return truth in ("True", "False") and observed == generation
