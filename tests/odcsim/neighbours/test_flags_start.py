"""What is printed starts what was priced: parsed by each trainer's own classes, with their defaults for all else, it
comes back to the batch, the tokens, the sync, the loss and the layers that run again.

Of 20 answers drawn for each trainer and kind of training 18 are printed, and the others refused with a reason.
"""

from importlib.util import find_spec
from random import Random

import numpy as np
import pytest
import trainer_configs
from rowfiles import write

import odcsim
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import DATA
from odcsim.trace import DPO, GRPO, SFT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
COUNT, LEAST = 20, 18
PACKAGES = {name: name for name in trainer_configs.READERS} | {"accelerate": "transformers", "slime": "", "nemo-rl": ""}
DOORS = [(name, kind) for name in trainer_configs.READERS for kind in TRAINERS[name].entries]
LENGTHS = np.minimum(np.random.default_rng(3).lognormal(6.3, 1.0, 3000), 7000).astype(int) + 20
PAIRS = [{"chosen": int(a), "rejected": int(b)} for a, b in zip(LENGTHS[::2], LENGTHS[1::2], strict=True)]
ROLLOUTS = [{"prompt_id": i // 8, "length": int(n)} for i, n in enumerate(LENGTHS[:2400])]
ROWS = {SFT: [{"length": int(n)} for n in LENGTHS], DPO: PAIRS, GRPO: ROLLOUTS}
# What a question may choose, by what a trainer has to know for it.
CHOICES = {
    "rank": {"lora": 16},
    "quantized": {"lora": 16, "quantization": "nf4"},
    "moments": {"optimizer": "8bit"},
    "chunked": {"loss": "chunked"},
    "hybrid": {"sharding": "hybrid"},
    "whole": {"sharding": "none"},
    "": {"recompute": "none"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lengths")
    return {kind: str(write(folder / f"{kind}.csv", rows)) for kind, rows in ROWS.items()}


def ask(rng, trainer, kind, path):
    """An answer, where there is one to what was drawn."""
    models = ["Qwen/Qwen3-8B"] if trainer == "torchtitan" else ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"]
    words = {"gpu": rng.choice(["h100", "a100"]), "devices": rng.choice([4, 8, 16]), "trainer": trainer}
    known = [choice for name, choice in CHOICES.items() if not name or name in TRAINERS[trainer].knows]
    for choice in rng.sample(known, rng.randint(0, 1)):
        words |= choice
    if trainer == "axolotl" and words.get("sharding") == "none":
        words["optimizer"] = "pure"  # as it keeps weights and moments then
    model = rng.choice(models)
    try:
        if kind == GRPO:
            updates = rng.choice([1, 2])
            batch = {"prompts": 8 * updates, "rollouts": 8, "updates": updates, "steps": 2}
            whole = {"total_steps": rng.randint(1, 999), "tensor_parallel": rng.choice([None, 2])}
            return odcsim.rl(path, model, **batch, **whole, **words)
        return odcsim.compare(
            odcsim.ask(
                path, model, minibatch=rng.choice([2, 4, 8]), minibatches=2, epochs=rng.choice([1.0, 2.0]), **words
            )
        )
    except odcsim.InputError:
        return None


def answers(trainer, kind, path):
    rng, found = Random(f"{trainer} {kind}"), []
    while len(found) < COUNT:
        answer = ask(rng, trainer, kind, path)
        if answer is not None and any(row.get("made") and row["memory_fits"] for row in answer.as_json()["rows"]):
            found.append(answer)
    return found


def priced(answer, flags):
    """What the row comes to that `flags` took, in the words of `trainer_configs`."""
    told = answer.as_json()
    row, asked = flags.row, told["inputs"]
    [own] = [one for one in told["rows"] if (one["balancer"], one["sync"]) == (row.balancer, row.recipe.sync)]
    made, microbatches = own["made"], own["made"]["minibatch"] // (own["made"]["each"] or 1)
    meant = {
        "kind": row.kind,
        "model": asked["model_asked"],
        "rows": asked["devices"] * made["minibatch"],
        "each_batch": row.recipe.sync == "collective" or microbatches == 1,
        "chunked": asked["loss"] != "whole",
        "again": asked["recompute"],
        "rank": asked["lora"],
        "tokens": made["max_tokens"],
        "each": made["each"] or 1,
        "packs": not made["each"],
        "four_bits": asked["quantization"] == "nf4",
        "copies": row.devices if row.whole else row.nodes if row.hybrid else 1,
    }
    if row.kind == GRPO:
        each, engine = asked["rollouts"], told["generation"]["engine_gpus"]
        return meant | {
            "generated": asked["prompts"] * each, "rollouts": each, "run": asked["total_steps"], "engine": engine,
        }  # fmt: skip
    [run] = [one for one in told["run"]["rows"] if one["row"] == f"{row.recipe.sync} + {row.balancer}"]
    return meant | {"epochs": asked["epochs"], "before": True, "steps": run["steps"]}


def start(trainer, answer):
    """What is printed; nothing where that is refused with a way out."""
    try:
        return odcsim.flags(trainer, answer)
    except odcsim.InputError as error:
        return None if error.fix else pytest.fail(f"no way out of {error}")


@pytest.mark.parametrize(("trainer", "kind"), DOORS, ids=["-".join(door) for door in DOORS])
def test_what_is_printed_comes_back_to_what_was_priced(files, trainer, kind):
    if PACKAGES[trainer] and find_spec(PACKAGES[trainer]) is None:
        pytest.skip(f"{PACKAGES[trainer]} is not installed")
    texts, meant = [], []
    for answer in answers(trainer, kind, files[kind]):
        flags = start(trainer, answer)
        if not flags:
            continue
        texts.append(str(flags))
        meant.append(priced(answer, flags))
    assert len(texts) >= LEAST
    for text, found, wanted in zip(texts, trainer_configs.read(trainer, texts), meant, strict=True):
        if trainer == "llamafactory":  # whose parser takes a token of what it packs into
            found["tokens"] += found["packs"]
        if not found.get("packs", True):  # what cuts samples, where they are counted
            del found["tokens"]
        assert found.pop("data", DATA).startswith(DATA)
        found.pop("attention", None)
        if kind == GRPO:
            found.pop("epochs", None)
        assert found == {name: wanted[name] for name in found}, text
