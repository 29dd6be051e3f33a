"""The family of personalised methods against their papers, under every placement: the global model and the clients' own."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from contracts.case import Case
from harness import (
    MOMENTUM,
    NUM_CLASSES,
    ODD_BATCHES,
    RAGGED,
    SGD,
    BatchNormFeatures,
    RecordingTrainer,
    TinyData,
    assert_close,
    classifier,
    distance,
    problem_of,
    states_by_client,
    train,
)
from reference import personal
from reference.common import State
from torch import Tensor, nn

import flcog
from flcog import ClientView, Context, Params, Personal, Slot
from flcog.callbacks import (
    APFL,
    IFCA,
    MOON,
    VHL,
    FedALA,
    FedAMP,
    FedDBE,
    FedFomo,
    FedGen,
    FedPAC,
    FedPHP,
    FedProto,
    FedRoD,
    PerFedAvg,
    PFedMe,
)
from flcog.method import Personalisation

pytestmark = pytest.mark.filterwarnings("error")

EXECUTORS = {"loop": {"executor": "loop", "chunk_size": 1}, "threads": {"chunk_size": 2}, "vmap": {"executor": "vmap"}}
everywhere = pytest.mark.parametrize(
    "options", [pytest.param(each, marks=[pytest.mark.slow] * (name == "threads"), id=name) for name, each in EXECUTORS.items()]
)
LR = 0.1


def of_global(solve: Any, **options: Any) -> Any:
    return lambda problem: solve(problem, **options)[0]


RAGGED_DATA: dict[str, Any] = {"data": ODD_BATCHES, "options": RAGGED}
CASES: dict[str, Case] = {
    "APFL": Case(APFL(0.4), of_global(personal.apfl, alpha=0.4), like_fedavg=True, **RAGGED_DATA),
    "APFL-adaptive": Case(APFL(0.4, adaptive=True), of_global(personal.apfl, alpha=0.4), like_fedavg=True, **RAGGED_DATA),
    "pFedMe": Case(
        PFedMe(lambda_prox=2.0, steps=3, lr=0.05, beta=1.5),
        of_global(personal.pfedme, strength=2.0, steps=3, lr=0.05, beta=1.5),
        **RAGGED_DATA,
    ),
    "Per-FedAvg": Case(
        PerFedAvg(alpha=0.2),
        partial(personal.per_fedavg, alpha=0.2),
        optimizer=MOMENTUM,
        random=True,  # the parts of a batch depend on its order
        **RAGGED_DATA,
    ),
    "Per-FedAvg-HF": Case(
        PerFedAvg(alpha=0.2, form="hessian_free", delta=0.01),
        partial(personal.per_fedavg, alpha=0.2, delta=0.01),
        random=True,
        **RAGGED_DATA,
    ),
    "FedALA": Case(FedALA(steps=3, batch_size=4), None, no_reference="it draws samples, which the test records", random=True),
    "IFCA": Case(IFCA(samples=20), None, no_reference="it draws samples, which the test records", random=True),
    "FedRoD": Case(FedRoD(), of_global(personal.fedrod, num_classes=NUM_CLASSES), optimizer=MOMENTUM, **RAGGED_DATA),
    "FedDBE": Case(FedDBE(kappa=2.0, momentum=0.3), of_global(personal.feddbe, kappa=2.0, momentum=0.3), **RAGGED_DATA),
    "FedAMP": Case(FedAMP(0.5, 0.3, 2.0), of_global(personal.fedamp, strength=0.5, alpha=0.3, sigma=2.0), **RAGGED_DATA),
    "FedAMP-cosine": Case(
        FedAMP(0.5, 0.3, 2.0, own_weight=0.6),
        of_global(personal.fedamp, strength=0.5, alpha=0.3, sigma=2.0, own_weight=0.6),
        **RAGGED_DATA,
    ),
    "FedFomo": Case(
        FedFomo(models=2, samples=20),
        None,
        data=partial(TinyData, client_val=0.3),
        no_reference="it draws samples, which the test records",
        random=True,
    ),
    "FedPAC": Case(FedPAC(0.5, 0.6), None, no_reference="its statistics need all samples, which the test gives", **RAGGED_DATA),
    "FedPHP": Case(
        FedPHP(0.3, 0.8, rounds=2),
        of_global(personal.fedphp, strength=0.3, inheritance=0.8, expected=2),
        optimizer=MOMENTUM,
        **RAGGED_DATA,
    ),
    "FedProto": Case(
        FedProto(strength=0.5), None, no_reference="its global model does not train; the test compares the clients'"
    ),
}


@everywhere
@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive: bool, options: dict[str, Any]) -> None:
    trainer = train(APFL(0.4, adaptive=adaptive), data=ODD_BATCHES(), **options, **RAGGED)
    _, own = personal.apfl(problem_of(trainer, classifier(), SGD), 0.4, adaptive)
    compare(states_by_client(trainer, "APFL", "mixed"), own)
    shares = {float(kept["APFL"]["alpha"]) for kept in trainer.run.clients.by_client.values()}
    assert (len(shares) > 1) == adaptive


@everywhere
def test_pfedme(options: dict[str, Any]) -> None:
    trainer = train(PFedMe(lambda_prox=2.0, steps=3, lr=0.05, beta=1.5), data=ODD_BATCHES(), **options, **RAGGED)
    _, own = personal.pfedme(problem_of(trainer, classifier(), SGD), 2.0, 3, 0.05, 1.5)
    compare(states_by_client(trainer, "PFedMe", "personal"), own)


@dataclass(frozen=True)
class Recorded(FedALA):
    """Records the samples that it draws."""

    drawn: ClassVar[dict[int, list[list[tuple[Tensor, Tensor]]]]] = {}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        slot = super().draw(rng, client)
        pairs = zip(slot["inputs"].double().split(self.batch_size), slot["targets"].split(self.batch_size), strict=True)
        self.drawn[client.id].append(list(pairs))
        return slot


@everywhere
@pytest.mark.parametrize("parts", ["head", ""])
def test_fedala(parts: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "drawn", defaultdict(list))
    trainer = train(Recorded(parts, steps=3, batch_size=4), rounds=4, **options)
    upper = lambda name: parts in name  # noqa: E731
    state, own = personal.fedala(problem_of(trainer, classifier(), SGD), upper, 1.0, Recorded.drawn)
    assert_close(trainer.state, state)
    compare(states_by_client(trainer, "Recorded", "params"), own)
    weights = [kept["Recorded"]["weights"]["model.head.weight"] for kept in trainer.run.clients.by_client.values()]
    assert any(float(weight.min()) < 1 for weight in weights)


@dataclass(frozen=True)
class RecordedIFCA(IFCA):
    """Records the samples that it draws, and its first models."""

    drawn: ClassVar[dict[int, list[tuple[Tensor, Tensor]]]] = {}
    first: ClassVar[list[Params]] = []

    def init_server(self, params: Params) -> Slot:
        models = super().init_server(params)
        self.first[:] = [{n: v[k].double() for n, v in models.items()} for k in range(self.clusters)]
        return models

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        slot = super().draw(rng, client)
        self.drawn[client.id].append((slot["inputs"].double(), slot["targets"]))
        return slot


@everywhere
def test_ifca(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordedIFCA, "drawn", defaultdict(list))
    trainer = train(RecordedIFCA(clusters=3, samples=20), rounds=4, **options)
    plain = [{n.removeprefix("model."): v for n, v in model.items()} for model in RecordedIFCA.first]
    models, clusters = personal.ifca(problem_of(trainer, classifier(), SGD), plain, RecordedIFCA.drawn)
    found = trainer.run.server.servers["RecordedIFCA"]
    for k, expected in enumerate(models):
        assert_close({n.removeprefix("model."): v[k] for n, v in found.items()}, expected)
    assert {k: int(s["RecordedIFCA"]["cluster"].argmax()) for k, s in trainer.run.clients.by_client.items()} == clusters
    assert len(set(clusters.values())) > 1


@everywhere
@pytest.mark.parametrize("own_weight", [None, 0.6])
def test_fedamp(own_weight: float | None, options: dict[str, Any]) -> None:
    trainer = train(FedAMP(0.5, 0.3, 2.0, own_weight), data=ODD_BATCHES(), rounds=4, **options, **RAGGED)
    state, own = personal.fedamp(problem_of(trainer, classifier(), SGD), 0.5, 0.3, 2.0, own_weight)
    assert_close(trainer.state, state)
    compare(states_by_client(trainer, "FedAMP", "params"), own)
    model, downloads = sum(value.nbytes for value in trainer.params.values()), sum(map(len, trainer.recorded))
    assert trainer.ledger.down == {"model": downloads * model, "FedAMP": downloads * model}


@dataclass(frozen=True)
class RecordedFomo(FedFomo):
    """Records the samples that it draws, and whose models it sends."""

    drawn: ClassVar[dict[int, list[tuple[Tensor, Tensor]]]] = defaultdict(list)
    sent: ClassVar[dict[int, list[list[int]]]] = defaultdict(list)

    def send_to(self, server: Slot, params: Params, client: int, rng: torch.Generator) -> Any:
        sent = super().send_to(server, params, client, rng)
        places = [place for place in sent["places"].tolist() if place >= 0]
        self.sent[client].append(places)
        assert client not in places and all(server["is_known"][place] for place in places)
        if self.exploration == 0 and places:
            affinities = [
                float(server["affinities"][client][other]) for other in range(len(server["is_known"])) if other != client
            ]
            assert sorted(float(server["affinities"][client][k]) for k in places)[-1] == max(affinities)
        return sent

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        slot = super().draw(rng, client)
        self.drawn[client.id].append((slot["inputs"].double(), slot["targets"]))
        return slot


@everywhere
@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_fedfomo(exploration: float, options: dict[str, Any]) -> None:
    RecordedFomo.drawn.clear()
    RecordedFomo.sent.clear()
    trainer = train(RecordedFomo(2, exploration, samples=20), data=TinyData(client_val=0.3), rounds=5, **options)
    state, own, affinities = personal.fedfomo(problem_of(trainer, classifier(), SGD), RecordedFomo.drawn, RecordedFomo.sent)
    assert_close(trainer.state, state)
    compare(states_by_client(trainer, "RecordedFomo", "params"), own)
    torch.testing.assert_close(
        trainer.run.server.servers["RecordedFomo"]["affinities"].double(), affinities, rtol=1e-6, atol=1e-7
    )
    assert (affinities > 0).any()


@everywhere
def test_fedrod_and_feddbe_keep_their_part(options: dict[str, Any]) -> None:
    for method, solve in (
        (FedRoD(), partial(personal.fedrod, num_classes=NUM_CLASSES)),
        (FedDBE(kappa=2.0, momentum=0.3), partial(personal.feddbe, kappa=2.0, momentum=0.3)),
    ):
        trainer = train(method, data=ODD_BATCHES(), **options, **RAGGED)
        state, own = solve(problem_of(trainer, classifier(), SGD))
        assert_close(trainer.state, state)
        compare(states_by_client(trainer, method.name, "own"), own)


@everywhere
def test_fedphp(options: dict[str, Any]) -> None:
    trainer = train(FedPHP(0.3, 0.8, rounds=2), data=ODD_BATCHES(), rounds=4, **options, **RAGGED)
    state, own = personal.fedphp(problem_of(trainer, classifier(), SGD), strength=0.3, inheritance=0.8, expected=2)
    assert_close(trainer.state, state)
    compare(states_by_client(trainer, "FedPHP", "inherited"), own)


def samples_of(trainer: RecordingTrainer) -> dict[int, tuple[Tensor, Tensor]]:
    federation = trainer.run.federation
    parts = {k: federation.partition.client(k) for k in range(federation.num_clients)}
    return {k: (federation.train.inputs[rows].double(), federation.train.targets[rows]) for k, rows in parts.items()}


@everywhere
def test_fedpac(options: dict[str, Any]) -> None:
    trainer = train(FedPAC(0.5, 0.6), data=ODD_BATCHES(), rounds=4, **options, **RAGGED)
    state, own, heads = personal.fedpac(problem_of(trainer, classifier(), SGD), 0.5, 0.6, samples_of(trainer), NUM_CLASSES)
    assert_close(trainer.state, state)
    compare(states_by_client(trainer, "FedPAC", "params"), own)
    for client, head in heads.items():
        found = trainer.run.server.servers["FedPAC"]["heads"]
        assert_close({name.removeprefix("model.head."): value[client] for name, value in found.items()}, head, 1e-7)


@everywhere
def test_fedproto(options: dict[str, Any]) -> None:
    trainer = train(FedProto(strength=0.5), data=ODD_BATCHES(), **options, **RAGGED)
    expected = personal.fedproto(problem_of(trainer, classifier(), SGD), 0.5, samples_of(trainer), NUM_CLASSES)
    compare(states_by_client(trainer, "FedProto", "params"), expected)
    assert distance(trainer.state, {name: value.double() for name, value in classifier().model.state_dict().items()}) == 0
    took_part = sum(map(len, trainer.recorded))
    assert trainer.ledger.total_up == took_part * NUM_CLASSES * (classifier().model.num_features + 1) * 8


def compare(found: dict[int, Params], expected: dict[int, State]) -> None:
    assert found.keys() == expected.keys()
    for client, params in found.items():
        assert_close(params, expected[client])


def test_a_personal_step_has_the_rate_that_its_method_gives() -> None:
    @dataclass(frozen=True)
    class OneStep(Personalisation):
        rate: float | None = None

        def personal(self, params: Params, ctx: Context) -> Personal:
            return Personal(params, steps=1, lr=self.rate)

    def moved(rate: float | None) -> Params:
        trainer = train(OneStep(rate), rounds=1, data=TinyData(client_test=0.2))
        trainer.evaluate()
        params, _ = trainer.measured[0]
        return {name: value - trainer.params[name] for name, value in params.items()}

    own, same, double = moved(None), moved(0.1), moved(0.2)
    assert_close(own, same)
    assert_close(double, {name: 2 * value for name, value in same.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_batch_norm(name: str) -> None:
    """Further passes leave the statistics of the client's global model as they are, and all placements agree."""
    data = TinyData(order=(1, 2, 3, 4, 5), batch_size=8, drop_last=True)
    loop, vmap = (
        train(CASES[name].method, module=classifier(network=BatchNormFeatures), data=data, executor=executor)
        for executor in ("loop", "vmap")
    )
    assert vmap.executor.name == "vmap"
    assert_close(vmap.state, loop.state, 1e-7)  # the difference of two gradients is divided by a small number
    if CASES[name].like_fedavg:
        assert_close(loop.state, train(module=classifier(network=BatchNormFeatures), data=data, executor="loop").state, 0)


@pytest.mark.parametrize("method", [FedRoD, FedDBE, FedProto, FedGen, MOON, VHL])
def test_a_network_without_a_linear_head_is_refused(method: Any) -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, NUM_CLASSES))
    with pytest.raises(ValueError, match=f"{method.__name__} needs a network with a linear head, and"):
        train(method(), module=flcog.Classifier(network, optimizer=SGD))
