"""Compares what a page shows with what the program prints.

Words must be equal and in the same lines; figures may differ by 2 %, since they follow the
catalogues and the solver's version. Times, ages and hashes are of one run and only have to be
there. A line ``...`` stands for any number of lines, `` ...`` at the end of one for the rest of it.
"""

import math
import re
from collections.abc import Sequence
from itertools import zip_longest

CLOSE = 0.02
GAP = "..."

_OF_ONE_RUN = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"\bin [\d.]+ s\b"), "in SECONDS"),
    (re.compile(r"(?<![\w.])(\d+[dhms]){1,2}(?!\w)"), "AGE"),
    (re.compile(r"Kubernetes v[\d.]+"), "Kubernetes VERSION"),
    (re.compile(r"[─]+"), "─"),
)
_PROGRESS = re.compile(r"^\d+ s: ")
_NUMBER = re.compile(r"^([-+(]?\$?)([\d,]*\.?\d+)([%),:;]*)$")


def differences(shown: str, printed: str) -> str:
    """What of the page does not come true; empty where all of it does."""
    wanted = shown.rstrip().splitlines()
    have = [line for line in printed.splitlines() if not _PROGRESS.match(line)]
    at, gap, following = 0, False, list[str]()
    # Stretches between gaps: the first stands at the start, the others somewhere behind.
    for line in [*wanted, None]:
        if line is not None and line.strip() != GAP:
            following.append(line)
            continue
        found = _find(following, have, at, anywhere=gap)
        if found is None:
            rest = "\n".join(have[at:])
            absent = [ln for ln in following if not any(_same(ln, h) for h in have[at:])]
            return f"not printed: {(absent or following)[0]}\nbut:\n{rest}"
        at, gap, following = found + len(following), line is not None, []
    if not wanted or wanted[-1].strip() != GAP:
        more = [line for line in have[at:] if line.strip()]
        return f"printed and not shown: {more[0]}" if more else ""
    return ""


def _find(lines: Sequence[str], have: Sequence[str], start: int, *, anywhere: bool) -> int | None:
    """Where the lines stand among those that are printed, one below the other."""
    last = len(have) - len(lines) if anywhere else start
    for at in range(start, max(last, start) + 1):
        pairs = zip_longest(lines, have[at : at + len(lines)])
        if all(one is not None and other is not None and _same(one, other) for one, other in pairs):
            return at
    return None


def _same(shown: str, printed: str) -> bool:
    """Whether a line says what the page says."""
    one, other = _words(shown), _words(printed)
    if one and one[-1] == GAP:
        one = one[:-1]
        other = other[: len(one)]
    return len(one) == len(other) and all(map(_close, one, other))


def _words(line: str) -> list[str]:
    for pattern, word in _OF_ONE_RUN:
        line = pattern.sub(word, line)
    return line.split()


def _close(shown: str, printed: str) -> bool:
    one, other = _NUMBER.match(shown), _NUMBER.match(printed)
    if not one or not other or (one[1], one[3]) != (other[1], other[3]):
        return shown == printed
    figures = [float(found[2].replace(",", "")) for found in (one, other)]
    return math.isclose(*figures, rel_tol=CLOSE)
