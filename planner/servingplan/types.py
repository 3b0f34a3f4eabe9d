"""Types of the spec's fields: texts with a pattern, decimals, keyed lists.

Numbers that are not whole are decimal strings: YAML and JSON floats lose digits, and the API
conventions of Kubernetes forbid them. ``float`` reads them as CEL's ``double()`` does, ``Decimal``
without loss, for money. ``REMEDIES`` has a sentence for each pattern.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias, TypeVar

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field

from ..documents import NAMED_KEY

DECIMAL = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
LARGE_DECIMAL = r"^[0-9]{1,15}(\.[0-9]{1,6})?$"
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
DATA_KEY = r"^[-._a-zA-Z0-9]+$"
WHO = r"^[A-Za-z0-9][-A-Za-z0-9._@]*$"
MODEL_NAME = r"^[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?$"
ACCELERATOR_NAME = r"^[A-Za-z0-9]([-A-Za-z0-9._ ]*[A-Za-z0-9])?$"
HEADER_NAME = r"^[A-Za-z0-9][-A-Za-z0-9_]*$"
LABEL_KEY = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
SERVED_NAME = r"^/?[A-Za-z0-9][-A-Za-z0-9._:@+]*(/[A-Za-z0-9][-A-Za-z0-9._:@+]*)*$"
HASH = r"^[0-9a-f]{64}$"
VERSION = r"^[A-Za-z0-9][-A-Za-z0-9.+_]*$"
ISLANDS = r"^([0-9]{1,5}|100%|[0-9]{1,2}%)$"
CRON = r"^[-0-9A-Za-z*,/#]+( [-0-9A-Za-z*,/#]+){4}$"

REMEDIES = {
    DECIMAL: "write a decimal number in quotes, at most 9 digits before the point and 6 after it, "
    'without sign, unit or exponent: "4.00"',
    LARGE_DECIMAL: "write a decimal number in quotes, at most 15 digits before the point and "
    '6 after it, without sign, unit or exponent: "3100.25"',
    DNS_LABEL: "use only lower-case letters, digits and '-', and begin and end with "
    "a letter or digit: h200-rack-a",
    DNS_NAME: "use only lower-case letters, digits, '-' and '.', and begin and end with "
    "a letter or digit: vllm-pods",
    DATA_KEY: "write a key of the ConfigMap: letters, digits, '-', '_' and '.': template.yaml",
    WHO: "name a controller or a person by letters, digits, '-', '.', '_' and '@', beginning with "
    "a letter or digit: argocd",
    MODEL_NAME: "use letters, digits, '-', '.' and '_', with the owner before one '/' if there is "
    "one: DeepSeek-V3, Qwen/Qwen3-32B",
    ACCELERATOR_NAME: "use letters, digits, spaces, '-', '.' and '_', beginning and ending with a "
    "letter or digit: H200, RTX 4090",
    HEADER_NAME: "use only letters, digits, '-' and '_', beginning with a letter or digit: "
    "x-session-id",
    LABEL_KEY: "write the key of a node's label, as `kubectl get nodes --show-labels` does: "
    "topology.kubernetes.io/zone",
    LABEL_VALUE: "write the value of a node's label: letters, digits, '-', '_' and '.', beginning "
    "and ending with a letter or digit: NVIDIA-H100-80GB-HBM3",
    SERVED_NAME: "write the name under which the engine serves the model: letters, digits and "
    "'-', '.', '_', ':', '@', '+', in parts between single '/': meta-llama/Llama-3.1-8B",
    VERSION: "write the version as the engine's package has it, letters, digits and '-', '.', "
    "'+', '_': 0.12.0",
    ISLANDS: 'write a number of islands or a percentage, in quotes: "2", "10%"',
    CRON: "write minute, hour, day of the month, month and day of the week, with one space between "
    'them: "0 9 * * 1-5"',
    HASH: "write the hash of a proposal, 64 digits 0-9 and a-f, as the status shows it",
}
"""Pattern -> remedy for a value that does not match."""

DAY = 86_400
"""Seconds."""
LONGEST_KEY = 127
"""Characters of a label's key. Kubernetes allows 317, which no label in use needs; the limit keeps
a resource below 256 KiB."""


def _cron(schedule: str) -> str:
    try:
        CronSim(schedule, datetime.fromtimestamp(0, UTC))
    except CronSimError as error:
        raise ValueError(
            f"{schedule!r} is no schedule ({error}): write minute, hour, day of the month, month "
            'and day of the week in UTC, as "0 9 * * 1-5"'
        ) from None
    return schedule


Cron: TypeAlias = Annotated[str, Field(pattern=CRON, max_length=100), AfterValidator(_cron)]
DecimalText: TypeAlias = Annotated[str, Field(pattern=DECIMAL, max_length=16)]
LargeDecimalText: TypeAlias = Annotated[str, Field(pattern=LARGE_DECIMAL, max_length=22)]
Label: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL, min_length=1, max_length=63)]
LabelKey: TypeAlias = Annotated[str, Field(pattern=LABEL_KEY, max_length=LONGEST_KEY)]
LabelValue: TypeAlias = Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)]
ModelName: TypeAlias = Annotated[str, Field(pattern=MODEL_NAME, max_length=127)]
AcceleratorName: TypeAlias = Annotated[str, Field(pattern=ACCELERATOR_NAME, max_length=63)]
PrecisionName: TypeAlias = Literal["bf16", "fp8", "fp4", "int8", "int4"]

Item = TypeVar("Item")
# A YAML list is read into a tuple (frozen); the items keep the strict types of their object.
Listed: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False)]
Named: TypeAlias = Annotated[
    tuple[Item, ...], Field(strict=False, json_schema_extra={NAMED_KEY: "name"})
]
"""A list that is keyed by ``name``: order has no meaning, names are unique."""

MAX_TOKENS = 16_777_216
"""Longest input length that a spec may name [tokens]; no published model reads more."""
