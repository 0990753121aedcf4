"""Every order of backward, settle, clip, step, zero_grad and publish."""

from torch import Tensor, nn

from habits import in_words

in_words(__name__, counts=(3, 1))("""
documented: 3 x backward settle clip step zero publish evaluate
    backward, `settle()`, clip, step, `zero_grad()`, `publish()`
""")
in_words(__name__)("""
nobody_has_a_microbatch: minibatch:0,0 minibatch | a minibatch without any microbatch
no_zero_grad: 2 x backward settle step publish | no `zero_grad()`: `publish()` drops gradients
zero_grad_first: 2 x zero backward settle step publish | `zero_grad()` before backward
zero_grad_to_zeros: 2 x backward settle step zeros publish | `zero_grad(set_to_none=False)` after the step
clip_after_step: backward settle step clip publish minibatch | clipping after the step: too late, as ever
step_twice: backward settle step step publish | two steps with the same gradients
settle_twice: backward settle settle | `settle()` twice
publish_twice: backward finish publish minibatch | `publish()` twice
publish_without_settle: backward publish minibatch | `publish()` without `settle()`, to drop a minibatch on all devices
publish_before_step: backward settle publish step evaluate | `publish()` before the step
backward_after_settle: backward settle backward step publish | another microbatch after `settle()`
late_backward: forward settle go_back look_at_gradients step publish
    a forward pass before `settle()`, its backward after it
backward_over_a_step: backward forward finish go_back finish
    a forward pass before the step, its backward after `publish()`
evaluation_between_settle_and_publish: backward settle evaluate step publish
    evaluation between `settle()` and the step
evaluation_inside: backward evaluate backward finish | evaluation between two microbatches
evaluation_before_publish: backward settle step evaluate publish | evaluation after the step, before `publish()`
skipped_step: backward settle clip zero publish minibatch | a step that is skipped, for its norm was too large
""")
in_words(__name__, counts=(2, 0))("""
one_without_microbatches: 2 x backward settle look_at_gradients clip step publish
    one device without microbatches, clipping
evaluation_then_clip: evaluate backward settle clip step publish
    a device without microbatches after an evaluation, then clipping of `model.parameters()`
""")


class Table(nn.Module):
    """Its backward pass needs no weights, so that torch does not notice that they have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 11)
        self.layers = nn.ModuleList()

    def forward(self, tokens: Tensor, turn: int) -> Tensor:  # noqa: ARG002
        return self.embedding(tokens)


in_words(__name__, model=Table)("""
backward_of_a_table_over_a_step: forward finish go_back
    a forward pass of an embedding alone before the step, its backward, which needs no weights, after `publish()`
""")
