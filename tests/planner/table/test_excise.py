"""Islands cut out of a content as text: what a repair of the whole plan writes, byte for byte."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.documents import canonical_text
from archipelago.planner.errors import CheckError
from archipelago.planner.replan.repair import repair
from archipelago.planner.table.excise import Excised, excise
from archipelago.planner.table.reweigh import Unrepairable
from archipelago.planner.table.shards import cut, digest
from archipelago.planner.table.validate import validate_content
from archipelago.planner.table.write import routing_content
from tests.support.planner import examples

NAMES = ("01-llama-on-two-pools", "03-two-models", "05-either", "06-two-zones", "08-across-pools")
GPUS = 8


@given(st.data())
def test_it_is_what_a_repair_of_the_plan_writes(data: st.DataObject) -> None:
    """Whatever is lost, wherever the text is cut, and again after that."""
    name = data.draw(st.sampled_from(NAMES))
    spec, plan = examples.read(name).spec, examples.planned(name).plan
    text = canonical_text(routing_content(spec, plan))
    places = data.draw(st.sets(st.integers(1, len(text) - 1), max_size=9))
    pieces = cut(text, {0, len(text), *places})
    limit = max(piece.stop - piece.start for piece in pieces)
    for _ in range(2):
        islands = [island.name for island in plan.islands]
        lost = data.draw(st.sets(st.sampled_from(islands), min_size=1))
        expected, found = repair(plan, lost), excise(text, pieces, lost, limit)
        if isinstance(expected, Unrepairable):
            assert found == expected
            return
        assert isinstance(found, Excised)
        assert found.text == canonical_text(routing_content(spec, expected))
        assert validate_content(json.loads(found.text)) == []
        joined = "".join(piece.of(found.text) for piece in found.pieces)
        assert joined == found.text
        for piece in found.pieces:
            assert 0 < piece.stop - piece.start <= limit
            assert piece.digest == digest(piece.of(found.text))
        plan, text, pieces = expected, found.text, found.pieces


def fleet(nodes: int) -> str:
    """A content with an island on each GPU."""
    names = [f"llama-h100-tp1-prefill-{n}" for n in range(nodes * GPUS)]
    split = {"tp": 1, "pp": 1, "dp": 1, "ep": 1}
    half = len(names) // 2
    groups = [("prefill", names[:half]), ("decode", names[half:])]
    islands = [
        {"name": island, "pool": "h100", "phase": phase, "gpus": 1, "maxBatch": 1,
         "parallelism": split, "nodes": [f"node-{names.index(island) // GPUS}"]}
        for phase, members in groups for island in members
    ]  # fmt: skip
    pair = {"prefill": "prefill", "decode": "decode", "weight": 1_000_000}
    return canonical_text({
        "lengthUnit": "tokens", "unknownLength": "Longest", "affinityKey": None,
        "models": [{"name": "llama", "unknownLengthRoute": 0,
                    "routes": [{"min": 0, "max": 100, "pairs": [pair]}]}],
        "groups": [{"name": phase, "model": "llama", "phase": phase, "members": members}
                   for phase, members in groups],
        "islands": islands,
    })  # fmt: skip


@given(st.integers(0, 99))
def test_shards_without_a_lost_island_stay(node: int) -> None:
    """Those of the list of islands: at most one of them holds the islands of one node, or two."""
    text = FLEET
    pieces = cut(text, [*range(0, len(text), 2000), len(text)])
    names = [island["name"] for island in json.loads(text)["islands"]]
    found = excise(text, pieces, frozenset(names[node * GPUS : (node + 1) * GPUS]), 2000)
    assert isinstance(found, Excised)
    listed = text.index('"islands":[') // 2000 + 1
    before = {piece.digest for piece in pieces[listed:-1]}
    assert len(before - {piece.digest for piece in found.pieces}) <= 2
    assert all(a.stop == b.start for a, b in pairwise(found.pieces))
    assert found.gpus == GPUS


FLEET = fleet(100)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda text: text, {"unknown"}),
        (lambda text: text.replace('"name":"llama-h100-tp1-prefill-3"', '"name":"x"'), {"x"}),
        (lambda text: text.replace('"islands":[', '"islands": ['), {"llama-h100-tp1-prefill-3"}),
        (lambda text: json.dumps(json.loads(text)), {"llama-h100-tp1-prefill-3"}),
    ],
    ids=["not there", "no member", "spaces", "not canonical"],
)
def test_what_is_no_content_of_ours_is_refused(change: object, lost: set[str]) -> None:
    text = change(fleet(2))  # type: ignore[operator]
    with pytest.raises(CheckError):
        excise(text, cut(text, [0, 500, len(text)]), lost, 5000)
