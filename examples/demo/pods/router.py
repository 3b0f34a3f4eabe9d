"""A router: reads the table and the pods of a plan once a second, and sends requests by the table.

Prints a line of JSON a second: which sequence it follows, how many requests each island answered
since its start, and how many got no answer. Lists the pods for a Prometheus (``http_sd``) on port
8000. ``choose.py`` beside this file is the block of docs/reference/routing-table.md.
"""

import json
import os
import random
import ssl
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from choose import choose

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE, PLAN = (ACCOUNT / "namespace").read_text(), os.environ["PLAN"]
RATE = float(os.environ["RATE"])
CONTEXT = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
MEDIAN, SIGMA, OUTPUT = 6.93, 0.9, 211
"""Of the plan: logarithm of the median prompt (1020 tokens), its spread, and the mean answer."""

answers: Counter[str] = Counter()
failed = 0
pods: dict[str, str] = {}
"""Address of each island's pod."""


def kubernetes(path: str) -> dict[str, Any]:
    """Ask the API server."""
    request = urllib.request.Request(
        f"https://kubernetes.default.svc/api/v1/namespaces/{NAMESPACE}/{path}",
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"},
    )
    with urllib.request.urlopen(request, timeout=5, context=CONTEXT) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


class Targets(BaseHTTPRequestHandler):
    """The pods, with the labels that the operator reads their series by."""

    def do_GET(self) -> None:
        """Answer to Prometheus."""
        body = json.dumps(
            [
                {
                    "targets": [f"{address}:8000"],
                    "labels": {
                        "namespace": NAMESPACE,
                        "pod": island,
                        "archipelago_dev_plan": PLAN,
                        "archipelago_dev_island": island,
                    },
                }
                for island, address in pods.items()
            ]
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def send(content: dict[str, Any]) -> None:
    """Send one request to its islands, one after the other."""
    global failed  # noqa: PLW0603
    tokens = min(16000, max(1, round(random.lognormvariate(MEDIAN, SIGMA))))
    body = {"input": tokens, "output": max(1, round(random.expovariate(1 / OUTPUT)))}
    model = content["models"][0]["name"]
    try:
        for island in dict.fromkeys(choose(content, model, tokens, random.random()) or ()):
            url = f"http://{pods[island]}:8000/"
            with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as answer:
                answers[answer.read().decode()] += 1
    except (OSError, KeyError):
        failed += 1


threading.Thread(target=ThreadingHTTPServer(("", 8000), Targets).serve_forever, daemon=True).start()
while True:
    try:
        table = json.loads(kubernetes(f"configmaps/{PLAN}-routing")["data"]["table.json"])
        listed = kubernetes(f"pods?labelSelector=archipelago.dev/plan={PLAN}")["items"]
        pods = {
            pod["metadata"]["labels"]["archipelago.dev/island"]: pod["status"]["podIP"]
            for pod in listed
            if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
        }
    except OSError:
        time.sleep(1)
        continue
    print(
        json.dumps(
            {"sequence": table["identity"]["sequence"], "failed": failed, "answers": answers}
        ),
        flush=True,
    )
    end = time.monotonic() + 1
    while time.monotonic() < end:
        time.sleep(random.expovariate(RATE))
        threading.Thread(target=send, args=(table["content"],), daemon=True).start()
