"""verl's FSDP2 engine on processes without GPUs, with a tiny model, and samples as a rollout would leave them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

LIMIT = 96  # tokens of a microbatch
SAMPLES = 6  # of each device and minibatch


def on_processors() -> None:
    """verl asks a platform of its own for its device."""
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import set_platform

    class Processors(PlatformCUDA):
        device_name, device_module, vendor_name = "cpu", torch.cpu, "none"

        def is_available(self):
            return True

        def current_device(self):
            return torch.device("cpu")

        def device_count(self):
            return 1

        def communication_backend_name(self):
            return "gloo"

        def empty_cache(self):
            pass

    set_platform(Processors())


def engine_of(kind: type, folder: Path, **changed):
    """Of verl's own configuration. Only the model is made here, not read from a folder."""
    from tiny_trainers import llama
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    llama().save_pretrained(folder)  # which one of them does
    torch.distributed.barrier()
    model = HFModelConfig(
        path=str(folder), load_tokenizer=False, enable_gradient_checkpointing=False, use_remove_padding=False,
        override_config={"attn_implementation": "eager"},
    )  # fmt: skip
    exact = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    usual = {"strategy": "fsdp2", "model_dtype": "fp32", "use_torch_compile": False, "mixed_precision": exact}
    own = FSDPEngineConfig(**usual | changed)
    made = type(kind.__name__, (kind,), {"_build_module": lambda _: llama()})
    engine = made(model, own, FSDPOptimizerConfig(lr=3e-4, total_training_steps=99), CheckpointConfig())
    engine.initialize()
    return engine


def rollout(rank: int, step: int):
    """One device's samples: the first device has long answers, the other short ones."""
    from verl.utils import tensordict_utils

    draw = np.random.default_rng((step, rank))
    lengths = draw.integers(*((30, 60) if rank == 0 else (4, 12)), SAMPLES)
    ids = [torch.from_numpy(draw.integers(1, 50, length)) for length in lengths]
    prompts = [int(length) // 3 for length in lengths]
    masks = [torch.tensor([0.0] * n + [1.0] * (len(own) - n)) for n, own in zip(prompts, ids, strict=True)]
    columns = {"input_ids": ids, "position_ids": [torch.arange(len(own)) for own in ids], "loss_mask": masks}
    nested = {name: torch.nested.as_nested_tensor(own, layout=torch.jagged) for name, own in columns.items()}
    told = {"use_dynamic_bsz": True, "max_token_len_per_gpu": LIMIT, "temperature": 1.0, "use_remove_padding": False}
    return tensordict_utils.get_tensordict(nested, non_tensor_dict=told | {"use_fused_kernels": False})


@dataclass
class VerlTrained:
    weights: dict[str, Tensor]
    norms: list[float]
    losses: list[float]
    counts: list[int]  # microbatches of each minibatch

    def furthest(self, other: "VerlTrained") -> float:
        return max((own - other.weights[name]).abs().max().item() for name, own in self.weights.items())


def trained(engine, rank: int, steps: int) -> VerlTrained:
    from verl.workers.utils.losses import sft_loss

    norms, losses, counts = [], [], []
    for step in range(steps):
        with engine.train_mode():
            told = engine.train_batch(
                rollout(rank, step),
                lambda model_output, data, dp_group=None: sft_loss(None, model_output, data, dp_group),
            )
        norms.append(told["metrics"]["grad_norm"])
        losses.append(sum(told["loss"]))
        counts.append(len(told["loss"]))
        with engine.eval_mode():
            engine.infer_batch(rollout(rank, step))
    named = engine.module.named_parameters()
    weights = {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for name, p in named}
    return VerlTrained(weights, norms, losses, counts)
