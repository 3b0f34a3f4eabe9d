"""Pages of /metrics as engines write them, and a server that serves what a test puts there.

The pages are written after the engines' field names and bounds (the operator's `signals.yaml` says
where those were read). Pages that the engines' own code printed are in ``engines``.
"""

import http.server
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

VLLM_LENGTHS = tuple(float(d * 10**e) for e in range(5) for d in (1, 2, 5) if d * 10**e <= 20_000)
SGLANG_LENGTHS = (100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 10000.0, 30000.0)
TTFT = (0.001, 0.1, 0.25, 0.5, 1.0, 2.5)
TPOT = (0.01, 0.025, 0.05, 0.075, 0.1)


@dataclass(frozen=True)
class EngineCounts:
    """What a server has counted. Every request had ``tokens`` of prompt and ``output`` tokens."""

    done: int
    running: int = 4
    waiting: int = 1
    kv: float = 0.25
    tokens: int = 600
    output: int = 30


def vllm(counts: EngineCounts, *, model: str = "m") -> str:
    """A vLLM server's page."""
    labels = f'model_name="{model}",engine="0"'
    lines = [
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {counts.done - 1}',
        f'vllm:request_success_total{{{labels},finished_reason="length"}} 1',
        f"vllm:num_requests_running{{{labels}}} {counts.running}",
        f"vllm:num_requests_waiting{{{labels}}} {counts.waiting}",
        f"vllm:kv_cache_usage_perc{{{labels}}} {counts.kv}",
        *histogram("vllm:request_prompt_tokens", labels, counts.done, counts.tokens, VLLM_LENGTHS),
        *histogram(
            "vllm:request_generation_tokens", labels, counts.done, counts.output, VLLM_LENGTHS
        ),
        *histogram("vllm:time_to_first_token_seconds", labels, counts.done, 0.2, TTFT),
        *histogram("vllm:inter_token_latency_seconds", labels, counts.done, 0.03, TPOT),
    ]
    name = "vllm:request_time_per_output_token_seconds"
    lines += histogram(name, labels, counts.done, 0.03, TPOT)
    return "\n".join(lines) + "\n"


def sglang(counts: EngineCounts, *, model: str = "m") -> str:
    """An SGLang server's page."""
    labels = f'model_name="{model}",engine_type="unified",tp_rank="0",pp_rank="0"'
    lines = [
        f"sglang:num_requests_total{{{labels}}} {counts.done}",
        f"sglang:num_running_reqs{{{labels}}} {counts.running}",
        f"sglang:num_queue_reqs{{{labels}}} {counts.waiting}",
        f"sglang:token_usage{{{labels}}} {counts.kv}",
        *histogram(
            "sglang:prompt_tokens_histogram", labels, counts.done, counts.tokens, SGLANG_LENGTHS
        ),
        *histogram(
            "sglang:generation_tokens_histogram", labels, counts.done, counts.output, SGLANG_LENGTHS
        ),
        *histogram("sglang:time_to_first_token_seconds", labels, counts.done, 0.2, TTFT),
        *histogram("sglang:inter_token_latency_seconds", labels, counts.done, 0.03, TPOT),
    ]
    return "\n".join(lines) + "\n"


def histogram(
    name: str, labels: str, count: int, value: float, bounds: Sequence[float]
) -> list[str]:
    """The lines of a histogram of equal values."""
    lines = [
        f'{name}_bucket{{{labels},le="{bound}"}} {count if bound >= value else 0}'
        for bound in bounds
    ]
    return [
        *lines,
        f'{name}_bucket{{{labels},le="+Inf"}} {count}',
        f"{name}_sum{{{labels}}} {value * count}",
        f"{name}_count{{{labels}}} {count}",
    ]


@dataclass
class Pages:
    """Texts by path, served at ``address`` (host:port); a path without a text is a 404."""

    address: str
    texts: dict[str, str] = field(default_factory=dict)

    def put(self, texts: Mapping[str, str]) -> None:
        """Serve these instead of what was there, from one moment to the next."""
        self.texts = dict(texts)


@contextmanager
def served() -> Iterator[Pages]:
    """A server on a free port of this machine."""
    pages = Pages("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.texts.get(self.path)
            body = (text or "").encode()
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who asked has ended
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        pages.address = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield pages
        server.shutdown()
