"""Archipelago's operator: ``python -m archipelago.operator``. Settings: ``settings.py``.

    informer, resync  ->  cache         ->  queue  ->  decide   ->  apply    ->  cluster.client
    (kopf thread)         newest facts      keyed      pure:        one          server-side
                                                       actions      write        apply
                                                                      |
                                                                  planning (processes)

Exit status (docs/reference/settings.md): 0 after SIGTERM, 1 if the watches got no answer for
minutes, 2 if a setting, the credentials or the address of the probes cannot be used. With 1 and 2
the last line has the reason.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys

from . import app, logs
from .cluster.informer import WatchFailed
from .errors import SettingsError
from .settings import Settings

log = logging.getLogger("archipelago.operator")


def main() -> int:
    """Run the operator; return the exit status."""
    try:
        settings = Settings.from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(settings.log_level)
    # Present objects, mostly modules, are not collected again: saves 0.03 s each time.
    gc.collect()
    gc.freeze()
    status = 0
    try:
        asyncio.run(app.run(settings))
    except* SettingsError as unusable:
        sys.stderr.write(f"{unusable.exceptions[0]}\n")
        status = 2
    except* WatchFailed as failures:
        log.error("%s", failures.exceptions[0])  # noqa: TRY400  # the message is complete
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
