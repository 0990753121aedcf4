"""What another function makes is asked for where anything else is given in its place."""

import pytest

import odcsim

QUESTION = odcsim.ask("longalign", "qwen3-0.6b", gpu="h100", devices=2, max_tokens=65536, minibatches=2)
FITTED = odcsim.Fitted(QUESTION.cost.profile, ())


@pytest.mark.parametrize(
    "call",
    [
        lambda: odcsim.compare("longalign"),
        lambda: odcsim.plan("x", "lb-mini"),
        lambda: odcsim.sweep_max_tokens(3, [4096]),
        lambda: odcsim.simulate("x", None),
        lambda: odcsim.simulate(odcsim.plan(QUESTION, "native"), "collective"),
        lambda: odcsim.sweep(None),
        lambda: odcsim.sweep([1, 2]),
        lambda: odcsim.write_report("x", "y.html"),
        lambda: odcsim.ask("longalign", "qwen3-0.6b", profile=FITTED),
    ],
)
def test_what_is_given_in_its_place_is_refused(call):
    with pytest.raises(odcsim.InputError):
        call()
