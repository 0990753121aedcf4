"""slime: GRPO and SFT on Megatron."""

from dataclasses import replace

from odcsim.balance.balancer import Balancer, Deal, Work
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.neighbour import (
    COLLECTIVE,
    DATA,
    GITHUB,
    GOING_ON,
    IN_BATCHES,
    KERNEL_NAMES,
    ChosenRow,
    Entry,
    Neighbour,
    Rule,
    Settings,
    start_row,
)
from odcsim.neighbours.values import RunEnds, Values
from odcsim.neighbours.verl import difference
from odcsim.trace import GRPO, SFT

SOURCE = f"{GITHUB}/THUDM/slime at 624b824, slime/utils/arguments.py"
PROGRAMS = ("train_async.py", "train.py")
MARKS = ("hf_checkpoint", "rollout_batch_size", "actor_num_nodes")
SLIME_CAUTION = "slime runs Megatron, whose data parallelism keeps whole weights: memory was estimated for FSDP"
# A model's shape is arguments, too, in a script of theirs for each.
MODEL = "source scripts/models/{weights}.sh\n"


def grpo_settings(row: ChosenRow) -> Settings:
    return _base(row) | {
        "--advantage-estimator": "ppo" if row.critic else "grpo",
        "--custom-rm-path": "your_rewards.reward",
        "--rollout-batch-size": row.prompts * row.updates,
        "--n-samples-per-prompt": row.rollouts,
        **row.generation("--num-rollout", "--rollout-num-gpus-per-engine", "--sglang-mem-fraction-static"),
        "--rollout-max-response-len": row.answer or row.longest or row.max_tokens,
        "--global-batch-size": row.samples,
        "--colocate": None,
        **({"--use-kl-loss": None} if row.passes > 1 else {}),  # by a reference model, which passes, too
    }


def sft_settings(row: ChosenRow) -> Settings:
    """As its own scripts for SFT have it (scripts/run-qwen3-4B-base-sft.sh)."""
    return _base(row) | {
        "--rollout-function-path": "slime.rollout.sft_rollout.generate_rollout",
        "--loss-type": "sft_loss",
        "--calculate-per-token-loss": None,
        "--disable-compute-advantages-and-returns": None,
        "--debug-train-only": None,
        "--rollout-batch-size": row.samples,
        "--global-batch-size": row.samples,
    }


def _base(row: ChosenRow) -> Settings:
    settings: Settings = {
        "--hf-checkpoint": row.weights,
        **row.whole_epochs("--num-epoch"),
        "--load": f"{row.weights}_torch_dist",
        "--prompt-data": DATA,
        "--input-key": "messages" if row.kind == SFT else "prompt",
        "--actor-num-nodes": row.nodes,
        "--actor-num-gpus-per-node": min(row.devices, row.per_node),
        **({"--micro-batch-size": row.each} if row.each else _by_tokens(row)),
        "--balance-data": None,
        "--attention-backend": "flash",
    }
    if row.recipe.recompute == "operators":
        return settings | {"--recompute-granularity": "selective"}
    if row.recipe.recompute == "none":
        return settings
    every = {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1}
    return settings | every


def _by_tokens(row: ChosenRow) -> Settings:
    return {"--use-dynamic-batch-size": None, "--max-tokens-per-gpu": row.max_tokens // row.recipe.context}


def read(values: Values, launch: Launcher) -> ChosenRow:
    """SFT where its loss says so. Its samples of a step are dealt by tokens, within a limit, or so many in each."""
    sft = values.text("loss-type", "policy_loss") == "sft_loss"
    names = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "expert-model-parallel-size")
    values.refuse_over(names, "Megatron's tensor, pipeline and expert parallelism")
    if not launch.gpus:
        machines, each = values.whole("actor-num-nodes", 1), values.whole("actor-num-gpus-per-node", 8)
        launch = replace(launch, machines=machines, per_machine=each)
    shared = values.whole("context-parallel-size", 1)
    depth, how = values.get("recompute-granularity"), values.get("recompute-method")
    words = {
        "loss": "whole",
        "sync": "collective",
        "recompute": "operators" if depth == "selective" else "full" if depth == "full" and how else "none",
        "attention": KERNEL_NAMES.get(values.text("attention-backend", "auto").replace("auto", "flash"), "fa2"),
    }
    values.get("recompute-num-layers")
    launch = replace(launch.with_context(shared, values.where), sharding="full")
    row = start_row(values, launch, words, balancer="slime", minibatch=1, kernel="")
    each = 1 if sft else values.whole("n-samples-per-prompt", 1)
    made = values.whole("rollout-batch-size", 1) * each
    batch = values.whole("global-batch-size", made)
    if batch % row.workers:
        problem, fix = f"--global-batch-size {batch} on {row.workers} ranks", "it ends at once: give a multiple"
        raise RunEnds(problem, where=values.where, fix=fix)
    share, answer = batch // row.workers, values.whole("rollout-max-response-len", 0, 0)
    count = 0 if values.flag("use-dynamic-batch-size") else values.whole("micro-batch-size", 1)
    if not count and "micro-batch-size" in values:
        values.note("--micro-batch-size does nothing beside --use-dynamic-batch-size")
    row = replace(row, minibatch=share, each=count, max_tokens=values.whole("max-tokens-per-gpu", 0, 0) * shared)
    if count:
        row = replace(row, balancer=IN_BATCHES, microbatches=share / count)
    values.note(SLIME_CAUTION)
    row = replace(
        row, model=values.text("hf-checkpoint"), attention=words["attention"], data=values.text("prompt-data")
    )
    if sft:
        return replace(row, epochs=values.number("num-epoch", 0.0) or None)
    return replace(
        row,
        kind=GRPO,
        rollouts=each,
        updates=max(1, made // batch),
        passes=1 + values.flag("use-kl-loss"),
        epochs=values.number("num-epoch", 0.0) or None,
        critic=values.text("advantage-estimator", "grpo") == "ppo",
        answer=answer,
        longest=answer,
        engine_gpus=values.whole("rollout-num-gpus-per-engine", 1),
        memory_share=values.number("sglang-mem-fraction-static", 0.0),
        steps=values.whole("num-rollout", 0, 0),
    )


def deal(work: Work) -> Deal:
    """The right one to know what even tokens come to where attention is not even."""
    return difference(work, 1, 0)


SLIME = Neighbour(
    "slime",
    "shell",
    {
        SFT: Entry(
            MODEL + 'python3 train_async.py "${{MODEL_ARGS[@]}}"',
            sft_settings,
            SOURCE,
            read,
            PROGRAMS,
            MARKS,
            ("loss_type", "debug_train_only"),
        ),
        GRPO: Entry(
            MODEL + 'python3 train.py "${{MODEL_ARGS[@]}}"',
            grpo_settings,
            SOURCE,
            read,
            PROGRAMS,
            MARKS,
            ("advantage_estimator", "n_samples_per_prompt", "rollout_max_response_len"),
        ),
    },
    COLLECTIVE,
    (Rule("slime", "Karmarkar-Karp over tokens, for devices and for microbatches"),),
    frozenset({"operators", "attention"}),
    caution=SLIME_CAUTION,
    balancers=(Balancer("slime", deal, "Karmarkar-Karp over tokens", by_cost=False),),
    assumes={"loss": "whole"},  # Transformer Engine's layers are fused
    ending=GOING_ON,
)
