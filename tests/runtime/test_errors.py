"""How messages show what somebody else wrote: quoted, escaped, cut."""

from __future__ import annotations

import pytest

from dspark_runtime.contract.errors import label, one_line, shown


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "'plain'"),
        ("\x1b[31mred\n", r"'\x1b[31mred\n'"),
        ("\u202eturned", r"'\u202eturned'"),
        ([1, 2], "[1, 2]"),
        (10**5000, "a value of type int"),
        (Broken(), "a value of type Broken"),
    ],
    ids=["text", "controls", "direction", "list", "digits", "broken"],
)
def test_shown_value_is_quoted_and_escaped(value: object, text: str) -> None:
    assert shown(value) == text


def test_shown_value_is_cut_to_its_limit() -> None:
    text = shown("x" * 10_000)
    assert len(text) == 80 and text.endswith("...")


@pytest.mark.parametrize("name", ["layers.0.mlp.up_proj.weight", "größe"])
def test_label_of_a_plain_name_is_the_name(name: str) -> None:
    assert label(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a\tb", "\x1b[2J", "x" * 121])
def test_label_of_another_name_is_quoted(name: str) -> None:
    assert label(name).startswith("'") and label(name).isprintable() and len(label(name)) <= 120


def test_message_for_a_terminal_is_one_line_without_controls() -> None:
    assert one_line("a\n  b \x1b[31m \udcff ü") == r"a b \x1b[31m \udcff ü"
