"""Numbers as people write them: exact, or refused."""

import argparse
from fractions import Fraction

import pytest

from odcsim.decide.sweep import limits
from odcsim.reading import load
from odcsim.support.numbers import TIMES, TOKENS, amount, human, money, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("65,536", 65536), ("16k", 16000), ("16 K", 16000), ("16Ki", 16384), ("1.5M", 1_500_000),
     ("0.001k", 1), ("1.001k", 1001), ("2b", 2 * 10**9), ("2Mi", 2**21)],
)  # fmt: skip
def test_whole_numbers(text, value):
    assert whole(text) == value


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "1.0005k", "16q", "1e6", "0x10", "6,55", "nan", "inf", "1" * 13, "999b999", "\u0663"]
)
def test_what_is_no_whole_number(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number from 1"):
        whole(text)


@pytest.mark.parametrize(
    ("text", "tokens"), [("32k", 32768), ("32K", 32768), ("32Ki", 32768), ("1.5k", 1536), ("1M", 2**20), ("2Mi", 2**21)]
)
def test_of_tokens_k_is_1024(text, tokens):
    assert whole(text, TOKENS) == tokens


@pytest.mark.parametrize("text", ["1b", "1.001k", "8kb"])
def test_what_is_no_number_of_tokens(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 4096 or 16k \(16,384\)"):
        whole(text, TOKENS)


@pytest.mark.parametrize(
    ("text", "value"), [("2.5", 2.5), ("$2.5", 2.5), ("3%", 0.03), ("1e-3", 0.001), ("$1.2k", 1200)]
)
def test_amounts(text, value):
    assert amount(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["", "$", "%", "-1", "nan", "inf", "$-2", "two"])
def test_what_is_no_amount(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number from 0"):
        amount(text)


@pytest.mark.parametrize(
    ("paid", "told"),
    [(1234.5, "$1,234"), (999.999, "$1,000"), (19.999, "$20.00"), (0.702, "$0.70"), (0.0996, "$0.10"),
     (0.0123, "$0.012"), (0.0000123, "$0.000012"), (0.0, "$0.00")],
)  # fmt: skip
def test_few_dollars_have_cents_and_a_few_cents_two_digits(paid, told):
    assert money(paid) == told


def test_times():
    assert [human(text, TIMES) for text in ("90", "90s", "1.5min", "12h", "2d", "3k")] == [
        90,
        90,
        90,
        43200,
        172800,
        None,
    ]
    assert human("0.1") == Fraction(1, 10)
    assert human(str(0.1 + 0.2)) == Fraction(str(0.1 + 0.2))


def test_they_hold_wherever_numbers_are_typed():
    assert limits(100, "1k,2Ki") == (1024, 2048)
    assert load("fixed:length=4k,samples=0.5k").lengths.tolist() == [4096] * 500
    assert load("uniform:min=1k,max=1k,samples=2k").lengths.tolist() == [1024] * 2000
