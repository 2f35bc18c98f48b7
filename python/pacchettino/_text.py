"""Text that is safe in a terminal and in a log, whoever wrote it."""

from __future__ import annotations

_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def safe(text: str) -> str:
    """Return text for one line: what would act in a terminal, or is no text, is escaped.

    A name may hold anything: control characters, bytes that are no UTF-8 (surrogates), marks that turn the direction.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    if character in _ESCAPES:
        return _ESCAPES[character]
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is no UTF-8
        return rf"\x{code - 0xDC00:02x}"
    return rf"\x{code:02x}" if code < 0x100 else rf"\u{code:04x}" if code < 0x10000 else rf"\U{code:08x}"


def safe_lines(text: str) -> list[str]:
    """Return text of several lines, such as a traceback, as safe lines."""
    return [safe(line.replace("\t", "    ")) for line in text.splitlines()]
