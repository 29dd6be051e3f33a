"""What the registry's tests do not see of FedWalk: its two losses, its schedules, the leash's forms, and the pre-training arm."""

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import lightning as L
import pytest
import torch
import torch.nn.functional as F
import yaml
from contracts.case import Case, Refusals
from harness import (
    MOMENTUM,
    NUM_CLASSES,
    NUM_FEATURES,
    RAGGED,
    ROOT,
    SGD,
    TinyData,
    assert_close,
    classifier,
    distance,
    fit,
    make_trainer,
    problem_of,
    train,
)
from reference import fedwalk
from reference.common import Problem, State
from torch import Tensor, nn

import flcog
from flcog.callbacks import EqualWeights, FedAvgM
from flcog.callbacks.fedwalk import leash as leash_module
from flcog.callbacks.fedwalk.fedwalk import FedWalk, log_loss_ratio
from flcog.callbacks.fedwalk.leash import leash_rows, linear_head
from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
from flcog.commands.cli import main
from flcog.commands.compare.table_file import read_table
from flcog.core.randomness import make_rng
from flcog.data import Augment
from flcog.datamodules import ArrayData, ImageFolders
from flcog.datamodules import leash_classes as classes
from flcog.models import Dropout, FeatureModel
from flcog.schedules import Cosine, Exponential, Piecewise

pytestmark = pytest.mark.filterwarnings("error")

WIDTH = 8
"""Features of the tiny networks."""


def tiny_leash(num_classes: int = 5, task: str = "classification", **options: Any) -> ArrayData:
    """26 samples, of which a step takes 4: a shuffled pass has six steps and leaves two samples out."""
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(26, NUM_FEATURES, generator=draws)
    scores = inputs @ torch.randn(NUM_FEATURES, num_classes, generator=draws)
    targets = {"classification": scores.argmax(1), "multilabel": (scores > 1).float(), "regression": scores[:, 0]}[task]
    return ArrayData(train_inputs=inputs, train_targets=targets, num_clients=1, batch_size=4, eval_batch_size=10, **options)


def own_head(num_outputs: int, *key: int | str) -> nn.Linear:
    """The leash's own head as the engine draws it from ``key``."""
    head = nn.Linear(WIDTH, num_outputs).double()
    head.load_state_dict(linear_head(WIDTH, num_outputs, make_rng(*key), head.weight))
    return head


def leash_batch(step: int, seed: int = 0) -> Tensor:
    """The rows of a leash step."""
    return next(leash_rows(26, 4, step, 1, seed=seed))[1]


def client_data(client: int) -> tuple[Tensor, Tensor]:
    federation = TinyData().federation
    rows = torch.from_numpy(federation.partition.client(client))
    inputs, targets = federation.load(federation.train, rows, torch.device("cpu"))
    return inputs.double(), targets


def tensors(leash: ArrayData) -> tuple[Tensor, Tensor]:
    samples = leash.federation.train
    return torch.as_tensor(samples.inputs).double(), samples.targets


def reference(leash: Callable[[], ArrayData], shared: bool = False, **arguments: Any) -> Callable[..., State]:
    """The paper's algorithm on this leash."""

    def run(problem: Problem, **more: Any) -> State:
        federation = leash().federation
        num_outputs = 1 if federation.task == "regression" else federation.num_classes
        head = None if shared else own_head(num_outputs, 0, 0, "server", "FedWalk head")
        return fedwalk.run(problem, client_data, tensors(leash()), leash_batch, head, **(arguments | more))

    return run


def pretraining(num_classes: int, shared: bool, seed: int = 0, **arguments: Any) -> Callable[[Problem], State]:
    """The paper's comparison arm."""

    def run(problem: Problem) -> State:
        head = None if shared else own_head(num_classes, seed, "leash", "head")
        return fedwalk.pretrain(problem, tensors(tiny_leash(num_classes)), partial(leash_batch, seed=seed), head, **arguments)

    return run


def double_classifier(*arguments: Any) -> flcog.ClientModule:
    """Pre-training is in the precision in which the module comes."""
    return classifier(*arguments).double()


CASES: dict[str, Case] = {
    "FedWalk": Case(
        FedWalk(leash=tiny_leash(), tau=-1.4, num_steps=3, lr=0.4, beta=0.5),
        reference(tiny_leash, tau=-1.4, steps=3, lr=[0.4] * 3, beta=0.5),
        neutral=FedWalk(leash=tiny_leash(), tau=-float("inf")),
        options=RAGGED,
    ),
    "FedWalk-shared": Case(
        FedWalk(leash=tiny_leash(NUM_CLASSES), tau=-1.1, bias_correction=True, head="shared"),
        reference(partial(tiny_leash, NUM_CLASSES), shared=True, tau=-1.1, correction=True),
        neutral=FedWalk(leash=tiny_leash(NUM_CLASSES), tau=-float("inf"), head="shared"),
    ),
    "LeashPretraining": Case(
        LeashPretraining(leash=tiny_leash(), num_steps=7, lr=Piecewise([0.3, 0.1], [3]), seed=0),
        pretraining(5, shared=False, lr=[0.3] * 3 + [0.1] * 4),
        module=double_classifier,
    ),
}


REFUSED: Refusals = {
    FedWalk: [
        ({"leash": tiny_leash(), "tau": math.nan}, "tau must be a number or infinite; got nan"),
        ({"leash": tiny_leash(), "num_steps": 0}, "num_steps must be at least 1; got 0: tau=-inf never leashes"),
        ({"leash": tiny_leash(), "lr": 0.0}, "lr must be positive, or null; got 0.0"),
        (
            {"leash": tiny_leash(), "lr": Piecewise([0.1, -0.1], [3])},
            "lr's values must be finite and at least 0; got [0.1, -0.1]",
        ),
        ({"leash": tiny_leash(), "lr": Piecewise([math.inf])}, "lr's values must be finite and at least 0; got [inf]"),
        (
            {"leash": tiny_leash(), "lr": Cosine(300)},
            "lr's schedule is one of step sizes, and Cosine gives factors: list the step sizes in a flcog.schedules.Piecewise",
        ),
        ({"leash": tiny_leash(), "beta": 1.0}, "beta must lie in [0, 1); got 1.0"),
        ({"leash": tiny_leash(), "head": "two"}, "head must be own or shared; got 'two'"),
        ({"leash": tiny_leash(), "mode": "off"}, "mode must be eval or train; got 'off'"),
        ({"leash": tiny_leash(), "start_round": -1}, "start_round must be at least 0 and below stop_round; got -1 and None"),
    ],
    LeashPretraining: [
        ({"leash": tiny_leash(), "num_steps": 0}, "num_steps must be at least 1; got 0"),
        ({"leash": tiny_leash(), "lr": -1.0}, "lr must be positive; got -1.0"),
        ({"leash": tiny_leash(), "lr": Piecewise([-1.0])}, "lr's values must be finite and at least 0; got [-1.0]"),
        (
            {"leash": tiny_leash(), "lr": Exponential(0.9)},
            "lr's schedule is one of step sizes, and Exponential gives factors: list the step sizes in a flcog.schedules.Piecewise",
        ),
        ({"leash": tiny_leash(), "head": 1}, "head must be own or shared; got 1"),
    ],
}


NEVER, ALWAYS = -math.inf, math.inf


def columns(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name.startswith("fedwalk/")} for row in rows]


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets.double())


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], targets.double())


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "tau between the losses": (
        {"tau": -1.4, "num_steps": 3, "lr": 0.4, "beta": 0.5},
        reference(tiny_leash, tau=-1.4, steps=3, lr=[0.4] * 5, beta=0.5),
    ),
    "bias correction": (
        {"tau": -1.4, "bias_correction": True, "beta": 0.8},
        reference(tiny_leash, tau=-1.4, correction=True, beta=0.8),
    ),
    "schedules": (
        {"tau": Piecewise([ALWAYS, NEVER, 3.0], [1, 3]), "lr": Piecewise([0.5, 0.05], [2]), "num_steps": 2},
        reference(tiny_leash, tau=[ALWAYS, NEVER, NEVER, 3.0, 3.0], lr=[0.5, 0.5, 0.05, 0.05, 0.05], steps=2),
    ),
    "shared head": (
        {"leash": tiny_leash(NUM_CLASSES), "head": "shared", "tau": ALWAYS},
        reference(partial(tiny_leash, NUM_CLASSES), shared=True, tau=ALWAYS),
    ),
    "multilabel": (
        {"leash": tiny_leash(4, "multilabel"), "tau": ALWAYS},
        reference(partial(tiny_leash, 4, "multilabel"), tau=ALWAYS, loss=binary),
    ),
    "regression": (
        {"leash": tiny_leash(4, "regression"), "tau": ALWAYS},
        reference(partial(tiny_leash, 4, "regression"), tau=ALWAYS, loss=square),
    ),
}


@pytest.mark.parametrize(("arguments", "run"), FORMS.values(), ids=FORMS.keys())
def test_against_the_paper(arguments: dict[str, Any], run: Any) -> None:
    module, trace = classifier(), []
    before = copy.deepcopy(module)
    trainer = train(FedWalk(**({"leash": tiny_leash()} | arguments)), module=module, rounds=5)
    assert_close(trainer.state, run(problem_of(trainer, before, SGD), trace=trace))
    for ours, theirs in zip(columns(trainer.rows), trace, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_some_of_those_runs_hold_the_leash_in_some_rounds_only() -> None:
    for name in ("tau between the losses", "bias correction", "schedules"):
        trainer = train(FedWalk(**({"leash": tiny_leash()} | FORMS[name][0])), rounds=5)
        assert {row["fedwalk/applied"] for row in trainer.rows} == {0.0, 1.0}, (name, columns(trainer.rows))


def test_plain_means_with_equal_weights() -> None:
    module, trace = classifier(MOMENTUM), []
    before = copy.deepcopy(module)
    trainer = train(EqualWeights(), FedWalk(leash=tiny_leash(), tau=ALWAYS, lr=0.1), module=module, local_epochs=2)
    run = reference(tiny_leash, tau=ALWAYS, lr=[0.1] * 3, uniform=True)
    assert_close(trainer.state, run(problem_of(trainer, before, MOMENTUM), trace=trace))
    assert [row["fedwalk/client_loss"] for row in trainer.rows] == pytest.approx([row["fedwalk/client_loss"] for row in trace])


def test_by_default_the_leashs_step_is_the_clients_of_that_round() -> None:
    """gamma_t = eta_t, whatever schedule the clients have."""

    def scheduled(lr: Any) -> Any:
        module = flcog.Classifier(classifier().model, optimizer=SGD, lr_schedule=Piecewise([1.0, 0.3, 0.2], [1, 2]))
        return train(FedWalk(leash=tiny_leash(), tau=ALWAYS, lr=lr), module=module).state

    assert_close(scheduled(None), scheduled(Piecewise([0.1, 0.03, 0.02], [1, 2])), 1e-12)
    assert distance(scheduled(None), scheduled(0.1)) > 1e-4


@pytest.mark.parametrize("name", ["FedWalk", "FedWalk-shared"])
def test_executors_agree(name: str) -> None:
    case = CASES[name]
    loop, vmap = (train(case.method, executor=executor, **case.options) for executor in ("loop", "vmap"))
    assert_close(vmap.state, loop.state, 1e-11)
    assert columns(vmap.rows) == [pytest.approx(row, rel=1e-10) for row in columns(loop.rows)]


def test_a_leash_never_held_is_fedavg_to_the_bit() -> None:
    plain = train(rounds=2)
    for callbacks in ([FedWalk(leash=tiny_leash(), tau=NEVER)], [FedWalk(leash=tiny_leash(), start_round=2)]):
        trainer = train(*callbacks, rounds=2)
        assert all(torch.equal(trainer.run.params[name], value) for name, value in plain.params.items())
    assert (
        distance(train(FedAvgM(), rounds=2).state, train(FedAvgM(), FedWalk(leash=tiny_leash(), tau=NEVER), rounds=2).state) == 0
    )
    assert distance(train(FedWalk(leash=tiny_leash(), tau=ALWAYS), rounds=2).state, plain.state) > 1e-3


def test_a_loss_that_is_no_number_does_not_leash() -> None:
    assert math.isnan(log_loss_ratio(0.0, 0.0)) and math.isnan(log_loss_ratio(math.nan, 1.0))
    assert log_loss_ratio(0.0, 1.0) == -math.inf and log_loss_ratio(1.0, 0.0) == math.inf
    for ratio in (log_loss_ratio(0.0, 0.0), log_loss_ratio(1.0, 0.0)):
        assert not ratio < ALWAYS


def test_the_head_stays_on_the_server_and_a_client_sends_one_number() -> None:
    plain, leashed = (train(*callbacks, rounds=2) for callbacks in ([], [FedWalk(leash=tiny_leash(), tau=ALWAYS)]))
    assert leashed.params.keys() == plain.params.keys()
    assert leashed.servers["FedWalk"]["head"]["weight"].shape == (5, WIDTH)
    for before, after in zip(plain.rows, leashed.rows, strict=True):
        assert after["comm/down_bytes"] == before["comm/down_bytes"]
        assert after["comm/up_bytes"] == before["comm/up_bytes"] + 5 * 8
    # The model's own head is no part of the leash's task: in one round only the features move.
    once, plain_once = train(FedWalk(leash=tiny_leash(), tau=ALWAYS), rounds=1), train(rounds=1)
    moved = {name for name, value in once.params.items() if not torch.equal(value, plain_once.params[name])}
    assert moved and not any("head" in name for name in moved) and moved < once.params.keys()


def test_resumed_runs_go_on_to_the_bit(tmp_path: Path) -> None:
    method = partial(FedWalk, leash=tiny_leash(), tau=ALWAYS, num_steps=5, beta=0.5, mode="train")
    module = partial(classifier, network=NoisyNet)
    whole, half = (fit(tmp_path, method(), module=module(), rounds=rounds) for rounds in (4, 2))
    assert half.run_dir is not None
    saved = torch.load(half.run_dir / "checkpoints" / "last.ckpt", weights_only=True)["servers"]["FedWalk"]
    # The runs part in the middle of a pass over the leash.
    assert int(saved["rounds"]) == 2 and int(saved["steps"]) % 6 == 4
    resumed = fit(tmp_path, method(), module=module(), rounds=4, ckpt_path=str(half.run_dir))
    assert len(resumed.recorded) == 2
    assert all(torch.equal(resumed.state[name], value) for name, value in whole.state.items())
    assert columns(resumed.history) == columns(whole.history)


# Modes of the model -----------------------------------------------------------------------------------------------------------------


class BatchNormNet(FeatureModel):
    """Features whose statistics are averaged over clients, and moved by leash steps in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.Tanh())
        self.num_features = WIDTH
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


class NoisyNet(BatchNormNet):
    """Both kinds of dropout, after features that BatchNorm does not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, WIDTH), nn.Tanh(), Dropout(0.3), nn.Dropout(0.3))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batchnorm(mode: Any, executor: str) -> None:
    module, trace = classifier(network=BatchNormNet), []
    before = copy.deepcopy(module)
    trainer = train(FedWalk(leash=tiny_leash(), tau=ALWAYS, num_steps=2, mode=mode), module=module, executor=executor)
    run = reference(tiny_leash, tau=ALWAYS, steps=2, mode=mode)
    assert_close(trainer.state, run(problem_of(trainer, before, SGD), trace=trace))
    # A client's own loss is that of its model in evaluation mode, with its own statistics.
    for ours, theirs in zip(columns(trainer.rows), trace, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_leash_steps_in_evaluation_mode_leave_the_statistics_alone() -> None:
    def statistics(*callbacks: Any) -> dict[str, Tensor]:
        return train(*callbacks, module=classifier(network=BatchNormNet), rounds=1).buffers

    plain, still, moved = (
        statistics(*callbacks) for callbacks in ([], *([FedWalk(leash=tiny_leash(), mode=mode)] for mode in ("eval", "train")))
    )
    assert distance(still, plain) == 0
    assert distance({n: v for n, v in moved.items() if "mean" in n}, {n: v for n, v in plain.items() if "mean" in n}) > 1e-3


def test_dropout_of_a_leash_step_is_a_function_of_the_step() -> None:
    def run(mode: str, **options: Any) -> Any:
        return train(
            FedWalk(leash=tiny_leash(), tau=ALWAYS, num_steps=2, mode=mode), module=classifier(network=NoisyNet), **options
        )

    drawn = run("train")
    torch.manual_seed(5)
    assert distance(run("train").state, drawn.state) == 0
    assert distance(run("eval").state, drawn.state) > 1e-3


def test_leash_steps_leave_torchs_stream_as_it_was() -> None:
    module = classifier(network=NoisyNet)
    before = torch.get_rng_state()
    LeashPretraining(leash=tiny_leash(), num_steps=2, mode="train", seed=0).configure_model(module)
    assert torch.equal(torch.get_rng_state(), before)


# The leash's data -------------------------------------------------------------------------------------------------------------------


def test_leash_steps_pass_over_all_samples_in_turn() -> None:
    passes = [torch.cat([rows for _, rows in leash_rows(26, 4, 6 * k, 6, seed=1)]) for k in range(3)]
    assert all(len(set(rows.tolist())) == 24 for rows in passes)
    assert not torch.equal(passes[0], passes[1])
    whole = {step: rows.tolist() for step, rows in leash_rows(26, 4, 0, 14, seed=1)}
    pieces = [{step: rows.tolist() for step, rows in leash_rows(26, 4, *part, seed=1)} for part in ((0, 5), (5, 9))]
    assert pieces[0] | pieces[1] == whole
    assert [len(rows) for _, rows in leash_rows(3, 64, 0, 2, seed=0)] == [3, 3]


class Shaken(ArrayData):
    """Moves every sample by as much as its key says."""

    def augment(self) -> Augment | None:
        return lambda inputs, keys: inputs + torch.from_numpy(keys % 7).to(inputs)[:, None]


def test_augmentation_is_for_leash_steps_alone() -> None:
    arrays = tiny_leash().federation.train
    shaken = Shaken(train_inputs=arrays.inputs, train_targets=arrays.targets, num_clients=1, batch_size=4)
    plain, moved = (train(FedWalk(leash=leash, tau=ALWAYS), rounds=1) for leash in (tiny_leash(), shaken))
    assert distance(moved.state, plain.state) > 1e-3
    still = [train(FedWalk(leash=leash, tau=ALWAYS, lr=1e-15), rounds=1).rows[0] for leash in (tiny_leash(), shaken)]
    assert still[1]["fedwalk/leash_loss"] == pytest.approx(still[0]["fedwalk/leash_loss"], rel=1e-9)


# Pre-training -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_pretraining_is_leash_steps_and_then_fedavg(mode: Any, shared: bool) -> None:
    leash = tiny_leash(NUM_CLASSES if shared else 5)
    module = classifier(network=BatchNormNet).double()
    before = copy.deepcopy(module)
    method = LeashPretraining(
        leash=leash, num_steps=7, lr=Piecewise([0.3, 0.1], [3]), head="shared" if shared else "own", mode=mode, seed=0
    )
    trainer = train(method, module=module)
    assert distance(dict(module.state_dict()), dict(before.state_dict())) == 0
    run = pretraining(5 - 2 * shared, shared, lr=[0.3] * 3 + [0.1] * 4, mode=mode)
    assert_close(trainer.state, run(problem_of(trainer, before, SGD)))


def test_pretrainings_seed_draws_its_head_and_its_batches() -> None:
    module = classifier().double()
    before = copy.deepcopy(module)
    trainer = train(LeashPretraining(leash=tiny_leash(), num_steps=7, lr=0.2, seed=3), module=module)
    run = pretraining(5, False, lr=[0.2] * 7, seed=3)
    assert_close(trainer.state, run(problem_of(trainer, before, SGD)))


def test_by_default_pretrainings_seed_is_the_runs() -> None:
    def start(seed: int, elsewhere: int) -> Any:
        torch.manual_seed(elsewhere)
        trainer = make_trainer(None, LeashPretraining(leash=tiny_leash(), num_steps=3, lr=0.2), seed=seed)
        trainer.prepare(module, TinyData())
        return trainer.state

    module = classifier()
    assert distance(start(1, elsewhere=0), start(1, elsewhere=1)) == 0
    assert distance(start(1, elsewhere=0), start(2, elsewhere=0)) > 1e-4


def test_pretraining_sends_nothing() -> None:
    plain, trained = (train(*callbacks, rounds=1) for callbacks in ([], [LeashPretraining(leash=tiny_leash(), num_steps=3)]))
    assert trained.rows[0]["comm/total_bytes"] == plain.rows[0]["comm/total_bytes"]
    assert distance(trained.state, plain.state) > 1e-3


# Mistakes ---------------------------------------------------------------------------------------------------------------------------


class Plain(L.LightningModule):
    """Known only by its training step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters())


def narrow_leash() -> ArrayData:
    return ArrayData(train_inputs=torch.zeros(9, NUM_FEATURES - 1), train_targets=torch.arange(9) % 3, num_clients=1)


UNFIT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "inputs of another size": (
        classifier,
        {"leash": narrow_leash()},
        r"FedWalk: the model cannot read the leash ArrayData.*\(5,\)",
    ),
    "other classes": (
        classifier,
        {"leash": tiny_leash(5), "head": "shared"},
        "the model has 3 outputs .* needs 5 .* use head=own",
    ),
    "another task": (
        classifier,
        {"leash": tiny_leash(3, "multilabel"), "head": "shared"},
        "for classification, ArrayData needs 3 for multilabel",
    ),
    "no features": (partial(classifier, network=lambda: nn.Linear(NUM_FEATURES, NUM_CLASSES)), {}, "Linear exposes no features"),
    "a plain module": (Plain, {}, "FedWalk changes the model, for which it must be a flcog.ClientModule"),
}


@pytest.mark.parametrize(("module", "arguments", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_a_leash_that_does_not_fit_is_refused_before_the_first_round(
    module: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(FedWalk(**({"leash": tiny_leash()} | arguments)), module=module(), rounds=1)


# Classes and configs ----------------------------------------------------------------------------------------------------------------

CONFIGS = ROOT / "configs" / "methods"


PRINTED = {
    "cifar10_lh": "ea68b36de9bdadc3ac982410893096d8927b4f7ece5fd8eb43bce13d184576d1",
    "cifar10_mh": "d544d796997289e12f3f879690ecbb96200acbffc7e563e356dc6829cc1fba28",
    "cifar10_hh": "3cb2aa934554eecef722cd67be470b810bbb9717a7e2a450749fc09f5418d614",
    "cifar100_lh": "8952ec53b34f8678b3f21afb41d8f450b98a6cf8e1fcd444d688143dc4d185f1",
}
"""SHA-256 of the lists as the paper prints them, read off its text and joined by commas."""


def test_the_papers_classes() -> None:
    for name, digest in PRINTED.items():
        ids = list(classes.LEASHES[name])  # type: ignore[index]
        if name == "cifar10_hh":
            assert ids[-1] == "n06785654"
            ids[-1] = "n0685654"  # as printed: a digit is missing
        assert hashlib.sha256(",".join(ids).encode()).hexdigest() == digest, name
    assert {name: len(set(ids)) for name, ids in classes.LEASHES.items()} == {
        "cifar10_lh": 20,
        "cifar10_mh": 20,
        "cifar10_hh": 20,
        "cifar100_lh": 40,
        "cifar10_tiny_imagenet": 20,
    }
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for ids in classes.LEASHES.values() for name in ids)
    assert set(classes.CIFAR10_LH) == {name for row in classes.CIFAR10_TOP4.values() for name in row[:2]}
    assert classes.CIFAR10_MH[:10] == classes.CIFAR10_LH[:10]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, command_line: None) -> Iterator[None]:
    for method in (FedWalk, LeashPretraining):
        monkeypatch.setattr(flcog.callbacks, method.__name__, method, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning calls jsonargparse by a deprecated name.
        yield


RATES = Piecewise([1e-2, 1e-3, 1e-4, 1e-5], [34, 67, 100])
"""The paper's eta = gamma, the last from round 100 on; the earlier boundaries are ours."""
LEASHED_ROWS = {
    ("fedwalk-leashes", "FedWalk LH"): ("cifar10_lh", Piecewise([0.0, 0.5, 1.0], [34, 67])),
    ("fedwalk-leashes", "FedWalk MH"): ("cifar10_mh", Piecewise([-1.0, -0.5, 0.0], [34, 67])),
    ("fedwalk-leashes", "FedWalk HH"): ("cifar10_hh", Piecewise([-1.3, -1.1], [50])),
    ("fedwalk-leashes", "pre-training LH"): ("cifar10_lh", RATES),
    ("fedwalk-leashes", "pre-training MH"): ("cifar10_mh", RATES),
    ("fedwalk-leashes", "pre-training HH"): ("cifar10_hh", RATES),
    ("fedwalk-cifar100", "FedWalk"): ("cifar100_lh", Piecewise([0.0, 0.5, 1.0], [34, 67])),
    ("fedwalk-cifar100", "FedNova + FedWalk"): ("cifar100_lh", Piecewise([0.0, 0.5, 1.0], [34, 67])),
    ("fedwalk-short", "FedWalk"): ("cifar10_tiny_imagenet", Piecewise([0.0, 0.5, 1.0], [67, 134])),
    ("fedwalk-short", "pre-training"): ("cifar10_tiny_imagenet", 0.05),
}
"""Of our tables' rows: the leash's classes, and tau, or the learning rate of pre-training. Values of tau are the paper's (section
5.1), the rounds ours."""


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize(("table", "row"), LEASHED_ROWS)
def test_tables_make_their_leashes(table: str, row: str) -> None:
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    arm = read_table(CONFIGS.parent / "tables" / f"{table}.yaml").rows[row]
    arguments = [f"--{name}={value}" for name, value in arm.arguments.items()]
    config = parser.parse_args([*(f"--config={path}" for path in arm.configs), *arguments])
    method, (names, schedule) = parser.instantiate(config).trainer.callbacks[-1], LEASHED_ROWS[table, row]
    assert isinstance(method.leash, ImageFolders) and method.leash.batch_size == 64
    assert method.leash.class_names == classes.LEASHES[names]
    if isinstance(method, FedWalk):
        assert "FedWalk" in row and method.tau == schedule and method.lr is None and method.num_steps == 1
    else:
        assert (method.num_steps, method.lr) == (300 if table == "fedwalk-leashes" else 200, schedule)
        assert isinstance(method, LeashPretraining) and "pre-training" in row


def test_the_study_has_the_papers_rates() -> None:
    model = yaml.safe_load((CONFIGS.parent / "studies" / "fedwalk.yaml").read_text())["model"]["init_args"]
    assert model["optimizer"]["init_args"] == {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    schedule = model["lr_schedule"]["init_args"]
    assert [0.01 * value for value in schedule["values"]] == pytest.approx(RATES.values)
    assert schedule["boundaries"] == RATES.boundaries


@pytest.mark.usefixtures("configured")
def test_a_command_line_takes_another_leash() -> None:
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    config = [f"--config={CONFIGS / 'fedwalk-pretraining-imagenet.yaml'}", "--trainer.callbacks.leash.classes"]
    for name, expected in (("cifar10_hh", classes.CIFAR10_HH), ("[cat, dog]", ("cat", "dog"))):
        (method,) = parser.instantiate(parser.parse_args([*config, name])).trainer.callbacks
        assert method.leash.class_names == expected


def test_a_leash_that_nobody_listed() -> None:
    with pytest.raises(ValueError, match=r"a list of class folders or one of cifar10_lh, .*; got 'cifar10'"):
        ImageFolders(classes="cifar10")  # type: ignore[arg-type]


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("name", ["fedwalk", "fedwalk-pretraining"])
def test_configs_run_with_the_quickstart(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: set[int] = set()

    def rows(*arguments: Any) -> Any:
        seeds.add(arguments[-1])
        return leash_rows(*arguments)

    monkeypatch.setattr(leash_module, "leash_rows", rows)
    options = {"rounds": 1, "local_steps": 1, "logger": "false", "default_root_dir": tmp_path}
    arguments = ["fit", "-c", str(CONFIGS.parent / "quickstart.yaml"), "-c", str(CONFIGS / f"{name}.yaml")]
    main([*arguments, "--seed_everything=5", *(f"--trainer.{key}={value}" for key, value in options.items())])
    assert len(seeds) == 1
    assert (5 in seeds) == (name == "fedwalk"), "pre-training draws its seed from the run's"
    (table,) = tmp_path.rglob("metrics.csv")
    assert ("fedwalk/llr" in table.read_text()) == (name == "fedwalk")
