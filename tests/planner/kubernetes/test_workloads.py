"""Workloads of islands: what pods get, by hand, and what a template must leave to the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.documents import to_json
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.kubernetes.engine_flags import Engine, Start, arguments, obstacle
from archipelago.planner.kubernetes.labels import label_value, role_of, roles_of
from archipelago.planner.kubernetes.pod_template import Fitting, fitted, read_template
from archipelago.planner.kubernetes.workloads import (
    NAME_LENGTH,
    ManifestOptions,
    unplaced,
    workloads,
)
from archipelago.planner.problem import Phase
from archipelago.planner.servingplan import ServingPlanSpec, load_resource
from archipelago.planner.table.write import routing_content
from tests.manifests.cases import good
from tests.planner.cli.test_app import ROOT
from tests.support.planner.command import Runner
from tests.support.planner.handmade import PLAN, PLANNED, resource
from tests.support.planner.tables import routing_table

EXAMPLE = ROOT / "examples" / "render" / "vllm.yaml"
BARE = {"spec": {"containers": [{"name": "engine", "image": "x"}]}}
LWS = "LeaderWorkerSet"


def island(name: str, pool: str, gpus: int, *nodes: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    split = {"tp": gpus, "pp": 1, "dp": 1, "ep": 1} | more.pop("split", {})
    phase = {"phase": "decode", "maxBatch": 64}
    facts = {"name": name, "pool": pool, "gpus": gpus, "nodes": list(nodes), "parallelism": split}
    return {**phase, **facts, **more}


def content(*islands: dict[str, Any]) -> dict[str, Any]:
    names = [one["name"] for one in islands]
    return {"groups": [{"model": "llama", "members": names}], "islands": list(islands)}


def spec(**engine: str) -> ServingPlanSpec:
    """Pools h100 and l40s, whose nodes are found, and rented (H20), which is counted."""
    body = yaml.safe_load(good()["nodes-found"])
    body["spec"]["models"][0]["engine"] = engine
    return load_resource(body).spec


def options(template: dict[str, Any] | None = None, **more: Any) -> ManifestOptions:  # noqa: ANN401
    return ManifestOptions("chat", {"": read_template(template or BARE)}, **more)


def one(*islands: dict[str, Any], of: ServingPlanSpec | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    (found,) = workloads(content(*islands), of or spec(), options(**more))
    return found


def engine(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def places(pod: dict[str, Any]) -> list[list[str]]:
    """Names of the nodes of each term."""
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    return [term["matchFields"][0]["values"] for term in required["nodeSelectorTerms"]]


# Islands


def test_pods_that_serve_either_phase_are_the_same_in_both() -> None:
    """With ``roleSwitch: Online`` a flip restarts nothing: labels and variables stay."""
    decoding = island("llama-0", "h100", 4, "gpu-7")
    both = [
        one(either, of=spec(roleSwitch="Online"))["spec"]["template"]
        for either in (decoding, decoding | {"phase": "prefill"})
    ]
    roles = {pod["metadata"]["labels"]["archipelago.dev/role"] for pod in both}
    assert roles == {roles_of(role_of(decoding, "llama"))[1]}
    assert all("archipelago.dev/phase" not in pod["metadata"]["labels"] for pod in both)
    phases = [item for pod in both for item in engine(pod)["env"] if "PHASE" in item["name"]]
    assert phases == 2 * [{"name": "ARCHIPELAGO_PHASE", "value": "either"}]


def test_an_engine_that_is_started_for_one_phase_has_it_in_its_role() -> None:
    decoding = island("llama-0", "h100", 4, "gpu-7")
    found = one(decoding, of=spec(roleSwitch="Online", metrics="sglang"))["spec"]["template"]
    assert found["metadata"]["labels"]["archipelago.dev/role"] == role_of(decoding, "llama")
    assert found["metadata"]["labels"]["archipelago.dev/phase"] == "decode"


def test_an_island_on_one_node_is_a_deployment_of_one_pod() -> None:
    found = one(island("llama-0", "h100", 4, "gpu-7"))
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", "Deployment")
    assert found["spec"]["replicas"] == 1
    # The next pod waits for the GPUs, and never for a pod on a lost node to end.
    turns = {"maxSurge": 0, "maxUnavailable": 1}
    assert found["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": turns}
    labels = {"archipelago.dev/plan": "chat", "archipelago.dev/island": "llama-0"}
    assert found["spec"]["selector"] == {"matchLabels": labels}
    pod = found["spec"]["template"]
    role = pod["metadata"]["labels"].pop("archipelago.dev/role")
    assert role == role_of(island("llama-0", "h100", 4, "gpu-7"), "llama")
    assert role != role_of(island("llama-0", "h100", 4, "gpu-8"), "llama")
    assert role == role_of(island("llama-0", "h100", 4, "gpu-7") | {"maxBatch": 7}, "llama")
    assert pod["metadata"]["labels"] == labels | {"archipelago.dev/phase": "decode"}
    assert engine(pod)["args"] == ["--tensor-parallel-size=4", "--max-num-seqs=64"]
    gpus = {"nvidia.com/gpu": "4"}
    assert engine(pod)["resources"] == {"limits": gpus, "requests": gpus}
    assert places(pod) == [["gpu-7"]]
    assert {item["name"]: item["value"] for item in engine(pod)["env"]} == {
        "ARCHIPELAGO_PLAN": "chat",
        "ARCHIPELAGO_ISLAND": "llama-0",
        "ARCHIPELAGO_MODEL": "llama",
        "ARCHIPELAGO_PHASE": "decode",
        "ARCHIPELAGO_GPUS": "4",
        "ARCHIPELAGO_NODES": "1",
        "ARCHIPELAGO_TP": "4",
        "ARCHIPELAGO_PP": "1",
        "ARCHIPELAGO_DP": "1",
        "ARCHIPELAGO_EP": "1",
        "ARCHIPELAGO_MAX_BATCH": "64",
    }


def test_an_island_on_several_nodes_is_a_leader_with_workers() -> None:
    """16 GPUs on 2 nodes: 8 in each pod; who follows answers no probes."""
    probe = {"httpGet": {"path": "/health", "port": 8000}}
    container = {"name": "engine", "image": "x", "readinessProbe": probe, "startupProbe": probe}
    found = one(
        island("big", "h100", 16, "n1", "n2", split={"tp": 8, "pp": 2}),
        template={"spec": {"containers": [container]}},
    )
    assert (found["apiVersion"], found["kind"]) == ("leaderworkerset.x-k8s.io/v1", LWS)
    group = found["spec"]["leaderWorkerTemplate"]
    assert (found["spec"]["replicas"], group["size"]) == (1, 2)
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader, worker = group["leaderTemplate"], group["workerTemplate"]
    assert leader["metadata"] == worker["metadata"]
    assert [places(pod) for pod in (leader, worker)] == [[["n1"], ["n2"]]] * 2
    assert engine(worker)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    common = [
        "--tensor-parallel-size=8",
        "--pipeline-parallel-size=2",
        "--max-num-seqs=64",
        "--nnodes=2",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--master-addr=$(LWS_LEADER_ADDRESS)",
    ]
    assert engine(leader)["args"] == common
    assert engine(worker)["args"] == [*common, "--headless"]
    assert "readinessProbe" in engine(leader)
    assert not {"readinessProbe", "startupProbe"} & set(engine(worker))


def test_an_island_of_two_pools_has_the_leader_in_the_first() -> None:
    parts = [
        {"pool": "l40s", "gpus": 4, "layers": 10, "nodes": ["m1"]},
        {"pool": "h100", "gpus": 4, "layers": 22, "nodes": ["n3"]},
    ]
    found = one(island("both", "l40s+h100", 8, "m1", "n3", parts=parts, split={"tp": 4, "pp": 2}))
    group = found["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 2
    assert places(group["leaderTemplate"]) == [["m1"]]
    assert places(group["workerTemplate"]) == [["n3"]]
    env = {item["name"]: item["value"] for item in engine(group["workerTemplate"])["env"]}
    assert env["ARCHIPELAGO_LAYERS"] == "10,22"


@pytest.mark.parametrize(
    ("gpus", "more", "remedy"),
    [
        ((4, 8), {}, "vllm wants equally many GPUs on each node; say --engine env"),
        ((4, 4, 4), {}, "one leader and equal workers cannot be 1 nodes of l40s and"),
    ],
)
def test_what_pods_of_two_kinds_cannot_be_is_refused(
    gpus: tuple[int, ...], more: dict[str, Any], remedy: str
) -> None:
    pools = ("l40s", "h100", "rented")
    parts = [
        {"pool": pool, "gpus": count, "layers": 8, "nodes": [pool]}
        for pool, count in zip(pools, gpus, strict=False)
    ]
    with pytest.raises(InputError, match=f"island both: {remedy}"):
        one(island("both", "x", sum(gpus), parts=parts), **more)
    if len(gpus) == 2:
        found = one(island("both", "x", sum(gpus), parts=parts), engine=Engine.ENV)
        group = found["spec"]["leaderWorkerTemplate"]
        limits = [
            engine(group[kind])["resources"]["limits"]["nvidia.com/gpu"]
            for kind in ("leaderTemplate", "workerTemplate")
        ]
        assert limits == ["4", "8"]


def test_pods_go_where_the_pool_is() -> None:
    """Found pools: on the node of the table. Counted ones: by a label, or anywhere."""
    there = content(island("a", "h100", 1, "n1"), island("b", "rented", 8, "rented-rented-0"))
    chosen = {"rented": {"cloud/pool": "h20"}}
    found, rented = workloads(there, spec(), options(selectors=chosen))
    assert "nodeSelector" not in found["spec"]["template"]["spec"]
    assert rented["spec"]["template"]["spec"]["nodeSelector"] == {"cloud/pool": "h20"}
    assert "affinity" not in rented["spec"]["template"]["spec"]
    assert unplaced(there, spec(), options(selectors=chosen)) == []
    assert unplaced(there, spec(), options()) == ["rented"]


def test_the_templates_own_affinity_still_holds() -> None:
    """Terms are alternatives: each of them, on each of the nodes."""
    terms = [{"matchExpressions": [{"key": k, "operator": "Exists"}]} for k in ("ssd", "nvme")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    template = {"spec": {**BARE["spec"], "affinity": {"nodeAffinity": required}}}
    found = one(island("a", "h100", 16, "n1", "n2"), template=template)
    leader = found["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    placed = leader["spec"]["affinity"]["nodeAffinity"]
    named = placed["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [
        (term["matchExpressions"][0]["key"], term["matchFields"][0]["values"]) for term in named
    ] == [("ssd", ["n1"]), ("ssd", ["n2"]), ("nvme", ["n1"]), ("nvme", ["n2"])]


@pytest.mark.parametrize(
    ("accelerator", "resource"),
    [("H20", "nvidia.com/gpu"), ("MI300X", "amd.com/gpu"), ("Gaudi3", "habana.ai/gaudi")],
)
def test_gpus_are_asked_for_by_the_name_of_their_plugin(accelerator: str, resource: str) -> None:
    body = yaml.safe_load(good()["nodes-found"])
    body["spec"]["pools"][0]["accelerator"] = accelerator
    found = one(island("a", "h100", 2, "n1"), of=load_resource(body).spec)
    assert engine(found["spec"]["template"])["resources"]["limits"] == {resource: "2"}


def test_names_fit_and_never_meet() -> None:
    """Of plans a and a-b, islands b-0 and 0 would both be a-b-0; a Service begins with a letter."""
    names = set()
    for plan, name in (("a", "b-0"), ("a-b", "0"), ("a", "x" * 63), ("a", "x" * 62 + "y")):
        there = content(island(name, "h100", 1, "n1"))
        (found,) = workloads(there, spec(), ManifestOptions(plan, {"": read_template(BARE)}))
        made = found["metadata"]["name"]
        assert len(made) <= NAME_LENGTH
        assert made[0].isalpha()
        names.add(made)
    assert len(names) == 4


def test_the_label_of_a_plan_is_the_one_of_its_table() -> None:
    plan = "a-very-long-name." * 10
    (found,) = workloads(
        content(island("a", "h100", 1, "n1")),
        spec(),
        ManifestOptions(plan, {"": read_template(BARE)}),
    )
    value = found["metadata"]["labels"]["archipelago.dev/plan"]
    assert value == label_value(plan)
    assert len(value) <= 63


def test_models_have_templates_of_their_own() -> None:
    own = {"spec": {"containers": [{"name": "c", "image": "own"}]}}
    both = ManifestOptions("chat", {"": read_template(BARE), "llama": read_template(own)})
    (found,) = workloads(content(island("a", "h100", 1, "n1")), spec(), both)
    assert engine(found["spec"]["template"])["image"] == "own"
    with pytest.raises(InputError, match="model llama has no template: add --pod-template llama="):
        workloads(content(island("a", "h100", 1)), spec(), ManifestOptions("chat", {"x": {}}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"groups": [{"model": "other", "members": ["a"]}]}, "serves model other"),
        ({"islands": [island("a", "elsewhere", 1)]}, "has islands in pool elsewhere"),
    ],
)
def test_a_table_of_another_plan_is_refused(changed: dict[str, Any], said: str) -> None:
    there = content(island("a", "h100", 1)) | changed
    with pytest.raises(InputError, match=said):
        workloads(there, spec(), options())


# Engines


@pytest.mark.parametrize(
    ("name", "start", "expected"),
    [
        ("vllm", Start(Phase.PREFILL, Parallelism(2), 1, 1), "--tensor-parallel-size=2"),
        (
            "vllm",
            Start(Phase.DECODE, Parallelism(2, 1, 4, 8), 256, 1),
            (
                "--tensor-parallel-size=2 --data-parallel-size=4 --enable-expert-parallel "
                "--max-num-seqs=64"
            ),
        ),
        (
            "sglang",
            Start(Phase.PREFILL, Parallelism(4), 1, 1),
            "--tp-size=4 --disaggregation-mode=prefill",
        ),
        (
            "sglang",
            Start(Phase.DECODE, Parallelism(2, 1, 8, 16), 256, 2),
            (
                "--tp-size=16 --dp-size=8 --enable-dp-attention --ep-size=16 "
                "--disaggregation-mode=decode --max-running-requests=256 --nnodes=2 "
                "--node-rank=$(LWS_WORKER_INDEX) --dist-init-addr=$(LWS_LEADER_ADDRESS):5000"
            ),
        ),
        (
            "sglang",
            Start(Phase.MIXED, Parallelism(2, 2, 2), 64, 1),
            "--tp-size=2 --pp-size=2 --dp-size=2 --max-running-requests=32",
        ),
        ("env", Start(Phase.DECODE, Parallelism(8), 256, 2), ""),
    ],
)
def test_parallelism_in_the_words_of_the_engine(name: str, start: Start, expected: str) -> None:
    assert " ".join(arguments(Engine(name), start)) == expected


def test_copies_over_nodes_that_sglang_does_not_know() -> None:
    start = Start(Phase.DECODE, Parallelism(8, 1, 2), 64, 2)
    assert "expert parallelism" in (obstacle(Engine.SGLANG, start) or "")
    assert obstacle(Engine.VLLM, start) is None


@pytest.mark.parametrize(
    ("metrics", "first"),
    [("vllm", "--tensor-parallel-size=1"), ("sglang", "--tp-size=1"), ("dynamo", None)],
)
def test_the_engine_is_the_one_whose_metrics_tell(metrics: str, first: str | None) -> None:
    found = one(island("a", "h100", 1, "n1"), of=spec(metrics=metrics))
    assert next(iter(engine(found["spec"]["template"]).get("args", ())), None) == first


# Templates


def with_container(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"spec": {"containers": [{"name": "engine", "image": "x", **more}]}}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({}, "spec: missing"),
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"spec": {"containers": [{"name": "a"}]}}, r"spec.containers\[0\].image: missing"),
        ({"kind": "Deployment", "spec": {}}, "kind: 'Deployment' is not Pod or PodTemplate"),
        ({**BARE, "metadata": {"labels": {"archipelago.dev/plan": "x"}}}, "written by us"),
        (with_container(args=["--tensor-parallel-size", "8"]), "the plan's to say; remove it"),
        (with_container(env=[{"name": "ARCHIPELAGO_TP", "value": "1"}]), "ARCHIPELAGO_TP is the"),
        (with_container(resources={"limits": {"nvidia.com/gpu": 1}}), "limits: nvidia.com/gpu is"),
        (with_container(args="--x"), r"args: '--x' is not a list"),
        (with_container(env={"a": "b"}), "env"),
        (with_container(resources=[]), "resources"),
        ({"spec": {**BARE["spec"], "nodeSelector": []}}, "spec.nodeSelector"),
        ({"spec": {**BARE["spec"], "nodeSelector": {"k": "w"}}}, "k is w, the pool's is v"),
        ({"spec": {**BARE["spec"], "affinity": {"nodeAffinity": []}}}, "spec.affinity.nodeAff"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_place(
    template: dict[str, Any], said: str
) -> None:
    own = Fitting(
        {}, 1, "nvidia.com/gpu", {"ARCHIPELAGO_TP": "1"}, ["--tensor-parallel-size=1"], ("n",),
        {"k": "v"},
    )  # fmt: skip
    with pytest.raises(PlanFileError, match=said):
        fitted(read_template(template), own)


def test_what_the_template_says_stays() -> None:
    template = {
        "kind": "PodTemplate",
        "metadata": {"name": "gone", "namespace": "gone"},
        "template": {
            "metadata": {"name": "gone", "labels": {"team": "a"}, "annotations": {"b": "c"}},
            "spec": {
                "containers": [
                    {"name": "sidecar", "image": "s"},
                    {
                        "name": "engine",
                        "image": "x",
                        "args": ["serve"],
                        "env": [{"name": "A", "value": "$(ARCHIPELAGO_TP)"}],
                        "resources": {"requests": {"cpu": 1}},
                    },
                ],
                "nodeSelector": {"a": "b"},
            },
        },
    }
    before = json.dumps(template)
    own = Fitting({"l": "v"}, 2, "g", {"ARCHIPELAGO_TP": "2"}, ["--tp=2"], (), {"c": "d"})
    pod = fitted(read_template(template), own)
    assert json.dumps(template) == before
    assert pod["metadata"] == {"labels": {"team": "a", "l": "v"}, "annotations": {"b": "c"}}
    sidecar, container = pod["spec"]["containers"]
    assert sidecar == {"name": "sidecar", "image": "s"}
    assert container["args"] == ["serve", "--tp=2"]
    assert [item["name"] for item in container["env"]] == ["ARCHIPELAGO_TP", "A"]
    assert container["resources"] == {"requests": {"cpu": 1, "g": "2"}, "limits": {"g": "2"}}
    assert pod["spec"]["nodeSelector"] == {"a": "b", "c": "d"}


# The command


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan_document(resource(), PLANNED)))
    return path


def test_a_plan_file_becomes_manifests_the_same_every_time(run: Runner, plan: Path) -> None:
    first = run("manifests", plan, "--pod-template", EXAMPLE, "--namespace", "chat")
    assert first.status == 0, first.err
    assert run("manifests", plan, "--pod-template", EXAMPLE, "-n", "chat").out == first.out
    assert "&id" not in first.out
    found = list(yaml.safe_load_all(first.out))
    assert [doc["metadata"]["labels"]["archipelago.dev/island"] for doc in found] == [
        "long-prefill-0",
        "main-decode-0",
        "short-prefill-0",
        "short-prefill-1",
        "spare-decode-0",
    ]
    assert {doc["metadata"]["namespace"] for doc in found} == {"chat"}
    assert first.err.splitlines() == [
        f"pool {name}: its nodes are unknown; set --select {name}:LABEL=VALUE"
        for name in ("a", "b")
    ]
    chosen = run(
        "manifests", plan, "--pod-template", EXAMPLE,
        "--select", "a:pool=h20", "--select", "b:pool=l40s",
    )  # fmt: skip
    assert chosen.err == ""
    pools = [
        doc["spec"]["template"]["spec"]["nodeSelector"]["pool"]
        for doc in yaml.safe_load_all(chosen.out)
    ]
    assert pools == ["l40s", "h20", "h20", "h20", "l40s"]


def test_a_serving_plan_needs_its_table(run: Runner, tmp_path: Path) -> None:
    whole = resource().model_dump(mode="json", by_alias=True, exclude_none=True)
    path, table = tmp_path / "splan.yaml", tmp_path / "table.yaml"
    whole["metadata"]["namespace"] = "team"
    path.write_text(yaml.safe_dump(whole))
    without = run("manifests", path, "--pod-template", EXAMPLE)
    assert without.status == 2
    assert "a ServingPlan has no islands; give its routing table by --table" in without.err
    written = routing_table(routing_content(resource().spec, PLAN))
    config_map = {"kind": "ConfigMap", "data": {"table.json": json.dumps(written)}}
    told = []
    for document in (written, config_map):
        table.write_text(yaml.safe_dump(document))
        told.append(run("manifests", path, "--table", table, "--pod-template", EXAMPLE))
        assert told[-1].status == 0, told[-1].err
    assert told[0].out == told[1].out
    docs = list(yaml.safe_load_all(told[0].out))
    assert {doc["metadata"]["namespace"] for doc in docs} == {"team"}
    assert len(docs) == 5


@pytest.mark.parametrize(
    ("arguments_", "said"),
    [
        (("--pod-template", "x=FILE"), "the plan has no model 'x'"),
        (("--pod-template", "FILE", "--select", "a"), "write POOL:LABEL=VALUE"),
        (("--pod-template", "FILE", "--select", "x:a=b"), "the plan has no pool 'x'"),
        (("--pod-template", "PLAN"), "is not Pod or PodTemplate"),
        (("--pod-template", "FILE", "--table", "PLAN"), "content: missing"),
        (("--pod-template", "FILE", "--engine", "trt"), "'trt' is not one of"),
        ((), "--pod-template"),
    ],
)
def test_what_cannot_be_written_is_one_line_with_the_place(
    run: Runner, plan: Path, arguments_: tuple[str, ...], said: str
) -> None:
    words = [w.replace("FILE", str(EXAMPLE)).replace("PLAN", str(plan)) for w in arguments_]
    found = run("manifests", plan, *words)
    assert found.status == 2
    assert found.out == ""
    assert said in found.err
    assert all(line.startswith("error: ") for line in found.err.splitlines())


def test_a_found_pool_needs_no_selector_and_takes_none(run: Runner, tmp_path: Path) -> None:
    """Pool a with a nodeSelector: the names of nodes in the table are the cluster's."""
    whole = resource().model_dump(mode="json", by_alias=True, exclude_none=True)
    found = next(pool for pool in whole["spec"]["pools"] if pool["name"] == "a")
    for counted in ("count", "domains", "gpusPerNode"):
        del found[counted]
    found["nodeSelector"] = {"pool": "a"}
    path, table = tmp_path / "splan.yaml", tmp_path / "table.json"
    path.write_text(yaml.safe_dump(whole))
    table.write_text(to_json(routing_table(routing_content(resource().spec, PLAN))))
    words = ("manifests", path, "--table", table, "--pod-template", EXAMPLE)
    done = run(*words, "--select", "b:pool=l40s")
    assert (done.status, done.err) == (0, "")
    pods = {
        doc["metadata"]["labels"]["archipelago.dev/island"]: doc["spec"]["template"]
        for doc in yaml.safe_load_all(done.out)
    }
    assert places(pods["main-decode-0"]) == [["a-rack-1-0"]]
    assert pods["long-prefill-0"]["spec"]["nodeSelector"] == {"pool": "l40s"}
    refused = run(*words, "--select", "a:pool=a")
    assert "the table names the nodes of pool a; remove it" in refused.err
