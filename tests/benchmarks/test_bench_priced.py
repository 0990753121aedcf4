"""Seconds of steps that TRL and transformers make on two processors, beside what a profile of these said before.

The profile is of microbatches that both ranks run at once, each as long as the other's, in the same trainer.

    pytest tests/benchmarks/test_bench_priced.py --benchmark-only -o addopts="" -s
"""

import contextlib
import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from recorded import run

from odcsim.cli import main
from odcsim.decide import room, stock
from odcsim.decide.asking import ask
from odcsim.decide.setting import plan
from odcsim.executors import simulation

pytestmark = pytest.mark.filterwarnings("default")
# The catalogue's `tiny`, as transformers has it.
TINY = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "vocab_size": 4096, "head_dim": 64,
        "attn_implementation": "sdpa"}  # fmt: skip
FIGURES = {"peak_tflops": 0.1, "matmul_tflops": 0.05, "memory_gb": 8, "memory_tb_s": 0.01, "link_gb_s": 2,
           "nic_gbit_s": 10, "devices_per_node": 2}  # fmt: skip
LENGTHS = np.minimum(np.random.default_rng(8).lognormal(4.8, 0.8, 120).astype(int) + 8, 512).tolist()
KNOWN = {1: (16, 64, 160, 320, 512, 100), 4: (16, 64, 160, 256, 400, 32)}  # samples of a microbatch: how long they are
ALONE = "--num_train_epochs 1 --gradient_accumulation_steps 1 --gradient_checkpointing true --bf16 true "
BATCH = 12
ROUNDS = 3
WAYS = [
    ("trl", "packed", "deferred", 512),
    ("trl", "padded", "collective", 2048),
    ("accelerate", "padded", "deferred", 2048),
]


def said(*argv):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(word) for word in argv]) == 0
    return out.getvalue()


def known(pools, folder):
    """What microbatches held, and their seconds."""
    found = []
    for each, sizes in KNOWN.items():
        lengths = [length for length in (sizes[0], *sizes) for _ in range(2 * each)]
        text = f"{ALONE} --per_device_train_batch_size {each}"
        _, seen = pools(2).run(run, "accelerate", text, lengths, folder, TINY, timeout=300.0)[0]
        found += [([lengths[i] for i in one.samples], one.seconds) for one in seen[1:]]  # the first one is not usual
    return [";".join(map(str, held)) for held, _ in found], np.array([seconds for _, seconds in found])


def profiled(held, seconds, folder):
    log = folder / "log.csv"
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("lengths", "seconds"))
        rows.writerows(zip(held, seconds, strict=True))
    print("\n" + said("fit", log, "--model", "tiny", "--gpu", "cpu", "--devices", "2", "-o", folder / "cpu.profile"))
    (folder / "cpu.toml").write_text("".join(f"{name} = {value}\n" for name, value in FIGURES.items()))


def of_steps(seen):
    """Seconds from the beginning of each step to that of the next, and of no last one."""
    began = [one.began for i, one in enumerate(seen) if not i or seen[i - 1].step != one.step]
    return np.diff(began)


def asked(folder, trainer, limit):
    return {"gpu": str(folder / "cpu.toml"), "devices": 2, "global_batch": BATCH, "in_order": True, "trainer": trainer,
            "profile": str(folder / "cpu.profile"), "max_tokens": limit}  # fmt: skip


def printed(folder, trainer, rule, sync, limit, lengths):
    """What `flags` says of the comparison's row."""
    (folder / "lengths.csv").write_text("\n".join(["length", *map(str, lengths)]) + "\n")
    given = asked(folder, trainer, limit) | {"model": "tiny", "minibatches": 4}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "in_order"]
    told = said("compare", folder / "lengths.csv", *words, "--in-order", "--json")
    (folder / "rows.json").write_text(told)
    number = [(row["balancer"], row["sync"]) for row in json.loads(told)["rows"]].index((rule, sync)) + 1
    return said("flags", trainer, folder / "rows.json", "--row", number) + "--num_train_epochs 1"


def priced(folder, trainer, rule, sync, limit, lengths):
    """Seconds of each of an epoch's full steps."""
    setting = ask(lengths, "tiny", **asked(folder, trainer, limit))
    own = {way.pair: way.setting for way in stock.choose(setting)}[rule, sync]
    full = own.trace.bundles.size // (own.minibatch * 2)
    schedules = plan(replace(own, minibatches=full), rule).schedules
    return simulation.makespans(schedules, room.under(own.cost, sync), seed=own.seed)


def test_seconds_of_printed_settings(benchmark, pools, tmp_path):
    """Beside what was said: a figure to read. Of each microbatch and step the quickest of several rounds."""
    lengths, rounds = (LENGTHS[:60], 1) if benchmark.disabled else (LENGTHS, ROUNDS)
    seconds, steps = [], {way: [] for way in WAYS}

    def go():
        held, _ = known(pools, tmp_path)
        for _ in range(rounds):
            seconds.append(known(pools, tmp_path)[1])
            profiled(held, np.min(seconds, axis=0), tmp_path)
            for way in WAYS:
                text = printed(tmp_path, *way, lengths)
                _, seen = pools(2).run(run, way[0], text, lengths, tmp_path, TINY, timeout=300.0)[0]
                steps[way].append(of_steps(seen)[1:])

    benchmark.pedantic(go, rounds=1)
    total = np.zeros(2)
    for way, found in steps.items():
        ran = np.min(found, axis=0)
        both = priced(tmp_path, *way, lengths)[1 : 1 + len(ran)].sum(), ran.sum()
        assert min(both) > 0
        total += both
        print(f"{' '.join(way[:3])}: priced {both[0]:.1f} s, ran {both[1]:.1f} s, {both[1] / both[0]:.2f} times")
        benchmark.extra_info[" ".join(way[:3])] = both[1] / both[0]
    benchmark.extra_info["all"] = total[1] / total[0]
