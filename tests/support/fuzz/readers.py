"""Everything that reads what others wrote, and what may come out: a value or a documented error.

Each reader takes bytes, as a file or an argument holds them, so that Hypothesis and a
coverage-guided fuzzer can drive the same functions.
"""

import copy
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from archipelago.perfmodel.errors import ArchipelagoError, TraceError
from archipelago.perfmodel.workload.traces import read_trace
from archipelago.planner.check.checker import check_document
from archipelago.planner.cli.commands.files import read_time
from archipelago.planner.documents import load_document, to_json, to_yaml
from archipelago.planner.errors import InputError, PlanFileError, SpecError
from archipelago.planner.explain.what_if import changed
from archipelago.planner.formats.plan_file import plan_document, read_stored, resource_of
from archipelago.planner.kubernetes.pod_template import Fitting, fitted, read_template
from archipelago.planner.kubernetes.pools import read_nodes
from archipelago.planner.plan import Planned
from archipelago.planner.schedule import Window, scheduled
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.strategy import quiet
from archipelago.planner.table.validate import validate_table
from archipelago.planner.table.write import routing_content
from tests.support.planner.tables import routing_table

REPO = Path(__file__).parents[3]
EXAMPLE = (REPO / "examples" / "01-llama-on-two-pools.yaml").read_text()
TEMPLATE = (REPO / "examples" / "render" / "vllm.yaml").read_text()
DRAFTING = TEMPLATE.replace(
    "- --port=8000",
    '- \'--speculative-config={"method":"eagle3","num_speculative_tokens":3}\'',
)
MINIMAL = (REPO / "examples" / "02-minimal.yaml").read_text()


@dataclass(frozen=True)
class Reader:
    """One way in.

    ``seeds``: inputs that it understands, of which the first shows what JSON it reads, if any.
    ``covers``: functions of the product that decode here, by their dotted names.
    """

    read: Callable[[bytes], object]
    documented: tuple[type[ArchipelagoError], ...]
    seeds: Callable[[], tuple[bytes, ...]]
    covers: tuple[str, ...] = ()

    def __call__(self, data: bytes) -> bool:
        """Whether the input is understood; any error that is not documented gets through."""
        try:
            self.read(data)
        except self.documented as error:
            said = str(error)
            if not said.strip():
                raise AssertionError("an error without a word") from error
            return False
        return True


def resource(data: bytes) -> object:
    """A ServingPlan from a file, resolved against the catalogues."""
    loaded = load_resource(text(data))
    return to_problem("fuzzed", loaded.spec)


def quantity(data: bytes) -> object:
    """A decimal text wherever the spec has one."""
    found = text(data)
    body = copy.deepcopy(_example())
    body["spec"] |= {"budgetPerHour": found, "minHeadroom": found}
    body["spec"]["pools"][0]["pricePerGPUHour"] = found
    body["spec"]["models"][0]["requestsPerSecond"] = found
    return to_problem("fuzzed", load_resource(body).spec)


def time(data: bytes) -> object:
    """A time that a schedule is looked at."""
    window = Window("0 8 29 2 *", timedelta(hours=10), Decimal(3))
    return scheduled([window], timedelta(), read_time(text(data)))


def trace(data: bytes) -> object:
    """A request trace, which is read from a file."""
    with tempfile.NamedTemporaryFile(dir=_memory()) as file:
        file.write(data)
        file.flush()
        found = read_trace(file.name)
    assert len(found.inputs) == len(found.outputs) > 0
    return found


def plan(data: bytes) -> object:
    """A plan file, as ``archipelago verify`` and ``explain`` read it."""
    document = load_document(text(data))
    read_stored(document)
    resource_of(document)
    return check_document(document)


def table(data: bytes) -> object:
    """A routing table: findings, and never an error, once it is a document."""
    findings = validate_table(load_document(text(data)))
    assert all(finding.strip() for finding in findings)
    return findings


def nodes(data: bytes) -> object:
    """A node list, as ``archipelago pools`` reads it."""
    return read_nodes(load_document(text(data)))


def what_if(data: bytes) -> object:
    """A change on the command line."""
    return changed(load_resource(_example()), (text(data),))


def pod_template(data: bytes) -> object:
    """A user's pod template, as ``archipelago manifests`` reads and fills it."""
    own = Fitting(
        {"a": "b"}, 8, "nvidia.com/gpu", {"TP": "8"}, ["--tp=8"], ("n",), {"k": "v"},
        settings={"--speculative-config.num_speculative_tokens": "3", "--kv-cache-dtype": "fp8"},
        switches={"--enable-prefix-caching": "--no-enable-prefix-caching"},
    )  # fmt: skip
    pod = fitted(read_template(load_document(text(data))), own)
    assert pod["metadata"]["labels"]["a"] == "b"
    return pod


def text(data: bytes) -> str:
    """The bytes as the command line hands them on: what is not UTF-8 is refused before."""
    return data.decode("utf-8", errors="replace")


def _memory() -> str | None:
    """A folder in memory, where there is one: thousands of files a second."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a fixed place


@cache
def _example() -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(EXAMPLE)
    return body


@cache
def small_plan() -> Mapping[str, Any]:
    """The document of a real plan."""
    loaded = load_resource(MINIMAL)
    planned = strategy("exact").plan(to_problem("minimal", loaded.spec), quiet)
    assert isinstance(planned, Planned)
    return plan_document(loaded, planned)


@cache
def small_table() -> Mapping[str, Any]:
    """A real routing table."""
    stored = read_stored(dict(small_plan()))
    return routing_table(routing_content(load_resource(MINIMAL).spec, stored.plan))


def node_list() -> Mapping[str, Any]:
    """Two nodes with GPUs and one without."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.clique": "a.1"}
    status = {
        "capacity": {"nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    items = [
        {"kind": "Node", "metadata": {"name": f"node-{n}", "labels": labels}, "status": status}
        for n in range(2)
    ]
    plain = {"metadata": {"name": "plain"}, "status": {}, "spec": {"unschedulable": True}}
    return {"kind": "List", "items": [*items, plain]}


def _json(document: Mapping[str, Any]) -> bytes:
    return to_json(dict(document)).encode()


TRACES = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
    b'{"timestamp": 500, "input_length": 4808, "output_length": 10, "hash_ids": [1]}\n',
    b"4808,10,7\n3180,8,8.5\n",
)
CHANGES = (
    b"pool=h100:+8",
    b"price=h100:x2",
    b"budget=600",
    b"slo=llama-8b:tpot=40",
    b"rate=llama-8b:3",
)

PLANNER = "archipelago.planner."
DOCUMENTS = PLANNER + "documents."
LOAD = PLANNER + "servingplan.load."
TRACE = "archipelago.perfmodel.workload.traces."

READERS = {
    "resource": Reader(
        resource,
        (SpecError,),
        lambda: (EXAMPLE.encode(), json.dumps(yaml.safe_load(EXAMPLE)).encode()),
        (LOAD + "_parse", LOAD + "load_resource"),
    ),
    "quantity": Reader(quantity, (SpecError,), lambda: (b"512", b"4.00", b"0.001")),
    "time": Reader(
        time,
        (InputError,),
        lambda: (b"2026-11-24T09:00", b"2026-11-24T09:00:00.5+02:00", b"1970-01-01", b"8999-12-31"),
        (PLANNER + "cli.commands.files.read_time",),
    ),
    "trace": Reader(trace, (TraceError,), lambda: TRACES, (TRACE + "_csv", TRACE + "_mooncake")),
    "plan": Reader(
        plan,
        (PlanFileError, SpecError),
        lambda: (_json(small_plan()), to_yaml(dict(small_plan())).encode()),
        (
            *(DOCUMENTS + name for name in ("load_document", "_yaml", "Node.field")),
            PLANNER + "formats.plan_file.resource_of",
        ),
    ),
    "table": Reader(
        table,
        (PlanFileError,),
        lambda: (_json(small_table()),),
        tuple(
            PLANNER + f"table.validate.{name}" for name in ("validate_table", "validate_content")
        ),
    ),
    "nodes": Reader(
        nodes,
        (InputError,),
        lambda: (_json(node_list()),),
        (
            DOCUMENTS + "Node.items",
            *(PLANNER + f"kubernetes.{name}" for name in ("pools.read_nodes", "nodes.read_node")),
        ),
    ),
    "pod-template": Reader(
        pod_template,
        (PlanFileError,),
        lambda: (DRAFTING.encode(), TEMPLATE.encode(), _json(yaml.safe_load(DRAFTING))),
        (
            PLANNER + "kubernetes.pod_template.read_template",
            PLANNER + "kubernetes.pod_template._key_of",
        ),
    ),
    "what-if": Reader(what_if, (InputError,), lambda: CHANGES),
}
