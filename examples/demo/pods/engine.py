"""An engine without a GPU: takes requests of an island, takes its time, and counts as vLLM does.

    POST /  {"input": tokens, "output": tokens}    answers once the time of that is over
    GET /metrics    vLLM's page, by ``exposition.py`` beside this file
    GET /health

A prefill island answers with the first token, as vLLM does if another island decodes.
"""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from exposition import Counters

ISLAND, PHASE = os.environ["ARCHIPELAGO_ISLAND"], os.environ["ARCHIPELAGO_PHASE"]
MODEL = os.environ["ARCHIPELAGO_MODEL"]
FIRST, NEXT = 0.05, 0.005
"""Seconds until the first token and between two tokens."""

counters, lock = Counters(16384), threading.Lock()
running = 0


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer to the kubelet and to Prometheus."""
        with lock:
            self._answer(counters.page(MODEL, running, 0, 0.1) if "metrics" in self.path else "ok")

    def do_POST(self) -> None:
        """Serve a request."""
        global running  # noqa: PLW0603
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        output = 1 if PHASE == "prefill" else request["output"]
        with lock:
            running += 1
        time.sleep(FIRST + NEXT * output)
        with lock:
            running -= 1
            counters.ttft.add(FIRST)
            counters.end(request["input"], output, "stop", NEXT * output)
        self._answer(ISLAND)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("", 8000), Handler).serve_forever()
