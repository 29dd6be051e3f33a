"""What the registry's tests do not see of MOON, FedDecorr, FedExP, FedDC, FedPVR and FedReg: their traps and closed forms."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import NUM_FEATURES, SGD, TinyData, assert_close, classifier, distance, fit, make_trainer, train
from torch import nn

import flcog
from flcog.apply import Apply, ModelFunction
from flcog.callbacks import SCAFFOLD
from flcog.callbacks.feddc import FedDC
from flcog.callbacks.feddecorr import FedDecorr, decorrelation
from flcog.callbacks.fedexp import FedExP
from flcog.callbacks.fedpvr import FedPVR
from flcog.callbacks.fedreg import FedReg, climb, reject
from flcog.callbacks.moon import MOON, Projected, contrast
from flcog.core.randomness import fold, seeded
from flcog.datamodules.quadratics import LeastSquares, Quadratics
from flcog.hooks import Batch, Callback, Context, Params
from flcog.models import MLP, SimpleCNN
from methods.cases_baselines_a import BatchNormFeatures

pytestmark = pytest.mark.filterwarnings("error")

BAD = {
    "MOON mu": (MOON, {"mu": -1.0}),
    "MOON temperature": (MOON, {"temperature": 0.0}),
    "MOON projection": (MOON, {"projection": 0}),
    "FedDecorr beta": (FedDecorr, {"beta": -0.1}),
    "FedExP epsilon": (FedExP, {"epsilon": 0.0}),
    "FedExP decay": (FedExP, {"decay": 1.1}),
    "FedExP form": (FedExP, {"form": "text"}),
    "FedDC alpha": (FedDC, {"alpha": -0.1}),
    "FedPVR layers": (FedPVR, {"layers": "(head"}),
    "FedReg gamma": (FedReg, {"gamma": 1.5}),
    "FedReg eta_s": (FedReg, {"eta_s": 0.0}),
    "FedReg eta_p": (FedReg, {"eta_p": -1.0}),
    "FedReg steps": (FedReg, {"steps": 0}),
    "FedReg start_round": (FedReg, {"start_round": -1}),
}


@pytest.mark.parametrize(("method", "arguments"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_name_the_method_the_argument_and_what_was_given(method: Any, arguments: dict[str, Any]) -> None:
    (name, value), *_ = arguments.items()
    with pytest.raises(ValueError, match=rf"{method.__name__}: .*{name}.*{re.escape(str(value))}"):
        method(**arguments)


# MOON -------------------------------------------------------------------------------------------------------------------------------


def test_moon_without_a_previous_model_is_fedavg_to_the_bit() -> None:
    options: dict[str, Any] = {"rounds": 1, "clients_per_round": 1.0}
    plain, moon = train(**options), train(MOON(mu=5.0, projection=None), **options)
    assert all(torch.equal(moon.state[name], value) for name, value in plain.state.items())
    options["rounds"] = 2
    assert distance(train(MOON(mu=5.0, projection=None), **options).state, train(**options).state) > 1e-4


def test_moon_adds_exactly_nothing_before_it_has_a_previous_model() -> None:
    method, model = MOON(mu=3.0), ModelFunction(classifier(network=BatchNormFeatures))
    batch = Batch(torch.randn(4, NUM_FEATURES), torch.zeros(4, dtype=torch.long))

    def loss(client: Any) -> float:
        ctx = Context(**dict.fromkeys(Context._fields))._replace(
            global_params=model.params, global_buffers=model.buffers, client=client
        )
        return method.loss(Apply(model, model.buffers), model.params, batch, torch.zeros(()), ctx).item()

    new = method.init_client(model.params, model.buffers)
    assert loss(new) == 0
    assert loss(new | {"has_previous": torch.ones(())}) > 1


def test_moon_keeps_each_clients_own_last_model_with_its_buffers() -> None:
    trainer = train(MOON(projection=None), module=classifier(network=BatchNormFeatures), rounds=2, clients_per_round=1.0)
    kept = [trainer.states.slots[client]["MOON"] for client in range(8)]
    assert kept[0]["buffers"].keys() == trainer.buffers.keys()
    weights = torch.tensor([client.num_samples for client in trainer.recorded[-1]], dtype=torch.float64)
    for part, server in (("params", trainer.params), ("buffers", trainer.buffers)):
        for name, value in server.items():
            if value.is_floating_point():
                stacked = torch.stack([slot[part][name] for slot in kept])
                torch.testing.assert_close(torch.tensordot(weights / weights.sum(), stacked, 1), value)
                assert stacked.std(0).max() > 1e-3


def test_moon_with_buffers_and_newcomers_under_vmap() -> None:
    loop, vmap = (
        train(MOON(mu=2.0, projection=None), module=classifier(network=BatchNormFeatures), executor=executor)
        for executor in ("loop", "vmap")
    )
    assert_close(vmap.state, loop.state, 1e-11)


def test_layers_that_a_method_adds_follow_the_runs_seed() -> None:
    def projection(seed: int, elsewhere: int) -> Any:
        torch.manual_seed(elsewhere)
        trainer = make_trainer(None, MOON(), seed=seed)
        trainer.prepare(module, TinyData())
        return trainer.params["model.projection.0.weight"]

    module = classifier()
    assert torch.equal(projection(1, elsewhere=0), projection(1, elsewhere=1))
    assert not torch.equal(projection(1, elsewhere=0), projection(2, elsewhere=0))


def test_moon_projects_as_in_its_paper() -> None:
    module = flcog.Classifier(SimpleCNN(3, 10))
    projected = MOON().configure_model(module)
    assert sum(p.numel() for p in projected.parameters()) == 92_626
    assert isinstance(module.model, SimpleCNN) and sum(p.numel() for p in module.parameters()) == 62_006
    assert projected.has_features and projected.model.num_features == 256
    x = torch.randn(2, 3, 32, 32)
    first, second = projected.model.projection[0], projected.model.projection[2]
    before = module.features(x)
    expected = F.linear(F.relu(F.linear(before, first.weight, first.bias)), second.weight, second.bias)
    torch.testing.assert_close(projected.features(x), expected)
    torch.testing.assert_close(projected(x), projected.model.head(expected))
    assert MOON(projection=None).configure_model(module) is module
    with pytest.raises(ValueError, match="MLP has none: set projection=None"):
        network = MLP(4, (3,), 2)
        network.head = nn.Sequential(nn.Linear(3, 2))
        Projected(network, 8)


def test_moon_trains_the_projected_model() -> None:
    method = MOON(mu=2.0, projection=5)
    loop, vmap = (train(method, executor=executor) for executor in ("loop", "vmap"))
    assert loop.state["head.weight"].shape == (3, 5)
    assert_close(vmap.state, loop.state, 1e-11)
    module = classifier()
    with seeded(fold(0, "configure_model", "MOON"), torch.device("cpu")):
        projected = method.configure_model(module)
    features_only = train(MOON(mu=2.0, projection=None), module=projected)
    assert_close(loop.state, features_only.state, 1e-12)
    assert distance(loop.state, train(MOON(mu=0.0, projection=5)).state) > 1e-5


def test_contrast_is_cross_entropy_and_divides_by_the_temperature() -> None:
    z, near, far = torch.randn(3, 5, 4, dtype=torch.float64)
    logits = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1)
    for temperature in (0.05, 0.5):
        expected = F.cross_entropy(logits / temperature, torch.zeros(5, dtype=torch.long), reduction="none")
        torch.testing.assert_close(contrast(z, near, far, temperature), expected)


# FedDecorr --------------------------------------------------------------------------------------------------------------------------


def test_decorrelation_is_the_scaled_mean_squared_correlation() -> None:
    rows, width = 7, 4
    features = torch.randn(rows, width, dtype=torch.float64) @ torch.randn(width, width, dtype=torch.float64)
    off_diagonal = torch.corrcoef(features.T)[~torch.eye(width, dtype=torch.bool)]
    expected = (rows - 1) ** 2 / rows * off_diagonal.square().mean()
    torch.testing.assert_close(decorrelation(features), expected, rtol=1e-6, atol=0)
    padded = torch.cat([features, 100 * torch.randn(3, width, dtype=torch.float64)])
    mask = torch.tensor([1.0] * rows + [0.0] * 3)
    torch.testing.assert_close(decorrelation(padded, mask), decorrelation(features))


@pytest.mark.parametrize(
    "mask", [None, torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3)], ids=["one row", "one that counts", "none"]
)
def test_decorrelation_of_a_single_row_is_zero_and_so_is_its_gradient(mask: torch.Tensor | None) -> None:
    features = torch.randn(1 if mask is None else 3, 4, requires_grad=True)
    loss = decorrelation(features, mask)
    (gradient,) = torch.autograd.grad(loss, features)
    assert loss == 0 and not gradient.any()


# FedExP -----------------------------------------------------------------------------------------------------------------------------


class Iterates(Callback):
    """The server's model after each round."""

    def __init__(self) -> None:
        self.params: list[Params] = []

    def on_fit_start(self, trainer: Any) -> None:
        self.params.append(trainer.params)

    def on_round_end(self, trainer: Any, round: int, metrics: dict[str, float]) -> None:
        self.params.append(trainer.params)


def test_fedexp_is_evaluated_at_the_mean_of_the_last_two_iterates(tmp_path: Path) -> None:
    seen = Iterates()
    trainer = fit(tmp_path, FedExP(epsilon=1e-4), seen, eval_every=1)
    test = trainer.federation.test
    for row, before, after in zip(trainer.rows, seen.params, seen.params[1:], strict=False):
        mean = {name: (before[name] + after[name]) / 2 for name in after}
        outputs = trainer.model.frozen(mean, {}, lambda module, x: module(x), test.inputs.double())
        assert row["test/loss"] == pytest.approx(float(F.cross_entropy(outputs, test.targets)), rel=1e-6)


def test_fedexp_step_size_by_hand() -> None:
    # Two clients with optima b and curvatures 1 and 4 start at 0 and take one full-batch step: D_k = lr * curvature_k * optimum_k.
    data = Quadratics(num_clients=2, zeta=5.0, dimension=3, batch_size=100, seed=5)
    module = LeastSquares(nn.Linear(1, 3, bias=False), partial(torch.optim.SGD, lr=0.1))
    nn.init.zeros_(module.model.weight)
    method = FedExP(epsilon=1e-3, decay=0.5)
    trainer = train(method, module=module, data=data, rounds=2, clients_per_round=2, local_steps=1)
    x = torch.zeros(3, dtype=torch.float64)
    for row, epsilon in zip(trainer.rows, (1e-3, 5e-4), strict=True):
        updates = 0.1 * data.curvatures[:, None] * (data.client_optima - x)
        mean = updates.mean(0)
        eta = max(1.0, float(updates.square().sum(1).mean() / (2 * (mean.square().sum() + 2 * epsilon))))
        assert row["fedexp/eta"] == pytest.approx(eta, rel=1e-6)
        x = x + eta * mean
    assert trainer.rows[0]["fedexp/eta"] > 1
    torch.testing.assert_close(trainer.params["model.weight"].squeeze(1), x)


# FedDC ------------------------------------------------------------------------------------------------------------------------------


def test_feddc_reaches_the_optimum_that_fedavg_misses() -> None:
    def error(*methods: Callback) -> float:
        data = Quadratics(num_clients=3, zeta=5.0, dimension=2, samples_per_client=4, batch_size=4)
        module = LeastSquares(nn.Linear(1, 2, bias=False), partial(torch.optim.SGD, lr=0.08))
        options: dict[str, Any] = {"rounds": 12, "clients_per_round": 3, "local_steps": 5, "executor": "vmap"}
        trainer = train(*methods, module=module, data=data, **options)
        return float((trainer.params["model.weight"].squeeze(1) - data.optimum).norm())

    assert error() > 0.1
    assert error(FedDC(alpha=0.1)) < 0.005


def test_feddc_server_keeps_the_mean_of_all_clients_drifts(tmp_path: Path) -> None:
    trainer = fit(tmp_path, FedDC(alpha=0.2), eval_every=1)
    slots = [trainer.states.slots.get(client, {}).get("FedDC") for client in range(8)]
    assert None in slots, "some client should not have taken part"
    for state in ("h", "g"):
        total = {name: torch.zeros_like(value) for name, value in trainer.params.items()}
        for slot in slots:
            total = {name: value + (0 if slot is None else slot[state][name]) for name, value in total.items()}
        assert_close({name: value / 8 for name, value in total.items()}, trainer.servers["FedDC"][state], 1e-12)
    mean = {name: value - trainer.servers["FedDC"]["h"][name] for name, value in trainer.params.items()}
    losses = [
        float(fit(tmp_path, FedDC(alpha=0.2, evaluate_mean=of), eval_every=3).history[-1]["test/loss"]) for of in (True, False)
    ]
    for params, loss in zip((mean, trainer.params), losses, strict=True):
        test = trainer.federation.test
        outputs = trainer.model.frozen(params, {}, lambda module, x: module(x), test.inputs.double())
        assert loss == pytest.approx(float(F.cross_entropy(outputs, test.targets)), rel=1e-6)


def test_feddc_sends_two_models_up_and_two_down() -> None:
    trainer = train(FedDC(), rounds=1)
    # The delta is both the model and the drift, and crosses once; the server's h stays at home.
    assert (
        trainer.ledger.up["FedDC"] == trainer.ledger.down["FedDC"] == trainer.ledger.up["model"] == trainer.ledger.down["model"]
    )


# FedPVR -----------------------------------------------------------------------------------------------------------------------------


def test_fedpvr_on_every_layer_is_scaffold() -> None:
    assert_close(train(FedPVR(layers="")).state, train(SCAFFOLD()).state, 1e-12)
    assert distance(train(FedPVR()).state, train(SCAFFOLD()).state) > 1e-5


def test_only_the_chosen_control_variates_cross_the_wire() -> None:
    trainer = train(FedPVR(), rounds=1)
    head = 5 * 8 * sum(trainer.params[name].numel() for name in ("model.head.weight", "model.head.bias"))
    assert trainer.ledger.up["FedPVR"] == trainer.ledger.down["FedPVR"] == head


def test_fedpvr_without_such_layers_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"layers='fc\[0-9\]'.*model\.hidden\.0\.weight"):
        train(FedPVR(layers="fc[0-9]"))


# FedReg -----------------------------------------------------------------------------------------------------------------------------


def test_fedreg_climbs_from_a_copy_of_the_batch_and_stays_in_its_range() -> None:
    model = ModelFunction(classifier(network=BatchNormFeatures).double())
    inputs, targets = torch.randn(6, NUM_FEATURES, dtype=torch.float64), torch.randint(3, (6,))
    inputs[4:] *= 5
    batch = Batch(inputs.clone(), targets, torch.tensor([1.0, 1, 1, 1, 0, 0]))
    frozen = Apply(model, model.buffers).frozen(model.params, model.buffers)
    moved, less = climb(frozen, batch, etas=(0.3, 0.1), steps=4)
    assert torch.equal(batch.inputs, inputs)
    real, made = inputs[:4], moved.inputs[:4]
    assert (made - real).abs().max() > 0.5
    assert made.min() >= real.min() and made.max() <= real.max()
    for eta, climbed in ((0.3, moved), (0.1, less)):
        (alone,) = climb(frozen, Batch(real, targets[:4]), etas=(eta,), steps=4)
        torch.testing.assert_close(climbed.inputs[:4], alone.inputs)
    losses = [frozen.loss(Batch(x, targets[:4])) for x in (real, made)]
    assert losses[1] > losses[0]


def test_reject_removes_what_is_along_and_keeps_what_is_against() -> None:
    d, g = ({"a": torch.randn(3), "b": torch.randn(2, 2)} for _ in range(2))
    inner = sum((d[name] * g[name]).sum() for name in d)
    along = d if inner > 0 else {name: -value for name, value in d.items()}
    against = {name: -value for name, value in along.items()}
    assert sum((reject(along, g)[name] * g[name]).sum() for name in g) == pytest.approx(0, abs=1e-5)
    assert distance(reject(against, g), against) == 0
    assert distance(reject(along, {name: torch.zeros_like(value) for name, value in g.items()}), along) == 0


def test_fedreg_leaves_batchnorm_to_the_real_batches() -> None:
    method = FedReg(gamma=0.7, eta_s=0.2, eta_p=0.02, steps=2)
    loop, vmap, plain = (
        train(*methods, module=classifier(network=BatchNormFeatures), executor=executor, rounds=2)
        for methods, executor in (([method], "loop"), ([method], "vmap"), ([], "loop"))
    )
    assert_close(vmap.state, loop.state, 1e-11)
    steps = "body.1.num_batches_tracked"
    assert loop.state[steps] == plain.state[steps] == 8


@pytest.mark.parametrize("targets", ["regression", "multilabel"])
def test_fedreg_is_for_single_labels(targets: Any) -> None:
    kind = flcog.Regressor if targets == "regression" else flcog.MultiLabelClassifier
    module = kind(MLP(NUM_FEATURES, (8,), 1 if targets == "regression" else 3), optimizer=SGD)
    with pytest.raises(ValueError, match=f"FedReg is defined for classification, not for {targets} data"):
        train(FedReg(), module=module, data=TinyData(targets=targets))


def test_fedreg_cannot_move_tokens() -> None:
    tokens: Any = Batch(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"FedReg moves inputs along gradients, which torch\.int64 inputs have not: remove it"):
        FedReg().after_step(None, {}, tokens, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", ["regression", "multilabel"])
def test_the_others_run_on_any_labels(targets: Any) -> None:
    kind, outputs = (flcog.Regressor, 1) if targets == "regression" else (flcog.MultiLabelClassifier, 3)
    methods = [MOON(projection=4), FedDecorr(), FedExP(), FedDC(), FedPVR()]
    loop, vmap = (
        train(
            *methods,
            module=torch.manual_seed(0) and kind(MLP(NUM_FEATURES, (8,), outputs), optimizer=partial(SGD, lr=0.01)),
            data=TinyData(targets=targets),
            executor=executor,
        )
        for executor in ("loop", "vmap")
    )
    assert_close(vmap.state, loop.state, 1e-10)
