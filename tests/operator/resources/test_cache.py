"""The cache beside a server, a watch that is late, and answers that are on their way."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.operator.decide import status_text
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.objects import TableObject
from tests.support.operator.situations import KEY, T0, plan, stored

NAME = stored(plan()).key
Step = tuple[str, int]
STEPS = st.tuples(
    st.sampled_from(["write", "delete", "unlabel", "read", "read", "tell", "tell", "answer"]),
    st.integers(min_value=0, max_value=2),
)
MANY = settings(max_examples=1000)


@dataclass
class World:
    """A table on the server; what the watch has not told, and the answers that have not come."""

    cache: Cache = field(default_factory=Cache)
    version: int = 10
    table: TableObject | None = None
    late: list[tuple[str, TableObject]] = field(default_factory=list)
    answers: list[TableObject | None] = field(default_factory=list)

    def play(self, steps: Sequence[Step]) -> None:
        """Do each step; one that is not possible is left out."""
        self.cache.update_plan(plan())
        for step, number in steps:
            self.version += 1
            at = str(self.version)
            if step == "write":
                now = self.table or replace(stored(plan()), uid=f"uid-{at}")
                self.store("MODIFIED", replace(now, resource_version=at), labels=True)
            elif step == "delete" and self.table is not None:
                gone = replace(self.table, resource_version=at)
                if gone.labels:
                    self.late.append(("DELETED", gone))
                self.table = None
            elif step == "unlabel" and self.table is not None and self.table.labels:
                self.store("DELETED", replace(self.table, resource_version=at), labels=False)
            elif step == "read":
                self.answers.append(self.table)
            elif step == "tell" and self.late:
                self.tell(*self.late.pop(0))
            elif step == "answer" and self.answers:
                self.take(self.answers.pop(number % len(self.answers)))

    def store(self, event: str, table: TableObject, *, labels: bool) -> None:
        """Store a version; the watch will tell: without its label it counts as deleted."""
        self.table = replace(table, labels=stored(plan()).labels if labels else {})
        self.late.append((event, self.table))

    def tell(self, event: str, table: TableObject) -> None:
        """The watch tells one thing."""
        if event == "DELETED":
            self.cache.delete_table(table.key, table.uid, table.resource_version)
        else:
            self.cache.update_table(table)

    def take(self, answer: TableObject | None) -> None:
        """An answer comes: a version, or that there is none."""
        if answer is None:
            self.cache.delete_table(NAME)
        else:
            self.cache.update_table(answer)

    def come_to_rest(self) -> None:
        """Everything that was late comes."""
        for event, table in self.late:
            self.tell(event, table)
        for answer in self.answers:
            self.take(answer)


@MANY
@given(st.lists(STEPS, min_size=6, max_size=20))
def test_after_everything_one_more_read_shows_what_is_stored(steps: list[Step]) -> None:
    world = World()
    world.play(steps)
    world.come_to_rest()
    world.take(world.table)

    assert world.cache.observe(KEY).table == world.table


@MANY
@given(st.lists(STEPS.filter(lambda step: step[0] != "unlabel"), min_size=6, max_size=20))
def test_nothing_that_is_gone_comes_back(steps: list[Step]) -> None:
    world = World()
    world.play(steps)
    world.come_to_rest()

    assert world.cache.observe(KEY).table in (world.table, None)


@MANY
@given(
    st.lists(
        STEPS.filter(lambda step: step[0] not in ("unlabel", "delete")), min_size=6, max_size=20
    )
)
def test_the_newest_version_stays_in_whatever_order_they_come(steps: list[Step]) -> None:
    world = World()
    world.play([("write", 0), *steps])
    world.come_to_rest()

    assert world.cache.observe(KEY).table == world.table


def test_the_status_that_is_being_written_is_no_news() -> None:
    """Its watch event can be here before the answer; whatever else has changed is news."""
    before = plan()
    status = status_text.planning(before, 1, T0)
    told = replace(before, resource_version="101", status=status)
    for other, news in (
        (told, None),
        (replace(told, status=before.status), KEY),
        (replace(told, generation=2, inputs_hash="other"), KEY),
        (replace(told, deleting=True), KEY),
    ):
        cache = Cache()
        cache.update_plan(before)
        with cache.writing(KEY, status):
            assert cache.update_plan(other) == news
        assert cache.plans.get(KEY) == other
        assert cache.update_plan(replace(told, resource_version="102")) == KEY
