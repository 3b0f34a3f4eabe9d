"""Texts for people: escaped, because names and messages come from files.

Whatever is printed for people goes through ``safe``, so that no file can move the cursor, hide
text or fake a line.
"""

import unicodedata

UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that are escaped: controls, formats such as bidi marks, line separators."""


def safe(text: object) -> str:
    r"""The text with every control or invisible character written as ``\x1b`` or ``\u202e``."""
    return "".join(_escaped(char) for char in str(text))


def _escaped(char: str) -> str:
    if unicodedata.category(char) not in UNSAFE:
        return char
    return char.encode("unicode_escape").decode("ascii")
