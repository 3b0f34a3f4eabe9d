"""Every field of the spec with values worth trying, made from the schema of the definition.

A *variant* is one of the bases below with one field changed: to the least and the most that the
schema allows, to the half and the double of what stands there, to each choice, to a name that does
not exist, to nothing. A field that is new in the schema has variants without a word said here; it
is on the tests that use them to say what it does.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

from archipelago.operator.resources.crd import definition
from archipelago.planner.errors import SpecError
from archipelago.planner.servingplan import load_resource

Spec = dict[str, Any]

BASES: dict[str, Spec] = yaml.safe_load("""
log-normal:
  models:
  - name: llama
    architecture: Llama-3.1-8B
    precision: bf16
    weight: 2
    maxSequences: 256
    serving: Disaggregated
    maxUtilisation: "0.9"
    workload:
      logNormal: {median: 1000, sigma: "1", min: 2, max: 8192}
      outputTokens: {mean: "200", meanSquare: "90000"}
      ranges: {count: 2, spacing: Probability}
    slo: {ttftMilliseconds: 4000, tpotMilliseconds: 60}
  pools:
  - name: h100
    accelerator: H100
    count: 8
    gpusPerNode: 2
    pricePerGPUHour: "2.00"
    nicGigabitsPerSecond: "40"
    domains:
    - {name: rack-1, nodes: 2, class: zone-a}
    - {name: rack-2, nodes: 1, class: zone-b}
    - {name: rack-3, nodes: 1, class: zone-c}
    islandSizes: [2]
  network:
    links:
    - {name: between, classes: [zone-a, zone-b], gigabitsPerSecond: "100", latencyMilliseconds: "2"}
  budgetPerHour: "14"
  planner: {strategy: exact, timeLimitSeconds: 5, seed: 1, gapPartsPerMillion: 1000}
  routing: {lengthUnit: tokens, unknownLength: Longest, affinityKey: x-session}
plain:
  models:
  - name: llama
    architecture: Llama-3.1-8B
    workload:
      logNormal: {median: 1000, sigma: "1", max: 8192}
      outputTokens: {mean: "200"}
      ranges: {count: 2}
  - name: qwen
    architecture: Qwen3-32B
    weight: 2
    workload:
      logNormal: {median: 700, sigma: "0.8", max: 4096}
      outputTokens: {mean: "100"}
      ranges: {count: 1}
  pools:
  - name: h100
    accelerator: H100
    count: 8
    gpusPerNode: 4
    domains: [{name: rack-1, nodes: 1}, {name: rack-2, nodes: 1}]
  planner: {timeLimitSeconds: 5}
histogram:
  models:
  - name: llama
    architecture: Llama-3.1-8B
    requestsPerSecond: "20"
    workload:
      histogram:
        bins:
        - min: 1
          max: 1000
          weight: 300
          inputMean: "400"
          outputMean: "200"
          outputMeanSquare: "90000"
        - {min: 1000, max: 4000, weight: 100, outputMean: "300"}
        - {min: 400000, max: 500000, weight: 1, outputMean: "300"}
      ranges: {count: 3, spacing: Probability}
  pools:
  - name: h100
    accelerator: H100
    count: 4
    maxCount: 8
    gpusPerNode: 4
    pricePerGPUHour: "3.00"
    billing: PerNode
  - {name: l40s, accelerator: L40S, count: 4, gpusPerNode: 4, pricePerGPUHour: "1.00"}
  objective: MinimiseCost
  minHeadroom: "1.2"
  maxUnservable: "0.01"
  planner: {timeLimitSeconds: 5}
pipeline:
  models:
  - name: deepseek
    architecture: DeepSeek-V3
    serving: Collocated
    workload:
      logNormal: {median: 1000, sigma: "0.8", max: 8192}
      outputTokens: {mean: "200"}
      ranges: {count: 1}
  pools:
  - {name: h100, accelerator: H100, count: 8, gpusPerNode: 8, nicGigabitsPerSecond: "400"}
  - {name: l40s, accelerator: L40S, count: 8, gpusPerNode: 8, nicGigabitsPerSecond: "100"}
  - {name: h20, accelerator: H20, count: 8, gpusPerNode: 8}
  pipelines: [{name: both, pools: [h100, l40s]}]
  planner: {timeLimitSeconds: 5}
own:
  models:
  - name: mine
    architecture: me/Mine
    config: {inline: &shape {model_type: llama, num_hidden_layers: 16, hidden_size: 2048,
      vocab_size: 32000, num_attention_heads: 16, num_key_value_heads: 8, intermediate_size: 8192,
      tie_word_embeddings: true, max_position_embeddings: 32768}}
    workload: &short
      logNormal: {median: 500, sigma: "1", max: 4096}
      outputTokens: {mean: "100"}
      ranges: {count: 1}
  - {name: eight, architecture: me/Eight, precision: fp8, config: {inline: *shape},
     workload: *short}
  - {name: four, architecture: me/Four, precision: fp4, config: {inline: *shape}, workload: *short}
  pools:
  - {name: mine, accelerator: My GPU, count: 24, gpusPerNode: 2, islandSizes: [4]}
  accelerators:
  - name: My GPU
    like: B200
    memoryGibibytes: "40"
    memoryGigabytesPerSecond: "2000"
    bf16Teraflops: "300"
    fp8Teraflops: "600"
    fp4Teraflops: "1200"
    scaleUpGigabytesPerSecond: "100"
    scaleUpDomain: 2
    nicGigabytesPerSecond: "5"
    productLabels: [MY-GPU]
  planner: {timeLimitSeconds: 5}
own-without-links:
  models:
  - {name: mine, architecture: me/Mine, config: {inline: *shape}, workload: *short}
  pools:
  - {name: mine, accelerator: My GPU, count: 4, gpusPerNode: 2, islandSizes: [2]}
  accelerators:
  - name: My GPU
    memoryGibibytes: "40"
    memoryGigabytesPerSecond: "900"
    fp16Teraflops: "100"
    pcieGigabytesPerSecond: "16"
  planner: {timeLimitSeconds: 5}
engine:
  models:
  - name: mixtral
    architecture: Mixtral-8x7B
    precision: fp8
    workload:
      logNormal: {median: 3000, sigma: "1", max: 32768}
      outputTokens: {mean: "300"}
      ranges: {count: 2}
    engine:
      name: vllm
      version: "0.9.1"
      kvDtype: bf16
      transferDtype: int8
      memoryShare: "0.9"
      chunkTokens: 4096
      prefixHitShare: "0.2"
      prefixHitShares: [{upToTokens: 1000, share: "0.4"}]
      speculation: {draftTokens: 2, acceptance: "0.7", draftCost: "0.1"}
      attentionDataParallel: Allowed
      parallelism: {tensor: 2, pipeline: 1, data: 2, expert: 4}
  pools:
  - {name: h100, accelerator: H100, count: 16, gpusPerNode: 8}
  planner: {timeLimitSeconds: 5}
engine-of-copies:
  models:
  - name: mixtral
    architecture: Mixtral-8x7B
    workload: *short
    engine: {attentionDataParallel: Always, parallelism: {tensor: 2}}
  pools:
  - {name: h100, accelerator: H100, count: 16, gpusPerNode: 8}
  planner: {timeLimitSeconds: 5}
""")
"""Small, and between them with a value in every field."""
KNOWN = {
    "architecture": "Llama-3.1-70B",
    "accelerator": "A100-80GB",
    "affinityKey": "x-user",
    "classes": "zone-c",
    "pools": "h20",
    "like": "H100",
    "productLabels": "OTHER-GPU",
}
"""Another value that exists, where it has to come from a catalogue or a vocabulary."""
MOST = 64
"""Largest whole number tried where the schema allows a million: a problem must stay small."""
ABSENT = object()


@dataclass(frozen=True)
class Field:
    """A field of the schema: names from the spec down, ``[]`` after those of lists of objects."""

    path: str
    schema: dict[str, Any]

    @property
    def kind(self) -> str:
        """What sort of value stands there."""
        if "enum" in self.schema or self.schema["type"] == "boolean":
            return "choice"
        if self.schema["type"] == "string":
            pattern = self.schema.get("pattern", "")
            return "decimal" if pattern.startswith("^[0-9]") else "name"
        return str(self.schema["type"])


@dataclass(frozen=True)
class Variant:
    """A base with one field changed; ``base`` alone where ``path`` is empty."""

    base: str
    path: str
    kind: str
    value_class: str
    spec: Spec

    def __str__(self) -> str:
        return f"{self.base}: {self.path} {self.value_class}"


def fields() -> Iterator[Field]:
    """Every field below spec, objects and lists included."""
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    yield from _below("", schema["properties"]["spec"])


def _below(path: str, schema: dict[str, Any]) -> Iterator[Field]:
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield Field(here, child)
        if child["type"] == "array":
            yield from _below(f"{here}[]", child["items"])
        else:
            yield from _below(here, child)


def variants() -> list[Variant]:
    """All variants that the API server would accept, the bases first."""
    found = [Variant(name, "", "base", "base", spec) for name, spec in BASES.items()]
    for field in fields():
        for name, base in BASES.items():
            found += _of(field, name, base)
    return [variant for variant in found if is_accepted(variant.spec)]


def is_accepted(spec: Spec) -> bool:
    """Whether the rules that the API server enforces hold; a test compares the two."""
    body = {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    try:
        load_resource(body)
    except SpecError:
        return False
    return True


def _of(field: Field, name: str, base: Spec) -> Iterator[Variant]:
    holder = _holder(base, field.path)
    if holder is None:
        return
    key = field.path.rpartition(".")[2]
    current = holder.get(key, ABSENT)
    for value_class, value in _values(field, key, current):
        if value is current or value == current:
            continue
        spec = copy.deepcopy(base)
        changed = _holder(spec, field.path)
        assert changed is not None
        if value is ABSENT:
            del changed[key]
        else:
            changed[key] = value
        yield Variant(name, field.path, field.kind, value_class, spec)
    yield from _swapped(field, key, name, base)


def _swapped(field: Field, key: str, name: str, base: Spec) -> Iterator[Variant]:
    """What two neighbours of a list have exchanged: some fields have to add up."""
    spec = copy.deepcopy(base)
    first, second = _holder(spec, field.path), _holder(spec, field.path, item=1)
    if first is None or second is None or key not in first.keys() & second.keys():
        return
    if first is not second and first[key] != second[key]:
        first[key], second[key] = second[key], first[key]
        yield Variant(name, field.path, field.kind, "swapped", spec)


def _holder(spec: Spec, path: str, item: int = 0) -> Spec | None:
    """The object that holds the field, of the innermost list that item; None: there is none."""
    steps = path.split(".")[:-1]
    found: Any = spec
    for depth, step in enumerate(steps):
        found = found.get(step.removesuffix("[]"))
        if found and step.endswith("[]"):
            inner = not any(later.endswith("[]") for later in steps[depth + 1 :])
            found = found[item] if inner and item < len(found) else found[0]
        if not found:
            return None
    assert isinstance(found, dict)
    return found


def _values(field: Field, key: str, current: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Value classes and a value of each."""
    yield "absent", ABSENT
    schema = field.schema
    if field.kind == "choice":
        yield from (("choice", value) for value in schema.get("enum", (True, False)))
    elif field.kind == "integer":
        yield "least", schema["minimum"]
        yield "most", min(schema["maximum"], MOST)
        if isinstance(current, int):
            yield "half", current // 2
            yield "double", current * 2
    elif field.kind == "decimal":
        yield from (("zero", "0"), ("tiny", "0.000001"), ("one", "1"), ("huge", "999999999"))
        if isinstance(current, str):
            yield "half", f"{Decimal(current) / 2:f}"
            yield "double", f"{Decimal(current) * 2:f}"
    elif field.kind == "name":
        yield "other", KNOWN.get(key, "other")
        yield "unknown", "no-such-thing"
    elif field.kind == "array" and isinstance(current, list):
        yield "empty", []
        yield "one", current[:1]
        yield "fewer", current[:-1]
        yield "reversed", current[::-1]
        yield from _longer(key, current)


def _longer(key: str, current: list[Any]) -> Iterator[tuple[str, Any]]:
    """One more at the end: a namesake with another name, or the next number."""
    last = current[-1]
    if isinstance(last, dict) and "name" in last:
        yield "more", [*current, {**last, "name": "another"}]
    elif isinstance(last, int):
        yield "more", [*current, last * 2]
    elif isinstance(last, str):
        yield "other", [*current[:-1], KNOWN[key]]
