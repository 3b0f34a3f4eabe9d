"""``python -m tests.support.prometheus ensure``: get Prometheus and promtool once."""

import sys

from tests.support.prometheus.provision import PrometheusMissing, ensure


def main() -> int:
    """0 when the programs are there, 1 with what each way answered, 2 for another command."""
    if sys.argv[1:] != ["ensure"]:
        sys.stderr.write("usage: python -m tests.support.prometheus ensure\n")
        return 2
    try:
        programs = ensure(_say)
    except PrometheusMissing as error:
        _say(str(error))
        return 1
    _say(f"{programs.prometheus}\n{programs.promtool}")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
