"""Copies that run ahead of computations: no computation uses a copy before it is complete, and no memory is reused too early."""

import pytest
import torch
from copy_queues import Delayed, TwoQueues
from torch import Tensor

from flcog.core import copies
from flcog.core.copies import Ahead, copy_queue_of, handed_over

TREES = [{"x": torch.full((3,), float(number)), "y": [torch.tensor([number])]} for number in range(8)]
SUMS = [4.0 * number for number in range(8)]


def sums(queue: TwoQueues, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The sum of each tree, computed in the queue of computations. The next tree is being copied while a tree is used."""
    monkeypatch.setattr(copies, "MOST_UNDER_WAY", 1)
    ahead, results = Ahead(TREES, queue), list[float]()
    for position in range(len(TREES)):
        tree = ahead.take(position)
        x, y = tree["x"].detach(), tree["y"][0].detach()  # like a queued kernel, which has an address but no tensor
        queue.compute(lambda x=x, y=y: results.append(float(x.sum() + y.sum())))
        del tree, x, y
    queue.work_off()
    return results


@pytest.mark.parametrize("copies_first", [True, False])
def test_every_order_of_the_two_queues_gives_the_same(copies_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = TwoQueues(copies_first)
    assert sums(queue, monkeypatch) == SUMS and queue.reused == 0


def test_without_the_wait_a_computation_comes_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sums(TwoQueues(False, waits=False), monkeypatch) != SUMS


def test_without_keeping_it_memory_is_overwritten_before_it_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = TwoQueues(True, keeps=False)
    assert sums(queue, monkeypatch) != SUMS and queue.reused > 0


def test_trees_may_be_asked_for_in_any_order_and_again() -> None:
    ahead = Ahead(TREES, Delayed())
    for position in (3, 0, 0, 7, 1, 7):
        assert torch.equal(ahead.take(position)["x"], TREES[position]["x"])


def test_only_so_much_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MOST_UNDER_WAY", 50)  # of trees of 20 bytes
    queue = Delayed()
    ahead = Ahead(TREES, queue)
    assert queue.begun == 3 * 2
    ahead.take(0)
    assert queue.begun == 4 * 2
    for position in range(1, 8):
        ahead.take(position)
    assert queue.begun == 8 * 2, "each is copied once"


@pytest.mark.parametrize("tensor", [torch.tensor(0.5).expand(3), torch.arange(6.0).view(2, 3).T, torch.arange(4).unfold(0, 2, 1)])
def test_what_does_not_lie_in_one_piece_is_pinned_too(tensor: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def pinned(tensor: Tensor) -> Tensor:
        """Copy the tensor to other memory with the same strides, as torch does."""
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)

    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, non_blocking: tensor)
    assert torch.equal(copies.sent(tensor, torch.device("cuda", 0)), tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_what_was_sent() -> None:
    queue = copy_queue_of(torch.device("cuda", 0))
    assert queue is not None
    trees = [torch.full((2**20,), float(number)) for number in range(64)]
    total = torch.zeros((), device="cuda")
    for hand in handed_over(trees, queue):
        total += hand().sum()
    assert float(total) == 2**20 * sum(range(64))
