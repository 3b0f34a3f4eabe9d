"""Readers of what an API server, a metric source, users and planner processes send.

Each takes bytes as they come, and goes on with the value as the product does: what a reader returns
must be good for a decision, a status that fits the definition, and a table.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema

from archipelago.operator.admin_file import read_admin_file
from archipelago.operator.apply.tables import others_parts
from archipelago.operator.cluster import client
from archipelago.operator.cluster.gaps import read_versioned_name
from archipelago.operator.cluster.handlers import name_of
from archipelago.operator.cluster.leader import home_namespace
from archipelago.operator.cluster.lease import (
    LONGEST,
    MOST_TRANSITIONS,
    read_lease,
    read_strategies,
)
from archipelago.operator.decide.actions import WriteStatus, WriteTable
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.islands import workload_changes
from archipelago.operator.decide.knowledge import recalled
from archipelago.operator.decide.state import PlanState
from archipelago.operator.errors import SettingsError, Unreadable
from archipelago.operator.inventory.devices import (
    ClaimTable,
    DeviceTable,
    read_claim,
    read_device_slice,
)
from archipelago.operator.inventory.nodes import NodeTable, read_versioned
from archipelago.operator.inventory.pods import read_pod
from archipelago.operator.inventory.start_rules import StartLimit
from archipelago.operator.kubectl import doctor
from archipelago.operator.kubectl.read import table_content
from archipelago.operator.planning.messages import Job
from archipelago.operator.resources import crd
from archipelago.operator.resources.files import FileSource
from archipelago.operator.resources.knowledge import (
    KNOWLEDGE_KEY,
    Kept,
    knowledge_labels,
    knowledge_name,
    knowledge_text,
    read_kept,
)
from archipelago.operator.resources.manifests import (
    shard_manifest,
    status_manifest,
    table_manifest,
)
from archipelago.operator.resources.names import Identity, Key, table_name
from archipelago.operator.resources.objects import (
    KnowledgeObject,
    Observation,
    PlanObject,
    TableObject,
    owner_reference,
    read_config_map,
    read_content,
    read_islands,
    read_shard,
)
from archipelago.operator.resources.reading import text_under
from archipelago.operator.resources.shards import shards_of
from archipelago.operator.resources.workloads import (
    GPUS,
    kinds_of,
    read_workload,
    wanted_workloads,
)
from archipelago.operator.traffic.samples import (
    SeriesSelector,
    from_prometheus,
    index_series,
    missing_faults,
)
from archipelago.operator.traffic.signals import adapters
from archipelago.perfmodel.calibration.measurements import read_points
from archipelago.perfmodel.catalogue.architectures import from_config
from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.cli.commands.own import read_catalogue, read_config
from archipelago.planner.documents import EXACT, canonical_text, load_document, read_json
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.formats.calibrations import parse_calibration_file
from archipelago.planner.kubernetes.labels import PLAN_LABEL, ROLE_LABEL
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.service.knowledge import (
    knowledge_document,
    knowledge_of,
    read_knowledge,
)
from archipelago.planner.service.messages import (
    FailureReason,
    FailureReply,
    MessageError,
    PlanReply,
    PlanRequest,
    TableStep,
    decode_line,
    decode_reply,
    decode_request,
    encode_line,
    encode_request,
)
from archipelago.planner.service.state import decode_state
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.servingplan.load import prune_unknown_fields
from archipelago.planner.servingplan.own import CONFIG_KEY, accelerator_of
from archipelago.planner.table.plan_of_table import plan_of
from archipelago.planner.table.rename import to_generic
from archipelago.planner.table.shards import split
from archipelago.planner.table.validate import validate_routing
from tests.support.operator import devices
from tests.support.operator.situations import NOW, T0, as_stored, planned_state, ready

from .grammar import encoded
from .readers import (
    DOCUMENTS,
    LOAD,
    MINIMAL,
    PLANNER,
    TEMPLATE,
    Reader,
    node_list,
    small_table,
    text,
)

OBJECTS_OF = "archipelago.operator.resources."
CLIENT = "archipelago.operator.cluster.client."
LEASE = "archipelago.operator.cluster.lease."
META: Final = {"namespace": "team", "uid": "uid-1", "resourceVersion": "7"}


def body(data: bytes) -> Any:  # noqa: ANN401  # any JSON
    """The object that the client's library makes of an answer."""
    try:
        found = json.loads(text(data))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unreadable("no JSON object")  # as the client says
    return found


@cache
def schema() -> jsonschema.Draft202012Validator:
    """The schema by which the API server takes a status."""
    whole = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return jsonschema.Draft202012Validator(whole["properties"]["status"])


def decided(plan: PlanObject, table: TableObject | None) -> None:
    """Decide about them, with and without a plan at hand: all that is written can be stored."""
    for state in (PlanState(), planned_state(plan, _content())):
        for action in decide(Observation(plan.key, plan, table), state, NOW)[0]:
            if isinstance(action, WriteStatus):
                schema().validate(json.loads(json.dumps(action.status.to_manifest())))
            if isinstance(action, WriteTable):
                assert 0 < action.identity.sequence <= EXACT
                assert 0 <= action.identity.generation <= EXACT


def plan_object(data: bytes) -> object:
    """A ServingPlan of the API server."""
    plan = PlanObject.from_body(body(data))
    schema().validate(json.loads(json.dumps(plan.status.to_manifest())))
    assert json.dumps(status_manifest(plan, plan.status), allow_nan=False).encode()
    fitting, _ = plan.status.checked()
    schema().validate(json.loads(json.dumps(fitting.to_manifest())))
    prune_unknown_fields(plan.to_resource())
    job = Job.of(plan)
    assert 0 <= job.time_limit <= 1e6
    assert encode_request(job.request)
    decided(plan, None)
    return plan.is_live, plan.selects_nodes


def config_map(data: bytes) -> object:
    """A ConfigMap with our label, which anybody can make: a table, a pointer, or a shard."""
    stored = body(data)
    found = read_config_map(stored)
    assert others_parts(stored) is not None
    plan = _plan()
    if isinstance(found, TableObject):
        decided(plan, found)
        decided(plan, replace(found, written_hash=found.stored_hash, inputs_hash=plan.inputs_hash))
        return found.content_hash
    if isinstance(found, KnowledgeObject):
        observed = Observation(plan.key, plan, None, knowledge=found)
        decide(observed, recalled(observed, PlanState(), NOW), NOW)
        return found.kept
    assert found.is_ours(plan) in (True, False)
    return found.text_hash


def content(data: bytes) -> object:
    """The content of a stored table, whole, of a shard, or joined from shards."""
    stored = body(data)
    _, islands = read_content(stored)
    read_islands(json.dumps(read_json(stored["data"]["table.json"]).value["content"]))
    validate_routing(read_json(stored["data"]["table.json"]).value["content"])
    generic = to_generic(read_json(stored["data"]["table.json"]).value["content"], {"a": "b"})
    plan_of(generic, problem(), of_it=False)
    return islands


def shard(data: bytes) -> object:
    """The text of a shard."""
    return read_shard(body(data))


def workload(data: bytes) -> object:
    """A Deployment with our label, which anybody can make."""
    found = read_workload("Deployment", body(data))
    assert 0 <= found.gpus < 10**9
    changes = workload_changes("uid-1", (), [found], StartLimit(1, 1), keep=False)
    assert changes.apply == ()
    return found


def template(data: bytes) -> object:
    """The ConfigMap with a pod template, and what is made of it."""
    kinds = kinds_of("Deployments")
    made = wanted_workloads(_plan(), small_table()["content"], body(data), kinds)
    assert all(one.gpus > 0 for one in made)
    return made


def node(data: bytes) -> object:
    """A node of the API server."""
    summary, version = read_versioned(body(data))
    table = NodeTable({"zone"})
    table.update(summary, version)
    assert all(0 <= facts.shape.allocatable_gpus <= 1024 for facts in table)
    return summary.unusable()


def pod(data: bytes) -> object:
    """A pod of the API server."""
    facts = read_pod(body(data))
    assert facts is None or 0 <= facts.gpus <= EXACT
    return facts


def device_slice(data: bytes) -> object:
    """A ResourceSlice of the API server, as its node is counted with it."""
    facts = read_device_slice(body(data))
    if facts is not None:
        table = DeviceTable()
        table.update(facts)
        for name in table.nodes_of([(facts.published.driver, facts.published.pool, "")]):
            assert table.of(name)
    return facts


def claim(data: bytes) -> object:
    """A ResourceClaim of the API server."""
    facts = read_claim(body(data))
    if facts is not None:
        assert ClaimTable().update(facts) == facts.devices
    return facts


def refusal(data: bytes) -> object:
    """The body and the delay of an answer that refuses."""
    delay = client.read_delay(text(data))
    assert delay is None or 0 <= delay <= client.LONGEST_DELAY
    return client.read_refusal(text(data))


def lease(data: bytes) -> object:
    """A Lease, which anybody with rights in the operator's namespace can write."""
    try:
        stored = body(data)
    except Unreadable:
        stored = data
    found = read_lease(stored)
    assert 0 <= found.transitions <= MOST_TRANSITIONS
    assert found.seconds is None or 0 < found.seconds <= LONGEST
    return found.holder, read_strategies(found)


def name(data: bytes) -> object:
    """The name of any object, for a log line."""
    return name_of(body(data))


class Stored(client.ApiCluster):
    """An API server with one table, and the shards of ours."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._stored = stored

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        return self._stored if key.name == table_name("minimal") else shards().get(key.name, {})


def sources(data: bytes) -> object:
    """The administrator's file."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return read_admin_file(Path(file.name))


def table_of_user(data: bytes) -> object:
    """The table as ``kubectl splan`` reads it."""
    return asyncio.run(table_content(Stored(body(data)), plan_body()))


def doctor_of(judge: Callable[[Any], doctor.Check | None]) -> Callable[[bytes], object]:
    """What ``kubectl splan doctor`` says of an object, odd ones too; each is a finding."""

    def read(data: bytes) -> object:
        check = judge(body(data))
        assert check is None or (check.subject and check.text)
        return check

    return read


def prometheus(data: bytes) -> object:
    """The answer of a metric source; what is wrong with it is a value."""
    scrape = from_prometheus(data, 0.0)
    index = index_series([scrape], SeriesSelector(next(iter(adapters().values())), {}))
    missing_faults(index, SeriesSelector(next(iter(adapters().values())), {}))
    return all(fault.detail or fault.reason for fault in scrape.faults)


def calibration(data: bytes) -> object:
    """A calibration file."""
    return parse_calibration_file(text(data), "file").calibrations


def calibration_map(data: bytes) -> object:
    """The ConfigMap that a plan's author names for a calibration file."""
    return text_under(body(data), "calibration.yaml")


def config_json(data: bytes) -> object:
    """The config.json of a model, in a ConfigMap that a plan names, or in a file."""
    said = text(data)
    FileSource("mine", CONFIG_KEY, "models[0].config").check(said)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CONFIG_KEY
        path.write_text(said, encoding="utf-8")
        return from_config(read_config(path), "me/Mine").parameters


def own_catalogue(data: bytes) -> object:
    """An administrator's catalogue on the command line, with everything that it leads to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue.yaml"
        path.write_bytes(data)
        own = read_catalogue(str(path))
    return [accelerator_of(each.name, own.accelerators) for each in own.accelerators]


def kept(data: bytes) -> object:
    """The text of what a plan has learnt, which anybody may have changed; it is a state again."""
    found = read_kept(text(data))
    assert read_kept(knowledge_text(found)) == found
    state = knowledge_document(found.knowledge)
    assert knowledge_of(state) == found.knowledge
    assert isinstance(found.knowledge.is_news_to(found.knowledge), bool)
    base = found.knowledge.calibration.base
    corrected = decode_state(state, 5.0, found.knowledge.inputs, problem(), base)
    corrected.calibration.corrected(problem())
    return found


def knowledge(data: bytes) -> object:
    """What is kept in such a text, without its checksum."""
    return read_knowledge(load_document(text(data)))


def measurements(suffix: str) -> Callable[[bytes], object]:
    """A file of measured runs."""

    def read(data: bytes) -> object:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(data)
            file.flush()
            defaults = {"accelerator": "H100", "engine": "vllm", "model": "llama-3.1-8b"}
            return read_points(Path(file.name), defaults)

    return read


def message(data: bytes) -> object:
    """A line on the pipe between operator and planner process."""
    found: list[object] = []
    for decode in (decode_request, decode_reply, decode_line):
        try:
            found.append(decode(data))
        except MessageError as error:
            refused = error
    if not found:
        raise refused
    return found


@cache
def plan_body() -> dict[str, Any]:
    """A plan as it is stored, with a whole status."""
    resource = load_document(MINIMAL)
    meta = META | {"name": "minimal", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    fresh = resource | {"metadata": meta}
    plan = PlanObject.from_body(fresh)
    table = TableObject.from_body(table_body())
    found: dict[str, Any] = fresh | {"status": ready(plan, table).status.to_manifest()}
    return found


@cache
def _plan() -> PlanObject:
    return PlanObject.from_body(plan_body())


@cache
def _content() -> str:
    return canonical_text(small_table()["content"])


def _table(*, in_shards: bool = False) -> dict[str, Any]:
    meta = META | {"name": "minimal", "generation": 1}
    plan = PlanObject.from_body(load_document(MINIMAL) | {"metadata": meta})
    pieces = split(_content(), 1000) if in_shards else ()
    manifest = table_manifest(
        plan,
        None,
        Identity("uid-1", 1, 3),
        _content(),
        T0,
        pieces=pieces,
        origin="planned",
        released='{"h100":{"":2}}',
    )
    return as_stored(manifest)


@cache
def table_body() -> dict[str, Any]:
    """Its table as it is stored."""
    return _table()


@cache
def shards() -> dict[str, dict[str, Any]]:
    """The shards of its table by name, as they are stored."""
    pieces, whole = split(_content(), 1000), _content()
    return {
        named.name: as_stored(shard_manifest(_plan(), None, named, piece.of(whole), 3))
        for named, piece in zip(shards_of("minimal", pieces), pieces, strict=True)
    }


def _shard() -> dict[str, Any]:
    return next(iter(shards().values()))


@cache
def problem() -> PlanningProblem:
    """The plan's problem."""
    return to_problem("minimal", load_resource(MINIMAL).spec)


def _pod() -> dict[str, Any]:
    container = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    return {
        "metadata": META | {"name": "p", "labels": {PLAN_LABEL: "minimal"}},
        "spec": {"nodeName": "n", "containers": [container], "initContainers": [container]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _device_slice() -> dict[str, Any]:
    shared = devices.of_one_gpu(devices.gpu(0, taints=[{"key": "x", "effect": "None"}]), 0)
    found = [shared, devices.of_one_gpu(devices.mig(0, 1), 0)]
    return devices.device_slice("n", found)


def _claim() -> dict[str, Any]:
    made = devices.claim("c", "n", ["gpu-0"], pod="uid-p")
    made["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": "uid-p"}]
    return made


def _workload() -> dict[str, Any]:
    labels = {PLAN_LABEL: "minimal", ROLE_LABEL: "0123456789abcdef"}
    owner = owner_reference(_plan())
    meta = {"name": "a", "labels": labels, "annotations": {GPUS: "8"}, "ownerReferences": [owner]}
    return {"metadata": META | meta}


def _template() -> dict[str, Any]:
    return {"metadata": META | {"name": "pods"}, "data": {"template.yaml": TEMPLATE}}


def _series() -> dict[str, Any]:
    name = {"__name__": "vllm:num_requests_running", "pod": "a", "le": "1"}
    result = [{"metric": name, "value": [1.5, "3"]}]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def _learnt() -> dict[str, Any]:
    interval = {"low": 0.9, "high": 1.1, "level": 0.9, "groups": 2}
    key = {"accelerator": "H100", "model": "Llama-3.1-8B", "phase": "decode"}
    used = [{**key, "factor": 1.25, "interval": interval, "rows": 8, "groups": 2}]
    row = {"key": [*key.values()], "age": 3.0, "sums": [8.0, 2.0, 0.5], "windows": 8}
    learnt = [{**row, "islands": ["a", "b"]}]
    rates = {"llama-8b": [1.5, 0.0]}
    calibration = {"learnt": learnt, "used": used, "last": "0a", "base": ""}
    return {"version": 2, "inputs": "0b", "rates": rates, "calibration": calibration}


def _kept() -> dict[str, Any]:
    found = Kept(read_knowledge(_learnt()), datetime(2026, 1, 1, tzinfo=UTC))
    document: dict[str, Any] = json.loads(knowledge_text(found))
    return document


def _knowledge_map() -> dict[str, Any]:
    name = {"name": knowledge_name("minimal"), "labels": knowledge_labels("minimal")}
    return {"metadata": META | name, "data": {KNOWLEDGE_KEY: json.dumps(_kept())}}


def _config_json() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "vocab_size": 1000,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }


def _own_catalogue() -> dict[str, Any]:
    return {
        "accelerators": [
            {"name": "A", "like": "H100", "memoryGibibytes": "64", "productLabels": ["A-1"]},
            {
                "name": "B",
                "memoryGibibytes": "24",
                "memoryGigabytesPerSecond": "600",
                "fp16Teraflops": "70",
                "scaleUpDomain": 2,
            },
        ],
        "models": [{"name": "me/M", "precision": "fp8", "config": {"inline": _config_json()}}],
    }


def _calibration() -> dict[str, Any]:
    interval = {"low": 0.9, "high": 1.2, "level": 0.9}
    correction = {"model": "*", "phase": "decode", "factor": 1.1, "interval": interval, "rows": 3}
    entry = {"accelerator": "H100", "values": {"step": 0.001}, "corrections": [correction]}
    return {"calibrations": [entry]}


RUN: Final = {
    "completed": 10,
    "max_concurrency": 4,
    "total_input_tokens": 1000,
    "total_output_tokens": 500,
    "mean_ttft_ms": 20.5,
    "mean_tpot_ms": 9.5,
}


def _seed(*makers: Callable[[], object]) -> Callable[[], tuple[bytes, ...]]:
    return lambda: tuple(encoded(make()) for make in makers)


def _answer(read: Callable[[Mapping[str, Any]], object]) -> Callable[[bytes], object]:
    return lambda data: read(body(data))


def _node() -> object:
    item = node_list()["items"][0]
    return item | {"metadata": item["metadata"] | META}


def _page() -> object:
    return {"metadata": {"resourceVersion": "5", "continue": "x"}, "items": [{}, {}]}


def _messages() -> tuple[bytes, ...]:
    step = TableStep(content=_content())
    return (
        encode_request(PlanRequest(resource=load_document(MINIMAL), content=_content())),
        encode_line(PlanReply(steps=(step,), summary={"islands": 1}, message="one")),
        encode_line(FailureReply(reason=FailureReason.INFEASIBLE, message="no")),
    )


def _definition() -> dict[str, Any]:
    conditions = [{"type": "Established", "status": "True"}]
    return {**crd.definition(), "status": {"conditions": conditions}}


def _deployment() -> dict[str, Any]:
    meta = META | {"name": "op", "labels": {doctor.LABEL: doctor.OPERATOR}}
    template = {"metadata": meta, "spec": {"containers": [{"image": "operator:1"}]}}
    spec = {"replicas": 2, "template": template}
    return {"metadata": meta, "spec": spec, "status": {"readyReplicas": 1}}


def _operator_pod() -> dict[str, Any]:
    status = {"conditions": _pod()["status"]["conditions"], "containerStatuses": []}
    return _pod() | {"status": status | {"containerStatuses": [{"restartCount": 5}]}}


def _lease() -> dict[str, Any]:
    spec = {"holderIdentity": "p_1", "leaseTransitions": 1, "acquireTime": "2026-01-01T00:00:00Z"}
    return {"metadata": META | {"name": doctor.LEASE}, "spec": spec}


def _doctor_of_table(pointer: Mapping[str, Any]) -> doctor.Check | None:
    texts = {name: read_shard(stored) for name, stored in shards().items()}
    return doctor.table(plan_body(), pointer, texts)


INVENTORY: Final = "archipelago.operator.inventory.devices."
DEVICES: Final = "archipelago.planner.kubernetes.devices."
DOCTOR: Final = "archipelago.operator.kubectl.doctor."
OBJECTS: Final = {
    "claim": Reader(
        claim,
        (Unreadable,),
        _seed(_claim),
        (INVENTORY + "read_claim", DEVICES + "read_allocation"),
    ),
    "device-slice": Reader(
        device_slice,
        (Unreadable,),
        _seed(_device_slice),
        (INVENTORY + "read_device_slice", DEVICES + "_device"),
    ),
    "doctor-definition": Reader(
        doctor_of(doctor.definition),
        (Unreadable,),
        _seed(_definition),
        (DOCTOR + "definition",),
    ),
    "doctor-deployment": Reader(
        doctor_of(lambda item: doctor.deployment([item], "system")),
        (Unreadable,),
        _seed(_deployment),
        (DOCTOR + "deployment",),
    ),
    "doctor-health": Reader(
        doctor_of(lambda item: doctor.health([item], "system")),
        (Unreadable,),
        _seed(_operator_pod),
        (DOCTOR + "health",),
    ),
    "doctor-leader": Reader(
        doctor_of(lambda item: doctor.leader([item], [item, _operator_pod()], "system")),
        (Unreadable,),
        _seed(_lease),
        (DOCTOR + "leader",),
    ),
    "doctor-usage": Reader(
        doctor_of(lambda plan: doctor.usage([plan, plan])), (Unreadable,), _seed(plan_body)
    ),
    "doctor-plan": Reader(doctor_of(doctor.plan), (Unreadable,), _seed(plan_body)),
    "doctor-table": Reader(
        doctor_of(_doctor_of_table),
        (Unreadable,),
        _seed(table_body, lambda: _table(in_shards=True)),
        (DOCTOR + "table",),
    ),
    "plan-object": Reader(
        plan_object,
        (Unreadable,),
        _seed(plan_body),
        (
            *(OBJECTS_OF + name for name in ("objects.PlanObject.from_body", "reading.reading")),
            *(OBJECTS_OF + f"status.{n}" for n in ("Status.from_body", "read_time")),
            *(OBJECTS_OF + f"status.{n}" for n in ("_known_fields", "_fitting")),
            *(LOAD + "fitting_fields", LOAD + "prune_unknown_fields"),
            *(DOCUMENTS + "plain", DOCUMENTS + "Node.time"),
        ),
    ),
    "config-map": Reader(
        config_map,
        (Unreadable,),
        _seed(table_body, lambda: _table(in_shards=True), _shard, _knowledge_map),
        (
            *(OBJECTS_OF + f"objects.{n}.from_body" for n in ("TableObject", "ShardObject")),
            OBJECTS_OF + "objects.KnowledgeObject.from_body",
            *(OBJECTS_OF + f"objects.{n}" for n in ("read_config_map", "_facts", "_read")),
            OBJECTS_OF + "released.from_text",
            "archipelago.operator.apply.tables.others_parts",
        ),
    ),
    "table-content": Reader(
        content,
        (Unreadable, PlanFileError),
        _seed(table_body),
        (
            *(OBJECTS_OF + f"objects.{n}" for n in ("read_content", "read_islands", "islands_of")),
            PLANNER + "table.validate.validate_routing",
        ),
    ),
    "workload": Reader(
        workload, (Unreadable,), _seed(_workload), (OBJECTS_OF + "workloads.read_workload",)
    ),
    "template-config-map": Reader(
        template,
        (Unreadable, InputError),
        _seed(_template),
        (
            OBJECTS_OF + "reading.text_under",
            *(OBJECTS_OF + f"workloads.{n}" for n in ("wanted_workloads", "_templates")),
        ),
    ),
    "shard": Reader(
        shard, (Unreadable, PlanFileError), _seed(_shard), (OBJECTS_OF + "objects.read_shard",)
    ),
    "kubectl-table": Reader(
        table_of_user,
        (Unreadable,),
        _seed(table_body, lambda: _table(in_shards=True)),
        (
            "archipelago.operator.kubectl.read.table_content",
            "archipelago.planner.table.shards.assemble",
            DOCUMENTS + "read_json",
        ),
    ),
    "node": Reader(
        node, (Unreadable,), _seed(_node), ("archipelago.operator.inventory.nodes.read_versioned",)
    ),
    "pod": Reader(
        pod, (Unreadable,), _seed(_pod), ("archipelago.operator.inventory.pods.read_pod",)
    ),
    "page": Reader(_answer(client.read_page), (Unreadable,), _seed(_page), (CLIENT + "read_page",)),
    "metadata": Reader(
        _answer(read_versioned_name),
        (Unreadable,),
        _seed(_node),
        ("archipelago.operator.cluster.gaps.read_versioned_name",),
    ),
    "review": Reader(
        _answer(client.read_allowed),
        (Unreadable,),
        _seed(lambda: {"status": {"allowed": True}}),
        (CLIENT + "read_allowed",),
    ),
    "kinds": Reader(
        _answer(client.read_resources),
        (Unreadable,),
        _seed(lambda: {"resources": [{"name": "servingplans"}]}),
        (CLIENT + "read_resources",),
    ),
    "token-review": Reader(
        _answer(client.read_user),
        (Unreadable,),
        _seed(lambda: {"status": {"authenticated": True, "user": {"username": "a"}}}),
        (CLIENT + "read_user",),
    ),
    "lease": Reader(
        lease,
        (),
        _seed(_lease),
        tuple(LEASE + name for name in ("read_lease", "read_strategies")),
    ),
    "name": Reader(
        name, (Unreadable,), _seed(_node), ("archipelago.operator.cluster.handlers.name_of",)
    ),
    "token": Reader(
        lambda data: home_namespace(text(data), {}),
        (),
        lambda: (b"a.eyJzdWIiOiAic3lzdGVtOnNlcnZpY2VhY2NvdW50Om5zOmEifQ.c", b"x"),
        ("archipelago.operator.cluster.leader.home_namespace",),
    ),
    "refusal": Reader(
        refusal,
        (),
        lambda: (encoded({"message": "no"}), b"30", "\u00b2".encode()),
        (CLIENT + "read_refusal",),
    ),
    "prometheus": Reader(
        prometheus,
        (),
        _seed(_series),
        ("archipelago.operator.traffic.samples.from_prometheus",),
    ),
    "sources": Reader(
        sources,
        (SettingsError,),
        lambda: (
            b"sources: [{name: a, kind: prometheus, address: 'http://127.0.0.1:1'}]",
            encoded({"sources": [{"name": "a", "kind": "prometheus", "address": "http://a"}]}),
        ),
        ("archipelago.operator.admin_file.read_admin_file",),
    ),
    "calibration": Reader(
        calibration,
        (InputError,),
        _seed(_calibration),
        (
            "archipelago.planner.formats.entry.read",
            "archipelago.planner.formats.calibrations.parse_calibration_file",
        ),
    ),
    "calibration-map": Reader(
        calibration_map,
        (PlanFileError, Unreadable),
        _seed(lambda: {"metadata": META, "data": {"calibration.yaml": "calibrations: []"}}),
        (OBJECTS_OF + "reading.text_under",),
    ),
    "config-json": Reader(
        config_json,
        (InputError, PerfModelError),
        _seed(_config_json),
        (
            OBJECTS_OF + "files.FileSource.check",
            PLANNER + "cli.commands.own._read_json",
        ),
    ),
    "own-catalogue": Reader(
        own_catalogue,
        (InputError, PerfModelError),
        _seed(_own_catalogue),
        (PLANNER + "cli.commands.own.read_catalogue",),
    ),
    "kept": Reader(
        kept,
        (PlanFileError,),
        _seed(_kept),
        (
            OBJECTS_OF + "knowledge.read_kept",
            PLANNER + "service.knowledge.read_knowledge",
            PLANNER + "service.knowledge.knowledge_of",
        ),
    ),
    "knowledge": Reader(
        knowledge, (PlanFileError,), _seed(_learnt), (PLANNER + "service.knowledge.read_knowledge",)
    ),
    "measurements": Reader(
        measurements(".json"),
        (PerfModelError,),
        _seed(lambda: RUN, lambda: [RUN, RUN]),
        ("archipelago.perfmodel.calibration.measurements._benchmark_rows",),
    ),
    "measurements-csv": Reader(
        measurements(".csv"),
        (PerfModelError,),
        lambda: (b"input,output,clients,tpot_ms\n100,50,4,9.5\n",),
        ("archipelago.perfmodel.calibration.measurements.read_csv",),
    ),
    "message": Reader(
        message,
        (MessageError,),
        _messages,
        ("archipelago.planner.service.messages._decoded",),
    ),
}
