"""What is priced is what runs: the settings that are printed, run as the trainer does, fit and cost what was said."""

import contextlib
import io
import json
import math
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_rows import best_fit, first_fit, in_turn, knapsacks
from rowfiles import write

from odcsim.balance.balancer import Work
from odcsim.cli import main
from odcsim.decide import room
from odcsim.decide.asking import ask
from odcsim.executors import simulation
from odcsim.neighbours import TRAINERS, nemo_rl, slime, verl
from odcsim.schedule import Schedule

DEALT = {"verl": verl.deal_in_shares, "slime": slime.deal, "nemo-rl": nemo_rl.deal}  # by tokens
LENGTHS = tuple(30 + n * n * 7919 % 997 + (n % 29 == 0) * 2500 for n in range(700))


def said(*argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(argv))
    if code == 2 and " cannot make a step of " in err.getvalue():
        return ""
    assert code == 0, err.getvalue()
    return out.getvalue()


@cache
def trace(tmp):
    return str(write(tmp / "lengths.csv", [{"length": length} for length in LENGTHS]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("priced")


def parsed(lines):
    """Printed settings by name: `--name value`, `name=value` or YAML; names in a table by their own."""
    lines = [line.removesuffix("\\") for line in lines if not line.startswith("#")]
    pairs = (re.match(r"[\s']*(?:- )?([-+]*[\w.:-]+)[=: ]*(.*)", line).groups() for line in lines)
    return {name.lstrip("-+").rstrip(":"): value.strip("' ") for name, value in pairs}


def in_groups(pack, lengths, limit, group):
    return [[start + i for i in row] for start in range(0, len(lengths), group)
            for row in pack(lengths[start : start + group], limit)]  # fmt: skip


def read(trainer, flag):
    """What each takes from its settings: rows or batches in their order, microbatches of a step, padding, sync."""
    if trainer == "torchtitan":
        limit, devices = int(flag["training.seq_len"]), int(flag["parallelism.data_parallel_shard_degree"])
        each, steps, packs = 1, int(flag["training.global_batch_size"]) // devices, True
        rows, again = in_turn(LENGTHS, limit), flag.get("activation-checkpoint:full") is not None
    elif trainer == "prime-rl":
        limit, devices = int(flag["data.seq_len"]), int(flag["deployment.num_train_gpus"])
        each, steps, packs = 1, int(flag["data.batch_size"]) // devices, True
        rows, again = in_turn(LENGTHS, limit), flag.get("model.ac.mode") is not None
    else:
        axolotl, factory = trainer == "axolotl", trainer == "llamafactory"
        batch, length = (
            ("micro_batch_size", "sequence_len") if axolotl else ("per_device_train_batch_size", "max_length")
        )
        packs = flag.get("sample_packing" if axolotl else "packing") == "true"
        each, steps = int(flag[batch]), int(flag["gradient_accumulation_steps"])
        limit = int(flag.get("cutoff_len" if factory else length, 0))
        assert not axolotl or packs or flag["batch_flattening"] == "true"
        if axolotl:
            rows = first_fit(LENGTHS, limit)
        elif factory and packs:
            rows = in_groups(knapsacks, [min(one, limit - 1) for one in LENGTHS], limit - 1, 1000)
        else:
            rows = in_groups(best_fit, LENGTHS, limit, 1000) if packs else []
        again = flag["disable_gradient_checkpointing" if factory else "gradient_checkpointing"] != str(factory).lower()
    batches = rows if packs else [list(range(i, i + each)) for i in range(0, len(LENGTHS) - each + 1, each)]
    after_each = trainer in ("torchtitan", "prime-rl") or "sync_each_batch" in str(flag) or steps == 1
    pads, full = not packs and trainer != "axolotl", packs and trainer in ("torchtitan", "llamafactory", "prime-rl")
    return batches, steps, limit, pads, full, after_each, again


def schedule(microbatches, lengths, pads, full, limit):
    """`microbatches[device][number]` of samples, as long as they are run."""
    ran, devices = [], []
    for device in microbatches:
        devices.append([])
        for microbatch in device:
            sizes = [lengths[i] for i in microbatch]
            sizes = [max(sizes)] * len(sizes) if pads else sizes
            sizes[-1] += limit - sum(sizes) if full else 0
            devices[-1].append(tuple(range(len(ran), len(ran) + len(sizes))))
            ran += sizes
    return Schedule.of(tuple(ran), tuple(map(tuple, devices)))


def as_run(trainer, told, devices, share, count):
    """The first steps, in the order of the data, and the tokens that they train on."""
    if trainer in DEALT:
        limit = int(next(v for k, v in told.items() if re.search("max_token_len|max-tokens-per-gpu|train_mb", k)))
        batch = int(next(v for k, v in told.items() if re.search("train_batch_size|global-batch|global_batch", k)))
        assert batch == share * devices
        starts = range(0, count * batch, batch)
        dealt = [DEALT[trainer](_work(LENGTHS[s : s + batch], devices, limit)).slots for s in starts]
        found = [schedule(d, LENGTHS[s : s + batch], False, False, limit) for s, d in zip(starts, dealt, strict=True)]
        key = next((k for k in told if re.search("checkpointing|recompute-granularity", k)), "")
        return found, True, told.get(key, "none") not in ("false", "none"), sum(LENGTHS[: count * batch])
    batches, steps, limit, pads, full, after_each, again = read(trainer, told)
    step = steps * devices
    few = [batches[s : s + step] for s in range(0, count * step, step)]
    turns = [[one[d::devices] for d in range(devices)] for one in few]
    trained = sum(LENGTHS[i] for one in few for batch in one for i in batch)
    return [schedule(turn, LENGTHS, pads, full, limit) for turn in turns], after_each, again, trained


def _work(lengths, devices, limit):
    return Work(np.array(lengths), np.ones(len(lengths)), devices, limit)


def offered(folder, trainer, printed):
    """Rows that the trainer runs itself and that fit, with the settings that are printed of each."""
    (folder / "rows.json").write_text(printed)
    for number, row in enumerate(json.loads(printed)["rows"], 1):
        if row.get("made") and row.get("memory_fits", True):
            yield row, parsed(said("flags", trainer, str(folder / "rows.json"), "--row", f"{number}").splitlines())


QUESTIONS = st.tuples(
    st.sampled_from(["qwen3-0.6b", "qwen2.5-7b"]), st.sampled_from(["h100", "a100"]), st.sampled_from([2, 4]),
    st.sampled_from([2, 4, 6, 12, 24]), st.sampled_from([(), ("--no-recompute",)]), st.sampled_from([None, 4000, 9000]),
)  # fmt: skip


@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=8)
@given(question=QUESTIONS)
def test_settings_that_are_printed_run_fit_and_cost_as_priced(folder, trainer, question):
    model, gpu, devices, share, more, limit = question
    words = ["--model", model, "--gpu", gpu, "--devices", f"{devices}", "--minibatch", f"{share}", "--minibatches", "3",
             "--in-order", "--trainer", trainer, *more, *(["--max-tokens", f"{limit}"] if limit else [])]  # fmt: skip
    printed = said("compare", trace(folder), *words, "--json")
    assume(printed)
    for row, flags in offered(folder, trainer, printed):
        schedules, after_each, again, trained = as_run(trainer, flags, devices, share, 3)
        assert again == ("--no-recompute" not in more)
        assert (row["sync"] == "collective") == after_each or row["made"]["minibatch"] == max(1, row["made"]["each"])
        asked = {"gpu": gpu, "devices": devices, "minibatch": share, "recompute": "full" if again else "none"}
        cost = room.under(ask(LENGTHS, model, **asked, trainer=trainer).cost, row["sync"])
        spans = simulation.makespans(schedules, cost)
        assert trained / spans.sum() == pytest.approx(row["tokens_per_second"], rel=0.01)
        needed = room.needed(cost, max(s.fullest for s in schedules), max(LENGTHS)).total
        assert needed == pytest.approx(row["memory_bytes"], rel=0.01)
        assert needed <= row["memory_limit"]


@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_an_offer_costs_what_its_settings_do(folder, trainer):
    words = ["advise", trace(folder), "--model", "qwen3-0.6b", "--gpus", "h100", "--devices", "2,4", "--global-batch",
             "24", "--minibatches", "3", "--in-order", "--trainer", trainer, "--json"]  # fmt: skip
    for row, flags in offered(folder, trainer, said(*words)):
        devices = row["devices"]
        schedules, _, again, _ = as_run(trainer, flags, devices, 24 // devices, 3)
        asked = {"gpu": "h100", "minibatch": 24 // devices, "recompute": "full" if again else "none"}
        cost = room.under(ask(LENGTHS, "qwen3-0.6b", devices=devices, **asked, trainer=trainer).cost, row["sync"])
        spans = simulation.makespans(schedules, cost)
        if trainer == "trl":  # which keeps an epoch's last step
            batches, accumulated, *_ = read(trainer, flags)
            steps = math.ceil(len(batches) / (accumulated * devices))
        else:
            steps = len(LENGTHS) // 24
        assert steps * spans.mean() == pytest.approx(row["seconds"], rel=0.01)
