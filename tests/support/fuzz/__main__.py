"""``make fuzz``: each reader under a fuzzer that watches which lines an input reaches.

Needs atheris, which has wheels for some versions of Python on Linux only. An input that makes a
reader raise anything but its documented errors is left in the folder ``build/fuzz``.

    python -m tests.fuzz --seconds 60                 # every reader in turn
    python -m tests.fuzz --reader trace build/fuzz/crash-...   # one input again
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

FOUND = Path("build/fuzz")
LONGEST = 65536  # [bytes] of an input
SLOWEST = 20  # [s] for one input, else it counts as found


def main() -> int:
    """Fuzz each reader, or run one input; 1 where something was found, 2 without atheris."""
    arguments = _parser().parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write(
            "atheris is not installed and has no wheel for every Python; what there is without it: "
            "ARCHIPELAGO_FUZZ_EXAMPLES=10000 python -m pytest tests/fuzz\n"
        )
        return 2
    if arguments.inside:
        _fuzz(arguments.inside, arguments.rest)
    if arguments.reader:
        return _run(arguments.reader, [str(path) for path in arguments.rest])
    from tests.support.fuzz.readers import READERS  # noqa: PLC0415  # inside, atheris imports it itself

    FOUND.mkdir(parents=True, exist_ok=True)
    codes = []
    for name, reader in READERS.items():
        corpus = FOUND / name
        corpus.mkdir(exist_ok=True)
        for number, seed in enumerate(reader.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        limits = (f"-max_total_time={arguments.seconds}", f"-max_len={LONGEST}")
        more = (f"-timeout={SLOWEST}", f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1")
        codes.append(_run(name, [*limits, *more, str(corpus)]))
    return int(any(codes))


def _run(name: str, arguments: list[str]) -> int:
    """A process of its own: the fuzzer ends the one that it runs in."""
    sys.stderr.write(f"== {name}\n")
    command = [sys.executable, "-m", "tests.fuzz", "--inside", name, "--", *arguments]
    return subprocess.run(command, check=False).returncode


def _fuzz(name: str, arguments: list[str]) -> None:
    """Never returns."""
    import atheris  # noqa: PLC0415  # not on every machine

    with atheris.instrument_imports(include=["archipelago", "yaml"]):
        from tests.support.fuzz.readers import READERS  # noqa: PLC0415
    reader = READERS[name]

    def once(data: bytes) -> None:
        reader(data)

    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--reader", help="run the given inputs through this one only")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help="files, or libFuzzer's own arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
