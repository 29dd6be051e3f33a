"""FedCOG and its observers agree with the paper in plain torch and with computations by hand, and run as a user runs them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contracts.case import Case
from harness import (
    MOMENTUM,
    RAGGED,
    SGD,
    BatchNormMLP,
    RecordingTrainer,
    TinyData,
    assert_close,
    classifier,
    distance,
    fit,
    problem_of,
    train,
)
from reference import fedcog
from reference.common import Problem, State
from scipy.spatial.distance import jensenshannon
from torch import Tensor, nn

import flcog
from flcog.callbacks.fedcog.fedcog import FedCOG, allot, complement
from flcog.callbacks.fedcog.generation import LATENT, disagreement, generate, images, target_loss
from flcog.callbacks.fedcog.observers import GeneratedImages, GenerationTime, to_pixels
from flcog.callbacks.parts.distillation import distillation_loss
from flcog.core.precision import default_dtype
from flcog.core.randomness import make_rng
from flcog.data import Preprocess, Samples, Splits
from flcog.method import ClientView
from flcog.models import MLP

pytestmark = pytest.mark.filterwarnings("error")


TINY = FedCOG(num_samples=10, steps=4, lr=0.1, lambda_dis=2.0, lambda_kd=0.7, batch_size=4)
"""Few samples, and weights so large that every term of the loss has a visible effect."""


def draws_of(method: FedCOG, data: flcog.FederatedDataModule) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """The noise and labels that a float64 run with seed 0 draws."""

    def draws(round: int, client: int) -> tuple[Tensor, Tensor]:
        with default_dtype(torch.float64):
            view = ClientView.of(data.federation, client, round)
            drawn = method.draw(make_rng(0, round, client, "draw", "FedCOG"), view)
            return drawn["noise"], drawn["labels"]

    return draws


def run_reference(problem: Problem, method: FedCOG, data: flcog.FederatedDataModule) -> State:
    """The reference with a method's settings and a run's draws, without distillation if the method generates no inputs."""
    distils = method.num_samples > 0
    method = method if distils else replace(method, num_samples=1)
    names = ("steps", "lambda_dis", "lambda_kd", "lr", "batch_size", "betas", "divergence")
    options = {name: getattr(method, name) for name in names}
    return fedcog.run(
        problem, draws_of(method, data), start=method.start_round, hard=method.hard_labels, distils=distils, **options
    )


def case(method: FedCOG, **options: object) -> Case:
    reference, neutral = partial(run_reference, method=method, data=TinyData()), replace(method, lambda_kd=0.0)
    return Case(method, reference, neutral, random=True, **options)  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "FedCOG": case(TINY),
    "FedCOG-balance": case(
        replace(TINY, targets="complementary", lambda_kd="balance", divergence="code"), optimizer=MOMENTUM, options=RAGGED
    ),
}


def multilabel_classifier(optimizer: Callable[..., torch.optim.Optimizer] = SGD) -> flcog.MultiLabelClassifier:
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    return flcog.MultiLabelClassifier(MLP(6, (8,), 3), optimizer=optimizer)


def expected(method: FedCOG, trainer: RecordingTrainer, before: flcog.ClientModule, data: flcog.FederatedDataModule) -> Any:
    problem = problem_of(trainer, before, before.optimizer)
    if isinstance(before, flcog.MultiLabelClassifier):
        problem.loss = lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets.double())
    return run_reference(problem, method, data)


def small() -> dict[str, Any]:
    """Three clients that all train in every round, so that each has a model of the previous round."""
    return {"data": TinyData(order=(0, 1, 2)), "clients_per_round": 1.0, "local_steps": 3}


SETTINGS: dict[str, tuple[FedCOG, dict[str, Any]]] = {
    "paper": (TINY, {}),
    "balance": (replace(TINY, targets="complementary", lambda_kd="balance"), {}),
    "code": (replace(TINY, divergence="code"), {}),
    "hard": (replace(TINY, hard_labels=True), {}),
    "noise": (replace(TINY, steps=0), {}),
    "global": (replace(TINY, lambda_dis=0.0), {}),
    "weight alone": (replace(TINY, num_samples=0, lambda_kd="balance"), {}),
    "late": (replace(TINY, start_round=2), {"clients_per_round": 1.0}),
    "multilabel": (
        replace(TINY, targets="complementary", lambda_kd="balance"),
        {"module": multilabel_classifier, "data": partial(TinyData, targets="multilabel")},
    ),
}


@pytest.mark.parametrize(("method", "options"), SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.slow
def test_against_the_paper_under_both_executors(method: FedCOG, options: dict[str, Any]) -> None:
    options = {"module": classifier, "data": TinyData, "local_epochs": 1.5} | options
    make_module, make_data = options.pop("module"), options.pop("data")
    loop = train(method, module=make_module(), data=make_data(), **options)
    assert_close(loop.state, expected(method, loop, make_module(), make_data()), 1e-10)
    vmap = train(method, module=make_module(), data=make_data(), executor="vmap", chunk_size=2, **options)
    assert vmap.executor.name == "vmap"
    assert_close(vmap.state, loop.state, 1e-10)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_batch_norm_is_in_evaluation_mode(executor: str) -> None:
    trainer = train(TINY, module=classifier(network=BatchNormMLP), executor=executor)
    assert_close(trainer.state, expected(TINY, trainer, classifier(network=BatchNormMLP), TinyData()), 1e-9)


@pytest.mark.slow
def test_without_distillation_it_is_fedavg_exactly() -> None:
    for network in (None, BatchNormMLP):
        plain = train(module=classifier(network=network))
        for neutral in ({"lambda_kd": 0.0}, {"num_samples": 0}, {"start_round": 7}):
            same = train(replace(TINY, **neutral), module=classifier(network=network))
            for name, value in plain.state.items():
                assert torch.equal(same.state[name], value), (name, neutral)


@pytest.mark.slow
def test_clients_keep_models_before_the_start_and_send_nothing_more() -> None:
    plain = train(rounds=2, clients_per_round=1.0)
    late = train(replace(TINY, start_round=2), rounds=2, clients_per_round=1.0)
    assert all("FedCOG" in states for states in late.states.by_client.values())
    started = train(TINY, rounds=2, clients_per_round=1.0)
    assert [row["comm/total_bytes"] for row in started.rows] == [row["comm/total_bytes"] for row in plain.rows]
    alone = train(replace(TINY, lambda_dis=0.0), rounds=1)
    assert not alone.states.by_client


# Generation and distillation --------------------------------------------------------------------------------------------------------


def test_disagreement_is_equation_2() -> None:
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(scale=3, size=(7, 5))) for _ in range(2))
    for multilabel in (False, True):
        if multilabel:
            p, q = (np.stack([1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))], -1).reshape(-1, 2) for x in (a.numpy(), b.numpy()))
        else:
            p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (a.numpy(), b.numpy()))
        by_hand = 1 - np.mean(jensenshannon(p, q, axis=1) ** 2)
        assert float(disagreement(a, b, multilabel)) == pytest.approx(by_hand, rel=1e-12)
        assert float(disagreement(a, a, multilabel)) == pytest.approx(1, abs=1e-12)
    opposed = 200 * torch.eye(2, dtype=torch.float64)
    assert float(disagreement(opposed, opposed.flip(0))) == pytest.approx(1 - np.log(2), abs=1e-12)


def test_the_codes_divergence_saturates() -> None:
    opposed = (200 * torch.eye(10, dtype=torch.float64)[:2]).requires_grad_()
    value = disagreement(opposed, opposed.detach().flip(0), divergence="code")
    (gradient,) = torch.autograd.grad(value, [opposed])
    assert value.item() == 0 and not gradient.any()


def test_distillation_loss() -> None:
    torch.manual_seed(1)
    student, teacher = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    hot = F.kl_div((student / 3).log_softmax(1), (teacher / 3).softmax(1), reduction="batchmean") * 9
    torch.testing.assert_close(distillation_loss(student, teacher, temperature=3.0), hot)
    p, q = teacher.sigmoid(), student.sigmoid()
    bernoulli = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    torch.testing.assert_close(distillation_loss(student, teacher, multilabel=True), bernoulli)
    assert distillation_loss(student.bfloat16(), teacher.bfloat16()).dtype == torch.float32


def test_labels_by_hand() -> None:
    rng = torch.Generator().manual_seed(0)
    counts = torch.tensor([500.0, 0, 400, 200, 400])
    for num_samples, wanted in ((10, [0, 5, 1, 3, 1]), (1000, [0, 500, 100, 300, 100])):
        assert allot(complement(counts), num_samples, rng).bincount().tolist() == wanted
    rounded = allot(complement(counts), 5, rng).bincount(minlength=5)
    assert rounded.sum() == 5 and ((rounded - torch.tensor([0, 2.5, 0.5, 1.5, 0.5])).abs() < 1).all()
    assert allot(complement(torch.full((4,), 3.0)), 8, rng).bincount().tolist() == [2, 2, 2, 2]
    left_over = torch.stack([allot(torch.ones(10), 12, rng).bincount(minlength=10) for _ in range(60)])
    assert left_over.min() == 1 and left_over.max() == 2 and (left_over.sum(0) > 60).all()


def test_generation_lowers_its_loss_and_batches_are_independent() -> None:
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double() for _ in range(2)]
    noise, labels = torch.randn(9, 6, dtype=torch.float64), torch.arange(9) % 3
    made = generate(noise, labels, *networks, lambda_dis=0.5, steps=60, lr=0.05)
    assert not made.requires_grad
    with torch.no_grad():
        assert target_loss(networks[0](made), labels) < 0.7 * target_loss(networks[0](noise), labels)
        assert disagreement(*(network(made) for network in networks)) < disagreement(*(network(noise) for network in networks))
    # Except for its epsilon, Adam does not depend on the divisor of the mean.
    torch.testing.assert_close(
        generate(noise, labels, *networks, lambda_dis=0.5, steps=60, lr=0.05, batch_size=4), made, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(generate(noise, labels, *networks, steps=0), noise)


# On images --------------------------------------------------------------------------------------------------------------------------


class TinyImages(flcog.FederatedDataModule):
    """Grey 9x8 images of three classes, as bytes."""

    num_classes = 3

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"num_clients": 3, "batch_size": 4} | options))

    def load(self) -> Splits:
        rng = np.random.default_rng(0)
        labels = np.arange(36) % 3
        images = rng.integers(0, 100, (36, 9, 8, 1)) + 70 * labels[:, None, None, None]
        samples = Samples(torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels))
        return Splits(samples, samples)

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        return Preprocess((0.4,), (0.3,))


def image_classifier() -> flcog.Classifier:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    return flcog.Classifier(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 3)), optimizer=SGD
    )


IMAGES: dict[str, Any] = {"clients_per_round": 2, "local_steps": 2, "rounds": 2}


@pytest.mark.parametrize("changes", [{"generation_batch_size": 4}, {"generator": True, "generation_batch_size": 4}])
@pytest.mark.slow
def test_small_batches_and_generator_on_images(changes: dict[str, Any]) -> None:
    method = replace(TINY, num_samples=6, steps=2, **changes)
    loop, vmap = (
        train(method, module=image_classifier(), data=TinyImages(), executor=executor, **IMAGES) for executor in ("loop", "vmap")
    )
    assert_close(vmap.state, loop.state, 1e-8)
    whole = train(replace(method, generation_batch_size=None), module=image_classifier(), data=TinyImages(), **IMAGES)
    apart = distance(whole.state, loop.state)
    assert apart > 1e-6 if method.generator else 0 < apart < 1e-5


def test_a_generator_is_trained_beside_what_it_is_fed() -> None:
    """The result equals that with torch's own layers and optimiser."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(LATENT, 8192), nn.Unflatten(1, (128, 8, 8)), nn.Upsample((9, 8)))
    for channels in ((128, 64), (64, 32), (32, 1)):
        network += nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(*channels, 3, padding=1))
    names = [f"{layer}.{part}" for layer in ("linear", "conv1", "conv2", "conv3") for part in ("weight", "bias")]
    weights = {name: value.detach().clone() for name, value in zip(names, network.parameters(), strict=True)}
    first, second = (nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).requires_grad_(False) for _ in range(2))
    noise, labels = torch.randn(4, LATENT), torch.tensor([0, 1, 2, 0])
    decode = partial(images, size=(9, 8))
    made = generate(noise, labels, first, second, lambda_dis=0.5, steps=5, weights=weights, decode=decode)

    fed = noise.clone().requires_grad_()
    optimizer = torch.optim.Adam([fed, *network.parameters()], 0.01, (0.5, 0.9))
    for _ in range(5):
        inputs = network(fed)
        loss = F.cross_entropy(first(inputs), labels) + 0.5 * disagreement(first(inputs), second(inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(made, network(fed).detach(), rtol=1e-8, atol=1e-8)
    assert (made - decode({"noise": noise, **weights})).abs().max() > 0.1


@pytest.mark.slow
def test_observers_of_generation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures, times = GeneratedImages(steps=(0, 2), every_n_rounds=2), GenerationTime(num_samples=(2, 3), repeats=1)
    for changes in ({}, {"generator": True, "steps": 1}, {"lambda_kd": 0.0}, {"num_samples": 0}):
        method = replace(TINY, start_round=1, **changes)
        data = TinyImages()
        trainer = fit(tmp_path, method, pictures, times, module=image_classifier(), data=data, **IMAGES)
        assert trainer.run_dir is not None
        written = sorted(path.name for path in (trainer.run_dir / "figures").iterdir())
        assert written == ["generated_images-000002.png"]
        assert len((trainer.run_dir / "generation_time.csv").read_text().split()) == 3
        assert capsys.readouterr().out.count("FedCOG generates") == 2
    torch.set_default_dtype(torch.float32)
    stored = torch.as_tensor(data.federation.train.inputs)
    torch.testing.assert_close(to_pixels(data.federation, data.federation.preprocess(stored)), stored / 255)
    with pytest.raises(ValueError, match="add FedCOG"):
        fit(tmp_path, GenerationTime(), rounds=1)


# Mistakes ---------------------------------------------------------------------------------------------------------------------------


def test_data_that_cannot_be_generated() -> None:
    with pytest.raises(ValueError, match="not for regression data"):
        train(TINY, data=TinyData(targets="regression"), module=flcog.Regressor(MLP(6, (), 1)), rounds=1)

    class Tokens(TinyData):
        def load(self) -> Splits:
            splits = super().load()
            return Splits(Samples(torch.as_tensor(splits.train.inputs).long(), splits.train.targets))

    with pytest.raises(ValueError, match="token ids"):
        train(replace(TINY, start_round=2), data=Tokens(), rounds=1)
