"""Rows that trainers pack are those that their own code packs, sample by sample."""

import bisect
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theirs import defined

from odcsim.neighbours import axolotl, llama_factory
from odcsim.neighbours.packing import best_fit, first_fit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80)
MORE = st.integers(0, 150)  # than the longest, in a row
DRAWN = np.minimum(np.random.default_rng(3).lognormal(5, 1.2, 2300).astype(int) + 1, 2000).tolist()


def numbered(lengths):
    """Samples whose tokens all are their number."""
    return [[i] * length for i, length in enumerate(lengths)]


def numbers(row, lengths):
    """Which samples a row of tokens has, in order."""
    found = []
    while row:
        found.append(int(row[0]))
        row = row[lengths[found[-1]] :]
    return found


def in_groups(rows, lengths, limit, group):
    starts = range(0, len(lengths), group)
    return [[a + i for i in row] for a in starts for row in rows(lengths[a : a + group], limit)]


def of_trl(lengths, limit):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    datasets.disable_progress_bars()
    samples = datasets.Dataset.from_dict({"input_ids": numbered(lengths)})
    return [numbers(row, lengths) for row in trl.pack_dataset(samples, limit, "bfd")["input_ids"]]


@given(LENGTHS, MORE)
@settings(max_examples=25)
def test_trl_packs_these(lengths, more):
    limit = max(lengths) + more
    assert best_fit(lengths, limit) == of_trl(lengths, limit)


def test_trl_packs_a_thousand_at_once():
    assert in_groups(best_fit, DRAWN, 2048, 1000) == of_trl(DRAWN, 2048) != best_fit(DRAWN, 2048)


@given(LENGTHS, MORE, st.integers(1, 9))
def test_axolotl_packs_these(lengths, more, most):
    pack = defined("axolotl", "utils/samplers/multipack.py", "pack_group", np=np)["pack_group"]
    limit = max(lengths) + more
    assert first_fit(lengths, limit, most) == pack(np.array(lengths), 0, limit, len(lengths), most)


def test_axolotl_packs_as_many_as_are_usual():
    pack = defined("axolotl", "utils/samplers/multipack.py", "pack_group", np=np)["pack_group"]
    lengths = [*DRAWN, *([1] * 900)]
    found = axolotl.rows(lengths, 20000)
    assert found == pack(np.array(lengths), 0, 20000, len(lengths), 200)
    assert max(map(len, found)) == 200


def of_llama_factory(lengths, cutoff):
    """Its own processor on samples that are encoded already: ids and length of each row."""
    taken = {"Any": Any, "Optional": Optional, "dataclass": dataclass, "asdict": asdict, "defaultdict": defaultdict}
    arguments = defined("llamafactory", "hparams/data_args.py", "DataArguments", Literal=Literal, field=field, **taken)
    util = defined(
        "llamafactory", "data/processor/processor_utils.py", "search_for_fit", "greedy_knapsack", bisect=bisect
    )
    own = dict.fromkeys(("DatasetProcessor",), object) | {"IGNORE_INDEX": -100, "MAX_SU_SEQ_IDX": 2**32}
    names = "PackingParams", "SupervisedDatasetProcessor", "PackedSupervisedDatasetProcessor"
    source = "data/processor/supervised.py"
    kind = defined("llamafactory", source, *names, **own, **taken, greedy_knapsack=util["greedy_knapsack"])[names[-1]]
    processor = kind()
    processor.data_args = arguments["DataArguments"](cutoff_len=cutoff, neat_packing=True)
    processor.tokenizer = type("Tokenizer", (), {"pad_token_id": -1})
    room = processor.data_args.cutoff_len
    processor._encode_data_example = lambda prompt, **_: (prompt[0][:room], prompt[0][:room])
    columns = {name: [None] * len(lengths) for name in ("_system", "_tools", "_images", "_videos", "_audios")}
    samples = {"_prompt": [[one] for one in numbered(lengths)], "_response": [[0]] * len(lengths)}
    made = processor.preprocess_dataset(samples | columns)["input_ids"]
    cut = [min(length, room) for length in lengths]
    return [numbers([i for i in row if i >= 0], cut) for row in made], {len(row) for row in made}


@given(LENGTHS, MORE)
def test_llama_factory_packs_these_and_fills_them_up(lengths, more):
    limit = max(2, max(lengths) + more)
    rows, long = of_llama_factory(lengths, limit)
    assert llama_factory.rows(lengths, limit) == rows
    assert long == {limit}
