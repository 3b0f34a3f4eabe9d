"""Plans of any namespace as the administrator sees them: kubectl is too slow for 500 of them."""

from dataclasses import dataclass
from typing import Any

from tests.support.controlplane.api import MERGE, Api
from tests.support.e2e.operators import resource

PLANS = "/apis/archipelago.dev/v1alpha1/namespaces/{namespace}/servingplans"


@dataclass(frozen=True)
class Administrator:
    """Requests about plans; each fails where the server refuses it."""

    api: Api

    def create(self, namespace: str, name: str, spec: dict[str, Any]) -> None:
        self.api("POST", PLANS.format(namespace=namespace), resource(name, spec))

    def patch(self, namespace: str, name: str, spec: dict[str, Any]) -> None:
        """Merge a change into the spec."""
        path = f"{PLANS.format(namespace=namespace)}/{name}"
        self.api("PATCH", path, {"spec": spec}, MERGE)

    def delete(self, namespace: str, name: str) -> None:
        self.api("DELETE", f"{PLANS.format(namespace=namespace)}/{name}")

    def plans(self, namespace: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.api("GET", PLANS.format(namespace=namespace))["items"]
        return items


def ready(plan: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of Ready where it speaks of the newest generation."""
    for condition in plan.get("status", {}).get("conditions", []):
        current = condition["observedGeneration"] == plan["metadata"]["generation"]
        if condition["type"] == "Ready" and current:
            return condition["status"], condition["reason"]
    return "", ""
