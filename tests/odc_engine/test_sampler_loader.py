"""The batch sampler through a real DataLoader, and through it into a real engine."""

import pytest
import torch
import work
from shares import both, drawn_lengths, samplers
from torch.nn import functional
from torch.utils.data import DataLoader

from odc_engine import agree, token_mean
from odc_engine.runs.verify import BOUND
from odcsim.errors import InputError


class Texts(torch.utils.data.Dataset):
    """Random tokens; sample i has its own, of lengths[i]."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(1000 + int(i))
        return torch.randint(0, 11, (int(self.lengths[i]),), generator=draw)


def loader_of(sampler, lengths, workers=0, **options):
    return DataLoader(Texts(lengths), batch_sampler=sampler, collate_fn=list, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_loads_what_the_shares_say(workers):
    lengths = drawn_lengths()
    (sampler, *_) = samplers(lengths, 2)
    expected, texts = [list(s.microbatches) for s in samplers(lengths, 2)[0].minibatches()], Texts(lengths)
    found = []
    for share, microbatches in sampler.over(loader_of(sampler, lengths, workers)):
        for batch, part in zip(microbatches, share.microbatches, strict=True):
            assert all(torch.equal(sample, texts[i]) for sample, i in zip(batch, part, strict=True))
        found.append(list(share.microbatches))
    assert found == expected


def test_a_loop_that_leaves_microbatches_unread_or_stops_goes_on_with_the_next_minibatch():
    lengths = drawn_lengths()
    (sampler, *_) = samplers(lengths, 2, minibatch=2)
    loader, seen = loader_of(sampler, lengths), []
    for share, microbatches in sampler.over(loader):
        seen.append((share, next(iter(microbatches), None)))
        if share.number == 2:
            break
    seen += [(share, next(iter(microbatches), None)) for share, microbatches in sampler.over(loader)]
    assert [share.number for share, _ in seen] == list(range(6))
    for share, first in seen:
        if share.microbatches:
            assert len(first) == len(share.microbatches[0])
            assert all(len(sample) == lengths[i] for sample, i in zip(first, share.microbatches[0], strict=True))


def test_an_empty_microbatch_reaches_the_loop_as_an_empty_batch():
    (_, last) = samplers([5], 2, sync="collective", balancer="sorted-slice")
    share, microbatches = next(last.over(loader_of(last, [5])))
    assert (share.microbatches, share.weights, list(microbatches)) == (((),), (0.0,), [[]])


def test_a_loader_of_something_else_is_refused():
    one, other = samplers(drawn_lengths(), 2)
    with pytest.raises(InputError):
        next(one.over(loader_of(other, drawn_lengths())))
    _, microbatches = next(one.over([]))
    with pytest.raises(InputError):
        list(microbatches)


# A real engine


def mean_loss(model, samples):
    """Of one microbatch, over its tokens, in one forward pass; of nobody, so that the others are met."""
    samples = samples or [torch.zeros(2, dtype=torch.int64)]
    found = model(torch.cat([sample[:-1] for sample in samples]), 0)
    return functional.cross_entropy(found.float(), torch.cat([sample[1:] for sample in samples]))


def trained(rank, lengths, sync, balancer):
    """Gradients of each minibatch of an epoch, on a device of two."""
    case = work.Case((0, 0), sync=sync)
    sampler = samplers(lengths, 2, sync=sync, balancer=balancer)[rank]
    found = []
    with work.device(case) as (model, comm):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for share, microbatches in sampler.over(loader_of(sampler, lengths)):
            agree(share.digest)
            for batch, weight in zip(microbatches, share.weights, strict=True):
                (weight * mean_loss(model, batch)).backward()
            comm.settle()
            found.append(work.whole_gradients(model))
            optimizer.step()
            optimizer.zero_grad()
            comm.publish()
    return found


def reference(lengths):
    """One process, fp64: the mean over all tokens of each minibatch, weighed as the engine's own load is."""
    (sampler,) = samplers(lengths, 1, minibatch=6)
    model = work.Case((0,)).fresh().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for share in sampler.minibatches():
        ids = [i for part in share.microbatches for i in part]
        for i, weight in zip(ids, token_mean([int(lengths[i]) - 1 for i in ids]), strict=True):
            sample = Texts(lengths)[i]
            (weight * functional.cross_entropy(model(sample[:-1], 0), sample[1:], reduction="sum")).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize(
    ("sync", "balancer"), [("on-demand", "lb-mini"), ("collective", "sorted-slice"), ("deferred", "lb-micro")]
)
def test_gradients_equal_one_process(pools, sync, balancer):
    """Three minibatches of six samples and one of three, which leaves a device without a second microbatch."""
    lengths = drawn_lengths()
    expected = reference(lengths)
    devices = pools(2).run(trained, lengths, sync, balancer)
    for found in devices:
        assert len(found) == 4
        for mine, its in zip(found, expected, strict=True):
            assert work.error(mine, its) <= 10 * BOUND  # weights differ by rounding from the second minibatch on
    shares = [s for shares in both(samplers(lengths, 2, sync=sync, balancer=balancer)) for s in shares]
    assert len({len(share.microbatches) for share in shares[:2]}) == (2 if sync == "on-demand" else 1)
    assert any(() in share.microbatches for share in shares) == (sync != "on-demand")


def disagreed(rank, digests):
    return work.refused(lambda: agree(digests[rank]))


@pytest.mark.parametrize("digests", [["a", "a"], ["a", "b"]])
def test_devices_that_plan_differently_all_hear_of_it(pools, digests):
    assert pools(2).run(disagreed, digests) == [len(set(digests)) > 1] * 2
