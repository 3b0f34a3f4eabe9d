"""What the operator writes fits the definition's schema, whatever was to be said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.decide import status_text
from archipelago.operator.resources.status import ConditionType, Reason, Status
from tests.support.operator.situations import T0, plan, ready, stored

CRD = Path(__file__).parents[3] / "crds" / "archipelago.dev_servingplans.yaml"
SCHEMA = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
STATUS = jsonschema.Draft202012Validator(SCHEMA["properties"]["status"])

HOSTILE = st.one_of(
    st.sampled_from([2**63 - 1, 2**63, 10**400, -1, float("inf"), float("nan"), 1e308, True, None]),
    st.integers(), st.floats(), st.text(max_size=40), st.sampled_from(["\ud800", "x" * 5000]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.none()),
)  # fmt: skip
FIELDS = st.sampled_from([
    "headroom", "throughput", "gpus", "slo", "objective", "contentHash", "tableSequence", "unknown",
    "message", "trigger", "level", "levels", "proposal", "time", "generation", "outcome",
])  # fmt: skip
OBJECTS = st.dictionaries(FIELDS, HOSTILE, max_size=6)


FOUND = {"trials": 3, "of": 240, "best": "455.2", "bound": "603"}


@given(OBJECTS, st.one_of(st.just(FOUND), OBJECTS), OBJECTS, OBJECTS)
def test_whatever_is_to_be_said_what_is_written_fits_the_schema_and_names_what_did_not(
    summary: dict[str, Any],
    search: dict[str, Any],
    last_plan: dict[str, Any],
    last_decision: dict[str, Any],
) -> None:
    splan = ready(plan(), stored(plan()))
    wanted = replace(
        splan.status,
        summary={**splan.status.summary, **summary},
        search=search,
        last_plan=last_plan,
        last_decision=last_decision,
    )
    fitting, faults = status_text.checked(wanted, T0)

    written = json.loads(json.dumps(fitting.to_manifest(), allow_nan=False))
    assert not list(STATUS.iter_errors(written))
    planned = fitting.condition(ConditionType.PLANNED)
    assert planned is not None
    assert bool(faults) == (planned.reason is Reason.STATUS_REFUSED)
    assert all(fault.startswith("status.") for fault in faults)
    assert status_text.checked(wanted, T0)[0].says_the_same(fitting)  # no write follows
    assert fitting.says_the_same(Status.from_body({"status": written}))  # nor once it is read


@given(st.text(max_size=3000))
def test_a_refusal_is_said_in_few_words_that_fit(answer: str) -> None:
    splan = ready(plan(), stored(plan()))

    said = status_text.refused(splan.status, answer, T0)

    assert not list(STATUS.iter_errors(json.loads(json.dumps(said.to_manifest()))))
    assert said.is_refusal
    assert said.summary["contentHash"] == splan.status.summary["contentHash"]
