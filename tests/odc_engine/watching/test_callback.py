"""What a Trainer tells the callback, told by hand."""

from types import SimpleNamespace

import torch
from torch import nn

import odc_engine


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


def trained(watch, model, number=1, **batch):
    watch.on_step_begin()
    model(torch.ones(1, 3, dtype=torch.int64), **batch).backward()
    watch.on_step_end(None, SimpleNamespace(global_step=number), None)


def test_a_batch_of_an_odd_form_ends_the_watching_and_not_the_run(tmp_path, capsys):
    model = Tiny()
    watch = begun(model, tmp_path / "watched")
    trained(watch, model)
    trained(watch, model, 2, seq_lengths=[torch.tensor([1, 2])])
    trained(watch, model, 3)
    watch.on_train_end()
    assert capsys.readouterr().err.startswith("odc_engine.watch: stops watching: ")
    assert len((tmp_path / "watched" / "watch-rank0.jsonl").read_text().splitlines()) == 2
