"""Every order of backward, settle, clip, step, zero_grad and publish."""

from torch import Tensor, nn
from users import User

from habits import habit


@habit(counts=(3, 1))
def documented(user: User) -> None:
    """backward, `settle()`, clip, step, `zero_grad()`, `publish()`"""
    for _ in range(3):
        user.backward()
        user.settle()
        user.clip()
        user.step()
        user.zero()
        user.publish()
        user.evaluate()


@habit()
def nobody_has_a_microbatch(user: User) -> None:
    """a minibatch without any microbatch"""
    user.minibatch((0, 0))
    user.minibatch()


@habit(counts=(2, 0))
def one_without_microbatches(user: User) -> None:
    """one device without microbatches, clipping"""
    for _ in range(2):
        user.backward()
        user.settle()
        user.look_at_gradients()
        user.clip()
        user.step()
        user.publish()


@habit()
def no_zero_grad(user: User) -> None:
    """no `zero_grad()`: `publish()` drops gradients"""
    for _ in range(2):
        user.backward()
        user.settle()
        user.step()
        user.publish()


@habit()
def zero_grad_first(user: User) -> None:
    """`zero_grad()` before backward"""
    for _ in range(2):
        user.zero()
        user.backward()
        user.settle()
        user.step()
        user.publish()


@habit()
def zero_grad_to_zeros(user: User) -> None:
    """`zero_grad(set_to_none=False)` after the step"""
    for _ in range(2):
        user.backward()
        user.settle()
        user.step()
        user.zero(set_to_none=False)
        user.publish()


@habit()
def clip_after_step(user: User) -> None:
    """clipping after the step: too late, as ever"""
    user.backward()
    user.settle()
    user.step()
    user.clip()
    user.publish()
    user.minibatch()


@habit()
def step_twice(user: User) -> None:
    """two steps with the same gradients"""
    user.backward()
    user.settle()
    user.step()
    user.step()
    user.publish()


@habit()
def settle_twice(user: User) -> None:
    """`settle()` twice"""
    user.backward()
    user.settle()
    user.settle()


@habit()
def publish_twice(user: User) -> None:
    """`publish()` twice"""
    user.backward()
    user.finish()
    user.publish()
    user.minibatch()


@habit()
def publish_without_settle(user: User) -> None:
    """`publish()` without `settle()`, to drop a minibatch on all devices"""
    user.backward()
    user.publish()
    user.minibatch()


@habit()
def publish_before_step(user: User) -> None:
    """`publish()` before the step"""
    user.backward()
    user.settle()
    user.publish()
    user.step()
    user.evaluate()


@habit()
def backward_after_settle(user: User) -> None:
    """another microbatch after `settle()`"""
    user.backward()
    user.settle()
    user.backward()
    user.step()
    user.publish()


@habit()
def late_backward(user: User) -> None:
    """a forward pass before `settle()`, its backward after it"""
    user.number += 1
    losses = [user.loss(rank, 0) for rank in user.ranks]
    user.settle()
    for loss in losses:
        loss.backward()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit()
def backward_over_a_step(user: User) -> None:
    """a forward pass before the step, its backward after `publish()`"""
    user.backward()
    losses = [user.loss(rank, 0) for rank in user.ranks]
    user.finish()
    for loss in losses:
        loss.backward()
    user.finish()


class Table(nn.Module):
    """Its backward pass needs no weights, so that torch does not notice that they have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 11)
        self.layers = nn.ModuleList()

    def forward(self, tokens: Tensor, turn: int) -> Tensor:  # noqa: ARG002
        return self.embedding(tokens)


@habit(model=Table)
def backward_of_a_table_over_a_step(user: User) -> None:
    """the same of an embedding alone, whose backward pass needs no weights"""
    user.number += 1
    losses = [user.loss(rank, 0) for rank in user.ranks]
    user.finish()
    for loss in losses:
        loss.backward()


@habit()
def evaluation_between_settle_and_publish(user: User) -> None:
    """evaluation between `settle()` and the step"""
    user.backward()
    user.settle()
    user.evaluate()
    user.step()
    user.publish()


@habit()
def evaluation_inside(user: User) -> None:
    """evaluation between two microbatches"""
    user.backward()
    user.evaluate()
    user.backward()
    user.finish()


@habit()
def evaluation_before_publish(user: User) -> None:
    """evaluation after the step, before `publish()`"""
    user.backward()
    user.settle()
    user.step()
    user.evaluate()
    user.publish()


@habit(counts=(2, 0))
def evaluation_then_clip(user: User) -> None:
    """a device without microbatches after an evaluation, then clipping of `model.parameters()`"""
    user.evaluate()
    user.backward()
    user.settle()
    user.clip()
    user.step()
    user.publish()


@habit()
def skipped_step(user: User) -> None:
    """a step that is skipped, for its norm was too large"""
    user.backward()
    user.settle()
    user.clip()
    user.zero()
    user.publish()
    user.minibatch()
