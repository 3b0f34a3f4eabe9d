"""What the spec says of an engine moves plans the right way, and the checker reads it as well."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from archipelago.perfmodel.calibration.corrections import Calibration
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism, Splits, candidates
from archipelago.perfmodel.roofline.settings import EngineSettings
from archipelago.planner.check.checker import run_checks
from archipelago.planner.check.index import PlanIndex
from archipelago.planner.errors import InputError
from archipelago.planner.explain.provenance import facts
from archipelago.planner.formats.calibrations import CalibrationFile, calibrated
from archipelago.planner.plan import Infeasible, Plan, Planned, running_islands
from archipelago.planner.problem import Phase, PlanningProblem
from archipelago.planner.service.inputs import base_of
from archipelago.planner.service.messages import PlanReply, PlanRequest
from archipelago.planner.service.new_spec import plan_request
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.plan_of_table import plan_of
from archipelago.planner.table.validate import validate_content
from archipelago.planner.table.write import routing_content
from archipelago.planner.templates.build import Unusable, build_templates, performance_model
from archipelago.planner.templates.catalogue import build_catalogue
from archipelago.planner.templates.shapes import Shape
from archipelago.planner.templates.template import Template

BODY = """
apiVersion: archipelago.dev/v1alpha1
kind: ServingPlan
metadata: {name: chat}
spec:
  models:
  - name: chat
    architecture: Llama-3.1-8B
    maxSequences: 64
    workload:
      logNormal: {median: 2000, sigma: "1", max: 16384}
      outputTokens: {mean: "200"}
      ranges: {count: 4}
    slo: {ttftMilliseconds: 2000, tpotMilliseconds: 50}
  pools:
  - {name: l40s, accelerator: L40S, count: 4, gpusPerNode: 4, nicGigabitsPerSecond: "400"}
"""
WIDE: dict[str, Any] = {"architecture": "DeepSeek-V3", "pool": {"accelerator": "H200", "count": 16}}


def resource_of(architecture: str = "Llama-3.1-8B", pool: Any = None, **engine: Any) -> Any:  # noqa: ANN401
    body = yaml.safe_load(BODY)
    body["spec"]["models"][0] |= {"architecture": architecture, "engine": engine}
    if pool:
        body["spec"]["pools"][0] |= {"gpusPerNode": 8, **pool}
    return load_resource(body)


def problem_of(**given: Any) -> PlanningProblem:  # noqa: ANN401
    resource = resource_of(**given)
    return to_problem(resource.metadata.name, resource.spec)


def planned(problem: PlanningProblem) -> Plan:
    outcome = strategy("exact").plan(problem)
    assert isinstance(outcome, Planned), outcome
    return outcome.plan


def shape(phase: Phase, **engine: Any) -> Shape:  # noqa: ANN401
    problem = problem_of(**engine)
    pool = problem.pools[0]
    return Shape(problem.models[0], ((pool, 2),), "default", Parallelism(tp=2), phase)


def of(phase: Phase, **engine: Any) -> list[Template]:  # noqa: ANN401
    try:
        return build_templates(shape(phase, **engine))
    except Unusable:
        return []


def best(templates: list[Template]) -> float:
    """Requests per second of an island at its best operating point, over the servable mix."""
    rates = [0.0]
    for template in templates:
        load = (np.nan_to_num(template.rows, posinf=0.0) * template.servable).sum(axis=1).max()
        rates.append(1 / load if load > 0 else 0.0)
    return max(rates)


def served(templates: list[Template]) -> int:
    return max((int(template.servable.sum()) for template in templates), default=0)


shares = st.integers(0, 99).map(lambda n: f"{n / 100:.2f}")


@given(st.integers(600, 1000), st.integers(600, 1000))
def test_more_memory_never_serves_less(one: int, other: int) -> None:
    low, high = sorted((one, other))
    less, more = (of(Phase.DECODE, memoryShare=f"{n / 1000:.3f}") for n in (low, high))
    assert served(less) <= served(more)
    if served(less) == served(more):
        assert best(less) <= best(more) * (1 + 1e-9)
    room = [each[0].performance.kv_capacity() if each else 0 for each in (less, more)]
    assert room[0] <= room[1]


@given(st.sampled_from(["Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b"]))
def test_a_smaller_cache_dtype_halves_what_tokens_take(name: str) -> None:
    wide, narrow = (
        problem_of(architecture=name, kvDtype=dtype).models[0].architecture
        for dtype in ("bf16", "fp8")
    )
    assert wide == problem_of(architecture=name).models[0].architecture
    islands = [Roofline(accelerator("B200"), each, Parallelism(tp=8), 8) for each in (wide, narrow)]
    assert islands[0].kv_capacity() < islands[1].kv_capacity()
    length = np.array([100.0, 5000.0])
    assert islands[0].kv_bytes(length) == pytest.approx(2 * islands[1].kv_bytes(length))
    full = np.array(float(islands[0].kv_capacity()))
    steps = [float(each.decode_step_time(np.array(8.0), full)) for each in islands]
    assert steps[1] < steps[0]


def test_the_cache_dtype_reaches_the_network_row() -> None:
    rows = []
    for dtype in ("bf16", "fp8"):
        template = of(Phase.PREFILL, kvDtype=dtype)[0]
        rows.append(template.rows[template.row_names.index("network")])
    assert rows[0] == pytest.approx(2 * rows[1])


@given(shares, shares)
def test_hits_of_the_prefix_cache_never_make_prompts_dearer(one: str, other: str) -> None:
    less, more = (of(Phase.PREFILL, prefixHitShare=s) for s in sorted((one, other), key=float))
    assert np.all(more[0].rows[0] <= less[0].rows[0] * (1 + 1e-9))
    assert served(less) <= served(more)
    at = less[0].row_names.index("network")
    assert np.array_equal(less[0].rows[at] > 0, more[0].rows[at] > 0)
    assert less[0].performance.kv_capacity() == more[0].performance.kv_capacity()
    everything = np.array([5000.0])
    assert less[0].performance.kv_bytes(everything) == more[0].performance.kv_bytes(everything)


steps = st.lists(st.tuples(st.integers(1, 20_000), shares), max_size=5, unique_by=lambda t: t[0])


@given(steps, shares)
def test_a_longer_prompt_never_takes_less_time(found: list[tuple[int, str]], rest: str) -> None:
    hits = tuple((float(end), float(share)) for end, share in sorted(found))
    settings = EngineSettings(prefix_hits=hits, prefix_hit=float(rest), chunk=2048)
    lengths = np.unique(np.array([1, *(end + n for end, _ in hits for n in (0, 1)), 30_000.0]))
    assert np.all(np.diff(settings.new_tokens(lengths)) >= 0)
    assert np.all(settings.new_tokens(lengths) <= lengths)
    for card, name in (("H100", "Llama-3.1-8B"), ("H200", "gpt-oss-120b")):
        model = Roofline(
            accelerator(card), architecture(name), Parallelism(tp=2), settings=settings
        )
        assert np.all(np.diff(model.prefill_time(np.linspace(1, 30_000, 300))) >= -1e-12)


def test_hits_by_length_are_as_stated() -> None:
    """2,048 tokens with a tenth cached: 1,843 to compute; above that a half, but never fewer."""
    settings = EngineSettings(prefix_hits=((2048.0, 0.1), (8192.0, 0.5)), prefix_hit=0.75)
    found = settings.new_tokens(np.array([1000.0, 2048.0, 2049.0, 8192.0, 8193.0, 40_000.0]))
    assert found == pytest.approx([900.0, 1843.2, 1843.2, 4096.0, 4096.0, 10_000.0])


@given(st.integers(1, 8), st.integers(0, 100))
def test_drafts_that_are_never_accepted_never_help(drafted: int, percent: int) -> None:
    plain = of(Phase.DECODE)
    useless = of(Phase.DECODE, speculation={"draftTokens": drafted, "acceptance": "0"})
    assert best(useless) <= best(plain) * (1 + 1e-9)
    more, most = (
        {"draftTokens": drafted, "acceptance": f"{p / 100:.2f}"} for p in (percent / 2, percent)
    )
    found = [best(of(Phase.DECODE, speculation=each)) for each in (more, most)]
    assert found[0] <= found[1] * (1 + 1e-6)


@given(st.integers(1, 8), st.integers(0, 100), st.integers(0, 100))
def test_drafts_that_cost_more_never_help(drafted: int, one: int, other: int) -> None:
    low, high = sorted((one, other))
    found = [
        best(
            of(
                Phase.DECODE,
                speculation={
                    "draftTokens": drafted, "acceptance": "0.7", "draftCost": f"{cost / 100:.2f}",
                },
            )
        )
        for cost in (low, high)
    ]  # fmt: skip
    assert found[1] <= found[0] * (1 + 1e-6)


# Splits


@given(st.sampled_from(["Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b"]), st.data())
def test_templates_have_pinned_degrees(name: str, data: st.DataObject) -> None:
    degree = st.none() | st.sampled_from([1, 2, 4, 8])
    tp, pp, dp, ep = (data.draw(degree, label=name) for name in ("tp", "pp", "dp", "ep"))
    copies = data.draw(st.sampled_from([None, True, False]), label="copies")
    splits, model = Splits(tp, pp, dp, ep, copies), architecture(name)
    for gpus in (1, 2, 8, 16):
        for phase in Phase:
            found = candidates(model, accelerator("H200"), gpus, 8, phase, splits=splits)
            assert all(split.gpus == gpus and splits.admits(split) for split in found)
            if splits == Splits():
                assert found == candidates(model, accelerator("H200"), gpus, 8, phase)


def test_a_split_that_is_not_usual_is_planned_if_it_is_pinned() -> None:
    problem = problem_of(parallelism={"tensor": 1, "pipeline": 4})
    assert {t.parallelism for t in build_catalogue(problem).templates} == {Parallelism(pp=4)}
    copies = problem_of(parallelism={"data": 2, "tensor": 1})
    plan = planned(copies)
    assert {g.parallelism.dp for g in plan.groups} == {2}
    assert [line for item in run_checks(copies, plan) for line in item.findings] == []


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"parallelism": {"tensor": 3}}, "with parallelism tensor 3 of models"),
        ({"parallelism": {"expert": 4}}, "with parallelism expert 4 of"),
        ({"attentionDataParallel": "Always"}, "attentionDataParallel Always of"),
    ],
)
def test_a_split_of_no_island_size_is_infeasible_and_named(
    engine: dict[str, Any], said: str
) -> None:
    outcome = strategy("exact").plan(problem_of(**engine))
    assert isinstance(outcome, Infeasible)
    assert said in outcome.message


@pytest.mark.parametrize(("copies", "wanted"), [("Always", True), ("Never", False)])
def test_copies_of_the_attention_are_as_stated(copies: str, wanted: bool) -> None:
    catalogue = build_catalogue(problem_of(**WIDE, attentionDataParallel=copies))
    assert {t.parallelism.dp > 1 for t in catalogue.templates} == {wanted}


# The checker, tables and calibrations

EVERY: dict[str, Any] = {
    "name": "vllm",
    "version": "0.12.0",
    "kvDtype": "fp8",
    "memoryShare": "0.85",
    "chunkTokens": 2048,
    "prefixHitShare": "0.4",
    "prefixHitShares": [{"upToTokens": 1024, "share": "0.1"}],
    "speculation": {"draftTokens": 3, "acceptance": "0.7", "draftCost": "0.05"},
    "parallelism": {"tensor": 2},
    "transferDtype": "int4",
}
NAMES = (
    "kvDtype",
    "memoryShare",
    "chunkTokens",
    "prefixHitShare",
    "speculation",
    "transferDtype",
)
OTHERS: dict[str, Any] = {
    "kvDtype": "bf16",
    "memoryShare": "0.6",
    "chunkTokens": 512,
    "prefixHitShare": "0",
    "prefixHitShares": [{"upToTokens": 1024, "share": "0"}],
    "speculation": {"draftTokens": 1, "acceptance": "0.1"},
    "parallelism": {"tensor": 1},
    "transferDtype": "int8",
}


def findings(problem: PlanningProblem, plan: Plan) -> list[str]:
    return [line for item in run_checks(problem, plan) for line in item.findings]


def test_a_plan_with_every_field_is_accepted_and_with_any_other_one_refused() -> None:
    problem = problem_of(**EVERY)
    plan = planned(problem)
    assert findings(problem, plan) == []
    for name, value in OTHERS.items():
        other = problem_of(**{**EVERY, name: value})
        if name not in ("prefixHitShare", "prefixHitShares"):
            assert findings(other, plan), name
        # Also if the islands were started like that: then the times are others.
        [model] = other.models
        alike = replace(other, models=(replace(model, started=problem.models[0].started),))
        assert findings(alike, plan), name


def test_the_checker_has_the_performance_model_of_the_templates() -> None:
    problem = problem_of(**EVERY)
    plan = planned(problem)
    index = PlanIndex(problem, plan)
    for group in plan.groups:
        sections = tuple((index.pools[part.pool], part.gpus) for part in group.sections)
        [model] = problem.models
        form = Shape(model, sections, group.domain_class, group.parallelism, group.phase)
        theirs, ours = performance_model(form)[0], index.performance(group)
        lengths = np.array([100.0, 1024.0, 1025.0, 9000.0])
        assert np.array_equal(theirs.prefill_time(lengths), ours.prefill_time(lengths))
        assert theirs.kv_capacity() == ours.kv_capacity()
        batch = np.array([1.0, 30.0])
        step = theirs.decode_step_time(batch, 1000 * batch)
        assert np.array_equal(step, ours.decode_step_time(batch, 1000 * batch))


def test_islands_of_other_settings_are_started_anew() -> None:
    """What changes times alone keeps the pods; what an engine is started with does not."""
    resource = resource_of(**EVERY)
    problem = to_problem("chat", resource.spec)
    plan = planned(problem)
    content = routing_content(resource.spec, plan)
    assert plan_of(content, problem).groups[0].started == problem.models[0].started
    for engine, kept in (
        ({**EVERY, "version": "0.13.0"}, True),
        ({**EVERY, "prefixHitShare": "0.41"}, True),
        ({**EVERY, "kvDtype": "bf16"}, False),
        ({**EVERY, "chunkTokens": 2049}, False),
    ):
        other = problem_of(**engine)
        running = running_islands(plan_of(content, other, of_it=False))
        after = planned(replace(other, running=running))
        assert after.changes is not None
        assert bool(after.changes.kept) == kept, engine
        assert findings(replace(other, running=running), after) == []
        if not kept:
            with pytest.raises(InputError, match="started with other settings"):
                plan_of(content, other)


def pairs_of(content: dict[str, Any]) -> list[set[str]]:
    """What the two groups of every pair of a table are started with."""
    of = {island["name"]: island["started"] for island in content["islands"]}
    first = {group["name"]: of[group["members"][0]] for group in content["groups"]}
    routes = [route for model in content["models"] for route in model["routes"]]
    pairs = [pair for route in routes for pair in route["pairs"]]
    return [{first[pair["prefill"]], first[pair["decode"]]} for pair in pairs]


def test_islands_of_two_settings_stand_side_by_side_and_exchange_no_caches_of_two_formats() -> None:
    pool = {"count": 16, "gpusPerNode": 4}
    old = resource_of(pool=pool, chunkTokens=2048)
    content = routing_content(old.spec, planned(to_problem("chat", old.spec)))
    for engine in ({"chunkTokens": 4096}, {"kvDtype": "fp8"}):
        body = resource_of(pool=pool, **engine).model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        reply = plan_request(PlanRequest(resource=body, content=json.dumps(content)))
        assert isinstance(reply, PlanReply)
        tables = [json.loads(step.content) for step in reply.steps]
        found = [{i["started"] for i in table["islands"]} for table in tables]
        assert [len(each) for each in (found[0], found[-1])] == [1, 1]
        assert any(len(each) == 2 for each in found)
        assert [line for table in tables for line in validate_content(table)] == []
        mixed = [pair for table in tables for pair in pairs_of(table) if len(pair) > 1]
        assert not mixed or "kvDtype" not in engine


def test_calibrations_are_of_the_engine_that_is_stated() -> None:
    slow = Calibration("L40S", "sglang", "0.5", values={"step": 5e-2})
    files = [CalibrationFile("mine.yaml", (slow,))]
    batch, cached = np.array([8.0]), np.array([8000.0])

    def step(problem: PlanningProblem) -> float:
        pool = problem.pools[0]
        form = Shape(problem.models[0], ((pool, 2),), "default", Parallelism(tp=2), Phase.DECODE)
        model, _ = performance_model(form, problem.calibrations)
        return float(model.decode_step_time(batch, cached)[0])

    for engine in ({}, {"name": "sglang", "metrics": "sglang"},
                   {"name": "sglang", "metrics": "sglang", "version": "0.5"}):  # fmt: skip
        assert step(calibrated(problem_of(**engine), files)) > 5e-2
    for engine, said in (
        ({"name": "vllm"}, "Llama-3.1-8B on vllm: calibrate"),
        ({"name": "sglang", "metrics": "sglang", "version": "0.4"}, "on sglang 0.4"),
    ):
        problem = problem_of(**engine)
        with pytest.raises(InputError, match=said):
            calibrated(problem, files)
        assert step(replace(problem, calibrations=(slow,))) == step(problem) < 5e-2


def test_the_checker_passes_over_calibrations_of_other_engines() -> None:
    problem = problem_of(name="vllm")
    slow = Calibration("L40S", "sglang", values={"step": 5e-2})
    with_both = replace(problem, calibrations=(slow,))
    plan = planned(problem)
    assert all(line.startswith("performanceModel") for line in findings(with_both, plan))
    own = findings(replace(problem, calibrations=(replace(slow, engine="vllm"),)), plan)
    assert not all(line.startswith("performanceModel") for line in own)


def test_two_engines_on_one_accelerator_have_a_calibration_each() -> None:
    body = yaml.safe_load(BODY)
    [model] = body["spec"]["models"]
    other = {**model, "name": "code", "engine": {"name": "sglang", "metrics": "sglang"}}
    body["spec"]["models"] = [model | {"engine": {"name": "vllm"}}, other]
    problem = to_problem("two", load_resource(body).spec)
    both = tuple(Calibration("L40S", name, values={"step": 1e-3}) for name in ("vllm", "sglang"))
    found = calibrated(problem, [CalibrationFile("mine.yaml", both)])
    assert len(found.calibrations) == 2
    again = (*both, Calibration("L40S", "vllm", "0.12"))
    with pytest.raises(InputError, match="keep the one"):
        calibrated(problem, [CalibrationFile("mine.yaml", again)])


def test_what_is_learnt_is_of_the_settings_it_was_learnt_with() -> None:
    plain, stated = problem_of(), problem_of(kvDtype="fp8")
    assert base_of("", plain) == ""
    found = {base_of("", stated), base_of("x", stated), base_of("x", plain),
             base_of("", problem_of(kvDtype="fp8", prefixHitShare="0.5"))}  # fmt: skip
    assert len(found) == 4
    assert "" not in found


def test_explain_says_what_is_stated_and_what_is_assumed() -> None:
    for engine, kind in (({}, "assumed"), (EVERY, "user")):
        found = {f.name: f for f in facts(problem_of(**engine)) if f.subject == "chat"}
        assert {found[name].kind.value for name in NAMES} == {kind}
    assert found["prefixHitShare"].value == "0.1 up to 1024, 0.4"
    assert found["kvDtype"].value == "1"
    assert found["transferDtype"].value == "0.625"
    overlaps = [
        next(f for f in facts(problem_of(**engine)) if f.name == "twoBatchOverlap")
        for engine in ({}, {"twoBatchOverlap": True})
    ]
    assert [(f.value, f.kind.value) for f in overlaps] == [("off", "assumed"), ("on", "user")]
    assert Decimal(found["memoryShare"].value) == Decimal("0.85")
