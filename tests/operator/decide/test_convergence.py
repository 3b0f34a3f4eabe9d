"""Thousands of lives in a model of the API server: faults, late watches, restarts, users.

The model keeps what the real one promises and ``tests/e2e`` holds it to: versions, conflicts,
creation only with the version that no object has. Whatever happened before, once it is quiet the
stored table answers the spec, the status says so, and nothing is written any more.
"""

import copy
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any, cast

import pytest

from archipelago.operator.apply.events import Events
from archipelago.operator.apply.islands import Islands
from archipelago.operator.apply.reconciler import Reconciler
from archipelago.operator.cluster.client import ApiCluster
from archipelago.operator.decide.state import Now
from archipelago.operator.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Retryable,
)
from archipelago.operator.inventory.start_rules import StartLimit
from archipelago.operator.metrics import Metrics
from archipelago.operator.planning.messages import Job, decode_result
from archipelago.operator.planning.pool import PlannerPool
from archipelago.operator.planning.result import PlanFailed, PlannerResult
from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.manifests import MUST_NOT_EXIST
from archipelago.operator.resources.names import TABLE_BYTES, Key, Manifest
from archipelago.operator.resources.objects import (
    ConfigMapObject,
    PlanObject,
    TableObject,
    read_config_map,
)
from archipelago.operator.resources.status import Reason
from archipelago.planner.service.messages import TableStep
from archipelago.planner.table.shards import digest
from tests.support.operator.situations import KEY, NOT_LIVE, later, plan_reply

TABLE = "chat-routing"
IMPOSSIBLE = "0"
LIVES = int(os.environ.get("LIVES", "100"))
"""Of each of four batches; ``make transitions`` has 300."""
STEPS = 60
GRACE = 60.0
SLOW = pytest.mark.slow


class Server(ApiCluster):
    """A model of the API server with one plan and what lies under its table's name."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.version = 100
        self.plan: Manifest | None = None
        self.table: Manifest | None = None
        self.faults = 0.2
        self.writes = 0
        self.refuses = False
        self.stored: list[tuple[str, int, int]] = []
        self.late: list[tuple[str, str, Manifest]] = []  # what the watch has not told yet
        self.shards: dict[str, Manifest] = {}
        self.taken: set[str] = set()  # shards that a user took away
        self.released: dict[str, float] = {}  # when a stored pointer named a shard last
        self.seconds = 0.0

    def touch(self, kind: str, body: Manifest, event: str = "MODIFIED") -> None:
        """A new version; the watch will tell."""
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.late.append((kind, event, copy.deepcopy(body)))

    async def create_shard(self, manifest: Manifest) -> Mapping[str, Any]:
        return await self.apply_shard(manifest)

    async def apply_shard(self, manifest: Manifest) -> Mapping[str, Any]:
        self._fail_now_and_then()
        if self.refuses:
            raise Forbidden("exceeded quota")
        return self._apply_shard(manifest, manifest["metadata"].get("resourceVersion", ""))

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        self._fail_now_and_then()
        if self.refuses:
            raise Forbidden("exceeded quota")
        version = manifest["metadata"]["resourceVersion"]
        self.release()
        if self.table is None:
            self.table = copy.deepcopy(manifest)
            self.table["metadata"]["uid"] = f"table-{self.version}"
        elif version in (MUST_NOT_EXIST, "") or version != _version(self.table):
            raise Conflict("the table changed")
        else:
            for part in ("labels", "annotations"):
                applied = manifest["metadata"][part]
                self.table["metadata"][part] = self.table["metadata"].get(part, {}) | applied
            self.table["metadata"]["ownerReferences"] = manifest["metadata"]["ownerReferences"]
            self.table["data"] |= manifest["data"]
        identity = json.loads(manifest["data"]["table.json"])["identity"]
        self.stored.append((identity["uid"], identity["generation"], identity["sequence"]))
        self.check_whole()
        return self._written("table", self.table)

    def _apply_shard(self, manifest: Manifest, version: str) -> Mapping[str, Any]:
        name = manifest["metadata"]["name"]
        shard = self.shards.get(name)
        if shard is None:
            shard = self.shards[name] = copy.deepcopy(manifest)
            shard["metadata"]["uid"] = f"shard-{self.version}"
        elif version in (MUST_NOT_EXIST, "") or version != _version(shard):
            raise Conflict("the shard changed")
        else:
            assert shard["immutable"]
            assert shard["data"] == manifest["data"]
            shard["metadata"] |= {
                key: manifest["metadata"][key]
                for key in ("labels", "annotations", "ownerReferences")
            }
        self.taken.discard(name)
        return self._written("table", shard)

    async def remove_config_map(self, key: Key, uid: str, resource_version: str) -> None:
        self._fail_now_and_then()
        shard = self.shards.get(key.name)
        if shard is None:
            raise NotFound(str(key))
        if (uid, resource_version) != (shard["metadata"]["uid"], _version(shard)):
            raise Conflict("another version")
        assert self.seconds - self.released.get(key.name, -GRACE) >= GRACE, "a reader needs it"
        del self.shards[key.name]
        self.check_whole()
        self.writes += 1
        self.touch("table", shard, "DELETED")
        self._fail_now_and_then()

    def named(self) -> dict[str, str]:
        """Shards that the stored pointer names, and what they hold."""
        try:
            table = json.loads(self.table["data"]["table.json"]) if self.table else {}
        except (KeyError, ValueError):
            return {}
        return {shard["name"]: shard["hash"] for shard in table.get("shards", ())}

    def release(self) -> None:
        """The pointer changes: from now on its readers have a grace period."""
        self.released |= dict.fromkeys(self.named(), self.seconds)

    def check_whole(self) -> None:
        """I2: what the operator leaves behind resolves, whenever one looks."""
        for name, hashed in self.named().items():
            if name not in self.taken:
                assert digest(self.shards[name]["data"]["shard.txt"]) == hashed

    async def apply_status(self, manifest: Manifest) -> Mapping[str, Any]:
        self._fail_now_and_then()
        if self.plan is None:
            raise NotFound("no plan")
        if manifest["metadata"]["resourceVersion"] != _version(self.plan):
            raise Conflict("the plan changed")
        self.plan["status"] = copy.deepcopy(manifest["status"])
        return self._written("plan", self.plan)

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        config_map = self.table if key.name == TABLE else self.shards.get(key.name)
        if config_map is None:
            raise NotFound(str(key))
        return copy.deepcopy(config_map)

    async def read_plan(self, key: Key) -> Mapping[str, Any] | None:
        assert key == KEY
        return copy.deepcopy(self.plan)

    async def create_event(self, manifest: Manifest) -> None:
        assert manifest["type"] in ("Normal", "Warning")
        self._fail_now_and_then()

    def plans(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        raise AssertionError(namespace)  # the test fills the cache itself

    tables = plans

    def _written(self, kind: str, body: Manifest) -> Mapping[str, Any]:
        self.writes += 1
        self.touch(kind, body)
        self._fail_now_and_then()  # done, but the answer is lost
        return copy.deepcopy(body)

    def _fail_now_and_then(self) -> None:
        if self.random.random() < self.faults:
            raise Retryable("no answer")


class Jobs:
    """What the reconciler asks of the planner processes, kept until it is answered."""

    asked: dict[Key, Job]

    def ask(self, job: Job) -> None:
        self.asked[job.key] = job

    def warm(self) -> None:
        raise AssertionError("no plan is live here")

    def cancel(self, key: Key) -> None:
        self.asked.pop(key, None)


class Life(Jobs):
    """A user, a server and an operator that dies now and then."""

    def __init__(self, seed: int, limit: int = TABLE_BYTES) -> None:
        self.random = Random(seed)  # noqa: S311
        self.limit = limit
        self.server = Server(self.random)
        self.seconds = 0.0
        self.generation = 0
        self.uids = 0
        self.foreign: Manifest | None = None
        self.start_operator()

    def now(self) -> Now:
        return later(self.seconds)

    def start_operator(self) -> None:
        """With nothing remembered; the first full list fills the cache."""
        self.cache, self.metrics = Cache(), Metrics()
        self.asked = {}
        events = Events(self.server, self.metrics, self.now, "test")
        pool = cast("PlannerPool", self)
        self.reconciler = Reconciler(
            self.server, self.cache, planner=pool, quick=pool, observations=NOT_LIVE,
            islands=Islands(self.server, self.metrics, "Off", lambda _: StartLimit()),
            events=events, metrics=self.metrics,
            now=self.now, enqueue_after=lambda _key, _delay: None, grace=GRACE,
        )  # fmt: skip
        self.list_all()

    def list_all(self) -> None:
        """The full list, with what the watch would have told."""
        plan, table, version = self.server.plan, self.server.table, str(self.server.version)
        if plan:
            self.cache.update_plan(PlanObject.from_body(copy.deepcopy(plan)))
        labelled = table if table and _is_labelled(table) else None
        if labelled:
            self.cache.update_table(TableObject.from_body(copy.deepcopy(labelled)))
        self.cache.plans.delete_unlisted({KEY} if plan else set(), version, None)
        name = Key(KEY.namespace, TABLE)
        listed = {name} if labelled else set()
        for shard, body in self.server.shards.items():
            if _is_labelled(body):
                self.cache.update_table(read_config_map(copy.deepcopy(body)))
                listed.add(Key(KEY.namespace, shard))
        self.cache.tables.delete_unlisted(listed, version, None, ConfigMapObject.is_selected)

    def answer(self) -> None:
        """The planner is done, or its process died."""
        for key, job in list(self.asked.items()):
            del self.asked[key]
            crash = self.random.random() < self.server.faults
            self.reconciler.planned(key, _verdict(job, self.limit, crash=crash))

    # What happens to the world.

    def create_or_edit(self) -> None:
        spec = {"budgetPerHour": self.random.choice(("8", "9", IMPOSSIBLE)), "models": []}
        self._change(spec)

    def suspend_or_resume(self) -> None:
        if self.server.plan:
            spec = self.server.plan["spec"]
            self._change(spec | {"suspend": not spec.get("suspend", False)})

    def _change(self, spec: Manifest) -> None:
        server, plan = self.server, self.server.plan
        if plan is None:
            self.uids, self.generation = self.uids + 1, 0
            meta = {"namespace": "team", "name": "chat", "uid": f"uid-{self.uids}"}
            server.plan = plan = {"metadata": meta, "spec": None}
        if plan["spec"] != spec:
            self.generation += 1
            plan["spec"], plan["metadata"]["generation"] = spec, self.generation
            server.touch("plan", plan)

    def delete_plan(self) -> None:
        if self.server.plan:
            self.server.touch("plan", self.server.plan, "DELETED")
            self.server.plan = None

    def collect(self) -> None:
        """The garbage collector takes what belongs to a plan that is gone."""
        table = self.server.table
        owners = table["metadata"].get("ownerReferences", []) if table else []
        alive = self.server.plan["metadata"]["uid"] if self.server.plan else None
        if owners and owners[0]["uid"] != alive:
            self.delete_table()
        for name, shard in list(self.server.shards.items()):
            if shard["metadata"]["ownerReferences"][0]["uid"] != alive:
                self.delete_shard(name)

    def delete_shard(self, name: str = "") -> None:
        """A user does not know what it is for; or the garbage collector does."""
        names = [name] if name else self.random.sample(sorted(self.server.shards), k=1) if (
            self.server.shards
        ) else []  # fmt: skip
        for taken in names:
            self.server.taken.add(taken)
            self.server.touch("table", self.server.shards.pop(taken), "DELETED")

    def unlabel_shard(self) -> None:
        for body in list(self.server.shards.values())[:1]:
            body["metadata"]["labels"] = {}
            self.server.touch("table", body, "DELETED")

    def delete_table(self) -> None:
        self.server.release()
        if self.server.table and self.server.table is not self.foreign:
            self.server.touch("table", self.server.table, "DELETED")
            self.server.table = None

    def edit_table(self) -> None:
        table = self.server.table
        self.server.release()
        if table and table is not self.foreign:
            table["data"] |= {"table.json": self.random.choice(("{}", "x")), "mine": "kept"}
            self.server.touch("table", table)

    def unlabel_table(self) -> None:
        """To a watch by label that is a deletion."""
        table = self.server.table
        if table and table is not self.foreign:
            table["metadata"]["labels"] = {}
            self.server.touch("table", table, "DELETED")

    def squat(self) -> None:
        """Somebody else takes the name."""
        if self.server.table is None:
            meta = {"namespace": "team", "name": TABLE, "uid": "theirs"}
            self.server.table = self.foreign = {"metadata": meta, "data": {"a": "b"}}
            self.server.version += 1
            meta["resourceVersion"] = str(self.server.version)

    def give_way(self) -> None:
        if self.foreign:
            self.server.table = self.foreign = None

    def tell(self) -> None:
        """The watch delivers one event, in order."""
        if not self.server.late:
            return
        kind, event, body = self.server.late.pop(0)
        meta = body["metadata"]
        key, uid, version = Key("team", meta["name"]), meta["uid"], meta["resourceVersion"]
        if kind == "plan" and event == "DELETED":
            self.cache.delete_plan(key, uid, version)
        elif kind == "plan":
            self.cache.update_plan(PlanObject.from_body(body))
        elif event == "DELETED":
            self.cache.delete_table(key, uid, version)
        else:
            self.cache.update_table(read_config_map(body))

    async def work(self) -> None:
        """The queue would try again later; so does the next step."""
        self.seconds += self.random.uniform(0.0, 20.0)
        self.server.seconds = self.seconds
        with suppress(ClusterError):
            await self.reconciler.reconcile(KEY)

    async def step(self) -> None:
        """Anything may happen next."""
        world = (
            self.create_or_edit, self.create_or_edit, self.suspend_or_resume, self.delete_plan,
            self.collect, self.collect, self.delete_table, self.edit_table, self.unlabel_table,
            self.squat, self.give_way, self.start_operator, self.list_all,
            *((self.delete_shard, self.unlabel_shard) if self.limit < TABLE_BYTES else ()),
        )  # fmt: skip
        chance = self.random.random()
        if chance < 0.3:
            self.random.choice(world)()
        elif chance < 0.55:
            self.tell()
        elif chance < 0.75:
            self.answer()
        else:
            await self.work()

    async def come_to_rest(self) -> None:
        """No faults and no changes any more: the garbage is collected, the watch catches up."""
        self.server.faults = 0.0
        for _ in range(12):
            self.collect()
            while self.server.late:
                self.tell()
            self.list_all()
            self.seconds += 60.0
            await self.work()
            self.answer()


@pytest.mark.parametrize("limit", [TABLE_BYTES, 6], ids=["whole", "shards"])
@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=SLOW) for n in (1, 2, 3))])
async def test_whatever_happened_it_comes_to_the_right_rest(batch: int, limit: int) -> None:
    for seed in range(batch * LIVES, (batch + 1) * LIVES):
        life = Life(seed, limit)
        for _ in range(STEPS):
            await life.step()
        squatted = copy.deepcopy(life.foreign)
        await life.come_to_rest()
        writes = life.server.writes
        await life.come_to_rest()

        assert life.server.writes == writes, f"life {seed}: writes at rest"
        assert life.foreign == squatted, f"life {seed}: another's object was changed"
        _check_history(life.server.stored, seed)
        _check_end(life.server, life.foreign is not None, seed)


async def test_a_table_that_is_refused_costs_one_promise_however_often_it_is_tried() -> None:
    """I5: a quota that is used up for a week makes no write a minute."""
    life = Life(0)
    life.server.faults, life.server.refuses = 0.0, True
    life.create_or_edit()
    life.tell()
    for _ in range(3):
        await life.work()
        life.answer()
    writes = life.server.writes
    for _ in range(10):
        life.seconds += 60.0
        await life.work()

    assert life.server.writes == writes <= 2
    life.server.refuses = False
    await life.come_to_rest()
    _check_end(life.server, squatted=False, seed=0)
    assert life.server.stored[-1][2] == 1


async def test_a_server_that_takes_no_status_gets_a_whole_one_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life, reasons = Life(0), list[str]()

    async def refuse(manifest: Manifest) -> Mapping[str, Any]:
        reasons.append(manifest["status"]["conditions"][0]["reason"])
        raise Invalid("422 made up")

    monkeypatch.setattr(life.server, "apply_status", refuse)
    life.create_or_edit()
    life.tell()
    for _ in range(6):
        life.seconds = 0.0
        monkeypatch.setattr(life.random, "uniform", lambda _least, _most: 0.0)
        await life.work()

    assert reasons == [Reason.PLANNING, *[Reason.STATUS_REFUSED] * 6]


def _check_history(stored: list[tuple[str, int, int]], seed: int) -> None:
    """I4: generation and sequence never go back for one uid."""
    for uid in {uid for uid, _, _ in stored}:
        mine = [(generation, sequence) for of, generation, sequence in stored if of == uid]
        assert mine == sorted(mine), f"life {seed}: {mine}"
        assert len({sequence for _, sequence in mine}) == len(mine), f"life {seed}: {mine}"


def _check_end(server: Server, squatted: bool, seed: int) -> None:
    """I1 and I3: what is stored answers the spec, and the status says what is stored."""
    if server.plan is None:
        assert server.table is None or squatted, f"life {seed}: garbage"
        assert server.shards == {}, f"life {seed}: garbage"
        return
    plan = PlanObject.from_body(server.plan)
    ready = plan.status.conditions[0]
    assert ready.observed_generation == plan.generation, f"life {seed}"
    expected = _expected(plan, squatted)
    assert ready.reason is expected, f"life {seed}: {ready} but {expected}"
    if expected is Reason.PUBLISHED:
        assert server.table is not None
        table = TableObject.from_body(server.table)
        assert table.is_up_to_date(plan), f"life {seed}"
        assert table.content_hash == plan.status.summary["contentHash"], f"life {seed}"
        assert set(server.shards) == set(server.named()), f"life {seed}: shards nobody needs"
        server.taken.clear()
        server.check_whole()


def _expected(plan: PlanObject, squatted: bool) -> Reason:
    if plan.suspended:
        return Reason.SUSPENDED
    if plan.spec["budgetPerHour"] == IMPOSSIBLE:
        return Reason.INFEASIBLE
    return Reason.NAME_CONFLICT if squatted else Reason.PUBLISHED


def _verdict(job: Job, limit: int, *, crash: bool) -> PlannerResult:
    if crash:
        return PlanFailed(job.inputs_hash, Reason.PLANNER_CRASHED, "SIGSEGV")
    budget = job.request.resource["spec"]["budgetPerHour"]
    if budget == IMPOSSIBLE:
        return PlanFailed(job.inputs_hash, Reason.INFEASIBLE, "too little money")
    content = json.dumps({"budget": budget}, separators=(",", ":"))
    reply = plan_reply(TableStep(content=content), islands=1)
    return decode_result(job.inputs_hash, reply, limit)


def _version(body: Manifest) -> str:
    return str(body["metadata"]["resourceVersion"])


def _is_labelled(table: Manifest) -> bool:
    return "app.kubernetes.io/managed-by" in table["metadata"].get("labels", {})
