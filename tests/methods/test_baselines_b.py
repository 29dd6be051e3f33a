"""FineTune, Ditto, FedRep, VHL, FedGen, DENSE and FedDM: against the papers in plain torch, and what each of them promises."""

import copy
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contracts.cases import MOMENTUM, RAGGED
from contracts.test_methods import dropout_network
from harness import (
    NUM_CLASSES,
    NUM_FEATURES,
    SGD,
    BatchNormMLP,
    RecordingTrainer,
    TinyData,
    assert_close,
    classifier,
    distance,
    problem_of,
)
from reference import dense, ditto, feddm, fedgen, fedrep, fine_tune, vhl
from torch import Tensor, nn

import flcog
from flcog.apply import Apply, ModelFunction
from flcog.callbacks import FedAvgM, FedProx
from flcog.callbacks.dense import DENSE, synthesis_loss
from flcog.callbacks.ditto import Ditto
from flcog.callbacks.feddm import FedDM, class_means, perturb
from flcog.callbacks.fedgen import FedGen, generator_loss
from flcog.callbacks.fedrep import FedRep
from flcog.callbacks.fine_tune import FineTune
from flcog.callbacks.parts.noise import normal, uniform
from flcog.callbacks.parts.server_generators import (
    batch_norm_distances,
    feature_generator,
    features_of,
    input_generator,
    random_view,
)
from flcog.callbacks.vhl import VHL, supervised_contrast, virtual_set
from flcog.core.randomness import fold
from flcog.data import Samples, Splits
from flcog.datamodules import Natural
from flcog.engine.batching import Work, batches, make_work
from flcog.engine.executors.base import Result, Round
from flcog.hooks import Batch, Callback, Context, Method, Optimisation, Params
from flcog.models import MLP
from methods.cases_baselines_a import ODD_BATCHES, BatchNormFeatures
from methods.cases_baselines_b import DENSE_, FEDDM, FEDGEN, LARGER

pytestmark = pytest.mark.filterwarnings("error")


class Trainer(RecordingTrainer):
    """Remembers each round's works as well, with the methods' draws, and every personal model it measures."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.works: list[list[Work]] = []
        self.measured: list[tuple[Params, np.ndarray]] = []

    def _executor_results(self, task: Round) -> Iterator[Result]:
        self.works.append(list(task.works))
        yield from super()._executor_results(task)

    def evaluate(self) -> dict[str, float]:
        """The figures of an evaluation now."""
        original = self.evaluator.on_rows

        def on_rows(params: Params, buffers: Params, rows: np.ndarray) -> float:
            self.measured.append(({name: value.clone() for name, value in params.items()}, rows))
            return original(params, buffers, rows)

        self.evaluator.on_rows = on_rows  # type: ignore[method-assign]
        precision = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self._evaluate()
        finally:
            torch.set_default_dtype(precision)


def train(*methods: Callback, module: flcog.ClientModule | None = None, data: Any = None, **options: Any) -> Trainer:
    """As the harness's, by a trainer that remembers more."""
    if options.get("local_epochs") is None:
        options.setdefault("local_steps", 4)
    defaults: dict[str, Any] = {"rounds": 3, "clients_per_round": 5, "executor": "loop", "precision": "64-true"}
    trainer = Trainer(**(defaults | options), callbacks=list(methods), logger=False, accelerator="cpu")
    trainer.prepare(module or classifier(), data or TinyData())
    while trainer.round < trainer.rounds:
        trainer.rows.append(trainer.train_round())
    return trainer


class Clusters(flcog.FederatedDataModule):
    """Three well separated classes, of which client k of six lacks class k % 3 or, "opposed", takes 0 for 1 if k is odd."""

    num_classes = NUM_CLASSES

    def __init__(self, how: str = "skewed", **options: Any) -> None:
        super().__init__(6, Natural(), 8, **options)
        self.how = how

    def load(self) -> Splits:
        rng = torch.Generator().manual_seed(0)
        labels, users = torch.randint(NUM_CLASSES, (300,), generator=rng), torch.arange(300) % 6
        inputs = 3 * torch.eye(NUM_CLASSES, 6)[labels] + torch.randn(300, 6, generator=rng)
        train, test = torch.arange(300) < 240, torch.arange(300) >= 240
        seen = labels.clone()
        if self.how == "opposed":
            seen = torch.where((users % 2 == 1) & (labels < 2), 1 - labels, labels)
        else:
            train = train & (users % NUM_CLASSES != labels)
        return Splits(Samples(inputs[train], seen[train], users[train].numpy()), Samples(inputs[test], labels[test]))


def slots(trainer: RecordingTrainer, method: str, key: str) -> dict[int, Params]:
    """What each client keeps, under the network's own names."""
    return {
        client: {name.removeprefix("model."): value for name, value in kept[method][key].items()}
        for client, kept in trainer.states.slots.items()
    }


# What all of them are asked ---------------------------------------------------------------------------------------------------------

NETWORKS = {"plain": BatchNormMLP, "features": BatchNormFeatures}


@pytest.mark.parametrize(
    ("method", "network"),
    [
        (Ditto(), "plain"),
        (FedRep(head=r"\.3\."), "plain"),
        (LARGER["VHL"].method, "features"),
        (FEDGEN, "features"),
        (DENSE_, "plain"),
        (FEDDM, "features"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else value,
)
def test_batchnorm(method: Method, network: str) -> None:
    runs = [
        train(method, module=classifier(network=NETWORKS[network]), executor=executor, local_epochs=2, rounds=2)
        for executor in ("loop", "vmap")
    ]
    assert [run.executor.name for run in runs] == ["loop", "vmap"]
    assert_close(runs[1].state, runs[0].state, 1e-10)
    assert all(value.isfinite().all() for value in runs[0].state.values())


BAD = {
    "FineTune": [{"steps": -1}],
    "Ditto": [{"lambda_prox": -0.1}, {"lr": 0.0}],
    "FedRep": [{"head": "(head"}, {"body_share": 0.0}, {"body_share": 1.0}],
    "VHL": [{"align": -1.0}, {"std": -0.5}, {"temperature": 0.0}, {"batch_size": 0}, {"seed": -1}],
    "FedGen": [{"alpha": -1.0}, {"decay": 1.5}, {"batch_size": 1}, {"lr": 0.0}, {"hidden": 0}, {"guided_steps": -1}],
    "DENSE": [{"epochs": 0}, {"batch_size": 1}, {"adv": -1.0}, {"momentum": 1.0}, {"temperature": 0.0}, {"crop": -1}],
    "FedDM": [{"images_per_class": 0}, {"rho": -1.0}, {"image_lr": 0.0}, {"server_epochs": 0}],
}
METHODS: dict[str, Any] = {m.__name__: m for m in (FineTune, Ditto, FedRep, VHL, FedGen, DENSE, FedDM)}


@pytest.mark.parametrize(("name", "arguments"), [(name, bad) for name, bads in BAD.items() for bad in bads], ids=str)
def test_bad_arguments_name_the_method_the_argument_and_what_was_given(name: str, arguments: dict[str, Any]) -> None:
    ((field, value),) = arguments.items()
    with pytest.raises(ValueError, match=rf"{name}: .*{field}.*; got .*{re.escape(str(value))}"):
        METHODS[name](**arguments)


@pytest.mark.parametrize("method", [VHL(), FedGen(), DENSE(), FedDM()], ids=lambda method: method.name)
def test_single_label_methods_refuse_other_data(method: Method) -> None:
    module = flcog.MultiLabelClassifier(MLP(6, (8,), NUM_CLASSES), SGD)
    with pytest.raises(ValueError, match=f"{method.name} is defined for classification, not for multilabel data"):
        train(method, module=module, data=TinyData(targets="multilabel"))


class Tokens(TinyData):
    """Inputs that are numbers of words."""

    def load(self) -> Splits:
        splits = super().load()
        tokens = torch.arange(splits.train.inputs.shape[0] * 6).view(-1, 6) % 5
        return Splits(Samples(tokens, splits.train.targets))


class Words(flcog.models.FeatureModel):
    """Embeddings' mean and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.num_features = nn.Embedding(5, 8), nn.Linear(8, NUM_CLASSES), 8

    def features(self, x: Tensor) -> Tensor:
        return self.embedding(x).mean(1)


@pytest.mark.parametrize("method", [LARGER["VHL"].method, DENSE_, FEDDM], ids=lambda method: method.name)
def test_words_cannot_be_generated(method: Method) -> None:
    with pytest.raises(ValueError, match=r"int64 inputs"):
        train(method, module=classifier(network=Words), data=Tokens())


# Personal models --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [None, BatchNormMLP], ids=["mlp", "batchnorm"])
def test_fine_tuning_is_the_local_optimisers_from_the_global_model(network: Any) -> None:
    trainer = train(FineTune(steps=3), FedProx(mu=0.5), module=classifier(MOMENTUM, network), data=TinyData(client_test=0.3))
    figures, before = trainer.evaluate(), classifier(MOMENTUM, network)
    assert len(trainer.measured) == 8
    problem, hits = problem_of(trainer, before, MOMENTUM), []
    model = copy.deepcopy(problem.model)
    model.load_state_dict(trainer.state)
    for client, (own, rows) in enumerate(trainer.measured):
        seed = fold(trainer.seed, "personal")
        (work,) = make_work(trainer.federation, trainer.batching, [client], [3], [1.0], seed, trainer.round)
        steps = [(batch.inputs, batch.targets) for batch in batches(work, trainer._read, trainer.bytes_per_sample)]
        expected = fine_tune.run(problem, model, client, steps)
        assert_close(
            {name.removeprefix("model."): v for name, v in own.items()}, {n: expected[n] for n, _ in model.named_parameters()}
        )
        model_k = copy.deepcopy(model).eval()
        model_k.load_state_dict(expected)
        assert np.array_equal(np.sort(rows), np.sort(trainer.federation.client_test.client(client)))
        x, y = trainer.federation.train.inputs[rows].double(), trainer.federation.train.targets[rows]
        hits.append(float((model_k(x).argmax(1) == y).double().mean()))
    assert figures["test/personal_accuracy_mean"] == pytest.approx(np.mean(hits))
    assert figures["test/personal_accuracy_std"] == pytest.approx(np.std(hits))


def test_fine_tuning_changes_no_training_and_without_steps_measures_the_global_model() -> None:
    data = TinyData(client_test=0.3)
    plain, tuned = train(FedAvgM(), data=data), train(FedAvgM(), FineTune(steps=0), data=data)
    figures = tuned.evaluate()
    assert all(torch.equal(tuned.state[name], value) for name, value in plain.state.items())
    assert figures["test/personal_accuracy_mean"] == figures["test/client_accuracy_mean"]
    assert "test/personal_accuracy_mean" not in plain.evaluate()


def test_a_run_has_one_kind_of_personal_model() -> None:
    with pytest.raises(ValueError, match="FineTune and Ditto both define 'personal', of which a run can have one"):
        train(FineTune(), Ditto())


@pytest.mark.parametrize("lr", [None, 0.03])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_ditto_against_the_paper(executor: str, lr: float | None) -> None:
    setting: dict[str, Any] = {"data": ODD_BATCHES(client_test=0.2), "executor": executor} | RAGGED
    trainer = train(Ditto(lambda_prox=0.7, lr=lr), module=classifier(MOMENTUM), **setting)
    state, own = ditto.run(problem_of(trainer, classifier(MOMENTUM), MOMENTUM), 0.7, lr)
    assert_close(trainer.state, state)
    kept = slots(trainer, "Ditto", "personal")
    assert kept.keys() == own.keys()
    for client, params in own.items():
        assert_close(kept[client], params)
        assert distance(params, {name: state[name] for name in params}) > 1e-3
    trainer.evaluate()
    for client, (params, _) in enumerate(trainer.measured):
        expected = own.get(client, {name: state[name] for name in kept[0]})
        assert_close({name.removeprefix("model."): value for name, value in params.items()}, expected)


@pytest.mark.parametrize("network", [None, BatchNormMLP, dropout_network], ids=["mlp", "batchnorm", "dropout"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_ditto_leaves_the_global_model_to_fedavg(executor: str, network: Any) -> None:
    plain, personal = (train(*m, module=classifier(network=network), executor=executor) for m in ((), (Ditto(),)))
    assert all(torch.equal(personal.state[name], value) for name, value in plain.state.items())
    assert personal.ledger.total_up == plain.ledger.total_up and personal.ledger.total_down == plain.ledger.total_down


def test_dittos_own_statistics_are_of_its_own_samples() -> None:
    """With BatchNorm in front, the statistics are the moments of what the client itself holds."""
    network = lambda: nn.Sequential(nn.BatchNorm1d(NUM_FEATURES), nn.Linear(NUM_FEATURES, NUM_CLASSES))  # noqa: E731
    trainer = train(Ditto(), module=classifier(network=network), data=TinyData(client_test=0.2))
    federation, before = trainer.federation, {name: value.clone() for name, value in trainer.buffers.items()}
    seen = []
    trainer.evaluator.on_rows = lambda params, buffers, rows: seen.append(buffers) or 0.0  # type: ignore[method-assign]
    trainer.evaluate()
    for client, buffers in enumerate(seen):
        own = federation.train.inputs[federation.partition.client(client)].double()
        torch.testing.assert_close(buffers["model.0.running_mean"], own.mean(0))
        torch.testing.assert_close(buffers["model.0.running_var"], own.var(0))
    assert len(seen) == 8 and trainer.model.module.model[0].momentum == 0.1
    assert all(torch.equal(trainer.buffers[name], value) for name, value in before.items())


def test_ditto_alone_trains_for_itself_and_pulled_hard_stays() -> None:
    alone = train(Ditto(lambda_prox=0.0), clients_per_round=1, data=TinyData(order=(3,)))
    # One client's model and the global one then take the same steps.
    assert_close(slots(alone, "Ditto", "personal")[0], alone.state, 1e-12)
    held = train(Ditto(lambda_prox=10.0), rounds=1)  # lr * lambda = 1: each step starts from x again.
    far = train(Ditto(lambda_prox=0.0), rounds=1)
    start = {name: value.detach().double() for name, value in classifier().model.named_parameters()}
    distances = [max(distance(own, start) for own in slots(run, "Ditto", "personal").values()) for run in (held, far)]
    assert distances[0] < distances[1] / 2


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(
    "optimizer", [SGD, MOMENTUM, partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True)]
)
def test_fedrep_keeps_heads_and_freezes_the_part_at_rest(optimizer: Any, executor: str) -> None:
    setting: dict[str, Any] = {"data": ODD_BATCHES(client_test=0.2), "executor": executor} | RAGGED
    trainer = train(FedRep(body_share=0.4), module=classifier(optimizer), **setting)
    state, heads = fedrep.solve(problem_of(trainer, classifier(optimizer), optimizer), 0.4)
    assert_close(trainer.state, state, 1e-11)
    kept = slots(trainer, "FedRep", "head")
    assert kept.keys() == heads.keys()
    for client, head in heads.items():
        assert_close(kept[client], head, 1e-11)
    trainer.evaluate()
    for client, (params, _) in enumerate(trainer.measured):
        expected = {name: state[name] for name, _ in classifier().model.named_parameters()} | heads.get(client, {})
        assert_close({name.removeprefix("model."): value for name, value in params.items()}, expected, 1e-11)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_fedrep_at_rest_means_not_a_bit(executor: str) -> None:
    """All steps but the last on the head: whatever the optimiser, the body has moved by one step of SGD."""
    method, setting = FedRep(body_share=0.01), {"rounds": 1, "executor": executor}
    heads_only = train(method, module=classifier(MOMENTUM), local_steps=4, **setting)
    untouched = {name: value.detach().double() for name, value in classifier().model.named_parameters()}
    assert torch.equal(heads_only.state["head.weight"], untouched["head.weight"])
    assert distance({"x": heads_only.state["hidden.0.weight"]}, {"x": untouched["hidden.0.weight"]}) > 1e-4
    # With one step there is no step for the head.
    for head in slots(train(method, module=classifier(MOMENTUM), local_steps=1, **setting), "FedRep", "head").values():
        assert all(torch.equal(value, untouched[name]) for name, value in head.items())


def test_fedrep_names_the_parameters_it_could_keep() -> None:
    for head, which in (("classifier", "none"), ("", "all")):
        with pytest.raises(
            ValueError, match=rf"FedRep: head='{head}' is in {which} of the parameters' names, which are model.hidden"
        ):
            train(FedRep(head=head))


def test_personal_models_beat_the_global_one_on_unlike_clients() -> None:
    for method in (FineTune(steps=10), Ditto(lambda_prox=0.1), FedRep(body_share=0.2)):
        data = Clusters("opposed", client_test=0.3)
        trainer = train(method, data=data, rounds=6, local_steps=8, clients_per_round=6, executor="vmap")
        figures = trainer.evaluate()
        assert figures["test/personal_accuracy_mean"] > figures["test/client_accuracy_mean"] + 0.15
        assert figures["test/personal_accuracy_mean"] > 0.85


# VHL --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_vhl_against_the_paper(executor: str) -> None:
    method = VHL(batch_size=7, samples_per_class=4, temperature=0.5)
    setting: dict[str, Any] = {
        "data": ODD_BATCHES(),
        "executor": executor,
        "local_epochs": 1,
        "rounds": 2,
        "clients_per_round": 4,
    }
    trainer = train(method, module=classifier(MOMENTUM), **setting)
    inputs, labels = virtual_set(0, NUM_CLASSES, 4, 0.5, (6,), torch.float64, torch.device("cpu"))
    assert inputs.shape == (12, 6) and labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4

    def virtual(work: Work) -> list[tuple[Tensor, Tensor]]:
        order = work.draws[0]["order"].tolist()
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
    with pytest.raises(ValueError, match="VHL adds outputs to a linear head, which BatchNormMLP has not"):
        train(method, module=classifier(network=BatchNormMLP))


def test_vhl_sends_nothing_of_its_virtual_set() -> None:
    trainer = train(VHL(batch_size=6, samples_per_class=4))
    assert set(trainer.ledger.up) | set(trainer.ledger.down) <= {"model", "VHL"}
    assert trainer.ledger.up.get("VHL", 0) == trainer.ledger.down.get("VHL", 0) == 0


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


# FedGen -----------------------------------------------------------------------------------------------------------------------------


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


def test_fedgens_server_against_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    original = FedGen.server_step

    def spy(self: FedGen, *args: Any) -> Any:
        result = original(self, *args)
        calls.append((*args, result))
        return result

    monkeypatch.setattr(FedGen, "server_step", spy)
    trainer = train(FEDGEN, rounds=1)
    ((before, params, _, messages, cohort, (_, after)),) = calls
    counts = torch.stack([trainer.federation.label_counts(upload.client) for upload in messages.individual])
    assert [upload.client for upload in messages.individual] == cohort.clients
    heads = heads_of([{name: value + upload.delta[name] for name, value in params.items()} for upload in messages.individual])
    rng, drawn = cohort.generator("FedGen"), []
    present = [label for label in range(NUM_CLASSES) if counts[:, label].sum() > 0]
    torch.set_default_dtype(torch.float64)
    for _ in range(4):
        labels = torch.tensor([present[int(i)] for i in torch.randint(len(present), (6,), generator=rng)])
        drawn.append((torch.rand(6, 3, generator=rng), labels))
    expected = fedgen.server_steps(before["generator"], heads, counts, drawn, 0.02, 0.01)
    result = fedgen.Generator(after["generator"])
    counted = result.norm.num_batches_tracked.copy_(expected.norm.num_batches_tracked)  # ours does not count
    assert_close(dict(result.state_dict()), dict(expected.state_dict()))
    assert counted == 4
    assert distance(after["generator"], before["generator"]) > 1e-3
    assert all(state["step"] == 4 for state in after["adam"].values())


def context(trainer: RecordingTrainer, step: int, server: Any, draws: Any) -> Context:
    optimisation = Optimisation(0.1, 0.0, 0.0)
    return Context(trainer.params, {}, {}, server, {}, draws, {}, {}, step, 4, 8, 1.0, optimisation)


def test_fedgens_clients_against_the_paper() -> None:
    module = classifier()
    trainer = train(FEDGEN, module=module, rounds=3)
    torch.set_default_dtype(torch.float64)
    draws, server = trainer.works[2][0].draws[0], trainer.servers["FedGen"]
    assert float(draws["scale"]) == pytest.approx(0.9**2) and float(trainer.works[0][0].draws[0]["scale"]) == 0
    assert torch.equal(draws["counts"], trainer.federation.label_counts(trainer.works[2][0].client))
    apply = Apply(ModelFunction(copy.deepcopy(module)), {})
    x, y = trainer.recorded[2][0].batches[1]
    params = {name: value.clone().requires_grad_() for name, value in trainer.params.items()}
    task = apply.loss(params, Batch(x, y))
    ours = FEDGEN.loss(apply, params, Batch(x, y), task, context(trainer, 1, server, draws))
    key = draws["key"]
    sampled = uniform(key, 1, (6, 3)), (uniform(key, 1, (6,), 1) * NUM_CLASSES).long()
    model = copy.deepcopy(module.model)
    model.load_state_dict({name.removeprefix("model."): value for name, value in trainer.params.items()})
    generator = fedgen.Generator(server["generator"])
    taught, alike = fedgen.client_loss(model, generator, (x, y), sampled, uniform(key, 1, (len(y), 3), 2))
    theirs = 0.9**2 * (0.7 * taught + 1.3 * alike)
    torch.testing.assert_close(ours, theirs)
    slopes = torch.autograd.grad(ours, list(params.values()))
    for name, slope in zip(params, slopes, strict=True):
        (expected,) = torch.autograd.grad(theirs, model.get_parameter(name.removeprefix("model.")), retain_graph=True)
        torch.testing.assert_close(slope, expected)
    assert FEDGEN.loss(apply, params, Batch(x, y), task, context(trainer, 2, server, draws)) == 0


def test_fedgens_generator_learns_and_is_sent() -> None:
    trainer = train(FedGen(alpha=0.5, beta=0.5, noise_dim=4, hidden=16, server_steps=25, lr=0.02, batch_size=16), data=Clusters())
    losses = [row["fedgen/generator_loss"] for row in trainer.rows]
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.evaluate()["test/accuracy"] > 0.6
    # It makes features that the global model's own head recognises.
    generator, labels = trainer.servers["FedGen"]["generator"], torch.arange(NUM_CLASSES).repeat(20)
    features = features_of(generator, torch.rand(60, 4, dtype=torch.float64), labels)
    (head,) = heads_of([trainer.params])
    assert (head(features).argmax(1) == labels).double().mean() > 0.6
    size = sum(value.numel() * value.element_size() for value in generator.values())
    assert trainer.ledger.down["FedGen"] == 3 * 5 * size and trainer.ledger.up["FedGen"] == 3 * 5 * 8 * NUM_CLASSES
    with pytest.raises(ValueError, match="FedGen makes the features that a linear head reads, and finds none"):
        train(FEDGEN, module=classifier(network=BatchNormMLP))


# DENSE ------------------------------------------------------------------------------------------------------------------------------


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
    ours = synthesis_loss(teacher, student(x), labels, torch.stack(distances).sum(), 1.0, 1.0, 1.0)
    theirs = dense.synthesis_loss(models, student, x, labels)
    assert bool((teacher.argmax(1) != student(x).argmax(1)).any())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (ours, theirs)))
    assert not any(model[1]._forward_pre_hooks for model in models)


@pytest.mark.parametrize("network", [None, BatchNormMLP], ids=["mlp", "batchnorm"])
def test_denses_student_against_the_paper(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = [torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    made, calls = iter(pool), []
    monkeypatch.setattr(DENSE, "_synthesise", lambda *args: next(made))
    original = DENSE.server_step

    def spy(self: DENSE, *args: Any) -> Any:
        calls.append(args)
        return original(self, *args)

    monkeypatch.setattr(DENSE, "server_step", spy)
    method = DENSE(epochs=2, batch_size=10, temperature=3.0, lr=0.1, momentum=0.8)
    trainer = train(method, module=classifier(network=network), rounds=1, clients_per_round=3)
    ((_, params, delta, messages, cohort),) = calls
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
    expected = dense.distil(models, student, [pool[0], torch.cat(pool)], 3.0, 0.1, 0.8)
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


def test_dense_turns_one_round_of_unlike_clients_into_their_ensemble() -> None:
    """Each client lacks classes; the student must agree with the ensemble better than the mean it starts from."""
    setting: dict[str, Any] = {"rounds": 1, "clients_per_round": 6, "local_steps": 30, "executor": "vmap", "data": Clusters()}
    method = DENSE(epochs=8, generator_steps=10, batch_size=48, generator_lr=0.02, lr=0.1, temperature=4.0, latent=16, width=32)
    calls: list[Any] = []

    class Spy(DENSE):
        """Shows what the server received."""

        def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
            calls.append((params, messages, cohort))
            return super().server_step(server, params, delta, messages, cohort)

    trainer, mean = train(Spy(**vars(method)), **setting), train(**setting)
    ((params, messages, cohort),) = calls
    models = [{name: value + upload.delta[name] for name, value in params.items()} for upload in messages.individual]
    x = trainer.federation.test.inputs.double()
    wanted = torch.stack([cohort.apply.frozen(model, {})(x) for model in models]).mean(0).softmax(1)

    def apart(run: Trainer) -> float:
        return float(F.kl_div(cohort.apply.frozen(run.params, {})(x).log_softmax(1), wanted, reduction="batchmean"))

    assert apart(trainer) < 0.8 * apart(mean)
    assert trainer.evaluate()["test/accuracy"] >= mean.evaluate()["test/accuracy"] > 0.4
    assert trainer.ledger.up["Spy"] == 6 * 8


def test_random_views_move_and_mirror() -> None:
    rng, images = torch.Generator().manual_seed(0), torch.arange(2 * 200 * 9.0).view(200, 2, 3, 3) + 1
    still = random_view(images, 0, False, rng)
    assert torch.equal(still, images)
    mirrored = random_view(images, 0, True, rng)
    flips = [torch.equal(view, image.flip(2)) for view, image in zip(mirrored, images, strict=True)]
    assert all(torch.equal(v, i.flip(2) if f else i) for v, i, f in zip(mirrored, images, flips, strict=True))
    assert 70 < sum(flips) < 130
    moved = random_view(images, 1, False, rng)
    seen = set()
    for view, image in zip(moved, images, strict=True):
        padded = F.pad(image, [1] * 4)
        (at,) = [(r, c) for r in range(3) for c in range(3) if torch.equal(view, padded[:, r : r + 3, c : c + 3])]
        seen.add(at)
    assert len(seen) == 9
    rows = torch.randn(3, 4)
    assert random_view(rows, 4, True, rng) is rows


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8), (3, 32, 32), (1, 30, 27)])
def test_generated_inputs_have_the_right_shape_and_scale(shape: tuple[int, ...]) -> None:
    network = input_generator(shape, 5, 4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        inputs = network(torch.randn(12, 5))
    assert inputs.shape == (12, *shape)
    torch.testing.assert_close(inputs.transpose(0, 1).flatten(1).mean(1), torch.zeros(shape[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.transpose(0, 1).flatten(1).std(1), torch.ones(shape[0]), atol=0.15, rtol=0)


# FedDM ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_feddm_without_perturbation_against_the_paper(executor: str) -> None:
    server = {"lr": 0.1, "momentum": 0.8, "weight_decay": 1e-2}
    method = FedDM(
        images_per_class=2, image_lr=0.5, image_momentum=0.6, rho=0.0, server_epochs=4,
        server_lr=0.1, server_momentum=0.8, server_weight_decay=1e-2,
    )  # fmt: skip
    setting: dict[str, Any] = {"data": ODD_BATCHES(), "executor": executor} | RAGGED
    trainer = train(method, module=classifier(MOMENTUM), **setting)
    starts = []
    for works in trainer.works:
        starts.append([])
        for work in works:
            images, present = work.draws[0]["images"], work.draws[0]["present"]
            assert torch.equal(present > 0, trainer.federation.label_counts(work.client) > 0)
            own = trainer.federation.train.inputs[trainer.federation.partition.client(work.client)].double()
            labels = trainer.federation.train.targets[trainer.federation.partition.client(work.client)]
            for label in present.nonzero().flatten().tolist():
                of_class = own[labels == label]
                matches = (images[label][:, None] == of_class).all(2)
                assert matches.any(1).all() and (len(of_class) < 2 or matches.any(0).sum() == 2)
            starts[-1].append({label: images[label] for label in present.nonzero().flatten().tolist()})
    problem = problem_of(trainer, classifier(MOMENTUM), MOMENTUM)
    state = feddm.run(problem, starts, 0.5, 0.6, server | {"epochs": 4})
    assert_close(trainer.state, state, 1e-9)


def test_feddm_matches_sends_images_and_learns() -> None:
    method = FedDM(images_per_class=3, image_lr=0.03, rho=1.0, server_epochs=30, server_lr=0.1)
    runs = {steps: train(method, rounds=1, local_steps=steps, executor="vmap", data=TinyData(batch_size=16)) for steps in (1, 60)}
    first, last = (runs[steps].rows[0]["feddm/matching_loss"] for steps in (1, 60))
    assert last < 0.7 * first
    trainer = train(method, data=Clusters(), executor="vmap")
    assert trainer.evaluate()["test/accuracy"] > 0.6
    images = 8 * NUM_CLASSES * 3 * 6
    # Images, one flag a class and the loss; no weights.
    assert trainer.ledger.up == {"model": 0, "FedDM": 3 * 5 * (images + 8 * NUM_CLASSES + 8)}
    assert not trainer.states.slots or not any(trainer.states.slots.values())


def test_perturbation_is_gaussian_of_the_norm_asked_for() -> None:
    params = {"a": torch.zeros(40, 50), "b": torch.ones(30)}
    key = torch.tensor(7)
    moved = perturb(params, key, 3, rho=5.0)
    noise = torch.cat([(moved[name] - value).flatten() for name, value in params.items()])
    assert float(noise.norm()) == pytest.approx(5.0, rel=1e-5)
    assert moved["a"].shape == (40, 50)
    small = {"a": torch.zeros(3)}
    assert float(perturb(small, key, 3, rho=1e9)["a"].norm()) < 10
    assert perturb(params, key, 3, rho=0.0) is params
    assert not torch.equal(perturb(params, key, 4, rho=5.0)["a"], moved["a"])
    means, counts = class_means(torch.eye(3), torch.tensor([2, 0, 2]), 3, torch.tensor([1.0, 1.0, 0.0]))
    assert torch.equal(means, torch.tensor([[0.0, 1, 0], [0, 0, 0], [1, 0, 0]])) and counts.tolist() == [1, 0, 1]


def test_noise_is_what_it_claims_to_be() -> None:
    torch.set_default_dtype(torch.float64)
    key = torch.tensor(123)
    sample = uniform(key, 0, (200, 500))
    assert sample.min() >= 0 and sample.max() < 1
    assert abs(float(sample.mean()) - 0.5) < 4 / 12**0.5 / 1e5**0.5 and abs(float(sample.var()) * 12 - 1) < 0.02
    histogram = torch.histc(sample, 100, 0, 1)
    assert float(((histogram - 1000).square() / 1000).sum()) < 99 + 5 * (2 * 99) ** 0.5
    gauss = normal(key, 0, (100_000,))
    moments = [float(gauss.pow(p).mean()) for p in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.1)
    others = [uniform(key + 1, 0, (100_000,)), uniform(key, 1, (100_000,)), uniform(key, 0, (100_000,), 1)]
    for other in [*others, sample.flatten().roll(1)]:
        assert abs(float(torch.corrcoef(torch.stack([sample.flatten(), other]))[0, 1])) < 0.015
    batched = torch.func.vmap(lambda key, step: uniform(key, step, (4,)))(torch.tensor([1, 2]), torch.tensor([3, 4]))
    assert torch.equal(batched, torch.stack([uniform(torch.tensor(1), 3, (4,)), uniform(torch.tensor(2), 4, (4,))]))
