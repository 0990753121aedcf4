"""What trainers that others wrote make of a configuration: by their own classes, with their defaults for all else.

Each reader takes texts that `odcsim flags` printed, and gives what each comes to: `rows` of a step on all devices, of
`each` samples or `tokens`, whether gradients leave with each microbatch, whether logits are in chunks, whether layers
run again, the rank of adapters, the `copies` of a sharded model. It runs in a process of its own, since these packages
change what others find.
"""

import json
import os
import subprocess
import sys

USUAL = "import json, shlex, sys, warnings\nwarnings.simplefilter('ignore')\n"
SHELL = """
def words(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return shlex.split(" ".join(line.removesuffix("\\\\") for line in lines))
def devices(argv):
    return int(argv[argv.index("--num_processes") + 1])
def copies(argv):
    if "--use_fsdp" not in argv:
        return devices(argv)
    name = "--parallelism_config_dp_replicate_size"
    return int(argv[argv.index(name) + 1]) if name in argv else 1
def each_batch(config):
    kwargs = config.accelerator_config.gradient_accumulation_kwargs or {}
    return bool(kwargs.get("sync_each_batch")) or config.gradient_accumulation_steps == 1
"""
READERS = {
    "trl": SHELL + """
import importlib
from transformers import TrainingArguments
def read(text):
    argv = words(text)
    module = argv[argv.index("-m") + 1]
    own = argv[argv.index(module) + 1:] + ["--use_cpu", "true", "--output_dir", "nowhere"]
    TrainingArguments.world_size = property(lambda self: devices(argv))
    parser = importlib.import_module(module).make_parser()
    script, config, model, *_ = parser.parse_args_and_config(own, fail_with_unknown_args=True)
    found = {"kind": module.rpartition(".")[2], "data": script.dataset_name, "model": model.model_name_or_path,
             "each": config.per_device_train_batch_size, "attention": model.attn_implementation,
             "rows": devices(argv) * config.per_device_train_batch_size * config.gradient_accumulation_steps,
             "each_batch": each_batch(config), "chunked": True, "again": config.gradient_checkpointing,
             "rank": model.lora_r if model.use_peft else 0, "four_bits": model.load_in_4bit,
             "epochs": config.num_train_epochs, "copies": copies(argv)}
    if found["kind"] == "grpo":
        found |= {"generated": devices(argv) * config.per_device_train_batch_size * config.steps_per_generation,
                  "rollouts": config.num_generations, "engine": config.vllm_tensor_parallel_size,
                  "run": config.max_steps * config.gradient_accumulation_steps // config.steps_per_generation}
        assert config.use_vllm and config.vllm_mode == "colocate" and config.vllm_gpu_memory_utilization == 0.6
    else:
        found |= {"tokens": config.max_length, "packs": getattr(config, "packing", False)}
    if found["kind"] == "dpo":
        found["before"] = config.precompute_ref_log_probs
    return found
""",
    "accelerate": SHELL + """
from dataclasses import dataclass
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class Own:
    model_name_or_path: str = ""
def read(text):
    argv = words(text)
    own = argv[argv.index("your_script.py") + 1:] + ["--use_cpu", "true", "--output_dir", "nowhere"]
    config, mine = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses(own)
    return {"kind": "sft", "model": mine.model_name_or_path, "each": config.per_device_train_batch_size,
            "rows": devices(argv) * config.per_device_train_batch_size * config.gradient_accumulation_steps,
            "each_batch": each_batch(config), "chunked": config.use_liger_kernel,
            "again": config.gradient_checkpointing, "rank": 0, "epochs": config.num_train_epochs,
            "copies": copies(argv)}
""",
    "llamafactory": SHELL + """
import yaml
from llamafactory.hparams.parser import _TRAIN_ARGS
from transformers import HfArgumentParser
def read(text):
    [launch] = [line for line in text.splitlines() if "and run:" in line]
    given = yaml.safe_load(text) | {"use_cpu": True}
    every = {}
    for of in HfArgumentParser(_TRAIN_ARGS).parse_dict(given):
        every |= vars(of)
        if hasattr(of, "accelerator_config"):
            config = of
    return {"kind": every["stage"], "data": every["dataset_dir"], "model": every["model_name_or_path"],
            "each": config.per_device_train_batch_size, "tokens": every["cutoff_len"],
            "packs": every["packing"] and every["neat_packing"],
            "rows": devices(launch.split()) * config.per_device_train_batch_size * config.gradient_accumulation_steps,
            "each_batch": each_batch(config), "chunked": every["enable_liger_kernel"],
            "again": not every["disable_gradient_checkpointing"],
            "rank": every["lora_rank"] if every["finetuning_type"] == "lora" else 0,
            "four_bits": every["quantization_bit"] == 4, "epochs": config.num_train_epochs,
            "copies": copies(launch.split())}
""",
    "axolotl": """
import yaml
import importlib.util, pathlib
from axolotl.utils.schemas.config import AxolotlInputConfig
folder = pathlib.Path(importlib.util.find_spec("axolotl").submodule_search_locations[0])
spec = importlib.util.spec_from_file_location("cut", folder / "integrations/cut_cross_entropy/args.py")
spec.loader.exec_module(plugin := importlib.util.module_from_spec(spec))
def read(text):
    [launch] = [line for line in text.splitlines() if "and run:" in line]
    given = yaml.safe_load(text)
    found = AxolotlInputConfig(**given)
    cut = "plugins" in given and plugin.CutCrossEntropyArgs(**given).cut_cross_entropy
    words = launch.split()
    devices = int(words[words.index("--nnodes") + 1]) * int(words[words.index("--nproc_per_node") + 1])
    kwargs = getattr(found.accelerator_config, "gradient_accumulation_kwargs", None) or (found.accelerator_config or {})
    kwargs = kwargs.get("gradient_accumulation_kwargs", kwargs) if isinstance(kwargs, dict) else kwargs
    [data] = found.datasets
    return {"kind": "sft", "data": data["path"] if isinstance(data, dict) else data.path, "model": found.base_model,
            "each": found.micro_batch_size, "tokens": found.sequence_len, "packs": bool(found.sample_packing),
            "rows": devices * found.micro_batch_size * found.gradient_accumulation_steps,
            "each_batch": bool((kwargs or {}).get("sync_each_batch")) or found.gradient_accumulation_steps == 1,
            "chunked": bool(cut), "again": bool(found.gradient_checkpointing),
            "rank": found.lora_r if found.adapter else 0, "four_bits": bool(found.load_in_4bit),
            "epochs": found.num_epochs,
            "copies": (found.dp_replicate_size or 1) if found.fsdp_config else devices}
""",
    "torchtitan": SHELL + """
from torchtitan.config import ConfigManager
def read(text):
    argv = words(text)
    devices = int(argv[argv.index("--nnodes") + 1]) * int(argv[argv.index("--nproc_per_node") + 1])
    found = ConfigManager().parse_args(argv[argv.index("torchtitan.train") + 1:])
    t, p, again = found.training, found.parallelism, found.activation_checkpoint
    assert p.data_parallel_shard_degree * p.data_parallel_replicate_degree * p.context_parallel_degree == devices
    return {"kind": "sft", "data": found.dataloader.dataset_path, "model": found.hf_assets_path,
            "each": t.local_batch_size, "tokens": t.seq_len, "packs": True,
            "rows": t.global_batch_size * t.local_batch_size, "each_batch": True,
            "copies": p.data_parallel_replicate_degree,
            "chunked": type(found.loss).__qualname__.startswith("Chunked"),
            "again": type(again).__qualname__ == "FullAC.Config", "rank": 0, "steps": t.steps}
""",
    "verl": SHELL + """
import importlib.util, pathlib
from hydra import compose, initialize_config_dir
root = pathlib.Path(importlib.util.find_spec("verl").submodule_search_locations[0]) / "trainer/config"
def copies(size, devices):
    return devices // size if size > 0 else 1
def read(text):
    argv = words(text)
    sft = "verl.trainer.sft_trainer" in argv
    module = "verl.trainer.sft_trainer" if sft else "verl.trainer.main_ppo"
    with initialize_config_dir(str(root), version_base=None):
        c = compose("sft_trainer_engine" if sft else "ppo_trainer", overrides=argv[argv.index(module) + 1:])
    if sft:
        assert c.data.use_dynamic_bsz and c.engine.strategy == "fsdp2"
        devices = int(argv[argv.index("--nnodes") + 1]) * int(argv[argv.index("--nproc_per_node") + 1])
        return {"kind": "sft", "data": c.data.train_files, "model": c.model.path,
                "tokens": c.data.max_token_len_per_gpu, "copies": copies(c.engine.fsdp_size, devices),
                "rows": c.data.train_batch_size, "each_batch": not c.engine.use_no_sync_for_gradient_accumulation,
                "chunked": c.model.use_fused_kernels, "again": c.model.enable_gradient_checkpointing,
                "rank": c.model.lora_rank, "epochs": c.trainer.total_epochs}
    a, m = c.actor_rollout_ref.actor, c.actor_rollout_ref.model
    assert a.use_dynamic_bsz and a.strategy == "fsdp2"
    n = c.actor_rollout_ref.rollout.n
    return {"kind": "grpo", "data": c.data.train_files, "model": m.path, "tokens": a.ppo_max_token_len_per_gpu,
            "rows": a.ppo_mini_batch_size * n, "generated": c.data.train_batch_size * n, "rollouts": n,
            "each_batch": not a.fsdp_config.use_no_sync_for_gradient_accumulation, "chunked": m.use_fused_kernels,
            "again": m.enable_gradient_checkpointing, "rank": m.lora_rank,
            "copies": copies(a.fsdp_config.fsdp_size, c.trainer.nnodes * c.trainer.n_gpus_per_node),
            "engine": c.actor_rollout_ref.rollout.tensor_model_parallel_size, "run": c.trainer.total_training_steps}
""",
    "slime": SHELL + """
# 624b824, slime/utils/arguments.py and Megatron's: whether each takes a value.
KNOWN = dict.fromkeys("advantage-estimator custom-rm-path rollout-batch-size n-samples-per-prompt loss-type num-epoch "
                      "rollout-max-response-len global-batch-size rollout-function-path hf-checkpoint load prompt-data "
                      "input-key actor-num-nodes actor-num-gpus-per-node max-tokens-per-gpu attention-backend "
                      "recompute-granularity recompute-method recompute-num-layers num-rollout "
                      "rollout-num-gpus-per-engine sglang-mem-fraction-static".split(), True)
KNOWN |= dict.fromkeys("colocate calculate-per-token-loss disable-compute-advantages-and-returns debug-train-only "
                       "use-dynamic-batch-size balance-data use-kl-loss".split(), False)
def read(text):
    argv = words(text)
    own, found = argv[argv.index("${MODEL_ARGS[@]}") + 1:], {"n-samples-per-prompt": 1}
    while own:
        name = own.pop(0).removeprefix("--")
        found[name] = own.pop(0) if KNOWN[name] else True
    sft = found.get("loss-type") == "sft_loss"
    assert found["use-dynamic-batch-size"] and found["balance-data"]
    told = {"kind": "sft" if sft else "grpo", "data": found["prompt-data"], "model": found["hf-checkpoint"],
            "tokens": int(found["max-tokens-per-gpu"]), "rows": int(found["global-batch-size"]), "each_batch": True,
            "chunked": False, "again": found.get("recompute-granularity") == "full"}
    assert (argv[argv.index("python3") + 1] == "train_async.py") == sft == ("colocate" not in found)
    if sft:
        return told | {"epochs": int(found["num-epoch"])}
    each = int(found["n-samples-per-prompt"])
    return told | {"rollouts": each, "generated": int(found["rollout-batch-size"]) * each,
                   "engine": int(found["rollout-num-gpus-per-engine"]), "run": int(found["num-rollout"])}
""",
    "nemo-rl": SHELL + """
# 7ea279a, examples/configs/sft.yaml and grpo_math_1B.yaml, whose defaults these are.
KNOWN = {"policy.model_name": "", "cluster.num_nodes": 1, "cluster.gpus_per_node": 1, "data.validation": {},
         "data.train.dataset_name": "squad", "logger.wandb_enabled": True, "policy.max_total_sequence_length": 1024,
         "policy.train_global_batch_size": 32, "policy.dynamic_batching.enabled": False,
         "policy.sequence_packing.enabled": False, "policy.sequence_packing.train_mb_tokens": 1024,
         "policy.dtensor_cfg.enabled": True, "policy.dtensor_cfg.activation_checkpointing": False,
         "policy.dtensor_cfg.cpu_offload": False}
SFT = {"sft.max_num_epochs": 1, "sft.max_num_steps": 60, "sft.val_period": 10, "sft.val_at_start": True}
GRPO = {"loss_fn.reference_policy_kl_penalty": 0.01,
        "grpo.max_num_epochs": 1, "grpo.val_period": 10, "grpo.num_prompts_per_step": 32,
        "grpo.num_generations_per_prompt": 16, "grpo.max_num_steps": 1_000_000,
        "policy.generation.vllm_cfg.tensor_parallel_size": 1, "policy.generation.vllm_cfg.gpu_memory_utilization": 0.6}
def read(text):
    argv = words(text)
    kind = "sft" if "examples/run_sft.py" in argv else "grpo"
    assert argv[argv.index("--config") + 1].endswith("sft.yaml" if kind == "sft" else "grpo_math_1B.yaml")
    found = KNOWN | (SFT if kind == "sft" else GRPO)
    for word in argv[argv.index("--config") + 2:]:
        name, _, value = word.partition("=")
        assert name.startswith("++") or name in found, name
        plain = value[:1].isdigit() or value in ("true", "false")
        found[name.removeprefix("++")] = json.loads(value) if plain else value
    assert found["policy.sequence_packing.enabled"] and not found["policy.dynamic_batching.enabled"]
    assert found["policy.dtensor_cfg.enabled"] and found["data.validation"] == "null"
    told = {"kind": kind, "data": found["data.train.data_path"], "model": found["policy.model_name"],
            "tokens": found["policy.sequence_packing.train_mb_tokens"], "rows": found["policy.train_global_batch_size"],
            "each_batch": True, "chunked": False, "again": found["policy.dtensor_cfg.activation_checkpointing"]}
    if kind == "sft":
        return told | {"epochs": found["sft.max_num_epochs"], "steps": found["sft.max_num_steps"]}
    each = found["grpo.num_generations_per_prompt"]
    return told | {"rollouts": each, "generated": found["grpo.num_prompts_per_step"] * each,
                   "engine": found["policy.generation.vllm_cfg.tensor_parallel_size"],
                   "run": found["grpo.max_num_steps"]}
""",
}  # fmt: skip
MAIN = "\nprint(json.dumps([read(text) for text in json.load(sys.stdin)], default=str))"
QUIET = {"DISABLE_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error"}


def read(trainer: str, texts: list[str]) -> list[dict]:
    command = [sys.executable, "-c", USUAL + READERS[trainer] + MAIN]
    done = subprocess.run(
        command, input=json.dumps(texts), env=os.environ | QUIET, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
