"""VHL against its paper: its virtual set, its additional outputs and its contrastive loss."""

from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, NUM_CLASSES, ODD_BATCHES, RAGGED, Clusters, assert_close, classifier, problem_of, train
from reference import vhl
from torch import Tensor

from flcog.callbacks.vhl import VHL, supervised_contrast, virtual_set
from flcog.client.work import ClientWork

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "VHL": Case(VHL(batch_size=7, samples_per_class=4, temperature=0.5), None, data=ODD_BATCHES, options=RAGGED, random=True),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_vhl_against_the_paper(executor: str) -> None:
    method = VHL(batch_size=7, samples_per_class=4, temperature=0.5)
    setting: dict[str, Any] = {"data": ODD_BATCHES(), "local_epochs": 1, "rounds": 2, "clients_per_round": 4}
    trainer = train(method, module=classifier(MOMENTUM), executor=executor, **setting)
    inputs, labels = virtual_set(0, NUM_CLASSES, 4, 0.5, (6,), torch.float64, torch.device("cpu"))
    assert inputs.shape == (12, 6) and labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4

    def virtual(work: ClientWork) -> list[tuple[Tensor, Tensor]]:
        order = work.draws()[0]["order"].tolist()
        rows = [[order[(7 * step + i) % 12] for i in range(7)] for step in range(work.num_steps)]
        return [(inputs[r], labels[r]) for r in rows]

    module = classifier(MOMENTUM)
    problem = problem_of(trainer, classifier(MOMENTUM), MOMENTUM)
    head = method.configure_model(module).model.virtual_head.double()
    state = vhl.run(problem, head, [[virtual(work) for work in works] for works in trainer.works], 0.5)
    assert_close({name: trainer.state[name] for name in state}, state)
    assert trainer.state.keys() == state.keys()


def test_vhl_keeps_the_first_outputs_for_everybody_else() -> None:
    module, method = classifier(), VHL(batch_size=6, samples_per_class=4)
    larger = method.configure_model(module)
    assert not hasattr(module.model, "virtual_head")
    x = torch.randn(5, 6)
    assert torch.equal(larger(x), module(x)) and larger(x).shape == (5, NUM_CLASSES)
    assert torch.equal(larger.model.virtual_head.weight, method.configure_model(module).model.virtual_head.weight)
    assert not torch.equal(larger.model.virtual_head.weight, VHL(seed=1).configure_model(module).model.virtual_head.weight)
    assert train(method, data=Clusters(), executor="vmap").evaluate()["test/accuracy"] > 0.6


def test_vhl_sends_nothing_of_its_virtual_set() -> None:
    trainer = train(VHL(batch_size=6, samples_per_class=4))
    assert set(trainer.run.ledger.up) | set(trainer.run.ledger.down) <= {"model", "VHL"}
    assert trainer.run.ledger.up.get("VHL", 0) == trainer.run.ledger.down.get("VHL", 0) == 0


def test_virtual_images() -> None:
    inputs, labels = virtual_set(3, 2, 5, 0.5, (3, 12, 12), torch.float64, torch.device("cpu"))
    torch.testing.assert_close(inputs, vhl.images(3, 2, 5, 0.5, 3, 12))
    assert inputs.min() == -2 and inputs.max() == 2 and labels.tolist() == [0] * 5 + [1] * 5
    within = (inputs[:5] - inputs[:5].mean(0)).square().mean()
    between = (inputs[:5].mean(0) - inputs[5:].mean(0)).square().mean()
    assert between > within


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_supervised_contrast(temperature: float) -> None:
    features = torch.randn(7, 4, dtype=torch.float64).relu().requires_grad_()
    labels = torch.tensor([0, 1, 0, 2, 0, 1, 3])
    features.data[0] += 0.1
    ours, theirs = supervised_contrast(features, labels, temperature), vhl.contrast(features, labels, temperature)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss, features)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)
    padded = torch.cat([features, torch.ones(2, 4, dtype=torch.float64)])
    mask = torch.tensor([1.0] * 7 + [0.0] * 2)
    torch.testing.assert_close(supervised_contrast(padded, torch.cat([labels, labels[:2]]), temperature, mask), ours)
    assert supervised_contrast(features[:1], labels[:1], temperature) == 0
