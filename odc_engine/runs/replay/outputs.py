"""A forward's outputs, and the gradients that return to them in backward.

If a model returns a loss and the logits of which it is made, the logits' gradient comes from the loop and from the
loss. A hook sees the sum of both.
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
    """Return all leaves of an output in order, also inside dataclasses and mappings that pytrees do not know."""
    for leaf in tree_leaves(output):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            yield from leaves_of([getattr(leaf, field.name) for field in fields(leaf)])
        elif isinstance(leaf, Mapping):
            yield from leaves_of(list(leaf.values()))
        else:
            yield leaf


def of_graph(output: object) -> dict[int, Tensor]:
    """Return the tensors that depend on something with a gradient, by position; each of them once."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    for place, leaf in enumerate(leaves_of(output)):
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None and id(leaf) not in seen:
            seen.add(id(leaf))
            found[place] = leaf
    return found


class Graph:
    """The autograd graph of outputs."""

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
        """Whether the current backward adds to `.grad`, unlike torch.autograd.grad's. If no parameter is visible,
        all are inside activation checkpoints."""
        return not self._leaves or any(map(_runs, self._leaves))


def _runs(leaf: Node) -> bool:
    try:
        return bool(cast(Any, torch._C)._will_engine_execute_node(leaf))
    except RuntimeError:  # torch.autograd.grad of this very leaf
        return False
