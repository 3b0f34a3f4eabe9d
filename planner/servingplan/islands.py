"""The pods of the islands in the spec: who changes them, and from which template they are made.

No field changes the plan of a spec.
"""

from typing import Annotated, Literal

from pydantic import Field

from .rule import Rule, SpecObject
from .types import DATA_KEY, DAY, DNS_NAME, WHO


class Template(SpecObject):
    """The ConfigMap of the plan's namespace that has the pod templates."""

    config_map: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] = Field(
        description="Name of a ConfigMap in the plan's namespace."
    )
    key: Annotated[str, Field(pattern=DATA_KEY, max_length=253)] = Field(
        default="template.yaml",
        description="Key in the ConfigMap: a PodTemplate, a Pod, or metadata and spec alone. A key "
        "NAME.yaml comes first for the model of that name.",
    )


class Islands(SpecObject):
    """Who makes and changes the pods of the islands."""

    manage: Literal["Off", "Deployments", "LeaderWorkerSets"] = Field(
        default="Off",
        description="Deployments: the operator makes a Deployment for each island, changes and "
        "removes it as the table says. LeaderWorkerSets: for islands of several pods a "
        "LeaderWorkerSet as well. Off: the pods are made by others. The operator's administrator "
        "has to permit it.",
    )
    template: Template | None = Field(
        default=None,
        description="Pod templates that the operator makes the pods from; needed to manage them. A "
        "changed template is used by islands that start or change afterwards.",
    )
    changed_by: Annotated[str, Field(pattern=WHO, max_length=253)] | None = Field(
        default=None,
        description="Controller or person that changes the pods as the table says, if the operator "
        "does not. Absent: changes of phases and islands are proposals, whatever the mode.",
    )
    ready_seconds: int = Field(
        default=900,
        ge=10,
        le=DAY,
        description="Time in which the pods of a changed island have to become ready; then the "
        "change is taken back [s].",
    )
    rules = (
        Rule(
            "template",
            "self.manage == 'Off' || has(self.template)",
            lambda i: i.manage == "Off" or i.template is not None,
            "the operator makes the pods from a template: name its ConfigMap, or set manage Off",
        ),
        Rule(
            "changedBy",
            "self.manage == 'Off' || !has(self.changedBy)",
            lambda i: i.manage == "Off" or i.changed_by is None,
            "the operator changes the pods itself: remove changedBy, or set manage Off",
        ),
    )

    @property
    def carried(self) -> bool:
        """Whether somebody changes the pods as the table says."""
        return self.manage != "Off" or self.changed_by is not None
