"""What a forward pass returns, as backward comes back to it.

Where a model returns a loss and the logits that it is made of, what comes back to the logits is from the loop and from
the loss. A hook sees the sum of both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

LEAF = "torch::autograd::AccumulateGrad"
Node = Any  # torch.autograd.graph.Node, some of whose methods torch does not type


def leaves_of(output: object) -> Iterator[object]:
    """Whatever is in it, in its order; dataclasses and mappings that pytrees do not know, too."""
    for leaf in tree_leaves(output):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            yield from leaves_of([getattr(leaf, field.name) for field in fields(leaf)])
        elif isinstance(leaf, Mapping):
            yield from leaves_of(list(leaf.values()))
        else:
            yield leaf


def of_graph(output: object) -> dict[int, Tensor]:
    """Tensors that were computed from something that wants a gradient, by their places; each of them once."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    for place, leaf in enumerate(leaves_of(output)):
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None and id(leaf) not in seen:
            seen.add(id(leaf))
            found[place] = leaf
    return found


class Graph:
    """What outputs were computed by."""

    def __init__(self, outputs: Mapping[int, Tensor]) -> None:
        self._leaves: list[Node] = []
        edges = self._walked([output.grad_fn for output in outputs.values()])  # not kept: hooks hold this object
        self.inner = frozenset(place for place, own in outputs.items() if (own.grad_fn, own.output_nr) in edges)

    def _walked(self, nodes: Sequence[Node]) -> set[tuple[Node, int]]:
        left, seen, edges = list(nodes), set(nodes), set()
        while left:
            node = left.pop()
            if node.name() == LEAF:
                self._leaves.append(node)
            for following, number in node.next_functions:
                if following is not None:
                    edges.add((following, number))
                    if following not in seen:
                        seen.add(following)
                        left.append(following)
        return edges

    def accumulates(self) -> bool:
        """Whether the backward pass that runs now adds to `.grad`, and is none of torch.autograd.grad's. Where no
        parameter is in sight, all are inside of checkpoints."""
        return not self._leaves or any(map(_runs, self._leaves))


def _runs(leaf: Node) -> bool:
    try:
        return bool(cast(Any, torch._C)._will_engine_execute_node(leaf))
    except RuntimeError:  # torch.autograd.grad of this very leaf
        return False
