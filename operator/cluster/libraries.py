"""kopf, and the asyncio half of the Kubernetes client, without its synchronous half.

The package ``kubernetes`` imports all of its parts whichever is used, and kopf imports the
synchronous client to know its classes. In the image that is a quarter of the imports, for code that
never runs; where ``kubernetes_validate`` is installed, as in the tests, more than half.
"""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Final

PACKAGE: Final = "kubernetes"
SYNCHRONOUS: Final = f"{PACKAGE}.client"


def _bare(name: str) -> ModuleType | None:
    """Import a package without running its own code: its modules are found, none is imported."""
    spec = find_spec(name)
    if spec is not None:
        sys.modules[name] = module_from_spec(spec)
    return sys.modules.get(name)


if PACKAGE not in sys.modules:
    # Above the imports of them, which find what is here.
    setattr(_bare(PACKAGE), "aio", _bare(f"{PACKAGE}.aio"))  # noqa: B010
    sys.modules[SYNCHRONOUS] = None  # type: ignore[assignment]  # kopf finds that it is not there
    import kopf

    del sys.modules[SYNCHRONOUS]
else:
    import kopf

from kubernetes.aio import client, config  # noqa: E402
from kubernetes.aio.client.exceptions import ApiException  # noqa: E402

__all__ = ["ApiException", "client", "config", "kopf"]
