"""The same steps in every form in which trainers and trackers log them are the same steps."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.fitting.steps import LoggedStep, read_steps

DEVICES = 8
SECONDS, TOKENS = st.integers(1, 4000).map(lambda n: n / 4), st.integers(1, 10**6).map(lambda n: 8 * n)
STEPS = st.lists(st.tuples(SECONDS, TOKENS), min_size=2, max_size=6)


def csv(path, names, rows):
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return [str(path)]


def lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return [str(path)]


def sums(values):
    return [sum(values[: i + 1]) for i in range(len(values))]


def hf(folder, every):
    """Of transformers with --include_num_input_tokens_seen: a clock, which an evaluation and a last row are in."""
    seconds, tokens = (list(of) for of in zip(*every, strict=True))
    rows = [
        {"loss": 2.0, "learning_rate": 1e-5, "epoch": 0.1, "train_runtime": s + 10 * (i > 0),
         "num_input_tokens_seen": t, "train_tokens_per_second": t / s, "step": i + 1}
        for i, (s, t) in enumerate(zip(sums(seconds), sums(tokens), strict=True))
    ]  # fmt: skip
    rows.insert(1, {"eval_loss": 2.0, "eval_runtime": 10.0, "num_input_tokens_seen": tokens[0], "step": 1})
    rows.append({"train_runtime": 1e4, "num_input_tokens_seen": sum(tokens), "train_loss": 2.0, "step": len(every)})
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"global_step": len(every), "log_history": rows}))
    return [str(path)]


def hf_list(folder, every):
    """`trainer.state.log_history` by itself."""
    paths = hf(folder, every)
    rows = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    (folder / "trainer_state.json").write_text(json.dumps(rows))
    return paths


def wandb(folder, every):
    """A table of W&B's page: the run's name before each key, rows that logged something else, and smoothed columns."""
    seconds, tokens = (list(of) for of in zip(*every, strict=True))
    names = ["Step", "_runtime", "a-b - train/global_step", "a-b - train/num_tokens", "a-b - train/num_tokens__MIN"]
    rows = []
    for i, (s, t) in enumerate(zip(sums(seconds), sums(tokens), strict=True)):
        rows += [(2 * i, s, i + 1, t, 0), (2 * i + 1, s, "", "", "")]
    return csv(folder / "wandb_export.csv", names, rows)


def tensorboard(folder, every):
    """A file for each scalar, named as its page names them, of which each has a clock that began in 1970."""
    seconds, tokens = (list(of) for of in zip(*every, strict=True))
    values = {"train_num_tokens": sums(tokens), "train_loss": [2.0] * len(every)}
    paths = []
    for tag, of in values.items():
        rows = [(1_700_000_000 + s, i + 1, v) for i, (s, v) in enumerate(zip(sums(seconds), of, strict=True))]
        paths += csv(folder / f"run-a-tag-{tag}.csv", ["Wall time", "Step", "Value"], rows)
    return paths


def verl(folder, every):
    """Of its file logger, with the step beside `data`."""
    return lines(
        folder / "verl.jsonl",
        [
            {"step": i, "data": {"timing_s/update_actor": s, "perf/total_num_tokens": t, "perf/time_per_step": 9 * s,
                                 "timing_s/gen": 8 * s, "perf/throughput": t / s}}
            for i, (s, t) in enumerate(every, 1)
        ],
    )  # fmt: skip


def torchtitan(folder, every):
    """Tokens in a second of one device."""
    return lines(
        folder / "titan.jsonl",
        [
            {"step": i, "throughput(tps)": t / s / DEVICES, "time_metrics/end_to_end(s)": s, "mfu(%)": 40.0}
            for i, (s, t) in enumerate(every, 1)
        ],
    )


def titan_tensorboard(folder, every):
    values = {
        "throughput(tps)": [t / s / DEVICES for s, t in every],
        "time_metrics_end_to_end(s)": [s for s, _ in every],
    }
    paths = []
    for tag, of in values.items():
        rows = [(0, i, v) for i, v in enumerate(of, 1)]
        paths += csv(folder / f"run-x-tag-{tag}.csv", ["Wall time", "Step", "Value"], rows)
    return paths


def plain(folder, every):
    return csv(folder / "log.csv", ["step", "seconds", "tokens"], [(i, s, t) for i, (s, t) in enumerate(every, 1)])


def rates(folder, every):
    """Seconds follow from tokens and from those in a second."""
    rows = [{"step": i, "tokens": t, "tokens_per_second": t / s} for i, (s, t) in enumerate(every, 1)]
    return lines(folder / "log.jsonl", rows)


def clocked(folder, every):
    """A step and a clock say nothing of who logged them."""
    return csv(folder / "log.csv", ["Step", "Wall time"], list(enumerate(sums([s for s, _ in every]), 1)))


def stepped(folder, every):
    """Nor does a key that people write by hand, too."""
    return csv(folder / "log.csv", ["step", "step_time"], [(i, s) for i, (s, _) in enumerate(every, 1)])


WHOLE = (verl, torchtitan, titan_tensorboard, plain, rates)
SINCE = (hf, hf_list, wandb, tensorboard)  # the first row says where clock and tokens begin


@pytest.mark.parametrize("form", [*WHOLE, *SINCE])
@given(every=STEPS)
def test_every_form_holds_the_same_steps(form, every, tmp_path_factory):
    log = read_steps(form(tmp_path_factory.mktemp("logs"), every), DEVICES)
    expected = [LoggedStep(i, 1, s, t) for i, (s, t) in enumerate(every, 1)][form in SINCE :]
    assert [step.step for step in log.steps] == [step.step for step in expected]
    for found, said in zip(log.steps, expected, strict=True):
        assert (found.steps, found.seconds) == (1, pytest.approx(said.seconds, abs=1e-5))
        assert found.tokens == pytest.approx(said.tokens)


@pytest.mark.parametrize(
    ("form", "name", "way", "lacks"),
    [
        (hf, "Hugging Face's Trainer", ("native", "deferred"), ["differences of 'train_runtime'", "counts padding"]),
        (wandb, "Hugging Face's Trainer", ("native", "deferred"), ["differences of '_runtime'"]),
        (verl, "verl", ("verl", "collective"), []),
        (torchtitan, "torchtitan", ("native", "collective"), ["'throughput(tps)' counts padding"]),
        (plain, "a log of steps", None, []),
        (clocked, "a log of steps", None, ["tokens of steps", "differences of 'Wall time'"]),
        (rates, "a log of steps", None, []),
        (stepped, "a log of steps", None, ["tokens of steps"]),
    ],
)
def test_who_logged_is_known_and_what_a_log_lacks_is_said(form, name, way, lacks, tmp_path):
    log = read_steps(form(tmp_path, [(1.0, 8), (2.0, 16), (3.0, 24)]), DEVICES)
    assert (log.by.name, log.by.way) == (name, way)
    assert [words in line for words, line in zip(lacks, log.lacks, strict=True)] == [True] * len(lacks)


def test_rows_of_several_steps(tmp_path):
    """Seconds are of one step; a clock and tokens seen are of all of them."""
    rows = [{"step": step, "step_time": 2.0, "num_tokens": 100 * step} for step in (10, 20, 25)]
    assert read_steps(lines(tmp_path / "l.jsonl", rows), 1).steps == (
        LoggedStep(20, 10, 20.0, 1000.0),
        LoggedStep(25, 5, 10.0, 500.0),
    )


def test_a_stock_history_has_one_row_and_no_tokens(tmp_path):
    """Whose clock holds its evaluations."""
    rows = [{"loss": 2.0, "step": 10, "epoch": 0.5}, {"eval_loss": 2.0, "eval_runtime": 7.0, "step": 10}]
    rows += [{"train_runtime": 67.0, "train_samples_per_second": 8.0, "train_loss": 1.0, "step": 20}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    log = read_steps([str(tmp_path / "trainer_state.json")], 1)
    assert log.steps == (LoggedStep(20, 20, 60.0, None),)
    assert [line.partition(":")[0] for line in log.lacks] == ["tokens of steps", "seconds of single steps"]


def test_a_run_that_began_anew_goes_on(tmp_path):
    rows = [(1, 1.0, 8), (2, 2.0, 16), (1, 1.0, 8), (2, 3.0, 16)]
    log = read_steps(csv(tmp_path / "l.csv", ["step", "elapsed", "tokens_seen"], rows), 1)
    assert [step.seconds for step in log.steps] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no numbers; expected a log of steps"),
        ("step,seconds\n", "holds no numbers"),
        ("a,b\n1,2\n", "no column of step numbers among a, b; expected a column 'step'"),
        (
            "step,loss\n1,2\n2,2\n",
            "no column of step seconds among step, loss; log the seconds of each step.* --measured-tokens",
        ),
        ("step,seconds\n1,fast\n2,1\n", r":2: seconds is 'fast'; expected a number from 0"),
        (
            "step,seconds\n1,fast\n2,1\n3,\n4,-1\nx,y\n",
            r":2: 3 of 5 rows are bad, the first: seconds is 'fast'; expected",
        ),
        ("step,seconds,tokens\n1,2,many\n2,2,few\n", r":2: 2 of 2 rows are bad, the first: tokens is 'many'; expected"),
        ('{"step": 1, "seconds": 2, "tokens": "38,00"}\n', r"row 1: tokens is '38,00'; expected a number from 0"),
        ("step,seconds\n1.5,1\n2,1\n", r":2: step is 1.5; expected a whole number from 0"),
        ("step,seconds\n1,-1\n", r":2: seconds is -1; expected a number"),
        ("step,elapsed\n0,1\n", "no step has its seconds; expected two rows"),
        ("step,seconds\n1,2,3\n", r":2: has 3 columns of 2"),
        ('{"step": 1, "seconds": 2}\n{"step"\n', r":2: is not JSON"),
        ("[1, 2]", "row 1: holds 1; expected an object"),
        ('{"log_history": 3}', "log_history is 3"),
        ('step,seconds\n"1,2\n', "cannot be read"),
    ],
)
def test_a_wrong_log_is_told_in_one_line(text, problem, tmp_path):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        read_steps([str(tmp_path / "log.csv")], 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_thousands_have_commas(form, tmp_path):
    """As spreadsheets write them, and those who print what they log."""
    every = [(1, 2.0, "38,000"), (2, 2.5, "1,038,000")]
    if form == "jsonl":
        paths = lines(
            tmp_path / "log.jsonl", [dict(zip(("step", "seconds", "tokens"), row, strict=True)) for row in every]
        )
    else:
        paths = csv(tmp_path / "log.csv", ["step", "seconds", "tokens"], [(i, s, f'"{t}"') for i, s, t in every])
    log = read_steps(paths, 1)
    assert [step.tokens for step in log.steps] == [38_000, 1_038_000]
    assert log.lacks == ()


def test_a_scalar_without_its_step_is_told(tmp_path):
    paths = tensorboard(tmp_path, [(1.0, 8), (2.0, 8)])
    (tmp_path / "run-a-tag-train_loss.csv").write_text("Wall time,Step,Value\n1,1,2\nx,y,z\n")
    with pytest.raises(InputError, match=r"train_loss\.csv:3: has no step; expected a whole number"):
        read_steps(paths, 1)


def test_a_date_is_no_clock(tmp_path):
    rows = [(i, 8, "2026-01-01 10:00") for i in (1, 2)]
    with pytest.raises(InputError, match="no column of step seconds among step, tokens, timestamp; log the seconds"):
        read_steps(csv(tmp_path / "log.csv", ["step", "tokens", "timestamp"], rows), 1)


def test_several_files_are_scalars_of_tensorboard(tmp_path):
    with pytest.raises(InputError, match=r"log\.csv: several log files"):
        read_steps([*plain(tmp_path, [(1.0, 8)]), *tensorboard(tmp_path, [(1.0, 8)])], 1)
