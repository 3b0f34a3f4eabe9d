"""``make fuzz``: each reader under a fuzzer that watches which lines an input reaches.

Each is run twice: with bytes, beginning at its seeds, and (``NAME.json``) with what the grammar
makes of bytes, if it reads JSON. Needs atheris, which has wheels for some versions of Python on
Linux only. An input that makes a reader raise anything but its documented errors is left in the
folder ``build/fuzz``.

    python -m tests.support.fuzz --seconds 60                 # every reader in turn
    python -m tests.support.fuzz --only pod pod.json          # these only
    python -m tests.support.fuzz --only pod.json --again build/fuzz/pod.json-crash-...
"""

import argparse
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from hypothesis import given

FOUND = Path("build/fuzz")
LONGEST = 65536  # [bytes] of an input
DRAWN = 8192  # [bytes] of which the grammar makes an input; Hypothesis takes no more
SLOWEST = 20  # [s] for one input, else it counts as found
GRAMMAR = ".json"


def main() -> int:
    """Fuzz each reader, or run inputs again; 1 where something was found, 2 without atheris."""
    arguments = _parser().parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write(
            "atheris is not installed and has no wheel for every Python; what there is without it: "
            "ARCHIPELAGO_FUZZ_EXAMPLES=10000 python -m pytest tests/fuzz\n"
        )
        return 2
    import atheris  # noqa: PLC0415  # not on every machine

    with atheris.instrument_imports(include=["archipelago", "yaml"]):
        from tests.support.fuzz.registry import ALL, documents, inputs  # noqa: PLC0415

    def drawn(name: str) -> Callable[[bytes], object]:
        """The reader on what the grammar makes of bytes."""

        @given(data=inputs(ALL[name]))
        def made(data: bytes) -> None:
            ALL[name](data)

        return made.hypothesis.fuzz_one_input  # type: ignore[attr-defined,no-any-return]  # of `given`

    targets: dict[str, Callable[[bytes], object]] = {**ALL}
    targets |= {name + GRAMMAR: drawn(name) for name in ALL if documents(ALL[name])}
    if arguments.again:
        return _fuzz(targets[arguments.only[0]], [str(path) for path in arguments.again])
    codes = []
    for name in arguments.only or sorted(targets):
        sys.stderr.write(f"== {name}\n")
        corpus, longest = FOUND / name, LONGEST
        corpus.mkdir(parents=True, exist_ok=True)
        if name in ALL:
            seeds = ALL[name].seeds()
        else:
            seeds, longest = tuple(random.Random(n).randbytes(DRAWN) for n in range(8)), DRAWN  # noqa: S311  # no secret
        for number, seed in enumerate(seeds):
            (corpus / f"seed-{number}").write_bytes(seed)
        limits = (f"-max_total_time={arguments.seconds}", f"-max_len={longest}")
        more = (f"-timeout={SLOWEST}", f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1")
        codes.append(_fuzz(targets[name], [*limits, *more, str(corpus)]))
    return int(any(codes))


def _fuzz(target: Callable[[bytes], object], arguments: list[str]) -> int:
    """In a fork: the fuzzer ends its process, and the product is instrumented once for all."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    import atheris  # noqa: PLC0415  # not on every machine

    def once(data: bytes) -> None:
        target(data)

    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each of them")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these, in place of all")
    parser.add_argument("--again", nargs="+", metavar="FILE", help="inputs to run once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
