"""Somebody with plans, whose every write is noted: what else is written is the operator's doing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.controlplane.api import JSON, MERGE, Api
from tests.support.e2e.operators import resource
from tests.support.faults.history import History


@dataclass(frozen=True)
class User:
    """Somebody with plans in one namespace. Each write is noted in the history as theirs."""

    api: Api
    namespace: str
    history: History

    @property
    def plans(self) -> str:
        return f"/apis/archipelago.dev/v1alpha1/namespaces/{self.namespace}/servingplans"

    @property
    def tables(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    def create(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make a plan."""
        self._write("POST", self.plans, resource(name, spec))

    def edit(self, name: str, change: Mapping[str, Any]) -> None:
        """Merge a change into a plan's spec."""
        self._write("PATCH", f"{self.plans}/{name}", {"spec": change}, MERGE)

    def delete(self, name: str) -> None:
        """Delete a plan."""
        self._delete(f"{self.plans}/{name}")

    def edit_table(self, name: str, change: Mapping[str, Any]) -> None:
        """Merge a change into a plan's ConfigMap: data, labels, annotations."""
        self._write("PATCH", f"{self.tables}/{name}-routing", change, MERGE)

    def delete_table(self, name: str) -> None:
        """Delete a plan's ConfigMap."""
        self._delete(f"{self.tables}/{name}-routing")

    def create_table(self, name: str, data: Mapping[str, str]) -> None:
        """Make a ConfigMap under the name of a plan's table: a stranger's."""
        body = {"metadata": {"name": f"{name}-routing"}, "data": dict(data)}
        self._write("POST", self.tables, body)

    def _write(self, method: str, path: str, body: object, kind: str = JSON) -> None:
        # Under the history's lock: the recorder may not see the write before it is noted.
        with self.history.changed:
            stored = self.api(method, path, body, kind)
            self.history.users.add(int(stored["metadata"]["resourceVersion"]))

    def _delete(self, path: str) -> None:
        with self.history.changed:
            self.history.deleted.add(self.api("GET", path)["metadata"]["uid"])
            self.api("DELETE", path)
