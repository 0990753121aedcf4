"""What is tried before training leaves nothing behind, and what may not be in a microbatch is refused there."""

import random
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from odc_engine.trainers.lengths import Expected, lengths_of
from odc_engine.trainers.minibatches import Portion
from odc_engine.trainers.one_process import own_alone
from odc_engine.trainers.stirred import stirred
from odc_engine.trainers.untraced import alone, untraced, without_dropout
from odcsim.errors import InputError


class Trainer:
    def __init__(self):
        self._metrics = {"train": defaultdict(list, loss=[1.0]), "eval": defaultdict(list)}
        self.seen, self.kinds, self.mean = 3, Counter("ab"), torch.ones(2)
        self.history, self.data = [1, [2]], np.zeros(3)


def drawn():
    return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002


def test_random_states_buffers_and_notes_are_as_they_were():
    model, trainer = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), Trainer()
    inner = trainer._metrics["train"]
    with untraced(trainer, model):
        expected = drawn()
    with untraced(trainer, model):
        drawn()
        model(torch.randn(4, 2))
        inner["loss"].append(2.0)
        inner["new"].append(2.0)
        trainer.seen, trainer.more = 9, 1
        trainer.kinds["c"] += 1
        trainer.mean.mul_(2)
        trainer.history[1].append(3)
    assert drawn() == expected
    assert model[0].num_batches_tracked == 0
    assert torch.equal(model[0].running_mean, torch.zeros(2))
    assert trainer._metrics["train"] is inner
    assert inner == {"loss": [1.0]}
    assert (trainer.seen, trainer.kinds, trainer.history) == (3, Counter("ab"), [1, [2]])
    assert trainer.mean.tolist() == [1, 1]
    assert not hasattr(trainer, "more")


def test_dropout_is_off_and_then_on_again():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    given = torch.ones(64, 8)
    on_again = without_dropout(model)
    assert torch.equal(model(given), model(given))
    on_again()
    assert not torch.equal(model(given), model(given))


def test_a_stirred_layer_answers_to_what_a_row_is_and_not_to_where_it_stands():
    model, rows = nn.Linear(6, 4), torch.randn(5, 6)
    plain = model(rows)
    with stirred(model):
        moved = model(rows)
        assert torch.allclose(model(rows.flip(0)), moved.flip(0), atol=1e-6)
        assert torch.allclose(model(rows[1:3]), moved[1:3], atol=1e-6)
    assert (moved - plain).abs().max() > 0.05
    assert torch.equal(model(rows), plain)
    model.requires_grad_(False)
    with stirred(model):
        assert torch.equal(model(rows), plain)  # as a reference is, whose weights nobody trains


def test_what_asks_other_ranks_is_refused_in_a_trial(tmp_path):
    with alone(), pytest.raises(InputError):
        dist.get_world_size()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with alone(), pytest.raises(InputError):
            dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()


def test_gathers_give_metrics_their_own_part_and_are_refused_in_a_loss():
    accelerator = SimpleNamespace()
    metric = {"__name__": "trl.trainer.sft_trainer"}
    exec("def tell(a, x): return a.gather(x), a.reduce({'loss': x}), a.pad_across_processes(x)", metric)
    with own_alone(accelerator):
        gathered, reduced, padded = metric["tell"](accelerator, torch.tensor(3.0))
        assert (gathered.tolist(), reduced["loss"].tolist(), padded.tolist()) == ([3.0], [3.0], 3.0)
        for name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes"):
            with pytest.raises(InputError):
                getattr(accelerator, name)(torch.tensor(3.0))
    assert not vars(accelerator)


@pytest.mark.parametrize(("width", "told"), [(20, 0), (22, 0), (40, 1), (8, 1)])
def test_a_batch_unlike_its_plan_is_told_once(width, told, recwarn):
    expected = Expected(np.array([20, 17]), padded=True, multiple=None)
    for _ in range(2):
        expected.check({"input_ids": torch.zeros(2, width)}, Portion((0, 1), 1.0))
    assert len(recwarn) == told


class Columns(dict):
    column_names = property(list)


def test_lengths_of_what_trainers_of_trl_make_of_their_data():
    two, five, nine = [0] * 2, [0] * 5, [0] * 9
    preferred, answered = (
        {"chosen_ids": [five], "rejected_ids": [nine]},
        {"prompt_ids": [two], "completion_ids": [five]},
    )
    for columns, most, expected in (
        ({"input_ids": [two, nine]}, None, [2, 9]),
        ({"input_ids": [two], "length": [7]}, None, [7]),
        ({"prompt_ids": [two]} | preferred, None, [22]),
        (preferred, 8, [16]),
        (answered, None, [7]),
        (answered | {"KL_completion_ids": [nine]}, 10, [10]),
    ):
        assert lengths_of(Columns(columns), "length", most) == expected
