"""YAML is read as Kubernetes reads it, and costs what it says."""

from __future__ import annotations

import pytest

from koordra.errors import InvalidManifest
from koordra.nesting import LEVELS
from koordra.yaml_text import read_document, read_yaml

BILLION = "a: &a [x, x]\n" + "".join(
    f"{chr(one + 1)}: &{chr(one + 1)} [*{chr(one)}, *{chr(one)}]\n" for one in range(97, 121)
)


def test_what_is_text_in_json_is_text() -> None:
    (found,) = read_yaml("a: 2026-99-99\nb: 12:30\nc: 2026-01-01\nd: =\ne: 10\nf: 1.5\ng: off", source="f")
    assert found == {
        "a": "2026-99-99", "b": "12:30", "c": "2026-01-01", "d": "=", "e": 10, "f": 1.5, "g": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested more than"),
        ('{"a":' * 100_000, "nested more than"),
        ("- " * 100_000, "nested more than"),
        ("? " * 100_000, "nested more than"),
        ("a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 3_000)), "nested more than"),
        ("a: &a [*a]", "alias within"),
        (BILLION, "aliases that stand for too much"),
        ("a: !!python/object/apply:os.system [id]", "is not YAML"),
        ("a: [", "is not YAML: .* at line 2, column 1$"),
        ("a:\n\tb: 1", "indent with blanks, not with tabs"),
        ("a: .NaN", "cannot be JSON"),
        ("a: -.inf", "cannot be JSON"),
        ("a: !!set {b}", "cannot be JSON"),
        ("a: !!binary eA==", "cannot be JSON"),
        ("x\x00y", "is not YAML"),
    ],
    ids=lambda value: value[:12],
)
def test_what_costs_more_than_it_says_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidManifest, match=says) as refused:
        read_yaml(text, source="the file")
    assert "the file" in str(refused.value)


def test_what_is_large_and_flat_is_read() -> None:
    text = "[" + ", ".join(["{}", "[]"] * 5_000) + "]"
    (found,) = read_yaml(text, source="f")
    assert len(found) == 10_000
    assert read_yaml("[" * LEVELS + "]" * LEVELS, source="f")
    shared = "a: &a {x: y}\n" + "".join(f"b{number}: *a\n" for number in range(1_000))
    assert len(read_document(shared, source="f")) == 1_001


def test_one_document_is_one() -> None:
    assert read_document("", source="f") is None
    with pytest.raises(InvalidManifest, match="has 2 documents"):
        read_document("a: b\n---\nc: d", source="f")
