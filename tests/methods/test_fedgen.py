"""FedGen against its paper piece by piece: its generator's loss, its server's training and its clients' terms."""

import copy
from typing import Any

import pytest
import torch
import yaml
from contracts.case import Case
from harness import NUM_CLASSES, ODD_BATCHES, RAGGED, ROOT, Clusters, RecordingTrainer, assert_close, classifier, distance, train
from reference import fedgen
from torch import nn

from flcog.callbacks.fedgen import FedGen, generator_loss
from flcog.callbacks.parts.noise import uniform
from flcog.callbacks.parts.server_generators import feature_generator, features_of
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.method import Batch, ClientData, Context, GlobalModel, Optimisation, Params
from methods.server_steps import recorded

pytestmark = pytest.mark.filterwarnings("error")


FEDGEN = FedGen(alpha=0.7, beta=1.3, decay=0.9, guided_steps=2, batch_size=6, noise_dim=3, hidden=5, server_steps=4, lr=0.02)


CASES: dict[str, Case] = {
    "FedGen": Case(
        FEDGEN,
        None,
        neutral=FedGen(alpha=0.0, beta=0.0, noise_dim=3, hidden=5, server_steps=1),
        data=ODD_BATCHES,
        options=RAGGED,
        random=True,
        no_reference="its losses, its server's training and its clients' terms have theirs below",
    ),
}


def heads_of(models: list[Params]) -> list[nn.Linear]:
    heads = []
    for params in models:
        head = nn.Linear(8, NUM_CLASSES).double()
        head.load_state_dict({part: params[f"model.head.{part}"] for part in ("weight", "bias")})
        heads.append(head)
    return heads


def test_the_generator_and_its_loss() -> None:
    torch.set_default_dtype(torch.float64)
    state = {name: value.double() for name, value in feature_generator(3, 4, 6, 5, seed=1).items()}
    noise, labels = torch.rand(9, 3), torch.randint(4, (9,))
    reference = fedgen.Generator(state)
    trained = {name: value.clone() for name, value in state.items()}
    features = features_of(trained, noise, labels, training=True)
    torch.testing.assert_close(features, reference.train()(noise, labels, 4))
    torch.testing.assert_close(trained["norm.mean"], reference.norm.running_mean)
    torch.testing.assert_close(trained["norm.var"], reference.norm.running_var)
    torch.testing.assert_close(features_of(trained, noise, labels), reference.eval()(noise, labels, 4))
    heads, counts = [nn.Linear(5, 4) for _ in range(3)], torch.tensor([[3.0, 0, 1, 2], [5.0, 1, 0, 2], [0.0, 4, 4, 2]])
    shares = counts / counts.sum(0)
    leaf = features.detach().requires_grad_()
    ours = generator_loss(leaf, noise, labels, [head(leaf) for head in heads], shares)
    theirs = fedgen.generator_loss(leaf, noise, labels, heads, counts)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, leaf)[0] for loss in (ours, theirs)))


def context(trainer: RecordingTrainer, step: int, server: Any, draws: Any) -> Context:
    optimisation = Optimisation(0.1, 0.0, 0.0)
    return Context(GlobalModel(trainer.run.params, {}), server, {}, draws, {}, {}, step, 4, ClientData(8, 1.0, {}), optimisation)


def test_fedgens_server_against_the_paper() -> None:
    method, steps = recorded(FEDGEN)
    trainer = train(method, rounds=1)
    (step,) = steps
    before, params, messages, cohort, after = step.server, step.params, step.messages, step.cohort, step.new_server
    counts = torch.stack([trainer.run.federation.label_counts(upload.client) for upload in messages.individual])
    assert [upload.client for upload in messages.individual] == cohort.clients
    heads = heads_of([{name: value + upload.delta[name] for name, value in params.items()} for upload in messages.individual])
    rng, drawn = cohort.rng("FedGen"), []
    present = [label for label in range(NUM_CLASSES) if counts[:, label].sum() > 0]
    torch.set_default_dtype(torch.float64)
    for _ in range(4):
        labels = torch.tensor([present[int(i)] for i in torch.randint(len(present), (6,), generator=rng)])
        drawn.append((torch.rand(6, 3, generator=rng), labels))
    expected = fedgen.server_steps(before["generator"], heads, counts, drawn, 0.02, 0.01)
    result = fedgen.Generator(after["generator"])
    counted = result.norm.num_batches_tracked.copy_(expected.norm.num_batches_tracked)  # ours counts no batches
    assert_close(dict(result.state_dict()), dict(expected.state_dict()))
    assert counted == 4
    assert distance(after["generator"], before["generator"]) > 1e-3
    assert all(state["step"] == 4 for state in after["adam"].values())


def test_fedgens_clients_against_the_paper() -> None:
    module = classifier()
    trainer = train(FEDGEN, module=module, rounds=3)
    torch.set_default_dtype(torch.float64)
    draws, server = trainer.works[2][0].draws()[0], trainer.run.server.servers["FedGen"]
    assert float(draws["scale"]) == pytest.approx(0.9**2) and float(trainer.works[0][0].draws()[0]["scale"]) == 0
    assert torch.equal(draws["counts"], trainer.run.federation.label_counts(trainer.works[2][0].client))
    apply = Apply(ModelFunction(copy.deepcopy(module)), {})
    x, y = trainer.recorded[2][0].batches[1]
    params = {name: value.clone().requires_grad_() for name, value in trainer.run.params.items()}
    task = apply.loss(params, Batch(x, y))
    ours = FEDGEN.loss(apply, params, Batch(x, y), task, context(trainer, 1, server, draws))
    key = draws["key"]
    sampled = uniform(key, 1, (6, 3)), (uniform(key, 1, (6,), 1) * NUM_CLASSES).long()
    model = copy.deepcopy(module.model)
    model.load_state_dict({name.removeprefix("model."): value for name, value in trainer.run.params.items()})
    generator = fedgen.Generator(server["generator"])
    taught, alike = fedgen.client_loss(model, generator, (x, y), sampled, uniform(key, 1, (len(y), 3), 2))
    theirs = 0.9**2 * (0.7 * taught + 1.3 * alike)
    torch.testing.assert_close(ours, theirs)
    slopes = torch.autograd.grad(ours, list(params.values()))
    for name, slope in zip(params, slopes, strict=True):
        (expected,) = torch.autograd.grad(theirs, model.get_parameter(name.removeprefix("model.")), retain_graph=True)
        torch.testing.assert_close(slope, expected)
    assert FEDGEN.loss(apply, params, Batch(x, y), task, context(trainer, 2, server, draws)) == 0


@pytest.mark.parametrize(("num_classes", "megabytes"), [(10, 1.208), (100, 1.393)])
def test_the_generator_for_cifar_is_as_large_as_in_fedssyn(num_classes: int, megabytes: float) -> None:
    """Fedssyn's paper gives 1.2 to 1.4 MB for VGG-11's 512 features (section 4.3)."""
    config = yaml.safe_load((ROOT / "configs/methods/fedgen-cifar.yaml").read_text())["trainer"]["callbacks+"][0]["init_args"]
    method = FedGen(**config)
    heads = {"model.head.weight": torch.empty(num_classes, 512)}
    weights = [value for name, value in method.init_server(heads)["generator"].items() if name not in ("norm.mean", "norm.var")]
    assert round(sum(value.numel() * value.element_size() for value in weights) / 1e6, 3) == megabytes
    assert (method.guided_steps, method.alpha) == (None, 10.0)


def test_fedgens_generator_learns_and_is_sent() -> None:
    trainer = train(FedGen(alpha=0.5, beta=0.5, noise_dim=4, hidden=16, server_steps=25, lr=0.02, batch_size=16), data=Clusters())
    losses = [row["fedgen/generator_loss"] for row in trainer.rows]
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.evaluate()["test/accuracy"] > 0.6
    # The global model's own head recognises the generated features.
    generator, labels = trainer.run.server.servers["FedGen"]["generator"], torch.arange(NUM_CLASSES).repeat(20)
    features = features_of(generator, torch.rand(60, 4, dtype=torch.float64), labels)
    (head,) = heads_of([trainer.run.params])
    assert (head(features).argmax(1) == labels).double().mean() > 0.6
    size = sum(value.numel() * value.element_size() for value in generator.values())
    assert trainer.run.ledger.down["FedGen"] == 3 * 5 * size and trainer.run.ledger.up["FedGen"] == 3 * 5 * 8 * NUM_CLASSES
