"""A ServingPlan read without a cluster: what is refused, what is said, and what it resolves to."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.perfmodel.workload.traces import read_trace
from archipelago.planner.errors import SpecError
from archipelago.planner.formats.plan_file import normalised_spec
from archipelago.planner.problem import STAGES, Billing, Domain, Link, Objective, Phase
from archipelago.planner.servingplan import ServingPlanSpec, load_resource, to_problem
from archipelago.planner.servingplan.load import prune_unknown_fields, remark
from archipelago.planner.servingplan.rule import SpecObject
from archipelago.planner.servingplan.types import REMEDIES
from benchmarks.make_thesis_examples import INVENTORIES, TRACES, example
from tests.manifests.cases import Bad, bad, good
from tests.support.operator.live import answer, plan_of

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
BAD = bad()
GOOD = good()

MINIMAL = """
apiVersion: archipelago.dev/v1alpha1
kind: ServingPlan
metadata: {name: small}
spec:
  models:
  - name: llama
    architecture: Llama-3.1-8B
    workload:
      logNormal: {median: 1000, sigma: "1", max: 8192}
      outputTokens: {mean: "200"}
  pools:
  - {name: h100, accelerator: H100, count: 8}
"""


def problems_of(text: str) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        load_resource(text)
    return caught.value.problems


# Manifests


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_alone_with_its_path_and_remedy(case: Bad) -> None:
    [(path, remedy)] = problems_of(case.text)
    assert path.startswith(case.path)
    assert case.offline in remedy


def test_there_are_at_least_forty_bad_manifests_of_different_content() -> None:
    assert len({case.text for case in BAD}) >= 40


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_manifest_is_accepted(text: str) -> None:
    load_resource(text)


def test_every_rule_between_fields_has_a_manifest_that_breaks_it() -> None:
    """A rule without one could be wrong in either language and nobody would know."""
    said = " ".join(remedy for case in BAD for _, remedy in problems_of(case.text))
    rules = [rule for kind in SpecObject.__subclasses__() for rule in kind.rules if rule.check]
    unbroken = [rule.message for rule in rules if rule.message not in said]
    assert len(rules) >= 25
    assert not unbroken


def test_every_pattern_in_use_has_words_that_say_what_it_asks_for() -> None:
    schema = json.dumps(ServingPlanSpec.model_json_schema())
    used = {found for found in REMEDIES if json.dumps(found) in schema}
    assert used == set(REMEDIES)
    assert schema.count('"pattern"') == sum(schema.count(json.dumps(p)) for p in REMEDIES)


# Messages


def test_all_mistakes_of_a_file_are_reported_at_once_with_their_lines() -> None:
    text = MINIMAL.replace("count: 8", "count: -1").replace('"200"', "200.50")
    meaning = "Mean output length [tokens], a decimal string."
    gpus = (
        "GPUs that exist in the pool and may be used [GPUs]; 0 only with maxCount. Absent: the "
        "GPUs of the nodes of nodeSelector."
    )
    assert problems_of(text) == [
        (
            "spec.models[0].workload.outputTokens.mean",
            f'write a text in quotes: "200.50". {meaning} (line 11)',
        ),
        ("spec.pools[0].count", f"at least 0. {gpus} (line 13)"),
    ]


def test_an_unknown_field_unlike_any_other_lists_those_that_exist() -> None:
    [(path, remedy)] = problems_of(MINIMAL.replace("count: 8", "count: 8, xyz: 1"))
    assert path == "spec.pools[0].xyz"
    assert "known here are name, accelerator, count, nodeSelector, domainLabel" in remedy


def test_control_characters_of_a_file_are_escaped_in_messages() -> None:
    text = MINIMAL.replace("count: 8", 'count: 8, "\\e[31mred": 1')
    [(path, remedy)] = problems_of(text)
    assert "\x1b" not in path + remedy
    assert path == 'spec.pools[0]."\\u001b[31mred"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("- a\n- b", "write a ServingPlan", id="a-list"),
        pytest.param("", "write a ServingPlan", id="nothing"),
        pytest.param("a: [1", "line 1, column 6", id="not-yaml"),
        pytest.param(MINIMAL + "---" + MINIMAL, "one ServingPlan per file", id="two-documents"),
        pytest.param("a: 1\nb: 2\na: 3", "the key 'a' occurs twice", id="a-key-twice"),
        pytest.param("a: !!python/object/apply:os.abort []", "tag:yaml.org", id="a-python-tag"),
        pytest.param("a: 2024-13-45", "not readable as YAML", id="a-date-that-is-none"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
        pytest.param(" " * 1_048_577, "at most 1048576", id="long"),
    ],
)
def test_a_text_that_is_no_serving_plan_is_refused(text: str, expected: str) -> None:
    [(path, remedy)] = problems_of(text)
    assert path == "(file)"
    assert expected in remedy


def test_aliases_that_multiply_cost_nothing() -> None:
    """Ten levels of ten aliases would be 10^10 items if anything copied them."""
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 11)]
    text = "\n".join(["l0: &l0 [0]", *levels, "spec: {models: *l10, pools: *l10}"])
    assert len(problems_of(text)) < 100


def test_the_kind_and_version_of_another_resource_are_refused() -> None:
    text = MINIMAL.replace("v1alpha1", "v1").replace("kind: ServingPlan", "kind: Deployment")
    assert [path for path, _ in problems_of(text)] == ["apiVersion", "kind"]


# What the API server would do


def test_a_resource_from_the_api_server_is_read_with_its_metadata_and_status() -> None:
    body = yaml.safe_load(MINIMAL)
    body["metadata"] |= {"namespace": "serving", "uid": "1", "labels": {"a": "b"}, "generation": 3}
    body["status"] = {"observedGeneration": 3}
    read = load_resource(body)
    assert (read.metadata.name, read.metadata.namespace) == ("small", "serving")


def test_defaults_are_those_that_are_documented() -> None:
    dumped = load_resource(MINIMAL).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert dumped["planner"] == {"strategy": "exact", "seed": 0, "gapPartsPerMillion": 1000}
    assert dumped["routing"] == {"lengthUnit": "tokens", "unknownLength": "Longest"}
    assert dumped["models"][0]["workload"]["ranges"] == {"count": 32, "spacing": "Probability"}
    assert (dumped["maxUnservable"], dumped["suspend"]) == ("0.001", False)


def test_json_is_read_like_yaml() -> None:
    assert load_resource(json.dumps(yaml.safe_load(MINIMAL))) == load_resource(MINIMAL)


def test_a_written_spec_reads_back_as_itself() -> None:
    read = load_resource(GOOD["every-field"])
    body = read.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert load_resource(body) == read


# The planning problem


def test_every_field_reaches_the_planning_problem() -> None:
    read = load_resource(GOOD["every-field"])
    problem = to_problem(read.metadata.name, read.spec)
    first, second = problem.models
    pool, small = problem.pools
    assert (first.name, first.rate, first.max_sequences) == ("a", 12.5, 512)
    assert (first.targets.ttft, first.targets.tpot) == (2.0, 0.05)
    assert (second.targets.ttft, second.targets.tpot) == (None, None)
    assert (len(first.ranges), first.ranges[-1].max) == (58, 4096)
    assert (len(second.ranges), second.ranges[-1].max) == (8, 16384)
    assert (pool.accelerator.name, pool.count, pool.gpus_per_node) == ("H200", 64, 8)
    assert pool.price_per_gpu_hour == Decimal("4.00")
    assert pool.domains == (Domain("rack-a", 4, "east"), Domain("rack-b", 4, "east"))
    assert pool.island_sizes == (4, 8, 16)
    assert (pool.max_count, pool.available, pool.billing) == (96, 96, Billing.PER_NODE)
    assert pool.nic_per_gpu == 50e9  # 3200 Gbit/s of 8 GPUs: 400 Gbit/s each
    assert (small.max_count, small.available, small.billing) == (None, 8, Billing.PER_GPU)
    assert small.nic_per_gpu is None
    assert small.domains == (Domain("rack-b", 1, "east"), Domain("rack-c", 1, "west"))
    assert problem.links == (Link(("east", "west"), 12.5e9, 0.0025),)  # 100 Gbit/s, 2.5 ms
    assert first.wire is not None  # 4 bits, and 4 bytes of scales for 32 elements
    assert (first.wire.element_bytes, second.wire) == (0.625, None)
    assert problem.pipelines == (("l40s", "h200"),)  # the order of the parts is kept
    assert (first.phases, second.phases) == (tuple(Phase), STAGES)
    assert (first.max_utilisation, second.max_utilisation) == (0.9, 1.0)
    assert (problem.budget_per_hour, problem.min_headroom) == (Decimal(512), 1.0)
    assert problem.max_unservable == 0.002
    assert problem.objective is Objective.COST
    solver = problem.solver
    assert (solver.strategy, solver.time_limit, solver.seed, solver.gap) == ("exact", 30, 7, 5e-4)


def test_a_histogram_keeps_the_means_that_it_states() -> None:
    """Means: input (900*71.2 + 100*2111.5)/1000 = 275.23, output (900*27.9 + 100*211)/1000 = 46.21.

    The second bin states no input mean; its middle is (128 + 4095)/2 = 2111.5.
    """
    read = load_resource(GOOD["every-field"])
    lengths = to_problem("x", read.spec).models[0].lengths
    assert float(lengths.probability @ lengths.length) == pytest.approx(275.23)
    assert float(lengths.probability @ lengths.output) == pytest.approx(46.21)


def test_the_order_in_a_file_has_no_meaning() -> None:
    body = yaml.safe_load(GOOD["every-field"])
    body["spec"]["pools"].append({**body["spec"]["pools"][0], "name": "another"})
    turned = json.loads(json.dumps(body))
    turned["spec"]["models"].reverse()
    turned["spec"]["pools"].reverse()
    turned["spec"]["pools"][2]["domains"].reverse()
    turned["spec"]["network"]["links"][0]["classes"].reverse()
    one, other = (to_problem("x", load_resource(b).spec) for b in (body, turned))
    assert [model.name for model in one.models] == [model.name for model in other.models]
    assert one.pools == other.pools
    assert one.links == other.links
    assert [pool.name for pool in one.pools] == ["another", "h200", "l40s"]


def test_names_that_no_catalogue_has_are_all_named_with_their_path_and_what_is_known() -> None:
    text = MINIMAL.replace("Llama-3.1-8B", "Llama-3.1-9B").replace("H100,", "H101,")
    with pytest.raises(SpecError) as caught:
        to_problem("x", load_resource(text).spec)
    architecture, accelerator = caught.value.problems
    assert architecture[0] == "spec.models[0].architecture"
    assert "'Llama-3.1-9B'" in architecture[1]
    assert "Llama-3.1-8B" in architecture[1]
    assert accelerator[0] == "spec.pools[0].accelerator"
    assert "'H101'" in accelerator[1]
    assert "H100" in accelerator[1]


def test_accelerator_names_may_be_written_in_any_case() -> None:
    spec = load_resource(MINIMAL.replace("H100,", "h100,")).spec
    assert to_problem("x", spec).pools[0].accelerator.name == "H100"


def test_ranges_end_where_the_model_ends() -> None:
    """Llama-3.1-8B reads 131,072 tokens; a longer workload is cut there, and reported."""
    spec = load_resource(MINIMAL.replace("max: 8192", "max: 200000")).spec
    assert to_problem("x", spec).models[0].ranges[-1].max == 131_072


def test_links_and_pipelines_have_their_order_by_content() -> None:
    """Their names are for people; a problem has none of them."""
    body = yaml.safe_load(GOOD["every-field"])
    spec = body["spec"]
    spec["pools"].append({**spec["pools"][0], "name": "gh", "domains": [], "maxCount": 64})
    spec["network"]["links"] += [
        {"name": "a", "classes": ["west", "default"], "gigabitsPerSecond": "8"},
        {"name": "b", "classes": ["east", "default"], "gigabitsPerSecond": "16"},
    ]
    spec["pipelines"] = [
        {"name": "a", "pools": ["l40s", "h200"]},
        {"name": "b", "pools": ["h200x", "h200"]},
    ]
    spec["pools"].append({**spec["pools"][0], "name": "h200x"})
    problem = to_problem("x", load_resource(body).spec)
    assert problem.links == (
        Link(("default", "east"), 2e9),
        Link(("default", "west"), 1e9),
        Link(("east", "west"), 12.5e9, 0.0025),
    )
    assert problem.pipelines == (("h200x", "h200"), ("l40s", "h200"))


@pytest.mark.parametrize(
    ("said", "headroom"),
    [
        ("", None),
        ('minHeadroom: "1.5"', 1.5),
        ("objective: MinimiseCost", 1.0),
        ('objective: MinimiseCost\n  minHeadroom: "1.5"', 1.5),
    ],
)
def test_the_least_cost_is_that_of_the_stated_rates(said: str, headroom: float | None) -> None:
    """Without a least headroom the cheapest plan would be none."""
    text = MINIMAL.replace("    workload", '    requestsPerSecond: "3"\n    workload')
    text = text.replace("count: 8", 'count: 8, pricePerGPUHour: "3"') + f"  {said}\n"
    problem = to_problem("x", load_resource(text).spec)
    assert problem.min_headroom == headroom
    assert problem.minimise_cost == ("MinimiseCost" in said)


def test_a_network_adapter_without_nodes_is_that_of_one_gpu() -> None:
    text = MINIMAL.replace("count: 8", 'count: 8, nicGigabitsPerSecond: "40"')
    assert to_problem("x", load_resource(text).spec).pools[0].nic_per_gpu == 5e9


def test_a_pool_may_hold_nothing_but_what_can_be_rented() -> None:
    text = MINIMAL.replace("count: 8", "count: 0, maxCount: 16, gpusPerNode: 8")
    pool = to_problem("x", load_resource(text).spec).pools[0]
    assert (pool.count, pool.available) == (0, 16)


def test_pools_of_a_pipeline_that_never_meet_are_named() -> None:
    """Islands stay inside one class; the API server has no budget to compare all domains."""
    body = yaml.safe_load(GOOD["every-field"])
    body["spec"]["pools"][1]["domains"] = [{"name": "rack-c", "nodes": 2, "class": "west"}]
    with pytest.raises(SpecError) as caught:
        to_problem("x", load_resource(body).spec)
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pipelines[0].pools"
    assert remedy.startswith("l40s (west) and h200 (east) have no class in common")


def test_a_pool_whose_nodes_nobody_looked_up_says_what_to_do_offline() -> None:
    """Both of them, beside what else is wrong; the counted one is none of them."""
    text = GOOD["nodes-found"].replace("architecture: Llama-3.1-8B", "architecture: Llama-4-8B")
    with pytest.raises(SpecError) as caught:
        to_problem("x", load_resource(text).spec)
    paths = [path for path, _ in caught.value.problems]
    assert paths == [
        "spec.models[0].architecture",
        "spec.pools[0].nodeSelector",
        "spec.pools[1].nodeSelector",
    ]
    remedy = caught.value.problems[1][1]
    assert "state count instead" in remedy
    assert "kubectl get nodes -o json | archipelago pools -f -" in remedy


def test_what_is_watched_and_how_is_read_as_it_is_documented() -> None:
    """The defaults, and the example that gives every field."""
    default = load_resource(MINIMAL).spec
    replanning = default.replanning
    assert (replanning.mode, replanning.source, replanning.approve) == ("Advise", None, None)
    assert (replanning.window_seconds, replanning.tolerance_percent) == (60, 5)
    assert (replanning.target_utilisation, replanning.max_per_hour) == ("0.8", 6)
    assert (replanning.cool_down_seconds, replanning.dwell_seconds) == (300, 900)
    assert (replanning.horizon_seconds, replanning.drain_seconds) == (1800, 10)
    assert (replanning.max_flips, replanning.max_moved_gpus) == (4, 16)
    assert (replanning.windows.needed, replanning.windows.of) == (3, 5)
    engine = default.models[0].engine
    assert (engine.role_switch, engine.metrics, engine.served_name) == ("Restart", "vllm", None)
    given = load_resource(GOOD["every-field"]).spec
    assert (given.replanning.mode, given.replanning.source) == ("Advise", "prometheus")
    assert given.models[0].engine.served_name == "deepseek-ai/DeepSeek-V3"


def test_what_is_watched_is_no_part_of_the_problem_nor_of_a_plan_file() -> None:
    body = yaml.safe_load(GOOD["every-field"])
    for field in ("metrics", "servedName"):
        del body["spec"]["models"][0]["engine"][field]
    del body["spec"]["replanning"]
    whole, watched_otherwise = load_resource(GOOD["every-field"]), load_resource(body)
    assert normalised_spec(whole) == normalised_spec(watched_otherwise)
    stated = yaml.safe_load(GOOD["every-field"])["spec"]["models"][0]["engine"]
    assert normalised_spec(whole)["models"][0]["engine"] == {
        name: value for name, value in stated.items() if name not in ("metrics", "servedName")
    }
    assert to_problem("x", whole.spec).models[0].name == "a"
    assert "engine" not in normalised_spec(load_resource(MINIMAL))["models"][0]


def test_a_plan_file_of_an_engine_with_metrics_of_its_own_can_be_read_again() -> None:
    body = yaml.safe_load(GOOD["every-field"])
    body["spec"]["models"][0]["engine"] |= {"name": "sglang", "metrics": "dynamo"}
    again = load_resource({**body, "spec": normalised_spec(load_resource(body))}).spec
    assert [model.engine.name for model in again.models] == ["sglang", None]


ADDRESSES = (
    *("http://169.254.169.254/latest/meta-data", "http://[::ffff:169.254.169.254]/", "//localhost"),
    *("http://0xa9fea9fe/", "http://2852039166/", "http://0251.0376.0251.0376/", "http://0.0.0.0"),
    *("https://localhost:9090", "http://127.1/", "http://[::1]:9090", "http://metadata.google"),
    *("file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "ftp://example.com", "dict://127.0.0.1"),
    *("http://user@169.254.169.254", "http://example.com#@169.254.169.254", "ldap://localhost"),
    *("HTTP://LOCALHOST", "http:\\\\localhost", "http://localhost%2f", "jar:http://localhost!/"),
    *("http://prometheus.monitoring:9090", "unix:///var/run/docker.sock", "data:text/plain,x"),
    *("http://①②⑦.⓪.⓪.①", "http://localhost\n", " http://localhost", "http://kubernetes.default"),
    *("169.254.169.254:80", "localhost:9090", "[::1]:80", "kubernetes.default.svc", "127.0.0.1"),
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_source_of_metrics_is_a_name_and_never_an_address(address: str) -> None:
    """What has the form of a name is one: it is looked up in the operator's configuration."""
    body = yaml.safe_load(GOOD["every-field"])
    body["spec"]["replanning"]["source"] = address
    with pytest.raises(SpecError) as caught:
        load_resource(body)
    assert [path for path, _ in caught.value.problems] == ["spec.replanning.source"]


def test_no_text_of_a_spec_can_hold_a_url() -> None:
    """Closed vocabularies cannot, and no pattern lets ``//`` through."""
    schema = ServingPlanSpec.model_json_schema()
    texts = list(_texts(schema))
    assert len(texts) >= 25
    open_ones = [text for text in texts if not {"enum", "const", "pattern"} & set(text)]
    assert open_ones == []
    urls = [address for address in ADDRESSES if "//" in address or "\\" in address]
    assert len(urls) >= 20
    patterns = {text["pattern"] for text in texts if "pattern" in text}
    assert not [(p, u) for p in patterns for u in urls if re.fullmatch(p, u)]


def _texts(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  # any part of a JSON schema
    """Every schema of a text at or below this one."""
    if isinstance(schema, dict):
        if schema.get("type") == "string":
            yield schema
        for below in schema.values():
            yield from _texts(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from _texts(below)


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        ("pool", True),
        ("a.b-c.example.com/A_b.c-1", True),
        (f"{'a' * 63}/{'e' * 63}", True),  # 127
        (f"{'a' * 64}/{'e' * 63}", False),  # 128
        ("e" * 64, False),
        ("a..b/c", False),
        ("/c", False),
        ("A.b/c", False),
        ("a/b/c", False),
        ("c-", False),
        ("c\n", False),
        ("", False),
    ],
)
def test_the_key_of_a_label_is_what_kubernetes_takes(key: str, accepted: bool) -> None:
    body = yaml.safe_load(GOOD["nodes-found"])
    body["spec"]["pools"][1]["nodeSelector"] = {key: "x"}
    if accepted:
        load_resource(body)
        return
    with pytest.raises(SpecError) as caught:
        load_resource(body)
    assert [path for path, _ in caught.value.problems] == ["spec.pools[1].nodeSelector"]


@pytest.mark.parametrize(
    ("others", "same"),
    [
        ("{name: h100-a, accelerator: H20, count: 8, gpusPerNode: 8}", True),
        ("{name: h100-rented, accelerator: H20, count: 8, gpusPerNode: 8}", True),
        ("{name: h100-b, accelerator: H20, count: 8, gpusPerNode: 8}", False),
        ("{name: h100-a, accelerator: H20, count: 8}", False),  # no nodes, no names
    ],
)
def test_two_nodes_never_have_one_name(others: str, same: bool) -> None:
    """Nodes of the first pool: h100-a-0, and h100-rented-0 to be rented."""
    first = "count: 8, gpusPerNode: 8, maxCount: 16, domains: [{name: a, nodes: 1}]"
    text = MINIMAL.replace("count: 8", first) + f"  - {others}\n"
    spec = load_resource(text).spec
    if not same:
        assert len(to_problem("x", spec).pools) == 2
        return
    with pytest.raises(SpecError) as caught:
        to_problem("x", spec)
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools[1].name"
    assert "-0 ... would be in pool h100 as well: rename one pool" in remedy


# Examples


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_reads_and_resolves(file: Path) -> None:
    read = load_resource(file.read_text())
    assert to_problem(read.metadata.name, read.spec).models


def test_the_examples_are_as_short_as_they_promise() -> None:
    lines = {file.stem[:2]: len(file.read_text().splitlines()) for file in EXAMPLES}
    assert lines["01"] <= 40
    assert lines["02"] <= 12


@pytest.mark.parametrize("trace", TRACES)
def test_the_thesis_examples_are_what_their_traces_give(trace: str) -> None:
    file = ROOT.parent / "shared" / "data" / "traces" / "azure_2023" / TRACES[trace]
    if not file.exists():
        pytest.skip(f"needs {file.name} of Azure/AzurePublicDataset in ../shared/data")
    read = read_trace(file)
    for letter in INVENTORIES:
        committed = ROOT / "examples" / f"thesis-{letter}-{trace}.yaml"
        assert committed.read_text() == example(letter, trace, read)


@pytest.mark.parametrize(
    ("trace", "requests", "input_mean", "output_mean"),
    [("code", 8819, 2047.848, 27.8825), ("conversation", 19_366, 1154.697, 211.1259)],
)
def test_the_thesis_examples_keep_the_means_of_their_traces(
    trace: str, requests: int, input_mean: float, output_mean: float
) -> None:
    """Means counted from the traces themselves: sum of the tokens over the number of requests."""
    read = load_resource((ROOT / "examples" / f"thesis-a-{trace}.yaml").read_text())
    histogram = read.spec.models[0].workload.histogram
    assert histogram is not None
    assert sum(b.weight for b in histogram.bins) == requests
    lengths = to_problem("x", read.spec).models[0].lengths
    assert float(lengths.probability @ lengths.length) == pytest.approx(input_mean, abs=1e-3)
    assert float(lengths.probability @ lengths.output) == pytest.approx(output_mean, abs=1e-4)


EXAMPLE = Path(__file__).parents[3] / "examples" / "02-minimal.yaml"


def minimal() -> dict[str, Any]:
    resource: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return resource


def newer() -> dict[str, Any]:
    resource = minimal()
    resource["spec"] |= {"brandNew": "now", "planner": {"depth": {"of": 3}}}
    resource["spec"]["models"][0]["colour"] = "red"
    return resource


def test_known_fields_stay_and_unknown_ones_are_named_by_path() -> None:
    resource = newer()
    before = copy.deepcopy(resource)
    known, paths = prune_unknown_fields(resource)

    assert known == minimal() | {"spec": minimal()["spec"] | {"planner": {}}}
    assert paths == ("spec.brandNew", "spec.models[0].colour", "spec.planner.depth")
    assert resource == before


def test_a_resource_that_we_know_is_passed_on_as_it_is() -> None:
    resource = minimal()
    known, paths = prune_unknown_fields(resource)

    assert known is resource
    assert remark(paths) == ""


def test_the_plan_is_that_of_the_known_fields_and_says_what_had_no_effect() -> None:
    plain, odd = plan_of(minimal()), plan_of(newer())

    assert odd["steps"] == plain["steps"]
    assert odd["message"] == (
        f"{plain['message']}; without effect, unknown to this version of the operator: "
        "spec.brandNew, spec.models[0].colour, spec.planner.depth"
    )


def test_a_failure_says_so_too() -> None:
    resource = newer()
    resource["spec"]["pools"][0]["accelerator"] = "H9000"
    failed = answer({"kind": "plan", "resource": resource})

    assert failed["reason"] == "UnknownAccelerator"
    assert "spec.models[0].colour" in failed["message"]


def test_many_are_counted() -> None:
    assert remark(tuple(f"spec.f{number}" for number in range(12))).endswith("spec.f9 and 2 more")
