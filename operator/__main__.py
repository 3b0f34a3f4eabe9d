"""Archipelago's operator: ``python -m archipelago.operator``. Settings: ``settings.py``.

    watch, resync  ->  cache  ->  queue  ->  reconcile.decide  ->  apply  ->  cluster
    (kopf thread)      newest     keyed      pure: actions         one        server-side
                       facts                 with reasons          write      apply
                                                  |
                                             planning (processes)

Exit status (docs/operating.md): 0 after SIGTERM, 1 where the watches did not come up for minutes,
2 where what it was started with cannot be used: a setting, the credentials, the address of its
probes. With 1 and 2 the last line says why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from archipelago.operator import garbage, logs, runtime
from archipelago.operator.errors import SettingsError
from archipelago.operator.settings import Settings
from archipelago.operator.watch import WatchFailed

log = logging.getLogger("archipelago.operator")


def main() -> int:
    """Run the operator; returns the exit status."""
    try:
        settings = Settings.from_environment(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(settings.log_level)
    garbage.kept_for_good()
    status = 0
    try:
        asyncio.run(runtime.run(settings))
    except* SettingsError as unusable:
        sys.stderr.write(f"{unusable.exceptions[0]}\n")
        status = 2
    except* WatchFailed as failures:
        log.error("%s", failures.exceptions[0])  # noqa: TRY400  # the sentence says it all
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
