"""Texts of objects as they are printed: whoever reads them in a terminal reads letters.

Names and messages come from tenants, machines and other programs. A control character among them moves the
cursor, colours or deletes what stands there, ends a line or begins another one (ESC, CR, LF, the C1 controls,
U+2028), and one that turns the direction of writing shows one name as another (U+202E). Each is written as
Python writes it in a literal: `\\x1b`, `\\n`, `\\u202e`. What is left is what `str.isprintable` calls
printable. A backslash stays as it is, so that escaping twice is escaping once.

Who prints calls this where the text leaves koordra: errors and Reasons in their text, logs, Events and
conditions in their message, commands by `koordra.cli.options.say`, tables and pictures in
`koordra.topology.pictures.columns`.
"""

from __future__ import annotations


def inert(text: str) -> str:
    """In one line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def inert_lines(text: str) -> str:
    """Line by line: for what is laid out in lines already, from texts that are inert."""
    return "\n".join(map(inert, text.split("\n")))


def shortened(text: str, most: int) -> str:
    """Its beginning, and its end, where the remedy stands, if it has more than `most` characters. What a
    tenant writes may be a megabyte, and be refused, told and logged again and again."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end]} [{len(text) - most} characters left out] {text[-end:]}"
