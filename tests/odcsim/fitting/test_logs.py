"""Logs of a user's own steps, in every form in which trainers and trackers write them, and of single microbatches."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import catalog
from odcsim.cli import main
from odcsim.cluster import cluster_of
from odcsim.cost import Cost, Load
from odcsim.errors import InputError
from odcsim.fitting.microbatch_logs import Log, fit_log, read_log
from odcsim.fitting.steps import LoggedStep, read_steps
from odcsim.profile import read
from odcsim.program import program
from odcsim.schedule import Schedule

DEVICES = 8
SECONDS, TOKENS = st.integers(1, 4000).map(lambda n: n / 4), st.integers(1, 10**6).map(lambda n: 8 * n)
STEPS = st.lists(st.tuples(SECONDS, TOKENS), min_size=2, max_size=6)
MODEL = catalog.model("r1-distill-qwen-1.5b")


def csv(path, names, rows):
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return [str(path)]


def lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return [str(path)]


def summed(every):
    """Step, seconds and tokens so far, of each row."""
    return [(i + 1, sum(s for s, _ in every[: i + 1]), sum(t for _, t in every[: i + 1])) for i in range(len(every))]


def hf(folder, every, wrap=lambda rows: {"log_history": rows}):
    """Of transformers with --include_num_input_tokens_seen: a clock, which an evaluation and a last row are in."""
    rows = [
        {"loss": 2.0, "learning_rate": 1e-5, "epoch": 0.1, "train_runtime": s + 10 * (i > 1),
         "num_input_tokens_seen": t, "train_tokens_per_second": t / s, "step": i}
        for i, s, t in summed(every)
    ]  # fmt: skip
    rows.insert(1, {"eval_loss": 2.0, "eval_runtime": 10.0, "num_input_tokens_seen": every[0][1], "step": 1})
    rows.append({"train_runtime": 1e4, "num_input_tokens_seen": summed(every)[-1][2], "step": len(every)})
    (folder / "trainer_state.json").write_text(json.dumps(wrap(rows)))
    return [str(folder / "trainer_state.json")]


def hf_list(folder, every):
    """`trainer.state.log_history` by itself."""
    return hf(folder, every, list)


def wandb(folder, every):
    """A table of W&B's page: the run's name before each key, rows that logged something else, and smoothed columns."""
    names = ["Step", "_runtime", "a-b - train/global_step", "a-b - train/num_tokens", "a-b - train/num_tokens__MIN"]
    rows = [row for i, s, t in summed(every) for row in ((2 * i, s, i, t, 0), (2 * i + 1, s, "", "", ""))]
    return csv(folder / "wandb_export.csv", names, rows)


def scalars(folder, tags):
    """A file for each scalar, as TensorBoard's page saves and names them."""
    names = ["Wall time", "Step", "Value"]
    return [path for tag, rows in tags.items() for path in csv(folder / f"run-a-tag-{tag}.csv", names, rows)]


def tensorboard(folder, every):
    """Each of which has a clock that began in 1970."""
    rows = [(1_700_000_000 + s, i, t) for i, s, t in summed(every)]
    return scalars(folder, {"train_num_tokens": rows, "train_loss": [(*row[:2], 2.0) for row in rows]})


def verl(folder, every):
    """Of its file logger, with the step beside `data`."""
    rows = [
        {"step": i, "data": {"timing_s/update_actor": s, "perf/total_num_tokens": t, "perf/time_per_step": 9 * s,
                             "timing_s/gen": 8 * s, "perf/throughput": t / s}}
        for i, (s, t) in enumerate(every, 1)
    ]  # fmt: skip
    return lines(folder / "verl.jsonl", rows)


def torchtitan(folder, every):
    """Tokens in a second of one device."""
    rows = [
        {"step": i, "throughput(tps)": t / s / DEVICES, "time_metrics/end_to_end(s)": s, "mfu(%)": 40.0}
        for i, (s, t) in enumerate(every, 1)
    ]
    return lines(folder / "titan.jsonl", rows)


def titan_tensorboard(folder, every):
    rates = [(0, i, t / s / DEVICES) for i, (s, t) in enumerate(every, 1)]
    seconds = [(0, i, s) for i, (s, _) in enumerate(every, 1)]
    return scalars(folder, {"throughput(tps)": rates, "time_metrics_end_to_end(s)": seconds})


def plain(folder, every):
    return csv(folder / "log.csv", ["step", "seconds", "tokens"], [(i, s, t) for i, (s, t) in enumerate(every, 1)])


def commas(folder, every):
    """As spreadsheets write thousands."""
    rows = [(i, s, f'"{t:,}"') for i, (s, t) in enumerate(every, 1)]
    return csv(folder / "log.csv", ["step", "seconds", "tokens"], rows)


def printed(folder, every):
    rows = [{"step": i, "seconds": s, "tokens": f"{t:,}"} for i, (s, t) in enumerate(every, 1)]
    return lines(folder / "log.jsonl", rows)


def rates(folder, every):
    """Seconds follow from tokens and from those in a second."""
    rows = [{"step": i, "tokens": t, "tokens_per_second": t / s} for i, (s, t) in enumerate(every, 1)]
    return lines(folder / "log.jsonl", rows)


def clocked(folder, every):
    """A step and a clock say nothing of who logged them."""
    return csv(folder / "log.csv", ["Step", "Wall time"], [row[:2] for row in summed(every)])


def stepped(folder, every):
    """Nor does a key that people write by hand, too."""
    return csv(folder / "log.csv", ["step", "step_time"], [(i, s) for i, (s, _) in enumerate(every, 1)])


HUGGING, LOG = ("Hugging Face's Trainer", ("native", "deferred")), ("a log of steps", None)
FORMS = {  # who logged it, by which way it runs, and how many things it lacks
    hf: (*HUGGING, 2), hf_list: (*HUGGING, 2), wandb: (*HUGGING, 1), tensorboard: (*HUGGING, 1),
    verl: ("verl", ("verl", "collective"), 0), torchtitan: ("torchtitan", ("native", "collective"), 1),
    titan_tensorboard: ("torchtitan", ("native", "collective"), 1),
    plain: (*LOG, 0), commas: (*LOG, 0), printed: (*LOG, 0), rates: (*LOG, 0), clocked: (*LOG, 2), stepped: (*LOG, 1),
}  # fmt: skip
SINCE = (hf, hf_list, wandb, tensorboard, clocked)  # the first row says where clock and tokens begin
UNTOLD = (clocked, stepped)  # tokens


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(every=STEPS)
def test_every_form_holds_the_same_steps(form, every, tmp_path_factory):
    log = read_steps(form(tmp_path_factory.mktemp("logs"), every), DEVICES)
    expected = [LoggedStep(i, 1, s, None if form in UNTOLD else t) for i, (s, t) in enumerate(every, 1)]
    expected = expected[form in SINCE :]
    assert [(step.step, step.steps) for step in log.steps] == [(step.step, 1) for step in expected]
    assert [step.seconds for step in log.steps] == pytest.approx([step.seconds for step in expected], abs=1e-5)
    assert [step.tokens for step in log.steps] == pytest.approx([step.tokens for step in expected])
    name, way, lacks = FORMS[form]
    assert (log.by.name, log.by.way) == (name, way)
    assert len(log.lacks) == lacks + (len(log.steps) == 1 and form not in SINCE)


def test_rows_of_several_steps_and_runs_that_began_anew(tmp_path):
    """Seconds are of one step; a clock and tokens seen are of all. A stock history has one row, and no tokens."""
    rows = [{"step": step, "step_time": 2.0, "num_tokens": 100 * step} for step in (10, 20, 25)]
    steps = read_steps(lines(tmp_path / "l.jsonl", rows), 1).steps
    assert steps == (LoggedStep(20, 10, 20.0, 1000.0), LoggedStep(25, 5, 10.0, 500.0))
    rows = [(1, 1.0, 8), (2, 2.0, 16), (1, 1.0, 8), (2, 3.0, 16)]
    log = read_steps(csv(tmp_path / "l.csv", ["step", "elapsed", "tokens_seen"], rows), 1)
    assert [step.seconds for step in log.steps] == [1.0, 2.0]
    rows = [{"loss": 2.0, "step": 10, "epoch": 0.5}, {"eval_loss": 2.0, "eval_runtime": 7.0, "step": 10}]
    rows += [{"train_runtime": 67.0, "train_samples_per_second": 8.0, "train_loss": 1.0, "step": 20}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    log = read_steps([str(tmp_path / "trainer_state.json")], 1)
    assert (log.steps, len(log.lacks)) == ((LoggedStep(20, 20, 60.0, None),), 2)


def read_one(path):
    return read_steps([path], 1)


WRONG = {  # beside those of tests/approved/fit.txt
    read_one: [
        "step,seconds\n", "step,seconds,tokens\n1,2,many\n2,2,few\n", '{"step": 1, "seconds": 2, "tokens": "38,00"}\n',
        "step,seconds\n1,-1\n", '{"step": 1, "seconds": 2}\n{"step"\n', "[1, 2]", 'step,seconds\n"1,2\n',
        "step,tokens,timestamp\n1,8,2026-01-01 10:00\n",
    ],
    read_log: [
        "", "lengths,seconds\n,1\n", "lengths,seconds\n1;-5,1\n", "lengths,seconds\n1;99999999999,1\n",
        "lengths,seconds\n5,nan\n", "lengths,seconds\n5\n", 'lengths,seconds\n"5,1\n',
    ],
}  # fmt: skip


@pytest.mark.parametrize(("reader", "text"), [(reader, text) for reader, texts in WRONG.items() for text in texts])
def test_a_wrong_log_is_refused_in_one_line(reader, text, tmp_path):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InputError, match=f"^{tmp_path / 'log.csv'}:.*$") as caught:
        reader(str(tmp_path / "log.csv"))
    assert "\n" not in str(caught.value)


def test_several_files_that_are_no_scalars_of_the_same_steps_are_refused(tmp_path):
    every = [(1.0, 8), (2.0, 8)]
    for odd in (plain(tmp_path, every), scalars(tmp_path, {"loss": [("x", "y", "z")]})):
        with pytest.raises(InputError):
            read_steps([*tensorboard(tmp_path, every), *odd], 1)


def logged(noise: float = 0.0, count: int = 60, model=MODEL) -> Log:
    """Microbatches of one device."""
    rng = np.random.default_rng(0)
    lengths = [tuple(rng.integers(100, 16000, rng.integers(1, 8)).tolist()) for _ in range(count)]
    exact = [0.2 + 8e-5 * sum(x) + 2e-9 * model.squares(np.array(x)).sum() for x in lengths]
    return Log(tuple(lengths), tuple((np.array(exact) * np.exp(noise * rng.standard_normal(count))).tolist()))


def save(log: Log, path):
    rows = [(";".join(map(str, x)), s) for x, s in zip(log.lengths, log.seconds, strict=True)]
    return csv(path, ["lengths", "seconds"], rows)[0]


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), min_size=1, max_size=4), st.floats(1e-6, 1e4))
def test_a_log_of_microbatches_is_read_as_it_was_written(tmp_path_factory, lengths, seconds):
    log = Log(tuple(map(tuple, lengths)), (seconds,) * len(lengths))
    path = tmp_path_factory.mktemp("logs") / "l.csv"
    assert read_log(save(log, path)) == log
    rows = (f'{seconds!r},"{held}"' for held in lengths)  # as programs print lists, and spreadsheets save them
    path.write_text("\n".join(["\ufeffSeconds, Lengths", *rows]))
    assert read_log(path) == log


@pytest.mark.parametrize("name", ["r1-distill-qwen-1.5b", "gpt-oss-20b"])
def test_the_profile_gives_the_seconds_back(name):
    """Through the whole cost model: a schedule of one device that runs one logged microbatch; windows included."""
    model = catalog.model(name)
    log = logged(model=model)
    how = Cost(model, fit_log(log, model, "a100").profile, cluster_of(catalog.gpu("a100"), 1))
    steps = program(model.layers, 1, "collective")
    for lengths, seconds in list(zip(log.lengths, log.seconds, strict=True))[:10]:
        table = how.durations(steps, Load.of(how.model, [Schedule.of(lengths, ((tuple(range(len(lengths))),),))]))
        spent = sum(table[s.duration] for s in steps.steps if s.kind in ("compute", "overhead"))
        assert float(spent.item()) == pytest.approx(seconds, rel=1e-6)


def test_the_command_writes_what_the_function_finds_and_nothing_of_what_it_cannot_use(tmp_path, capsys, monkeypatch):
    """With several devices transfers are in the seconds."""
    monkeypatch.chdir(tmp_path)
    path, known = save(logged(noise=0.01), tmp_path / "l.csv"), ["--model", MODEL.name, "--gpu", "a100"]
    save(Log(((512,),) * 9, (1.0,) * 9), tmp_path / "alike.csv")
    for words in (["no.csv", *known], ["no.jsonl", "--trace", "longalign"], ["alike.csv", *known]):
        assert main(["fit", *words, "-o", "p.json"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "p.json").exists()
    assert main(["fit", path, *known, "-o", "p.json"]) == 0
    alone, sharded = (fit_log(read_log(path), MODEL, "a100", n, "l.csv").profile for n in (1, 8))
    assert read("p.json") == alone
    assert (alone.node_transfers_included, sharded.node_transfers_included) == (False, True)
    assert alone.longest == max(max(x) for x in logged().lengths)
