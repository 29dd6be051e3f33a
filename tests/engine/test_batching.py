"""The division of a client's samples into batches."""

import numpy as np
import torch
from harness import NUM_FEATURES, SIZES, TinyData, classifier

from flcog.client.messages import ClientTask
from flcog.client.work import make_work
from flcog.data.batching import Batching
from flcog.method import Batch


def tasks(clients: list[int], steps: list[int]) -> list[ClientTask]:
    return [ClientTask(client, count, 1.0) for client, count in zip(clients, steps, strict=True)]


def test_batches_are_the_same_for_any_cohort_and_process() -> None:
    federation = TinyData().federation
    batching = Batching(4, None, 2.0)
    together = make_work(federation, batching, tasks([0, 3, 5], [4, 8, 6]), seed=1, round=2)
    alone = make_work(federation, batching, tasks([3], [8]), seed=1, round=2)
    np.testing.assert_array_equal(together[1].order, alone[0].order)
    assert not np.array_equal(alone[0].order, make_work(federation, batching, tasks([3], [8]), seed=1, round=3)[0].order)


def test_an_epoch_reads_every_sample_once() -> None:
    federation = TinyData().federation
    for drop_last, sizes in ((False, [4, 4, 4]), (True, [4, 4, 4])):
        work = make_work(federation, Batching(4, None, 1.0, drop_last), tasks([1], [3]), 0, 0)[0]
        assert work.sizes.tolist() == sizes
        np.testing.assert_array_equal(np.sort(work.order), federation.partition.client(1))
    work = make_work(federation, Batching(4, None, 1.0), tasks([2], [3]), 0, 0)[0]
    assert work.sizes.tolist() == [4, 4, 2]
    work = make_work(federation, Batching(4, None, 2.0, drop_last=True), tasks([2], [4]), 0, 0)[0]
    assert work.sizes.tolist() == [4, 4, 4, 4] and work.starts.tolist() == [0, 4, 10, 14]
    small = make_work(federation, Batching(64, 5, None), tasks([6], [5]), 0, 0)[0]
    assert small.sizes.tolist() == [SIZES[6]] * 5  # a client with fewer samples than a batch uses all of them in each step
    for start in small.starts:
        np.testing.assert_array_equal(np.sort(small.order[start : start + 4]), federation.partition.client(6))


def test_a_masked_batch_is_what_the_shorter_batch_is() -> None:
    from flcog.functional.apply import Apply
    from flcog.functional.model_function import ModelFunction

    model = ModelFunction(classifier())
    inputs, targets = torch.randn(5, NUM_FEATURES), torch.tensor([0, 1, 2, 0, 1])
    apply = Apply(model, {})
    padded = apply.loss(model.params, Batch(inputs, targets, torch.tensor([1.0, 1, 1, 0, 0])))
    torch.testing.assert_close(padded, apply.loss(model.params, Batch(inputs[:3], targets[:3])))
