"""Commands of the test control plane: ``ensure`` its programs, run one with ``up``."""

import argparse
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support.controlplane import binaries
from tests.support.controlplane.cluster import CONTEXT
from tests.support.controlplane.errors import ControlPlaneError
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.versions import BINARIES, NEEDED, OPTIONAL


def main() -> int:
    """Run one command; 0 if it succeeds, 1 with the reason if not."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "ensure":
            optional = OPTIONAL if arguments.optional else ()
            binaries.ensure(arguments.programs or NEEDED, _say, optional)
        else:
            _up(arguments.kubeconfig, arguments.audit_log, arguments.manifests)
    except ControlPlaneError as error:
        _say(str(error))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.controlplane", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    ensure = commands.add_parser("ensure", help="download or build the programs that are missing")
    ensure.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help=f"some of {', '.join(BINARIES)}"
    )
    ensure.add_argument(
        "--optional",
        action="store_true",
        help=f"also get {', '.join(OPTIONAL)}; those that cannot be had are only reported",
    )
    up = commands.add_parser("up", help="run a control plane until Ctrl-C")
    up.add_argument(
        "--kubeconfig", type=Path, required=True, help="where to write the administrator's"
    )
    up.add_argument("--audit-log", type=Path, help="write the audit log here and keep it")
    up.add_argument(
        "--manifests",
        type=Path,
        nargs="*",
        default=[],
        help="files or folders to apply before the controllers start, such as crds/",
    )
    return parser


def _up(kubeconfig: Path, audit_log: Path | None, manifests: list[Path]) -> None:
    """Run a control plane in the foreground until SIGINT or SIGTERM."""
    if kubeconfig.exists() and CONTEXT not in kubeconfig.read_text():
        raise ControlPlaneError(f"{kubeconfig} exists and is not ours; name another file")
    # Ctrl-C and SIGTERM end it in the same way, at any moment; started by a script with an
    # ampersand, it would inherit that the first is ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        _run(kubeconfig, audit_log, manifests)
    _say("stopped")
    kubeconfig.unlink(missing_ok=True)


def _run(kubeconfig: Path, audit_log: Path | None, manifests: list[Path]) -> None:
    started = time.monotonic()
    _say("starting etcd, kube-apiserver and kube-controller-manager")
    with ControlPlane.start(audit=audit_log, manifests=manifests) as plane:
        kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(plane.kubeconfig.read_text())
        _say(f"ready after {time.monotonic() - started:.1f} s at {plane.url}; stop with Ctrl-C")
        sys.stdout.write(f"export KUBECONFIG={kubeconfig.absolute()}\n")
        sys.stdout.flush()
        while True:  # not signal.pause(): a signal just before it would be lost
            time.sleep(0.2)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
