"""Small whole inputs of every kind that commands read, and the command lines that read them.

In a command line `IN` stands for the input that is changed, `AROUND` for the folder that it is in with all that lies
beside it, `OUT` for a file that it may write, and any other name for another seed, as it is.
"""

import contextlib
import gzip
import io
import json
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

import swelling

import odcsim
import traces
from odcsim.cli import main
from odcsim.neighbours import TRAINERS
from odcsim.reading import named

RECORDED = Path(__file__).parents[1] / "odcsim" / "observed" / "fixtures"

SETTING = "--model tiny --gpu a100 --devices 2 --minibatch 2".split()
SPECS = (
    "lognormal:median=700,sigma=0.9,max=4096,spike=0.1,samples=40",
    "uniform:min=20,max=1000,samples=40",
    "quantiles:0=1,0.5=700,1=4096",
)
SETTINGS = ("16k", "2.5", "65,536", "3%", "$2", "0", "longalign")
GRID = """trace = "uniform:min=20,max=1000,samples=40"
model = "tiny"
gpu = ["a100", "h100"]
devices = 2
minibatch = 2
minibatches = 1
max_tokens = ["4k", 8192]
sync = "on-demand"
balancer = ["native", "lb-mini"]
[[case]]
recompute = "none"
[[case]]
price = "$2"
"""
TALK = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
RAGGED = [
    {"messages": TALK},
    {
        "messages": [*TALK, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
        "tools": [{"name": "a"}],
    },
    {"messages": TALK, "system": "b", "chat_template_kwargs": {"fancy": True}},
]
ALPACA = [
    {"instruction": "a", "output": "b"},
    {"instruction": "a", "input": "c", "output": "b", "history": [["a", "b"]]},
]
PAIRS = [
    {"prompt": "a", "chosen": "b", "rejected": "a b"},
    {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": TALK[1:]},
    {"chosen": TALK, "rejected": [TALK[0], {"role": "assistant", "content": "b"}]},
]
DIRTY = ["dirty.csv", "dirty.jsonl", "pairs.csv", "roles.csv", "rows.json", "a.jsonl", "a.npy", "a.parquet", "a.arrow"]
TEMPLATE = "{{ tools }}{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}"
TOKENIZER = {  # written by hand: nothing of the library may run before the fork
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
}  # fmt: skip
SWELLING = ["equal.parquet", "groups.parquet", "texts.parquet", "views.arrow", "deep.arrow", "a.nested.jsonl.gz"]
# As people write them; of the other trainers, what `flags` prints.
CONFIGS = {
    "sft.yaml": """model_name_or_path: tiny  # a name of the catalog
max_length: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
gradient_checkpointing: true
model_init_kwargs: {dtype: bfloat16}
warmup_step: 10
# run: accelerate launch --num_processes 2 --use_fsdp --fsdp_version 2 -m trl.scripts.sft --config sft.yaml
""",
    "sft.json": json.dumps({"model_name_or_path": "tiny", "per_device_train_batch_size": 2, "bf16": True}),
    "deepspeed/train.sh": """#!/bin/bash
N=2; ARGS=(--max_length 4096 --packing "True")
BATCH=$((N * 2))
torchrun --nproc-per-node $N -m trl.scripts.sft --model_name_or_path tiny \\
  --per_device_train_batch_size ${BATCH:-4} "${ARGS[@]}" --deepspeed zero3.json
""",
    "deepspeed/zero3.json": json.dumps(
        {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_batch_size": "auto"}
    ),
    "grpo.sh": """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=8 \\
  data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.model.path=tiny \\
  actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.use_dynamic_bsz=True \\
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 +trainer.other='[1, {a: "b"}]' trainer.n_gpus_per_node=2
""",
}
AUDITED = ("axolotl", "llamafactory", "torchtitan", "slime", "nemo-rl", "prime-rl")
LENGTHS = [512, 2048, 77, 900, 64, 4000, 1, 1023, 300, 8]


@dataclass(frozen=True, slots=True)
class Case:
    """A seed and a command line that reads it. Without a seed the text itself is an argument."""

    argv: tuple[str, ...]
    seed: str = ""
    text: str = ""


def write(folder: Path) -> None:
    """All seeds."""
    for make in (_lengths, _shapes, _logs, _runs, _configs, _dumps):
        make(folder)
    swelling.write(SWELLING, folder)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _made(["compare", f"{folder}/a.csv", *SETTING, "--minibatches", "1", "--json"])
    (folder / "compared.json").write_text(out.getvalue())
    plan = ["balance", f"{folder}/a.csv", *SETTING, "--minibatches", "2"]
    for balancer in ("lb-mini", "pool"):
        _made([*plan, "--balancer", balancer, "-o", f"{folder}/{balancer}.jsonl"])
        files = [f"{folder}/{balancer}.jsonl", f"{folder}/{balancer}.npz"]
        _made(["simulate", files[0], "--sync", "on-demand", "--gpu", "a100", "-o", files[1]])
    _made(["fit", f"{folder}/log.csv", "--model", "tiny", "--gpu", "a100", "-o", f"{folder}/profile.json"])


def _made(argv: list[str]) -> None:
    if code := main(argv):
        raise RuntimeError(f"{' '.join(argv)} gave {code}")


def _lengths(folder: Path) -> None:
    rows = [{"prompt": n // 2, "response": n - n // 2, "group": i // 2, "step": i // 4} for i, n in enumerate(LENGTHS)]
    files = {
        "a.csv": "length\n" + "\n".join(map(str, LENGTHS)) + "\n",
        "roles.csv": "prompt,response,group,step\n" + "\n".join(",".join(map(str, r.values())) for r in rows) + "\n",
        "counts.tsv": "length\tcount\n512\t10\n2048\t3\n",
        "quantiles.csv": "q;length\n0;5\n0.5;700\n1;4096\n",
        "a.txt": "\n".join(map(str, LENGTHS)),
        "a.json": json.dumps(LENGTHS),
        "columns.json": json.dumps({"length": LENGTHS, "loss": [1] * 10, "note": "text"}),
        "rows.json": json.dumps(rows),
        "a.jsonl": "\n".join(json.dumps({"input_ids": [1] * (n % 9 + 1), "labels": [-100, 1]}) for n in LENGTHS),
        "rows.jsonl": "\n".join(map(json.dumps, rows)),
        "texts.jsonl": json.dumps({"messages": [{"role": "user", "content": "a b c"}]}),
        "ragged.jsonl": "\n".join(map(json.dumps, RAGGED)),
        "alpaca.jsonl": "\n".join(map(json.dumps, ALPACA)),
        **{f"pairs-{i}.jsonl": "\n".join([json.dumps(row)] * 3) for i, row in enumerate(PAIRS)},
        "pairs.csv": "prompt_length,chosen_length,rejected_length\n" + "".join(f"9,{n},7\n" for n in LENGTHS),
        "dirty.csv": 'length,id\n5,a\n"3,337",b\n\n,c\n7\nn/a,d\n6,e\n',
        "dirty.jsonl": '{"length": 5}\n{"length": null}\n{}\n{"length": 7\n{"length": "8"}\n9\n',
        "images.csv": "length,images\n" + "\n".join(f"{n},{n % 3}" for n in LENGTHS) + "\n",
        "images.jsonl": "\n".join(json.dumps({"length": n, "images": n > 99}) for n in LENGTHS),
        "plan.json": json.dumps([[[0, 1], [2]], [[3], [4]]]),
        "batches.jsonl": "[0, 1]\n[2, 3]\n[4]\n[5]\n",
        "grid.toml": GRID,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "a.csv.gz").write_bytes(gzip.compress(files["a.csv"].encode()))
    np.save(folder / "a.npy", np.array(LENGTHS))
    np.savez(folder / "lengths.npz", length=np.array(LENGTHS), loss=np.ones(10, int))
    np.savez_compressed(folder / "packed.npz", length=np.array(LENGTHS))
    (folder / "tok").mkdir()
    (folder / "tok" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tok" / "chat_template.jinja").write_text(TEMPLATE)
    head = b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + b"\x08" + np.array([10, 11], "<u8").tobytes()
    (folder / "a.idx").write_bytes(head + np.array(LENGTHS, "<i4").tobytes())
    _arrow(folder)


def _arrow(folder: Path) -> None:
    import pyarrow
    from pyarrow import ipc, parquet

    table = pyarrow.table({"length": LENGTHS, "input_ids": [[1] * (n % 9 + 1) for n in LENGTHS]})
    parquet.write_table(table, folder / "a.parquet")
    parquet.write_table(pyarrow.table({"messages": [TALK, TALK[:1]], "system": [None, "a"]}), folder / "talks.parquet")
    with pyarrow.OSFile(str(folder / "a.arrow"), "wb") as out, ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)


def _shapes(folder: Path) -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 32000,
        "tie_word_embeddings": True, "max_window_layers": 4, "use_sliding_window": False,
    }  # fmt: skip
    mixture = config | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}
    mixture |= {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "decoder_sparse_step": 1, "head_dim": 32}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mixture.json").write_text(json.dumps(mixture))
    (folder / "gpu.toml").write_text('like = "h100"\npeak_tflops = 800\nmatmul_tflops = 600\nmemory_gb = 80\n')
    (folder / "cluster.toml").write_text(
        "devices_per_node = 1\nnics_per_node = 1\nnic_gbit_s = 100\nlatency_us = 20\njitter = 0.02\nswing = 0.1\n"
        "spell_seconds = 1\nsample_noise = 0.01\n[slow]\n1 = 1.2\n"
    )


def _logs(folder: Path) -> None:
    rng = np.random.default_rng(0)
    held = [rng.integers(20, 4000, rng.integers(1, 6)) for _ in range(30)]
    seconds = [1e-3 + 1e-6 * float(n.sum()) + 1e-10 * float((n**2).sum()) for n in held]
    lines = [f"{';'.join(map(str, n))},{s:.6g}" for n, s in zip(held, seconds, strict=True)]
    (folder / "log.csv").write_text("lengths,seconds\n" + "\n".join(lines) + "\n")
    compute = [
        {"kind": kind, "tokens": int(n.sum()), "squares": float((n**2).sum()), "seconds": s * (i + 1)}
        for i, kind in enumerate(("forward", "backward", "head"))
        for n, s in zip(held[:8], seconds, strict=False)
    ]
    transfers = [{"kind": "gather", "devices": 2, "bytes": 2**p, "seconds": 1e-4 + 2**p * 1e-10} for p in range(16, 24)]
    rows = {"compute": compute, "transfers": transfers}
    about = {"format": "odcsim measurements", "version": 1, "model": "tiny", "gpu": "a100"}
    (folder / "measurements.json").write_text(json.dumps(about | rows))
    rows = [f"{step},0,{';'.join(map(str, n))}\n" for step, n in enumerate(held[:10])]
    (folder / "lengths-of-steps.csv").write_text("".join(["step,device,lengths\n", *rows]))
    trace = json.dumps({"traceEvents": list(_kernels(seconds)), "distributedInfo": {"rank": 0, "world_size": 1}})
    (folder / "trace.json").write_text(trace)
    steps = [{"step": i, "train_runtime": i * 0.5, "num_tokens": i * 3000, "loss": None} for i in range(20)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": steps}))
    (folder / "steps.jsonl").write_text("\n".join(json.dumps({"step": s["step"], "data": s}) for s in steps))
    seconds = "".join(f"{i},{0.5 + i % 3 / 10},{3000 + i}\n" for i in range(20))
    (folder / "steps.csv").write_text("step,run - seconds,tokens\n" + seconds)
    (folder / "trace.json.gz").write_bytes(gzip.compress(trace.encode()))
    step = traces.MadeStep([[30, 40]] * 2, [8, 4], loading=5, collecting=5)
    traces.write(traces.made([[step, step]] * 2), folder, [0.0, 5e6])


def _runs(folder: Path) -> None:
    """What a run wrote down while it trained: two ranks, as torch.profiler, the watcher and StragglerAnalysis tell."""
    import pyarrow
    from pyarrow import parquet

    for rank in range(2):
        name = f"lengths-rank{rank}.json.gz"
        (folder / f"ran-{rank}.json").write_bytes(gzip.decompress((RECORDED / name).read_bytes()))
        watched = (named.folder() / "slow-step" / f"watch-rank{rank}.jsonl").read_text()
        (folder / f"watch-rank{rank}.jsonl").write_text("".join(watched.splitlines(keepends=True)[:5]))
    rows = [
        (dp, 0, dp, step, name, step + at / 10, 0.1, 0, microbatch)
        for dp in range(2)
        for step in range(3)
        for at, (name, microbatch) in enumerate([("forward-compute", 0), ("backward-compute", 0), ("optimizer", -1)])
    ]
    names = "dp_rank stage rank step optype start_ts duration seq_id mb_id".split()
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), folder / "operations.parquet")


def _configs(folder: Path) -> None:
    (folder / "deepspeed").mkdir()
    for name, text in CONFIGS.items():
        (folder / name).write_text(text)
    for trainer in AUDITED:
        asked = odcsim.ask(SPECS[1], "tiny", gpu="a100", devices=2, minibatch=4, minibatches=1, trainer=trainer)
        text = str(odcsim.flags(trainer, odcsim.compare(asked)))
        (folder / f"{trainer}.{TRAINERS[trainer].form}").write_text(text.replace("/path/to/tiny", "tiny"))


def _dumps(folder: Path) -> None:
    """Of a hang of two ranks, as torch pickles them and as JSON: the second has not come to the third collective."""
    for name, form in (("dumps", pickle.dumps), ("dumps-json", lambda dump: json.dumps(dump).encode())):
        (folder / name).mkdir()
        for rank in range(2):
            calls = [_call(number, over=number < 3) for number in range(1, 4 - rank)]
            groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
            dump = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": calls}
            (folder / name / f"rank_{rank}{'.json' * (name != 'dumps')}").write_bytes(form(dump))


def _call(number: int, over: bool) -> dict:
    frames = [
        {"name": name, "filename": file, "line": 9}
        for name, file in (("all_reduce", "/x/site-packages/torch/distributed/d.py"), ("train", "/job/run.py"))
    ]
    return {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + number,
        "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "completed" if over else "started", "time_discovered_started_ns": None, "retired": over,
        "time_discovered_completed_ns": None, "timeout_ms": 600000, "is_p2p": False, "frames": frames,
    }  # fmt: skip


def _kernels(seconds: list[float]):
    now = 0.0
    for step, each in enumerate(seconds[:10]):
        long = each * 1e6
        yield {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}", "ts": now, "dur": long}
        yield {"ph": "X", "cat": "kernel", "name": "gemm", "ts": now, "dur": long * 0.9}
        now += long


_AUDITED = [
    *(name for name in CONFIGS if "zero3" not in name),
    *(f"{trainer}.{TRAINERS[trainer].form}" for trainer in AUDITED),
]
_READ = [
    "a.csv", "roles.csv", "counts.tsv", "quantiles.csv", "a.txt", "a.json", "columns.json", "rows.json", "a.jsonl",
    "rows.jsonl", "texts.jsonl", "a.csv.gz", "a.npy", "lengths.npz", "packed.npz", "a.idx", "a.parquet", "a.arrow",
]  # fmt: skip
_FIT = "--model tiny --gpu a100 -o OUT.json"
_RUN = "--trace a.csv --model tiny --gpu a100 --devices 2 --minibatch 2 --minibatches 2 -o OUT.json"
_SHAPE = SPECS[1]
_LOGGED = "--trace a.csv --model tiny --gpu a100 --devices 2 --minibatch 2"
_SIMULATE = "--sync on-demand --gpu a100"
_BALANCE = f"{' '.join(SETTING)} --minibatches 1 --balancer lb-mini"
# A command line, what is changed of it, and how often it is as likely as others.
_LINES = [
    ("trace info IN", _READ, 1),
    ("trace info IN --tokenizer tok", ["texts.jsonl", "ragged.jsonl", "alpaca.jsonl", "talks.parquet"], 3),
    ("trace info IN --tokenizer tok --skip-bad", ["texts.jsonl", "alpaca.jsonl", "pairs-0.jsonl", "talks.parquet"], 2),
    ("trace make IN --tokenizer tok -o OUT.jsonl", ["pairs-0.jsonl", "pairs-1.jsonl", "pairs-2.jsonl"], 1),
    ("trace make IN --skip-bad -o OUT.csv", DIRTY, 1),
    (f"compare IN {' '.join(SETTING)} --minibatches 1 --skip-bad", ["pairs.csv"], 1),
    ("trace make IN --samples 5 -o OUT.csv", _READ, 1),
    (f"balance IN {_BALANCE} -o OUT.jsonl", _READ, 1),
    (f"simulate IN {_SIMULATE} -o OUT.npz", ["lb-mini.jsonl", "pool.jsonl"], 4),
    ("trace info IN", SWELLING, 1),
    (f"fit IN --lengths lengths-of-steps.csv {_FIT}", ["kernels.json.gz", "other.json.gz"], 1),
    ("check IN", ["plan.json", "batches.jsonl", "lb-mini.jsonl"], 2),
    ("check plan.json --lengths IN --images images", ["images.csv", "images.jsonl"], 2),
    ("flags verl IN", ["compared.json"], 2),
    ("sweep IN --jobs 1 -o OUT.csv", ["grid.toml"], 4),
    ("flags trl IN", ["compared.json"], 1),
    ("check IN --lengths a.csv --max-tokens 4096 --json", ["plan.json", "batches.jsonl", "lb-mini.jsonl"], 1),
    ("advise IN --model tiny --gpus a100 --devices 2 --global-batch 4 --epochs 1", ["a.csv", "a.json", "a.npy"], 1),
    ("rl IN --model tiny --gpu a100 --devices 2 --prompts 4 --rollouts 2", ["roles.csv", "a.csv"], 1),
    ("break-even IN --model tiny --gpu a100 --devices 2 --minibatch 2 --max-tokens 4096", ["a.csv", "a.npy"], 1),
    ("report IN --html OUT.html", ["lb-mini.npz", "pool.npz"], 2),
    ("trace-json IN -o OUT.json.gz", ["lb-mini.npz", "pool.npz"], 2),
    ("validate IN IN", ["lb-mini.npz", "pool.npz"], 1),
    ("validate lb-mini.npz IN --json", ["lb-mini.npz"], 2),
    (f"fit IN {_FIT}", ["log.csv"], 5),
    ("fit IN -o OUT.json", ["measurements.json"], 5),
    (f"fit IN --lengths lengths-of-steps.csv {_FIT}", ["trace.json", "trace.json.gz"], 2),
    (f"fit trace.json --lengths IN {_FIT}", ["lengths-of-steps.csv"], 1),
    ("diagnose IN rank1.json", ["rank0.json"], 3),
    ("diagnose IN --json", ["rank0.json", "trace.json.gz"], 1),
    ("catalog show IN", ["config.json", "mixture.json", "gpu.toml"], 1),
    ("catalog show IN --json", ["config.json", "mixture.json", "gpu.toml"], 1),
    (f"simulate lb-mini.jsonl {_SIMULATE} --cluster IN -o OUT.npz", ["cluster.toml"], 3),
    (f"simulate lb-mini.jsonl {_SIMULATE} --profile IN -o OUT.npz", ["profile.json"], 3),
    ("simulate lb-mini.jsonl --sync collective --gpu IN -o OUT.npz", ["gpu.toml"], 3),
    ("compare a.csv --model IN --gpu a100 --devices 2 --minibatch 2 --minibatches 1", ["config.json"], 1),
    (f"compare a.csv {' '.join(SETTING)} --minibatches 1 --profile IN --html OUT.html", ["profile.json"], 1),
    (f"compare a.csv {' '.join(SETTING)} --minibatches 1 --json --cluster IN", ["cluster.toml"], 1),
    (f"fit IN {_RUN}", ["trainer_state.json", "steps.jsonl", "steps.csv"], 2),
    ("diagnose IN --html OUT.html", ["ran-0.json", "watch-rank0.jsonl", "operations.parquet", "trace.json.gz"], 2),
    ("diagnose IN ran-1.json --json", ["ran-0.json"], 2),
    ("diagnose IN watch-rank1.jsonl --model tiny --gpu a100", ["watch-rank0.jsonl"], 3),
    ("diagnose IN lb-mini.jsonl", ["lb-mini.npz"], 2),
    ("diagnose pool.npz IN --trainer trl --price 2", ["pool.jsonl"], 2),
    ("diagnose ran-0.json ran-1.json --lengths IN", ["watch-rank0.jsonl", "lengths-of-steps.csv"], 2),
    (f"audit IN --lengths {_SHAPE} --gpu a100 --devices 2", _AUDITED, 2),
    ("audit IN --lengths roles.csv --gpu a100 --json", _AUDITED, 1),
    (f"audit IN --lengths {_SHAPE} --gpu a100 --devices 2 --write OUT.txt", _AUDITED, 1),
    (f"audit AROUND/train.sh --lengths {_SHAPE} --gpu a100 --devices 2", ["deepspeed/zero3.json"], 3),
    ("audit sft.yaml --lengths a.csv --gpu a100 --log IN", ["trainer_state.json", "steps.jsonl", "steps.csv"], 1),
    ("audit --hang AROUND", ["dumps/rank_0", "dumps/rank_1", "dumps-json/rank_0.json", "dumps-json/rank_1.json"], 3),
    (f"diagnose IN {_LOGGED} --balancer native", ["trainer_state.json", "steps.jsonl", "steps.csv"], 1),
]
_ARGUMENTS = [
    ("trace info IN", SPECS),
    ("trace info a.csv --cutoff IN", SETTINGS),
    ("trace info a.csv --truncate IN", SETTINGS),
    *((f"balance a.csv {_BALANCE} {flag} IN -o OUT.jsonl", SETTINGS)
      for flag in ("--max-tokens", "--devices", "--minibatch", "--seed")),
]  # fmt: skip
CASES = (
    *(Case(tuple(line.split()), seed) for line, read, often in _LINES for seed in read * often),
    *(Case(tuple(line.split()), text=text) for line, texts in _ARGUMENTS for text in texts),
)
