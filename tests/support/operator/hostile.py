"""A Prometheus that lies, by seed: what an exporter, a proxy or a tenant may answer to a query.

Each seed takes some habits out of the lists below and keeps them, as a broken or hostile server
would; numbers, labels, times, forms of histograms and whole answers are spoilt. A source without
habits is an honest engine or router of any adapter. The same answers go to a reader (``scrape``)
and over HTTP (``served``).
"""

import json
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from archipelago.operator.traffic.queries import LAST_SEEN
from archipelago.operator.traffic.samples import Scrape, from_prometheus, joined
from archipelago.operator.traffic.signals import Scope, Signal, adapters

EXTREME = (
    *("1e308", "1.7976931348623157e308", "1e-320", "5e-324", "NaN", "+Inf", "-Inf", "-0", "-1"),
    *("9223372036854775808", "9007199254740993", "1e400", "0x10", "1_000", "many", "", "1e18"),
)
MAGNITUDES = tuple(10.0**power for power in (-300, -9, 0, 2, 4, 6, 9, 12, 15, 17, 30, 300))
NUMBERS = ("constant", "jumps", "jumps both ways", "restarts", "grows", "sometimes", "falls")
TIMES = ("backwards", "far ahead", "stands", "no number", "leaps")
FRESHNESS = ("future", "ancient", "no number", "none")
FORMS = (
    *("twice", "twice and other", "other model", "unicode", "no island", "unknown island"),
    *("bad bounds", "no last bucket", "other count", "many buckets", "huge bounds", "falling"),
    *("sum beyond", "empty", "half of the series", "old names"),
)
ANSWERS = ("html", "error", "half", "huge", "deep", "not a vector", "list", "500", "matrix")
BOUNDS = tuple(float(d * 10**e) for e in range(5) for d in (1, 2, 5))
LEVELS = {Signal.RUNNING: 5.0, Signal.WAITING: 1.0, Signal.QUEUED: 1.0, Signal.KV_USE: 0.4}
COUNTERS = (Signal.COMPLETED, Signal.DISPATCHED)
MEANS = {
    Signal.INPUTS: 700.0,
    Signal.OUTPUTS: 150.0,
    Signal.TTFT: 0.4,
    Signal.TPOT: 0.02,
    Signal.PREFILL: 0.1,
}
"""Of histograms, in tokens or seconds."""
Row = tuple[dict[str, str], str]


@dataclass
class Hostile:
    """One server. ``islands`` are those of a plan of a namespace; ``rate`` of each [req/s].

    ``habits`` None: drawn by the seed. ``engine``: the adapter that reads it. A router has as many
    processes as there are islands, and names neither islands nor the plan.
    """

    seed: int
    islands: tuple[str, ...] = ("a", "b")
    plan: str = "plan"
    namespace: str = "ns"
    engine: str = "vllm"
    rate: float = 3.0
    start: float = 1_000_000.0
    habits: frozenset[str] | None = None
    turn: int = 0
    begun: float = 0.0
    answers: int = 0
    asked: float = 0.0
    chosen: dict[str, bool] = field(default_factory=dict)
    known: tuple[int, dict[str, list[Row]]] = field(default_factory=lambda: (-1, {}))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  # tests
        if self.habits is None:
            count = self.random.choice((1, 1, 1, 2, 2, 3, 5))
            everything = (NUMBERS, NUMBERS, TIMES, FRESHNESS, FORMS, FORMS, ANSWERS)
            self.habits = frozenset(
                self.random.choice(self.random.choice(everything)) for _ in range(count)
            )
        self.adapter = adapters()[self.engine]
        self.victims = self.random.random()
        self.extreme = self.random.choice(EXTREME)
        self.magnitude = self.random.choice(MAGNITUDES)

    def has(self, *habits: str) -> bool:
        """Whether it has one of these habits."""
        return bool(self.habits and self.habits.intersection(habits))

    def time(self, now: float) -> str:
        """The answer to the query for the time; ``now`` [s] since the first one."""
        if self.has("backwards"):
            now = -now
        if self.has("far ahead"):
            now = now * 1e7
        if self.has("stands"):
            now = 0.0
        if self.has("leaps"):
            now += self.random.choice((0.0, 1e9, -1e9, 1e300))
        return (
            "NaN" if self.has("no number") and self.random.random() < 0.5 else str(self.start + now)
        )

    def body(self, query: str, now: float) -> bytes:
        """The answer to a query, ``now`` seconds after the first one."""
        self.answers += 1
        spoilt = [habit for habit in ANSWERS if self.has(habit)]
        if spoilt and self.random.random() < 0.7:
            return self._spoilt(self.random.choice(spoilt))
        if "archipelago_now" in query:
            self.turn, self.asked = self.turn + 1, now
            return _vector([({"__name__": "archipelago_now"}, self.time(now))])
        if LAST_SEEN in query:
            return _vector(list(self._freshness()))
        found = re.search(r'__name__=~"([^"]+)"', query)
        names = frozenset(found[1].split("|")) if found else frozenset()
        if self.known[0] != self.turn:  # all answers of one moment agree
            by_name: dict[str, list[Row]] = {}
            for row in self.rows(now):
                by_name.setdefault(row[0]["__name__"], []).append(row)
            self.known = self.turn, by_name
        rows = [row for name in sorted(names) for row in self.known[1].get(name, ())]
        if self.has("empty"):
            rows = []
        if self.has("half of the series"):
            rows = [row for row in rows if self.random.random() < 0.5]
        return _vector(rows)

    def _spoilt(self, habit: str) -> bytes:
        return {
            "html": b"<html><body>Welcome to nginx</body></html>",
            "error": b'{"status":"error","errorType":"bad_data","error":"parse error 7"}',
            "half": _vector([({"__name__": "x"}, "1")])[:-9],
            "huge": b" " * 6_000_000,
            "deep": b'{"status":"success","data":' + b"[" * 100_000,
            "not a vector": b'{"status":"success","data":{"resultType":"scalar","result":[0,"1"]}}',
            "list": b"[1, 2, {}]",
            "500": b"out of memory",
            "matrix": _vector([])[:-3] + b'[{"metric":7}]}}',
        }[habit]

    def _labels(self, island: str) -> dict[str, str]:
        labels = {
            "namespace": self.namespace,
            "archipelago_dev_plan": self.plan,
            "archipelago_dev_island": island,
            "pod": f"{island}-0",
            "instance": "10.0.0.1:8000",
            **self.adapter.only,
            **self._models("llama"),
        }
        if self.adapter.scope is Scope.ROUTER:
            del labels["archipelago_dev_plan"], labels["archipelago_dev_island"]
        if self.has("no island"):
            labels.pop("archipelago_dev_island", None)
        if self.has("unicode"):
            labels |= {"pod": "\u202e\ud83d\ude00 <b>", "ключ": "\x00\n" * 50}
            labels |= self._models("模型")
        return labels

    def _models(self, name: str) -> dict[str, str]:
        return dict.fromkeys(self.adapter.model_labels, name)

    def _freshness(self) -> Iterator[Row]:
        if self.has("none"):
            return
        at = self.start + self.asked + 1e6 * (self.has("future") - self.has("ancient"))
        text = "NaN" if self.has("no number") else str(at)
        for island in self.islands:
            labels = self._labels(island)
            kept = ("archipelago_dev_island", "pod", "instance")
            yield {"__name__": LAST_SEEN, **{k: labels[k] for k in kept if k in labels}}, text

    def rows(self, now: float) -> Iterator[Row]:
        """All series at a time [s] since the first query."""
        islands = [*self.islands, *(["ghost"] if self.has("unknown island") else [])]
        for island in islands:
            for row in self._island(self._labels(island), now):
                yield row
                labels, value = row
                if self.has("twice"):
                    yield {**labels, "job": "other"}, value
                if self.has("twice and other"):
                    yield {**labels, "job": "other"}, self._number(labels["__name__"], 5.0)
                    yield {**labels, "job": "third"}, str(self.magnitude)
                if self.has("other model"):
                    yield {**labels, **self._models("rival")}, value

    def _island(self, labels: dict[str, str], now: float) -> Iterator[Row]:
        done = 1000.0 + self.rate * now
        for signal, terms in self.adapter.signals.items():
            for name in (name for term in terms for name in self._exported(term.names)):
                if signal in LEVELS:
                    yield {**labels, "__name__": name}, self._number(name, LEVELS[signal])
                elif signal in COUNTERS:
                    yield {**labels, "__name__": name}, self._number(name, done)
                else:
                    yield from self._histogram(labels, name, MEANS[signal], done)

    def _exported(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Of the names of a metric the newest, or old ones too, as some versions have."""
        return names if self.has("old names") else names[:1]

    def _histogram(
        self, labels: dict[str, str], name: str, mean: float, done: float
    ) -> Iterator[Row]:
        bounds = list(BOUNDS)
        if self.has("many buckets"):
            bounds = [float(n) for n in range(1, 520)]
        if self.has("huge bounds"):
            bounds += [1e17, 1e200, 1e308]
        texts = [f"{bound:g}" for bound in bounds]
        if self.has("bad bounds"):
            texts += ["NaN", "x", "-5", "1e999", "-Inf"]
        if not self.has("no last bucket"):
            texts.append("+Inf")
        for number, text in enumerate(texts):
            share = 1.0 if number >= len(bounds) or bounds[number] >= 2 * mean else 0.0
            if number < len(bounds) and mean / 2 <= bounds[number] < 2 * mean:
                share = 0.6
            if self.has("falling"):
                share = 1.0 - share / 2
            value = self._number(f"{name}_bucket", done * share)
            yield {**labels, "__name__": f"{name}_bucket", "le": text}, value
        beyond = 1e6 if self.has("sum beyond") else 1.0
        total = done * mean * beyond
        yield {**labels, "__name__": f"{name}_sum"}, self._number(f"{name}_sum", total)
        count = done * (3.0 if self.has("other count") else 1.0)
        yield {**labels, "__name__": f"{name}_count"}, self._number(f"{name}_count", count)

    def _number(self, name: str, honest: float) -> str:
        """The value of a series: honest for some metrics, by a habit for the others."""
        habits = [habit for habit in NUMBERS if self.has(habit)]
        if name not in self.chosen:
            self.chosen[name] = self.random.random() < max(0.2, self.victims)
        if not habits or not self.chosen[name]:
            return str(honest)
        match self.random.choice(habits):
            case "constant":
                return self.extreme
            case "jumps":
                return str(honest + self.turn * self.magnitude * (1 + self.random.random()))
            case "jumps both ways":
                return str(self.random.random() * self.magnitude)
            case "restarts":
                return str(honest % (7 * self.rate + 1))
            case "grows":
                return str(honest * min(1e300, (2 + self.seed % 9) ** self.turn))
            case "falls":
                return str(max(0.0, self.magnitude - honest))
            case _:
                return self.random.choice(EXTREME) if self.random.random() < 0.1 else str(honest)

    def scrape(self, now: float) -> Scrape:
        """What a reader makes of it, without HTTP: one query for each name."""
        names = names_of(self.engine)
        clock = from_prometheus(self.body("archipelago_now", now), 0.0)
        at = next((sample.value for sample in clock.samples), 0.0)
        if clock.faults:
            return Scrape(at, (), clock.faults)
        bodies = [self.body(f'{{__name__=~"{name}"}}', now) for name in names]
        parts = [from_prometheus(body, at) for body in bodies]
        return joined((part for part in parts if part.samples or not _is_empty(part)), at)


def _is_empty(part: Scrape) -> bool:
    return [fault.reason for fault in part.faults] == ["NoSamples"]


def _vector(rows: list[Row]) -> bytes:
    result = [{"metric": labels, "value": [1000, value]} for labels, value in rows]
    answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return json.dumps(answer).encode()


def names_of(engine: str) -> tuple[str, ...]:
    """Every name that the adapter asks for."""
    return tuple(
        name + suffix
        for signal, terms in adapters()[engine].signals.items()
        for term in terms
        for name in term.names
        for suffix in (("_bucket", "_sum", "_count") if signal in MEANS else ("",))
    )


@contextmanager
def served(sources: Mapping[str, Hostile]) -> Iterator[int]:
    """Serve each source under ``/NAME`` on one port of this machine, which is yielded."""
    import time  # noqa: PLC0415

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # its name
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            source = sources[self.path.split("/")[1]]
            with source.lock:
                source.begun = source.begun or time.monotonic()
                body = source.body(form["query"][0], time.monotonic() - source.begun)
            self.send_response(500 if body == b"out of memory" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # the reader has enough of a huge answer
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
