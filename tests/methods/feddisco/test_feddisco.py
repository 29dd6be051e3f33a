"""FedDisco beyond its weights: the bound that they come from, and the observers of its appendix."""

import copy
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import pytest
import torch
from harness import ROOT, TinyData, classifier, fit, train
from scipy.optimize import minimize
from scipy.stats import chisquare, kstest

import flcog
from flcog.callbacks import ClassAccuracy, ClientFairness, FedDisco, FedDyn, FineTune, Stragglers
from flcog.callbacks.feddisco.bound import Bound, project_to_simplex
from flcog.callbacks.feddisco.feddisco import METRICS, discrepancy
from flcog.callbacks.feddisco.secure_sum import masked
from flcog.callbacks.observers.class_accuracy import frequency_groups
from flcog.commands.cli import main
from flcog.data import Federation, Partition, Samples
from flcog.datamodules import BiasedUnbiased, LongTail
from flcog.datamodules.partitioners import class_labels
from flcog.hooks import ClientView, Cohort
from flcog.models import MLP


def random_bound(seed: int, num_clients: int = 4, **options: Any) -> Bound:
    rng = np.random.default_rng(seed)
    return Bound(rng.dirichlet(np.full(num_clients, 3.0)), rng.uniform(0, 2, num_clients), **options)


# Labels that are few, or none --------------------------------------------------------------------------------------------------------


def regression(values: list[float], clients: list[list[int]] | None = None) -> Federation:
    samples = Samples(torch.arange(len(values)), torch.tensor(values, dtype=torch.float32))
    everybody = [list(range(len(values)))] if clients is None else clients
    return Federation(samples, Partition.from_clients([np.array(client) for client in everybody]), "regression", 10, lambda x: x)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 70 + list(range(1, 31)),
        [0.0] * 5 + [1.0] * 5,  # the median lies between, and no value below it but above 0
        [float(x) for x in range(20)] + [30.0] * 80,  # an edge at the largest value, above which there is none
        [2.0] * 12,
        [float(x) for x in range(57)],
    ],
)
def test_bins_of_a_tied_target_are_those_that_the_splits_see(values: list[float]) -> None:
    federation = regression(values)
    bins = np.bincount(class_labels(federation.train))
    assert federation.label_counts(0).tolist() == [*bins, *[0] * (10 - len(bins))]
    assert len(federation.bin_edges) + 1 == len(bins)


@pytest.mark.parametrize("metric", METRICS)
def test_uniform_means_over_the_bins_that_there_are(metric: Any) -> None:
    values = [0.0] * 70 + [float(x) for x in range(1, 31)]  # bins of 0, 1 to 10, 11 to 20, 21 to 30
    even, skewed = [0, 1, 70, 71, 80, 81, 90, 91], [0, 1, 2, 3]
    federation = regression(values, [even, skewed])
    reports = [FedDisco(metric=metric).report(ClientView(k, 8, 0, federation)) for k in range(2)]
    assert reports[0] == pytest.approx(0, abs=1e-7)
    assert reports[1] == pytest.approx({"kl": np.log(4), "l1": 1.5, "l2": 0.75**0.5, "cosine": 0.5}[metric])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("target", [[1, 1, 1], [6, 1, 3], [0.2, 0.3, 0.5]])
def test_no_label_is_as_bad_as_one(metric: str, target: list[float]) -> None:
    goal = torch.tensor(target)
    none = discrepancy(torch.zeros(3), goal, metric)
    assert none == pytest.approx(max(discrepancy(alone, goal, metric) for alone in torch.eye(3)))
    assert all(discrepancy(counts, goal, metric) <= none + 1e-12 for counts in torch.rand(50, 3).pow(4))
    if metric == "kl":
        assert none == pytest.approx(-np.log(min(target) / sum(target)))


def test_no_label_where_some_labels_do_not_occur() -> None:
    target = torch.tensor([3, 1, 0])  # KL to what nobody has would be infinite
    assert discrepancy(torch.zeros(3), target) == pytest.approx(np.log(4))
    assert discrepancy(torch.zeros(3), target, "cosine") == 1
    assert discrepancy(torch.zeros(3), torch.zeros(3)) == 0


@pytest.mark.parametrize("target", ["uniform", "global"])
def test_a_client_without_labels_does_not_count_most(target: Any) -> None:
    class Unlabelled(TinyData):
        """Client 0's samples carry no label."""

        def load(self) -> Any:
            splits = super().load()
            splits.train.targets[:6] = 0
            return splits

    module = flcog.MultiLabelClassifier(MLP(6, (8,), 3), optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = train(FedDisco(target=target), module=module, data=Unlabelled(targets="multilabel"), clients_per_round=8, rounds=1)
    reports = trainer._reports["FedDisco"]
    assert reports[0] == max(reports.values()) > min(reports.values())


# The bound --------------------------------------------------------------------------------------------------------------------------


def by_the_last_inequality_of_the_proof(bound: Bound, p: np.ndarray) -> float:
    """Eq. 46, averaged over rounds and solved for the squared gradient, term by term as it stands there."""
    tau, eta, L, sigma, B = bound.tau, bound.eta, bound.L, bound.sigma, bound.B
    num_clients, A = len(p), 2 * bound.tau * (bound.tau - 1) * bound.eta**2 * bound.L**2
    mismatch = 2 * num_clients * sum((bound.n[k] - p[k]) ** 2 for k in range(num_clients))
    right = (
        bound.gap / bound.T
        + L * tau * eta**2 * sigma**2 * sum(weight**2 for weight in p)
        + tau * eta * mismatch * B / (2 * num_clients) * sum(bound.d)
        + tau * (tau - 1) * sigma**2 * L**2 * eta**3 / (1 - A)
        + tau * eta * A * B / (1 - A) * sum(p[k] * bound.d[k] for k in range(num_clients))
    )
    left = tau * eta / 2 * (1 - mismatch - 2 * A / (1 - A))
    return right / left if left > 0 else np.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_what_the_proof_ends_with(seed: int) -> None:
    bound = random_bound(seed, tau=7, eta=0.03, L=1.5, sigma=0.7, B=3.0, gap=2.5, T=40)
    for p in np.random.default_rng(seed).dirichlet(np.full(4, 2.0), 5):
        assert bound.original(p) == pytest.approx(by_the_last_inequality_of_the_proof(bound, p), rel=1e-12)
        below = bound.denominator(p)
        assert bound.reformulated(p, 0.3) == pytest.approx(bound.numerator(p) - 0.3 * below, rel=1e-12)
        if below > 0:
            assert bound.numerator(p) == pytest.approx(by_the_last_inequality_of_the_proof(bound, p) * below, rel=1e-12)


def test_it_says_nothing_of_weights_too_far_from_the_shares() -> None:
    assert random_bound(0).original(np.eye(4)[0]) == np.inf


def test_it_bounds_fedavg_with_any_weights() -> None:
    """Quadratic losses, whose constants are known: L the largest curvature, B the least that assumption 4.4 allows on the way."""
    rng, tau, eta, T = np.random.default_rng(0), 5, 0.05, 30
    n, p, d = np.array([0.5, 0.3, 0.2]), np.array([0.46, 0.31, 0.23]), np.array([0.3, 0.5, 0.9])
    curvatures, optima = rng.uniform(0.5, 1.0, (3, 2)), rng.normal(size=(3, 2))

    def slopes(w: np.ndarray) -> np.ndarray:
        return curvatures * (w - optima)

    def loss(w: np.ndarray) -> float:
        return float(n @ (curvatures * (w - optima) ** 2).sum(1) / 2)

    best = (n[:, None] * curvatures * optima).sum(0) / (n[:, None] * curvatures).sum(0)
    start = w = best + np.array([3.0, -2.0])
    squares, excess = [], 0.0
    for _ in range(T):
        own = slopes(w)
        squares.append(float(np.square(n @ own).sum()))
        excess = max(excess, float(((np.square(own).sum(1) - squares[-1]) / d).max()))
        clients = np.tile(w, (3, 1))
        for _ in range(tau):
            clients = clients - eta * curvatures * (clients - optima)
        w = p @ clients
    bound = Bound(n, d, tau, eta, L=1.0, sigma=0.0, B=excess, gap=loss(start) - loss(best), T=T)
    assert min(squares) <= bound.original(p) < np.inf


@pytest.mark.parametrize("weight", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_what_a_solver_finds(seed: int, weight: float) -> None:
    bound = random_bound(seed, num_clients=5, sigma=3.0)
    found = minimize(
        lambda p: bound.reformulated(p, weight),
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    closed = bound.minimiser(weight)
    assert closed.min() >= 0 and closed.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(closed, found.x, atol=1e-5)
    assert bound.reformulated(closed, weight) <= found.fun + 1e-12


def test_its_gradient_is_the_slope() -> None:
    bound, p, h = random_bound(3), np.array([0.1, 0.2, 0.3, 0.4]), 1e-6
    slope = [(bound.reformulated(p + h * e, 0.7) - bound.reformulated(p - h * e, 0.7)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(bound.gradient(p, 0.7), slope, rtol=1e-6)


def simplex(step: int) -> np.ndarray:
    """All weights of three clients that are multiples of 1 / step."""
    pairs = itertools.product(range(step + 1), repeat=2)
    return np.array([(i, j, step - i - j) for i, j in pairs if i + j <= step]) / step


def test_the_tightest_weights_are_those_of_a_search() -> None:
    bound = Bound([0.5, 0.3, 0.2], [1.6, 0.1, 0.3], tau=15, eta=0.025, B=20.0)
    tightest, grid = bound.tightest(), simplex(200)
    values = [bound.original(p) for p in grid]
    np.testing.assert_allclose(tightest, grid[int(np.argmin(values))], atol=1 / 200)
    assert bound.original(tightest) <= min(values)
    assert bound.original(tightest) < 0.99 * bound.original(bound.n), "weights by dataset size are not the best"
    # Dinkelbach: at that value of lambda the reformulation has the same minimiser, and is 0 there.
    least = bound.original(tightest)
    np.testing.assert_allclose(bound.minimiser(least), tightest, atol=1e-6)
    assert bound.reformulated(tightest, least) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_its_minimiser_has_feddiscos_form(seed: int) -> None:
    """Eq. 2 and 3: weights proportional to n - a d + b, by the method itself."""
    bound = random_bound(seed)
    a, b = bound.coefficients(1.0)
    assert a > 0 and b > 0
    num_samples = torch.tensor(bound.n * 1e6)
    cohort = Cohort(0, [0, 1, 2, 3], 4, num_samples, num_samples, None, {}, None, {}, 0)  # type: ignore[arg-type]
    weights = FedDisco(a=a, b=b, metric="l1").weights(num_samples, bound.d.tolist(), cohort)
    np.testing.assert_allclose((weights / weights.sum()).numpy(), bound.minimiser(1.0), rtol=1e-9)


def test_more_discrepancy_less_weight() -> None:
    even = Bound(np.full(4, 0.25), [0.1, 0.2, 0.3, 0.4])
    assert (np.diff(even.tightest()) < 0).all()
    alike = Bound(np.full(4, 0.25), np.full(4, 0.3))
    np.testing.assert_allclose(alike.tightest(), 0.25)


def test_projection_by_search() -> None:
    grid = simplex(100)
    for point in np.random.default_rng(0).normal(size=(5, 3)):
        nearest = grid[np.square(grid - point).sum(1).argmin()]
        np.testing.assert_allclose(project_to_simplex(point), nearest, atol=0.01)


def test_table_6(capsys: pytest.CaptureFixture[str]) -> None:
    """400 steps of descent on the reformulated form: both forms fall from line to line."""
    main(["feddisco-bound"])
    lines = capsys.readouterr().out.splitlines()
    table = [[float(value) for value in line.split()] for line in lines[1:6]]
    assert [row[0] for row in table] == [0, 100, 200, 300, 400]
    for column in (1, 2):
        values = [row[column] for row in table]
        assert all(later < earlier for earlier, later in itertools.pairwise(values))
    closed, least = (float(line.split()[2]) for line in lines[6:8])
    assert table[-1][2] == pytest.approx(closed, abs=1e-5) and least <= closed
    assert abs(sum(float(line.split()[3]) for line in lines[-10:]) - 1) < 1e-3


def test_descent_ends_at_the_closed_form() -> None:
    bound = random_bound(1)
    path = bound.descend(np.full(4, 0.25), weight=0.5, steps=200, lr=0.1)
    values = [bound.reformulated(p, 0.5) for p in path]
    assert len(path) == 201 and all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))
    np.testing.assert_allclose(path[-1], bound.minimiser(0.5), atol=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bound([0.5, 0.5], [0.1]), r"one number per client; got shapes \(2,\) and \(1,\)"),
        (lambda: Bound([0.5, 0.6], [0.1, 0.1]), r"shares >= 0 of sum 1 and d is at least 0; got sum 1\.1"),
        (lambda: Bound([1.0], [-0.1]), r"least d -0\.1"),
        (lambda: Bound([1.0], [0.1], tau=0), "tau must be at least 1; got 0"),
        (lambda: Bound([1.0], [0.1], B=0.0), r"B must be positive; got 0\.0"),
        (lambda: Bound([1.0], [0.1], tau=20, eta=0.025), "eta L = 0.025 and 0.475 with tau = 20: lower eta or tau"),
        (lambda: random_bound(0).minimiser(-1.0), r"lambda must be at least 0 and finite, and below 1e150; got -1\.0"),
        (lambda: random_bound(0).minimiser(np.nan), "lambda must be at least 0 and finite, and below 1e150; got nan"),
        (lambda: random_bound(0).coefficients(np.inf), "lambda must be at least 0 and finite, and below 1e150; got inf"),
        (lambda: Bound([np.nan, 1.0], [0.1, 0.1]), "n must be finite, and below 1e75; got nan"),
        (lambda: Bound([0.5, 0.5], [0.1, np.inf]), "d must be finite, and below 1e75; got inf"),
        (lambda: Bound([1.0], [0.1], gap=np.inf), "gap must be finite, and below 1e75; got inf"),
        (lambda: Bound([1.0], [0.1], sigma=np.nan), "sigma must be finite, and below 1e75; got nan"),
        (lambda: Bound([1.0], [0.1], B=np.inf), "B must be finite, and below 1e75; got inf"),
        (lambda: random_bound(0).descend(np.full(4, 0.25), 0.1, 3, lr=2.0), r"lr must lie in \(0, 2\); got 2\.0: a share"),
    ],
)
def test_bad_bounds(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", "0"], "--steps must be at least 1; got 0"),
        (["--eta", "1"], "lower eta or tau"),
        (["--lambda", "nan"], "lambda must be at least 0 and finite, and below 1e150; got nan"),
        (["--lambda", "inf"], "lambda must be at least 0 and finite, and below 1e150; got inf"),
        (["--lambda", "1e308"], "lambda must be at least 0 and finite, and below 1e150; got 1e+308"),
        (["--gap", "inf"], "gap must be finite, and below 1e75; got inf"),
        (["--gap", "1e308"], "gap must be finite, and below 1e75; got 1e+308"),
        (["--L", "1e308"], "L must be finite, and below 1e75; got 1e+308"),
        (["--sigma", "nan"], "sigma must be finite, and below 1e75; got nan"),
        (["--beta", "nan"], "beta must be positive and finite; got nan"),
        (["--lr", "nan"], "lr must lie in (0, 2); got nan: a share of the inverse curvature"),
    ],
)
def test_bad_commands(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["feddisco-bound", *argv])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and error.count("\n") == 1


# Accuracy by class, Figure 8 --------------------------------------------------------------------------------------------------------


def test_classes_fall_into_groups_by_frequency() -> None:
    """The paper's: categories 1 to 4, 5 to 7 and 8 to 10 of an exponentially imbalanced CIFAR-10."""
    counts = torch.tensor([5000 * 10 ** (-c / 9) for c in range(10)])
    groups = frequency_groups(counts, 0.4, 0.3)
    assert [group.tolist() for group in groups.values()] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [len(group) for group in frequency_groups(counts[:3], 0.5, 0.5).values()] == [1, 0, 2]


@pytest.mark.parametrize("methods", [(), (FedDyn(alpha=0.1),)], ids=["fedavg", "feddyn"])
def test_accuracy_by_class(methods: Any, tmp_path: Path) -> None:
    data, module = TinyData(), classifier()
    trainer = fit(tmp_path, ClassAccuracy(head=0.34, tail=0.34), *methods, module=module, data=data, eval_every=1, rounds=2)
    federation = data.federation
    assert federation.test is not None
    # The mean of the clients is what FedDyn is evaluated at.
    model = copy.deepcopy(module.model)
    model.load_state_dict({name.removeprefix("model."): value for name, value in trainer.evaluated_params().items()})
    with torch.no_grad():
        predicted = model(torch.as_tensor(federation.test.inputs).double()).argmax(1)
    right = (predicted == federation.test.targets).double()
    by_class = [float(right[federation.test.targets == c].mean()) for c in range(3)]
    row = trainer.history[-1]
    assert [row[f"test/class_accuracy_{c}"] for c in range(3)] == pytest.approx(by_class, abs=1e-9)
    assert row["test/class_accuracy_mean"] == pytest.approx(np.mean(by_class))
    assert row["test/class_accuracy_std"] == pytest.approx(np.std(by_class))
    # The tiny training set holds 14, 15 and 51 samples of its classes.
    groups = [row[f"test/class_accuracy_{name}"] for name in ("head", "middle", "tail")]
    assert groups == pytest.approx([by_class[2], by_class[1], by_class[0]], abs=1e-9)
    assert row["test/class_accuracy_mean"] == pytest.approx(row["test/accuracy"])  # a balanced test set
    assert trainer.run_dir is not None and (trainer.run_dir / "figures/class_accuracy-000002.png").is_file()


def test_the_groups_alone(tmp_path: Path) -> None:
    row = fit(tmp_path, ClassAccuracy(head=1.0, tail=0.0, each=False), eval_every=1, rounds=1).history[0]
    columns = {name for name in row if name.startswith("test/class_accuracy")}
    assert columns == {"test/class_accuracy_mean", "test/class_accuracy_std", "test/class_accuracy_head"}
    assert row["test/class_accuracy_head"] == row["test/class_accuracy_mean"]


# Fairness, Table 12 -----------------------------------------------------------------------------------------------------------------


def test_variance_across_clients(tmp_path: Path) -> None:
    data, module = TinyData(client_test=0.3), classifier()
    trainer = fit(tmp_path, ClientFairness(), FineTune(steps=2), module=module, data=data, eval_every=1, rounds=2)
    parts, row = data.federation.client_test, trainer.history[-1]
    assert parts is not None
    scores = trainer.evaluator.on_clients(trainer.params, trainer.buffers, parts).numpy()
    percent = 100 * scores[~np.isnan(scores)]
    assert row["test/client_accuracy_variance"] == pytest.approx(np.var(percent), rel=1e-9)
    assert row["test/client_accuracy_jain"] == pytest.approx(percent.sum() ** 2 / (len(percent) * np.square(percent).sum()))
    assert row["test/personal_accuracy_variance"] == pytest.approx((100 * row["test/personal_accuracy_std"]) ** 2)
    assert not any("variance_variance" in name for name in row)


def test_errors_keep_their_unit(tmp_path: Path) -> None:
    data = TinyData(targets="regression", client_test=0.3)
    module = flcog.Regressor(MLP(6, (8,), 1), optimizer=partial(torch.optim.SGD, lr=0.01))
    row = fit(tmp_path, ClientFairness(), module=module, data=data, eval_every=1, rounds=1).history[0]
    assert row["test/client_mae_variance"] == pytest.approx(row["test/client_mae_std"] ** 2)


class WithoutTest(TinyData):
    def load(self) -> Any:
        return flcog.data.Splits(super().load().train)


@pytest.mark.parametrize(
    ("observer", "options", "message"),
    [
        (ClassAccuracy(), {"eval_every": 0}, "eval_every=0 makes none: set it to 1 or more, or remove ClassAccuracy"),
        (ClassAccuracy(), {"data": WithoutTest()}, "the test set, which WithoutTest has not"),
        (
            ClassAccuracy(),
            {"data": TinyData(targets="regression"), "module": flcog.Regressor(MLP(6, (8,), 1))},
            "not regression data: remove ClassAccuracy",
        ),
        (ClientFairness(), {}, "none are held out: set data.client_test=0.2"),
        (ClientFairness(), {"data": TinyData(client_test=0.3), "eval_every": 0}, "eval_every=0 makes none"),
    ],
)
def test_observers_refuse_runs_that_they_cannot_observe(observer: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        fit(tmp_path, observer, **({"eval_every": 1, "rounds": 1} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shares", [(-0.1, 0.3), (0.8, 0.3)])
def test_bad_groups(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="ClassAccuracy: head and tail are shares of the classes, together at most 1"):
        ClassAccuracy(*shares)


# Configs and costs ------------------------------------------------------------------------------------------------------------------


def configured(name: str) -> Any:
    """The trainer's callbacks and the data's arguments of a config."""
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    parser.add_subclass_arguments(flcog.FederatedDataModule, "data", instantiate=True)
    digits = "--data=flcog.datamodules.Digits"
    return parser.instantiate(parser.parse_args([digits, f"--config={ROOT / 'configs/methods' / name}.yaml"]))


def test_the_papers_stragglers_run() -> None:
    config = configured("stragglers-feddisco")
    assert config.trainer.callbacks == [Stragglers(min_steps=50, max_steps=500), FedDisco(a=0.5, b=0.1)]
    assert config.data.partitioner == BiasedUnbiased(5, 1) and config.data.num_clients == 6
    trainer = train(*config.trainer.callbacks, rounds=1, clients_per_round=2)
    assert all(50 <= len(client.batches) <= 500 for client in trainer.recorded[0])
    assert len({len(client.batches) for client in trainer.recorded[0]}) == 2


@pytest.mark.parametrize("name", ["feddisco-classes", "feddisco-fairness"])
def test_the_papers_analyses_run(name: str, tmp_path: Path) -> None:
    config, classes = configured(name), name == "feddisco-classes"
    assert config.data.client_test == (0 if classes else 0.2) and isinstance(config.data.partitioner, LongTail) == classes
    module = flcog.Classifier(flcog.models.SoftmaxRegression(784, 10))
    options: dict[str, Any] = {"eval_every": 1, "rounds": 1, "clients_per_round": 2}
    row = fit(tmp_path, *config.trainer.callbacks, FedDisco(), module=module, data=config.data, **options).history[0]
    columns = {"test/class_accuracy_tail", "test/class_accuracy_9"} if classes else {"test/client_accuracy_variance"}
    assert columns <= row.keys()


def test_the_global_distribution_is_a_sum_that_hides_its_terms() -> None:
    trainer = train(FedDisco(target="global"), clients_per_round=8)
    assert trainer.federation.exchanged["FedDisco"].tolist() == [14, 15, 51]
    counts = torch.stack([trainer.federation.label_counts(k) for k in range(8)]).long()
    messages = masked(counts, torch.Generator().manual_seed(0))
    assert messages.sum(0).remainder(2**32).tolist() == [14, 15, 51] and not (messages == counts).any()
    # Same masks, other counts: only the difference of the counts comes through, to nobody who does not know a mask.
    other = masked(counts.flip(0), torch.Generator().manual_seed(0))
    assert torch.equal((messages - other) % 2**32, (counts - counts.flip(0)) % 2**32)


def test_messages_are_uniform_and_all_but_one_are_independent() -> None:
    messages = masked(torch.tensor([0, 1, 5])[:, None].expand(3, 50_000), torch.Generator().manual_seed(1)).double() / 2**32
    assert all(kstest(message, "uniform").pvalue > 1e-3 for message in messages.numpy())
    # Of two clients' messages together, 4 x 4 cells are equally full.
    cells = (4 * messages[:2]).long()
    assert chisquare(np.bincount(4 * cells[0] + cells[1], minlength=16)).pvalue > 1e-3
    # Two clients share one mask, a: D_1 + a and D_2 - a, as in A.3.
    one, two = masked(torch.tensor([[7], [9]]), torch.Generator().manual_seed(2))
    assert (one - 7 + two - 9) % 2**32 == 0 and (one - 7) % 2**32 != 0
