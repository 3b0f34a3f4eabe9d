"""Read what a command is given, from a file or standard input, and write answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archipelago.planner.canonical import load_document, to_json, to_yaml
from archipelago.planner.errors import InputError, PlanFileError

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document

STDIN = "-"
LARGEST = 64 * 1024 * 1024
"""Bytes that are read at most; a plan of 10,000 islands has a tenth of it."""


def read_text(path: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        InputError: it cannot be read; the message names the file.
    """
    name = "standard input" if path == STDIN else path
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}; give a file that exists") from None
    if len(data) > LARGEST:
        raise InputError(f"{name}: longer than {LARGEST} bytes; this is no file of ours")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def parse_document(text: str, path: str) -> Document:
    """The mapping that a text holds; errors name the file.

    Raises:
        PlanFileError: it is neither JSON nor YAML, or not a mapping.
    """
    try:
        return load_document(text)
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}") from None


def write_document(document: Document, form: str) -> None:
    """Write a document to standard output as ``json`` or ``yaml``."""
    sys.stdout.write(to_yaml(document) if form == "yaml" else to_json(document))
