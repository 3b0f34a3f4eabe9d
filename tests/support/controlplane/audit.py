"""The API server's audit log: who asked for what, and the answer."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

# Metadata is enough to compare verbs granted and used. The server's own traffic is left out.
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    users: ["system:apiserver", "system:kube-controller-manager"]
  - level: Metadata
"""


@dataclass(frozen=True)
class AuditEvent:
    """One request; ``resource`` is empty for paths such as /readyz.

    A watch is recorded twice: at stage ResponseStarted, and ResponseComplete when it ends.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    uri: str
    code: int
    stage: str
    time: str

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Read one record of the log."""
        target = record.get("objectRef", {})
        return cls(
            user=record["user"].get("username", ""),  # none where it was not let in
            verb=record["verb"],
            group=target.get("apiGroup", ""),
            resource=target.get("resource", ""),
            subresource=target.get("subresource", ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            uri=record["requestURI"],
            code=record.get("responseStatus", {}).get("code", 0),
            stage=record["stage"],
            time=record["requestReceivedTimestamp"],
        )


def parse(lines: Iterable[str]) -> tuple[AuditEvent, ...]:
    """Events of a log that may still be written to: an unfinished last line is left out."""
    return tuple(AuditEvent.from_record(json.loads(line)) for line in lines if line.endswith("\n"))
