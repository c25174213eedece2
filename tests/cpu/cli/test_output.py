from __future__ import annotations

import json
import math

import pytest

from hotset.bench.units import count_text, percent_text, size_text
from hotset.cli.options import numbers
from hotset.cli.output import printable, put_json
from hotset.errors import InputError


def test_json_never_holds_an_infinity(capsys):
    put_json({"a": math.inf, "b": [math.nan, 1.5], 3: (True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "3": [True, None]}


def test_json_is_one_line_of_ascii(capsys):
    put_json({"text": "zwei\nZeilen ü"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1


def test_printable_spells_out_control_characters_only():
    assert printable("a\tb\x1b ü 猫") == "a\\tb\\x1b ü 猫"


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (7848448, "7.48 MiB"), (1 << 50, "1024.00 TiB")]
)
def test_sizes_are_binary(n, text):
    assert size_text(n) == text


@pytest.mark.parametrize(("n", "text"), [(999, "999"), (11_718_656, "11.72 M"), (30_532_122_624, "30.53 B")])
def test_counts_are_decimal(n, text):
    assert count_text(n) == text


def test_an_unknown_share_is_a_dash():
    assert (percent_text(None), percent_text(0.125)) == ("-", "12.5 %")


def test_lists_of_numbers_are_written_with_commas():
    assert numbers("1, 2,16", "-t") == [1, 2, 16]
    with pytest.raises(InputError, match="-t '1,,2' is no list"):
        numbers("1,,2", "-t")
