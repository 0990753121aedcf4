"""What another function makes is asked for in one line, whatever was given in its place."""

import pytest

import odcsim

QUESTION = odcsim.ask("longalign", "qwen3-0.6b", gpu="h100", devices=2, max_tokens=65536, minibatches=2)
FITTED = odcsim.Fitted(QUESTION.cost.profile, ())
ASK = "give one as odcsim.ask makes it"
GRID = "give the path of a TOML file, or a dict of its keys"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: odcsim.compare("longalign"), f"no question: 'longalign'; {ASK}"),
        (lambda: odcsim.plan("x", "lb-mini"), f"no question: 'x'; {ASK}"),
        (lambda: odcsim.sweep_max_tokens(3, [4096]), f"no question: 3; {ASK}"),
        (lambda: odcsim.simulate("x", None), "no schedules: 'x'; give one as odcsim.plan makes it"),
        (
            lambda: odcsim.simulate(odcsim.plan(QUESTION, "native"), "collective"),
            "no simulation: 'collective'; give one as odcsim.Simulation makes it",
        ),
        (lambda: odcsim.sweep(None), f"no grid: None; {GRID}"),
        (lambda: odcsim.sweep([1, 2]), f"no grid: [1, 2]; {GRID}"),
        (lambda: odcsim.write_report("x", "y.html"), "no comparison: 'x'; give one as odcsim.compare makes it"),
        (
            lambda: odcsim.ask("longalign", "qwen3-0.6b", profile=FITTED),
            f"profile is {FITTED!r:.40}; give a file, which odcsim.fit writes as its output",
        ),
    ],
)
def test_one_line_says_what_makes_it(call, line):
    with pytest.raises(odcsim.InputError) as error:
        call()
    assert str(error.value) == line
