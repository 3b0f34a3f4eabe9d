"""What runs now, as the next plan is told."""

from archipelago.perfmodel.parallelism import Parallelism
from archipelago.planner.problem import Phase, Running
from archipelago.planner.running import running_of
from tests.planner.handmade import PLAN
from tests.planner.manykinds import KINDS


def test_every_island_is_told_with_its_place() -> None:
    found = running_of(PLAN)
    assert [item.name for item in found] == [island.name for island in PLAN.islands]
    nodes = ("a-rack-1-0",)
    main = Running("main-decode-0", "m", Phase.DECODE, Parallelism(tp=8), (("a", 8),), nodes)
    assert found[3] == main


def test_islands_of_several_pools_keep_the_order_of_their_parts() -> None:
    assert running_of(KINDS)[2].parts == (("a", 2), ("b", 1))
