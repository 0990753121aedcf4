"""Whatever some ranks do where others settle: all are in step afterwards, or all are told, in every arena.

A round is a minibatch of drawn microbatches, and what each rank does at its end.
"""

import random
from collections.abc import Sequence

import fake_nvshmem
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from interleaved import KINDS, Kind
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from odc_engine import OnDemand
from odc_engine.errors import EngineError
from odc_engine.fsdp.minibatch import Phase
from odcsim.errors import InputError

REPLICAS = "replicas"  # HSDP, two of two: they meet beside what an arena's devices do
ARENAS = {**KINDS, "nodes smaller than machines": Kind(4, machines=(2, 2), per_node=1, tcp=True), REPLICAS: Kind(4)}
Round = Sequence[tuple[int, str]]  # of each rank, its microbatches and its move
TOLERANCE = 1e-5


class Left(Exception):
    """An error of the user's, or Ctrl-C."""


def leave(*_: object) -> None:
    raise Left


def refuse(odc: OnDemand) -> None:
    odc._loop.minibatch.given_up = InputError("a mistake", fix="drop it")
    odc.settle()


def lose_before_meeting(odc: OnDemand) -> None:
    odc.arena.complete = leave
    odc.settle()


def lose_after_meeting(odc: OnDemand) -> None:
    """Others may have read what it said."""
    odc.arena.every_note = leave
    odc.settle()


def lose_while_publishing(odc: OnDemand) -> None:
    odc.settle()
    odc._loop.begin = leave


SETTLES, IN_STEP = {"settle", "lose_while_publishing"}, {"settle", "drop", "refuse", "lose_while_publishing"}
MOVES = {"settle": OnDemand.settle, "drop": OnDemand.publish, "close": OnDemand.close}
MOVES |= {move.__name__: move for move in (refuse, lose_before_meeting, lose_after_meeting, lose_while_publishing)}


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8))


def loss(model: nn.Module, *at: int) -> torch.Tensor:
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(hash(at) % 2**31))
    return model(x).square().sum()


def on_demand(kind: Kind, name: str) -> tuple[nn.Module, OnDemand]:
    model = fresh()
    shape, names = ((2, 2), ("replicate", "shard")) if name == REPLICAS else ((kind.devices,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    if name == REPLICAS:
        return model, OnDemand(model, average=False, timeout=30)
    how = {"accumulate": kind.accumulate, "devices_per_node": kind.per_node}
    how["far"] = "hierarchical" if kind.hierarchical else "each"
    return model, OnDemand(model, memory=kind.memory(), average=False, **how)


def played(rank: int, name: str, seed: int, rounds: Sequence[Round]) -> list[str]:
    """What a rank comes to in each round, until it is told that it cannot go on."""
    kind, plain = ARENAS[name], fresh()
    model, odc = on_demand(kind, name)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-2) for each in (model, plain)]
    ends: list[str] = []
    try:
        for number, moves in enumerate(rounds):
            ends.append(_end_of_round(rank, (seed, number), moves, (model, plain), odc))
            if ends[-1] in ("lost", "closed"):
                break
            for optimizer in optimizers:
                if ends[-1] == "settled":
                    optimizer.step()
                optimizer.zero_grad()
            if ends[-1] != "dropped":
                odc.publish()
    except (EngineError, InputError, Left) as error:
        ends[-1] += f", {lost(error)}"
    finally:
        if odc._loop.phase is not Phase.LOST:
            odc.close()
        dist.barrier()  # whoever has an error in a meeting has told all, and need not close
        odc.close()
        if kind.machines and not kind.tcp:
            fake_nvshmem.forget()
    return ends


def lost(error: Exception) -> str:
    """None waits in vain for another."""
    return "late" if "within" in str(error) else "lost"


def _end_of_round(
    rank: int, at: tuple[int, int], moves: Round, models: tuple[nn.Module, nn.Module], odc: OnDemand
) -> str:
    try:
        for m in range(moves[rank][0]):
            loss(models[0], *at, rank, m).backward()
        MOVES[moves[rank][1]](odc)
    except (EngineError, InputError, Left) as error:
        return str(error) if odc._loop.phase is Phase.BROKEN else lost(error)
    if odc._loop.phase is not Phase.SETTLED:
        return {Phase.OPEN: "dropped", Phase.CLOSED: "closed"}[odc._loop.phase]
    for each, (count, _) in enumerate(moves):
        for m in range(count):
            loss(models[1], *at, each, m).backward()
    for mine, whole in zip(*(model.parameters() for model in models), strict=True):
        if (mine.grad is None) is not (whole.grad is None):
            return "wrong"
        if whole.grad is not None:
            rows = whole.grad.chunk(mine.device_mesh.size(-1))
            own = mine.grad.to_local()
            expected = rows[mine.device_mesh.get_local_rank(-1)]
            if not torch.allclose(own, expected, rtol=TOLERANCE, atol=TOLERANCE * float(whole.grad.abs().max())):
                return "wrong"
    return "settled"


def check(pools, name: str, seed: int, rounds: Sequence[Round]) -> None:
    every = pools(ARENAS[name].devices).run(played, name, seed, rounds)
    for number, moves in enumerate(rounds):
        does, ends = {move for _, move in moves}, [rank[number] for rank in every]
        said = (name, number, moves, ends)
        if does == {"close"}:
            assert ends == ["closed"] * len(moves), said
            return
        if does <= SETTLES:
            assert all(end.startswith(("settled", "lost")) for end in ends), said
        elif does <= IN_STEP:
            expected = {"dropped"} if does == {"drop"} else {ends[0]}
            assert set(ends) == expected, said
            assert ends[0] not in ("settled", "lost", "wrong"), said
            continue
        if does - {"settle"}:
            if name == REPLICAS and "settled" in ends:  # a replica that has published is told when it settles
                ends = [rank[number + 1] if len(rank) > number + 1 else "lost" for rank in every]
            for (_, move), end in zip(moves, ends, strict=True):
                assert end in ({"closed"} if move == "close" else {"lost", "settled, lost", "dropped, lost"}), said
            return
        assert set(ends) == {"settled"}, said


def rounds_of(seed: int, devices: int, move: str) -> list[Round]:
    """One rank does something else in the second of four minibatches."""
    drawn = random.Random(f"{seed} {move}")
    other = drawn.randrange(devices)
    return [
        [(drawn.randrange(3), move if number == 1 and rank == other else "settle") for rank in range(devices)]
        for number in range(4)
    ]


@pytest.mark.by_default(24)
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", ARENAS)
def test_one_rank_that_does_something_else_leaves_all_in_step_or_told(pools, name, move):
    check(pools, name, 0, rounds_of(0, ARENAS[name].devices, move))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARENAS)
def test_any_ranks_that_do_anything_leave_all_in_step_or_told(pools, name):
    devices = ARENAS[name].devices
    usual = st.sampled_from(["settle", "settle", "settle", "drop", "refuse"])
    move = st.one_of(st.just("settle"), usual, st.sampled_from(list(MOVES)))
    at_once = st.sampled_from(["settle", "settle", "drop", "close"]).map(lambda name: [name] * devices)
    moves = st.one_of(at_once, st.lists(move, min_size=devices, max_size=devices))
    counts = st.lists(st.integers(0, 2), min_size=devices, max_size=devices)
    round_ = st.builds(lambda some, names: list(zip(some, names, strict=True)), counts, moves)

    @settings(max_examples=20)
    @given(st.integers(0, 99), st.lists(round_, min_size=1, max_size=5))
    def any_of(seed, rounds):
        check(pools, name, seed, rounds)

    any_of()
