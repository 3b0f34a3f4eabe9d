"""Every border is total: what decodes foreign bytes is registered, and gives a value or refuses.

The registry is ``tests/support/fuzz``. A function that is neither there nor in `OURS` fails the
first test: give it a reader with a seed, or say here why what it decodes is ours.
"""

import sys
from types import FrameType
from typing import Final

import pytest

from tests.support.fuzz.borders import borders
from tests.support.fuzz.registry import ALL

OPERATOR: Final = "archipelago.operator."
PLANNER: Final = "archipelago.planner."
CHECKED: Final = "the page was checked by `read_page`; each object goes to its own reader"
SHIPPED: Final = "data of this package"
STATED: Final = "a value that the operator has read before and sends to its own process"
SELF: Final = "its own manifest, document or schema"
OURS: Final[dict[str, str]] = {
    OPERATOR + "apply.islands.Islands._carry_out": SELF,
    OPERATOR + "apply.islands.Islands._stored": CHECKED,
    OPERATOR + "apply.islands._wanted": "the content that `read_islands` has read",
    OPERATOR + "apply.tables.Tables._apply": SELF,
    OPERATOR + "apply.tables.Tables.write_knowledge": SELF,
    OPERATOR + "apply.tables.Tables.write_shards": SELF,
    OPERATOR + "cluster.client.ApiCluster.create_event": SELF,
    OPERATOR + "cluster.client.ApiCluster.pages": "each page goes to `read_page`",
    OPERATOR + "cluster.client.ApiCluster.read_plan": CHECKED,
    OPERATOR + "cluster.client._key": SELF,
    OPERATOR + "cluster.gaps.Gaps._list": CHECKED,
    OPERATOR + "cluster.handlers.EventHandler.claim": "kopf has read uid and version before",
    OPERATOR + "cluster.handlers.EventHandler.pod": "kopf has read uid and version before",
    OPERATOR + "cluster.resync.NodeResync._nodes": CHECKED,
    OPERATOR + "cluster.resync.NodeResync._take": CHECKED,
    OPERATOR + "cluster.resync.Resync._updated": CHECKED,
    OPERATOR + "kubectl.read.items_of": CHECKED,
    OPERATOR + "kubectl.status.ago": "a time of a status that was read",
    OPERATOR + "kubectl.status.condition_table": "a status that was read",
    OPERATOR + "cluster.lease.lease_manifest": "the Lease that `read_lease` has read",
    OPERATOR + "decide.islands.in_the_way": SELF,
    OPERATOR + "resources.files.with_configs": "texts that `FileSource.check` has read",
    OPERATOR + "traffic.watcher._ceilings": "parts of a spec that fit their schema",
    OPERATOR + "resources.crd._sections": SELF,
    OPERATOR + "resources.crd.page": SELF,
    OPERATOR + "resources.crd.structural": SELF,
    OPERATOR + "traffic.signals.adapters": SHIPPED,
    "archipelago.perfmodel.catalogue.efficiency._kernel_rows": SHIPPED,
    "archipelago.perfmodel.catalogue.read.read": SHIPPED,
    PLANNER + "cli.commands.files.parse_document": "`load_document` with the name of the file",
    PLANNER + "cli.commands.manifests._content": "`load_document` and `validate_content`",
    PLANNER + "documents.to_yaml_all": SELF,
    PLANNER + "formats.plan_file._filled": SELF,
    PLANNER + "kubernetes.nodes.products": SHIPPED,
    PLANNER + "service.inputs._plan": STATED,
    PLANNER + "service.inputs._problem": STATED,
    PLANNER + "service.new_spec._deployed": STATED,
    PLANNER + "service.state.decode_calibration": "the last reply of a planner process",
    PLANNER + "service.state.decode_state": "the last reply of a planner process",
    PLANNER + "service.state.encode_state": SELF,
    PLANNER + "service.state.upper_demand": "the last reply of a planner process",
    PLANNER + "table.excise.excise": STATED,
}


def test_every_function_that_decodes_foreign_bytes_is_in_the_registry() -> None:
    known = {name for reader in ALL.values() for name in reader.covers} | OURS.keys()

    assert borders() - known == set(), "give it a reader in tests/support/fuzz"
    assert known - borders() == set(), "it decodes nothing any more: take it off the list"


@pytest.mark.parametrize("name", ALL)
def test_a_reader_enters_what_it_covers(name: str) -> None:
    """Otherwise the registry would name what nobody tries."""
    entered = set()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            entered.add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")

    reader = ALL[name]
    seeds = reader.seeds()
    sys.setprofile(note)
    try:
        understood = [reader(seed) for seed in seeds]
    finally:
        sys.setprofile(None)

    assert all(understood)
    assert set(reader.covers) - entered == set()
