"""From any spec to any other, and what every field is for.

Transitions are drawn so that every pair of (kind of field, class of value) occurs: from an absent
choice to the largest number, from an unknown name to an empty list. After each, the operator that
lived through all of them must have stored and said what a new one stores and says. ``make
transitions`` draws more than 10,000; the default run a few hundred.
"""

import json
import os
import time
from collections import defaultdict
from random import Random

import pytest

from tests.support.operator.bench import Bench, Rest
from tests.support.operator.fields import BASES, Spec, Variant, fields, is_accepted, variants

DRAWS = int(os.environ.get("TRANSITIONS", "300"))
"""Transitions of one run."""
POOL = int(os.environ.get("TRANSITION_VARIANTS", "60"))
"""Variants that the default run plans; a full one takes all there are."""

SEEN_OF_ENGINES = tuple(f"models[].engine.{name}" for name in ("roleSwitch", "metrics", "served"))
NO_EFFECT = (
    {
        "priority": "decides between plans that select the same nodes; there are none here",
        "planner.timeLimitSeconds": "only a search that takes longer is cut off by it",
        "routing.lengthUnit": "there is one unit; the field is there for another one to come",
        "network.links[].name": "names the link, so that two teams can own one each",
        "pipelines[].name": "names the pipeline, so that two teams can own one each",
        "calibration.configMap": "names what is read in a cluster: tests/e2e/test_knowledge.py",
        "calibration.key": "names what is read in a cluster: tests/e2e/test_knowledge.py",
        "models[].config.configMap": "names what is read in a cluster: tests/e2e/test_own.py",
        "models[].config.key": "names what is read in a cluster: tests/e2e/test_own.py",
        "accelerators[].productLabels": "is read from nodes: tests/e2e/test_own.py",
        "models[].engine.transferDtype": "there are no adapters here that a cache could fill",
        "pools[].domainLabel": "is read from nodes; there are none here: tests of live pools do",
    }
    | {
        field.path: "how a running plan is watched and changed: tests of re-planning show it"
        for field in fields()
        if field.path.startswith(("replanning.", "islands.", *SEEN_OF_ENGINES))
        and field.kind != "object"
    }
    | {
        field.path: "what is expected beside the stated rates: tests of the schedule show it"
        for field in fields()
        if field.path.startswith("traffic.") and field.kind != "object"
    }
    | {
        field.path: "a rule ties it to the count, so it never changes alone"
        for field in fields()
        if ".sharedNodes" in field.path and field.kind != "object"
    }
)
"""Fields whose change alone changes neither table nor status, and why that is meant to be so."""


def classes(of: list[Variant]) -> dict[tuple[str, str], list[Variant]]:
    """Variants by kind of field and class of value."""
    by_class = defaultdict(list)
    for variant in of:
        by_class[variant.kind, variant.value_class].append(variant)
    return dict(by_class)


def walk(of: list[Variant], draws: int, random: Random) -> list[Variant]:
    """A walk on which every ordered pair of classes is a step, as often as draws allow."""
    by_class = classes(of)
    steps: list[Variant] = []
    while len(steps) < draws:
        pairs = [(a, b) for a in by_class for b in by_class]
        random.shuffle(pairs)
        for first, second in pairs:
            steps += [random.choice(by_class[first]), random.choice(by_class[second])]
    return steps[:draws]


def sampled(random: Random) -> list[Variant]:
    """The bases, one variant of each class, and as many more as the run may plan."""
    every = variants()
    sample = [v for v in every if not v.path] + [random.choice(v) for v in classes(every).values()]
    remaining = [v for v in every if v not in sample]
    random.shuffle(remaining)
    return sample + remaining[: max(0, POOL - len(sample))]


def _class(variant: Variant | None) -> str:
    return f"{variant.kind} {variant.value_class}" if variant else ""


def _keeps_architecture(before: Variant, after: Variant) -> bool:
    """The API server refuses another architecture under a model's name."""
    architectures = {m["name"]: m["architecture"] for m in before.spec["models"]}
    return all(architectures.get(m["name"], m["architecture"]) == m["architecture"]
               for m in after.spec["models"])  # fmt: skip


@pytest.mark.slow
async def test_from_any_spec_to_any_other_it_ends_like_a_new_one() -> None:
    random = Random(18)  # noqa: S311
    of = sampled(random)
    fresh: dict[str, Rest] = {}
    bench = Bench()
    before: Variant | None = None
    last: Rest | None = None
    started, done, refused = time.monotonic(), 0, 0
    pairs: set[tuple[str, str]] = set()
    for variant in walk(of, DRAWS, random):
        if before is not None and not _keeps_architecture(before, variant):
            refused += 1
            continue
        spec = json.dumps(variant.spec, sort_keys=True)
        if spec not in fresh:
            fresh[spec] = await Bench().change(variant.spec)
        rest = await bench.change(variant.spec)
        case = f"{before} -> {variant}"
        assert rest.answers_like(fresh[spec]), case
        # Whatever cannot be planned leaves the last good table as it is.
        assert rest.ready or last is None or rest.content == last.content, case
        pairs.add((_class(before), _class(variant)))
        before, last, done = variant, rest, done + 1
    seconds = time.monotonic() - started
    print(  # noqa: T201
        f"\n{done} transitions between {len(fresh)} specs, {len(pairs)} pairs of classes, "
        f"{refused} that the API server refuses, {seconds:.0f} s"
    )
    assert done >= 0.8 * DRAWS


def test_every_class_of_value_is_tried_on_every_kind_of_field() -> None:
    """A generator that makes nothing would let everything pass."""
    by_class = classes(variants())
    assert len(by_class) >= 25
    assert {kind for kind, _ in by_class} >= {"choice", "integer", "decimal", "name", "array"}
    assert all(is_accepted(spec) for spec in BASES.values())


@pytest.fixture(scope="module")
def by_field() -> dict[str, list[Variant]]:
    by_path: dict[str, list[Variant]] = {
        field.path: [] for field in fields() if field.kind != "object"
    }
    for variant in variants():
        if variant.path in by_path:
            by_path[variant.path].append(variant)
    return by_path


def patient(spec: Spec) -> Spec:
    """Return the spec with time enough for its search on a busy machine."""
    return {**spec, "planner": {**spec.get("planner", {}), "timeLimitSeconds": 30}}


@pytest.mark.slow
async def test_every_field_has_an_effect_or_a_reason_for_none(
    by_field: dict[str, list[Variant]],
) -> None:
    """Of each field of the schema some change shows in the table or in what is said."""
    bases = {name: await Bench().change(patient(spec)) for name, spec in BASES.items()}
    without = set()
    for path, changed in by_field.items():
        for variant in changed:
            rest = await Bench().change(patient(variant.spec))
            if rest != bases[variant.base]:
                break
        else:
            without.add(path)

    assert without == set(NO_EFFECT)
