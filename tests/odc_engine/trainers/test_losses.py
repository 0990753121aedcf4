"""Losses and loaders as people write them are right on demand, or refused. docs/losses.md says which."""

import re

import pytest
from losses import EVERY
from losses.judged import judged, without_figures
from losses_page import row
from scripts import ROOT
from transformers import Trainer

from odc_engine.trainers import BalancedMixin, OnDemandMixin
from odcsim.errors import InputError

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?!trainer|---)(.+?) \| (trains|refused: .+?) \|.*\|.*\|$", re.MULTILINE)
FEWEST = 40  # kinds that train


@pytest.mark.drawn(33)
@pytest.mark.parametrize("sentence", EVERY)
def test_right_or_refused_as_the_page_says(pools, tmp_path, sentence):
    verdict = judged(pools, tmp_path, sentence)
    assert verdict.wrong == ()
    assert without_figures(row(sentence, verdict)) in map(without_figures, PAGE.splitlines())


def test_the_page_has_every_kind_once_and_no_other():
    told = ROW.findall(PAGE)
    assert [sentence for sentence, _ in told] == list(EVERY)
    assert sum(comes_to == "trains" for _, comes_to in told) >= FEWEST


@pytest.mark.parametrize("name", ["training_step", "get_train_dataloader", "get_batch_samples"])
def test_what_would_stand_in_place_of_the_mixin_is_refused_when_the_class_is_made(name):
    """What calls the mixin's is right, and so is what stands behind it."""
    instead = {name: lambda *_: None}
    for bases in ((OnDemandMixin, Trainer), (Trainer, OnDemandMixin), (Trainer, BalancedMixin)):
        with pytest.raises(InputError):
            type("Mine", bases, instead if bases[1] is Trainer else {})
    mixed = type("Mine", (OnDemandMixin, type("Own", (Trainer,), instead)), {})
    type("Around", (mixed,), {name: lambda self, *args: getattr(super(mixed, self), name)(*args)})
