"""The order in which a listener hears a model's phases, and waiting in place of computing."""

import time
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from odc_engine.decoder import marks
from odc_engine.decoder.model import Decoder
from odc_engine.packed import synthetic
from odc_engine.places import streams
from odcsim import catalog
from odcsim.schedule import Schedule

LAYERS = 2
FORWARD = [("embed", 0), ("forward", 1), ("forward", 2), ("head", 0)]
WHOLE = [*FORWARD, ("backward", 2), ("backward", 1), ("embed backward", 0)]


class Diary:
    """Keeps what it hears, and when."""

    def __init__(self):
        self.calls, self.times = [], []

    def begin(self, *phase):
        self._note("begin", *phase)

    def end(self, *phase):
        self._note("end", *phase)

    def _note(self, *call):
        self.calls.append(call)
        self.times.append(time.perf_counter())

    def seconds(self):
        spans = zip(self.calls[::2], self.times[::2], self.times[1::2], strict=True)
        return {call[1:]: had - asked for call, asked, had in spans}


def batch():
    return synthetic(Schedule.of((7, 4), (((0, 1),),)), (0, 1), 256, 0)


def heard(phases):
    return [(edge, *phase) for phase in phases for edge in ("begin", "end")]


def nano(**options):
    model = Decoder(catalog.model("nano"), **options)
    model.listener = diary = Diary()
    return model, diary


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("emulated", [False, True])
def test_order_in_a_microbatch_and_in_a_forward_only_pass(recompute, emulated):
    model, diary = nano(recompute=recompute)
    model.emulate = (lambda *_: 0.0) if emulated else None
    for times in (1, 2):
        loss = model(batch())
        assert diary.calls[(times - 1) * 2 * len(WHOLE) :] == heard(FORWARD)[:-1]
        loss.backward()
        assert diary.calls == heard(WHOLE) * times
    assert model.log_probs(batch()).shape == (11,)
    with torch.no_grad():
        model(batch())
    assert diary.calls == heard(WHOLE) * 2 + heard(FORWARD) * 2


def test_order_with_frozen_parameters():
    for frozen in ("embedding", "head.weight", "layers.0", "layers"):
        model, diary = nano()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
        model(batch()).backward()
        assert diary.calls == heard(WHOLE), frozen


def test_gradients_are_complete_when_a_phase_ends():
    """A unit's own gradients exist before the next unit's backward begins."""
    model, diary = nano()
    seen = {}
    diary.begin = lambda phase, unit: seen.update({(phase, unit): grads(model)})
    model(batch()).backward()
    assert not any("layers.1." in name for name in seen["backward", 2])
    assert any("layers.1." in name for name in seen["backward", 1])
    assert {"head.weight", "head.norm.weight"} <= seen["backward", 2]
    assert "embedding.weight" not in seen["embed backward", 0]


class Operations(TorchDispatchMode):
    """Writes every operation into a diary."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.diary.calls.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_the_embeddings_work_lies_within_its_phases():
    model, diary = nano()
    with Operations() as operations:
        operations.diary = diary
        model(batch()).backward()
    for operation, phase in (("embedding", "embed"), ("embedding_dense_backward", "embed backward")):
        begin, end = (diary.calls.index((edge, phase, 0)) for edge in ("begin", "end"))
        assert begin < diary.calls.index(operation) < end


def grads(model):
    return {name for name, p in model.named_parameters() if p.grad is not None}


def test_nothing_is_inserted_when_nobody_listens():
    model, _ = nano()
    assert marks_in(model(batch())) == 2 * LAYERS + 3  # the head's input, the embedding's output and weight
    model.listener = None
    assert marks_in(model(batch())) == 0


def marks_in(loss):
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    return sum(node.name() == "_MarkBackward" for node in seen)


def test_a_mark_copies_nothing():
    x = torch.ones(3, requires_grad=True) * 2
    calls = []
    marked = marks.on_gradient(x, lambda: calls.append(1))
    assert marked.data_ptr() == x.data_ptr()
    assert marked._base is None
    given = torch.tensor([1.0, 2.0, 3.0])
    (gradient,) = torch.autograd.grad(marked, x, given)
    assert gradient.data_ptr() == given.data_ptr()
    assert calls == [1]
    constant = torch.ones(3)
    assert marks.on_gradient(constant, lambda: None) is constant


def test_emulation_waits_and_leaves_parameters_alone():
    model, diary = nano()
    seconds = {phase: 0.004 * (i + 1) for i, phase in enumerate(WHOLE)}
    model.emulate = lambda phase, unit: seconds[phase, unit]
    loss = model(batch())
    loss.backward()
    assert loss.shape == ()
    assert diary.calls == heard(WHOLE)
    for phase, took in diary.seconds().items():
        assert took >= seconds[phase], phase
    assert not grads(model)


def test_waiting_takes_its_time_asleep(monkeypatch):
    """But for the last stretch, which only yields: a sleep may end late."""
    asleep, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (asleep.append(seconds), sleep(seconds)))
    start = time.perf_counter()
    marks.wait(0.05)
    assert time.perf_counter() - start >= 0.05
    assert 0.02 < asleep[0] < 0.05
    assert all(seconds == 0 for seconds in asleep[1:])
    marks.wait(0.0)


def test_another_pause_may_stand_for_computing(monkeypatch):
    """On a GPU a kernel does, on the stream that would compute, in backward too."""
    model, diary = nano()
    passed = []
    model.pause_by(lambda seconds: passed.append((seconds, *diary.calls[-1])))
    model.emulate = lambda phase, unit: 100.0 * len(phase) + unit
    model(batch()).backward()
    assert passed == [(100.0 * len(phase) + unit, "begin", phase, unit) for phase, unit in WHOLE]
    monkeypatch.setattr(marks, "wait", lambda seconds: passed.append(("processor", seconds)))
    monkeypatch.setattr(streams, "pause", lambda seconds: passed.append(("GPU", seconds)))
    del passed[:]
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(passed.append(("on", device.index))))
    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        streams.place_of(device).wait(2.0)
    assert passed == [("processor", 2.0), ("on", 0), ("GPU", 2.0)]


@pytest.fixture
def one_device():
    """A process group of this process alone."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("own_units", [False, True], ids=["root", "embedding and head apart"])
def test_order_and_gradients_under_fully_shard(one_device, own_units):  # noqa: ARG001
    from torch.distributed.fsdp import fully_shard

    (model, diary), plain = nano(), Decoder(catalog.model("nano"))
    for unit in [*model.layers, *([model.embedding, model.head] if own_units else []), model]:
        fully_shard(unit)
    model(batch()).backward()
    plain(batch()).backward()
    assert diary.calls == heard(WHOLE)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad.full_tensor().equal(theirs.grad)
    assert model.log_probs(batch()).equal(plain.log_probs(batch()))
    assert diary.calls == heard([*WHOLE, *FORWARD])
