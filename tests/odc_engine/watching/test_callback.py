"""What a Trainer tells the callback, told by hand."""

import copy
import io
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import odc_engine
from odcsim.errors import InputError


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)

    def forward(self, input_ids, seq_lengths=None):  # noqa: ARG002
        return self.embedding(input_ids).sum()


def begun(model, folder):
    watch = odc_engine.watch(folder, every=0)
    watch.on_train_begin(SimpleNamespace(n_gpu=0), None, None, model=model)
    return watch


def trained(watch, *models, **batch):
    watch.on_step_begin()
    for model in models:
        model(torch.ones(1, 3, dtype=torch.int64), **batch).backward()
    watch.on_step_end(None, SimpleNamespace(global_step=1), None)


def microbatches_of(folder):
    _, *steps = map(json.loads, (folder / "watch-rank0.jsonl").read_text().splitlines())
    return [len(step["microbatches"]) for step in steps]


def test_a_batch_of_an_odd_form_ends_the_watching_and_not_the_run(tmp_path, capsys):
    model = Tiny()
    watch = begun(model, tmp_path / "watched")
    trained(watch, model)
    trained(watch, model, seq_lengths=[torch.tensor([1, 2])])
    trained(watch, model)
    watch.on_train_end()
    assert capsys.readouterr().err.count("\n") == 1
    assert microbatches_of(tmp_path / "watched") == [1]


def saved(model):
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, saved])
def test_a_model_is_copied_and_saved_while_it_is_watched_and_the_copy_is_not(tmp_path, again):
    model = Tiny()
    watch = begun(model, tmp_path / "watched")
    trained(watch, again(model), model, again(again(model)))
    watch.on_train_end()
    assert microbatches_of(tmp_path / "watched") == [1]


def test_what_a_run_left_that_ended_by_an_exception_is_taken_away(tmp_path):
    model = Tiny()
    trained(begun(model, tmp_path / "first"), model)
    watch = begun(model, tmp_path / "second")
    trained(watch, model)
    watch.on_train_end()
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == (0, 0)
    assert [microbatches_of(tmp_path / name) for name in ("first", "second")] == [[1], [1]]


@pytest.mark.parametrize(("n_gpu", "device"), [(4, "cpu"), (1, "xpu")])
def test_devices_whose_time_it_cannot_tell_are_refused(tmp_path, n_gpu, device):
    model = type("Far", (Tiny,), {"parameters": lambda _: [SimpleNamespace(device=torch.device(device))]})()
    with pytest.raises(InputError):
        odc_engine.watch(tmp_path / "watched").on_train_begin(SimpleNamespace(n_gpu=n_gpu), None, None, model=model)
    assert not (tmp_path / "watched").exists()
    assert not model._forward_pre_hooks
