"""A tokenizer, and a cache of counts that is empty for each test."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from texts import UNMARKED, tokenizer_in  # tokenizers comes with it

    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"), UNMARKED)


@pytest.fixture(scope="module")
def tokens(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
