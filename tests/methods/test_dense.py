"""DENSE against its paper piece by piece: its losses, its images and its student."""

from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import NUM_CLASSES, RAGGED, BatchNormMLP, assert_close, classifier, train
from reference import dense
from torch import Tensor, nn

from flcog.callbacks import dense as dense_module
from flcog.callbacks.dense import DENSE
from flcog.callbacks.parts.server_generators import batch_norm_distances
from methods.server_steps import recorded

pytestmark = pytest.mark.filterwarnings("error")


DENSE_ = DENSE(epochs=2, generator_steps=3, batch_size=8, generator_lr=0.05, lr=0.1, latent=4, width=6)


CASES: dict[str, Case] = {
    "DENSE": Case(DENSE_, None, options=RAGGED, no_reference="its losses and its student's training have theirs below"),
}


def test_denses_losses_against_the_paper() -> None:
    torch.set_default_dtype(torch.float64)
    models = [BatchNormMLP() for _ in range(3)]
    for model in models:
        model(torch.randn(20, 6) * 2 + 1)
        model.eval()
    student = BatchNormMLP().eval()
    x, labels = torch.randn(9, 6, requires_grad=True), torch.randint(NUM_CLASSES, (9,))
    with batch_norm_distances(nn.ModuleList(models)) as distances:
        teacher = dense.ensemble(models, x)
    assert len(distances) == 3
    ours = DENSE(oh=1.0, bn=1.0, adv=1.0)._synthesis_loss(teacher, student(x), labels, torch.stack(distances).sum())
    theirs = dense.synthesis_loss(models, student, x, labels)
    assert bool((teacher.argmax(1) != student(x).argmax(1)).any())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (ours, theirs)))
    assert not any(model[1]._forward_pre_hooks for model in models)


@pytest.mark.parametrize("network", [None, BatchNormMLP], ids=["mlp", "batchnorm"])
def test_denses_student_against_the_paper(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    views, random_view = [], dense_module.random_view

    def recorded_view(*arguments: Any) -> Tensor:
        view = random_view(*arguments)
        if not view.requires_grad:  # views with gradients are for the generator
            views.append(view)
        return view

    monkeypatch.setattr(dense_module, "random_view", recorded_view)
    method = DENSE(epochs=2, generator_steps=3, batch_size=10, temperature=3.0, lr=0.1, momentum=0.8, latent=4, width=6)
    method, steps = recorded(method)
    trainer = train(method, module=classifier(network=network), rounds=1, clients_per_round=3)
    first, *both = views  # each epoch adds ten images, and the student learns from all of them
    assert [len(view) for view in both] == [10, 10]
    assert all((torch.cat(both) == image).all(1).any() for image in first)
    (step,) = steps
    params, delta, messages, cohort = step.params, step.delta, step.messages, step.cohort
    models, total = [], sum(upload.weight for upload in messages.individual)
    for upload in messages.individual:
        model = classifier(network=network).model.double()
        state = {name: value + upload.delta[name] for name, value in params.items()} | upload.buffers
        model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
        models.append(model)
    student = classifier(network=network).model.double()
    mean = {n: sum(u.weight / total * u.buffers[n] for u in messages.individual) for n in cohort.buffers}
    start = {name: value + delta[name] for name, value in params.items()} | mean
    student.load_state_dict({name.removeprefix("model."): value for name, value in start.items()})
    expected = dense.distil(models, student, views, 3.0, 0.1, 0.8)
    assert_close({n: trainer.state[n] for n, _ in expected.named_parameters()}, dict(expected.named_parameters()), 1e-9)


def test_denses_images_are_those_of_the_least_loss() -> None:
    torch.set_default_dtype(torch.float64)
    weight, losses = torch.eye(NUM_CLASSES, 6), []

    def teacher(x: Tensor) -> Tensor:
        return x @ weight.T

    for steps in (1, 25):
        method = DENSE(epochs=1, generator_steps=steps, batch_size=30, generator_lr=0.02, latent=5, width=8, adv=0.0)
        images = method._synthesise(teacher, teacher, (6,), nn.Linear(1, 1), torch.Generator().manual_seed(3))
        assert images.shape == (30, 6) and not images.requires_grad
        losses.append(float((teacher(images).logsumexp(1) - teacher(images).amax(1)).mean()))
    assert losses[1] < 0.6 * losses[0]
