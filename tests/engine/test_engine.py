"""The engine's contracts: what fires when, what is counted, what is refused, and that population size is free."""

import re
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, SIZES, BatchNormMLP, TinyData, classifier, make_trainer, train
from torch import Tensor, nn

import flcog
from flcog.data import Partition, Partitioner, Samples, Splits
from flcog.engine.executors.vmap import VmapExecutor
from flcog.hooks import HOOKS, OBSERVER_HOOKS, Batch, Callback, Method, Upload
from flcog.run import checkpoint

NOT_RECORDED = {"personal", "on_exception"}  # the one needs held-out parts of the clients, the other a failure


def recording(seen: list[str]) -> list[Callback]:
    """A method and an observer that write down what fires; the method keeps a little state, so that clients are made once."""

    def hook(name: str) -> Any:
        def fire(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            if name == "init_client":
                return {"kept": torch.zeros(1)}
            return torch.zeros(()) if name == "loss" else getattr(Method, name)(self, *args, **kwargs)

        return fire

    recorder = dataclass(frozen=True)(
        type("Recorder", (Method,), {name: hook(name) for name in HOOKS if name not in NOT_RECORDED})
    )
    observer = type("Observer", (Callback,), {})
    for name in OBSERVER_HOOKS:
        setattr(observer, name, lambda self, *args, name=name: seen.append(name))
    return [recorder(), observer()]


Script = list["str | tuple[str, Script]"]


def documented_script(docstring: str) -> Script:
    """The pseudocode as hooks and loops; a hook that fires once in a client's life is marked with a star."""
    lines = [line for line in textwrap.dedent(docstring.split("::", 1)[1].split("Args:")[0]).splitlines() if line.strip()]
    stack: list[tuple[int, Script]] = [(-1, [])]
    for line in lines:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        while stack[-1][0] >= indent:
            stack.pop()
        word = re.split(r"\W", text, maxsplit=1)[0]
        if text.startswith("for each"):
            body: Script = []
            stack[-1][1].append((text, body))
            stack.append((indent, body))
        elif word in {*HOOKS, *OBSERVER_HOOKS} - NOT_RECORDED:
            stack[-1][1].append(f"{word}*" if "once in its life" in text else word)
    return stack[0][1]


def play(script: Script, counts: dict[str, int], first_round: bool = True) -> list[str]:
    """The hooks that the pseudocode fires, loops unrolled."""
    fired: list[str] = []
    for entry in script:
        if isinstance(entry, tuple):
            repeats = next(count for key, count in counts.items() if entry[0].startswith(f"for each {key}"))
            for i in range(repeats):
                fired += play(entry[1], counts, i == 0 if entry[0].startswith("for each round") else first_round)
        elif first_round or not entry.endswith("*"):
            fired.append(entry.rstrip("*"))
    return fired


def test_fit_fires_what_its_docstring_says(tmp_path: Path) -> None:
    seen: list[str] = []
    trainer = make_trainer(tmp_path, *recording(seen), rounds=2, clients_per_round=2, local_steps=3, eval_every=1)
    trainer.fit(classifier(), TinyData(order=(0, 1)))
    script = documented_script(flcog.FederatedTrainer.fit.__doc__ or "")
    expected = play(script, {"round": 2, "client": 2, "local step": 3})
    assert set(expected) == {*HOOKS, *OBSERVER_HOOKS} - NOT_RECORDED
    # The cohort plans and reports client by client; each newcomer's state is made just before its draw.
    assert seen == expected


def test_a_misspelt_hook_is_refused() -> None:
    with pytest.raises(TypeError, match="'correct_gradients', which is no hook; did you mean 'correct_gradient'"):

        class Typo(Method):
            def correct_gradients(self, gradient: Any) -> Any:
                return gradient


def test_methods_that_cannot_be_folded_are_refused() -> None:
    @dataclass(frozen=True)
    class One(Method):
        def personal(self, params: Any, ctx: Any) -> Any:
            return params

    @dataclass(frozen=True)
    class Two(One):
        pass

    options: dict[str, Any] = {"rounds": 1, "local_steps": 1, "logger": False}
    with pytest.raises(ValueError, match="One is listed 2 times"):
        flcog.FederatedTrainer(callbacks=[One(), One()], **options)
    with pytest.raises(ValueError, match="One and Two both define 'personal'"):
        flcog.FederatedTrainer(callbacks=[One(), Two()], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of local_steps and local_epochs; got neither"),
        ({"local_steps": 1, "local_epochs": 1}, "exactly one of local_steps and local_epochs; got both"),
        ({"local_steps": 0}, "local_steps must be at least 1; got 0"),
        ({"local_epochs": 0.0}, "local_epochs must be positive"),
        ({"local_steps": 1, "rounds": 0}, "rounds must be at least 1"),
        ({"local_steps": 1, "clients_per_round": 10.0}, "a count has no decimal point"),
        ({"local_steps": 1, "clients_per_round": 0}, "clients_per_round is a count"),
        ({"local_steps": 1, "executor": "fast"}, "executor must be one of auto, loop, vmap; got 'fast'"),
        ({"local_steps": 1, "precision": "16-mixed"}, "precision must be one of"),
        ({"local_steps": 1, "accelerator": "cuda", "devices": 99}, "devices=99"),
        ({"local_steps": 1, "callbacks": [L.Callback()]}, "callbacks are flcog methods or observers; got Callback"),
    ],
)
def test_bad_options_get_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        flcog.FederatedTrainer(**({"logger": False} | options))
    assert "\n" not in str(caught.value)


def test_bad_federations_get_one_line() -> None:
    with pytest.raises(ValueError, match="clients_per_round=9 but the federation has 8 clients"):
        train(clients_per_round=9)
    with pytest.raises(ValueError, match="Regressor learns regression, but TinyData holds classification data"):
        train(module=flcog.Regressor(flcog.models.MLP(NUM_FEATURES, (), 1)))

    @dataclass(frozen=True)
    class Sparse(Partitioner):
        def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
            return Partition.from_clients([np.arange(len(samples)), np.zeros(0, np.int64)])

    data = TinyData()
    data.partitioner = Sparse()
    with pytest.raises(ValueError, match="1 of 2 clients have no training samples"):
        train(data=data)


def test_an_unwritable_run_directory_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write runs under"):
        make_trainer(tmp_path / "file").fit(classifier(), TinyData())


class Broken(flcog.Classifier):
    """Fails on one client's data, in its third step."""

    calls = 0

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        Broken.calls += 1
        if Broken.calls == 3:
            raise KeyError("a bug in the user's loss")
        return super().per_example_loss(outputs, targets)


def test_an_error_inside_a_client_names_it() -> None:
    Broken.calls = 0
    with pytest.raises(KeyError) as caught:
        train(module=Broken(flcog.models.MLP(NUM_FEATURES, (), NUM_CLASSES)), clients_per_round=8)
    assert caught.value.__notes__ == ["in client 0, round 1, local step 3 of 4"]


def test_bad_updates_name_client_and_round() -> None:
    @dataclass(frozen=True)
    class Poison(Method):
        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            factor = torch.where(torch.as_tensor(ctx.num_samples == SIZES[3]), torch.nan, 1.0)
            return Upload({name: value * factor for name, value in delta.items()}, ctx.client)

    for executor in ("loop", "vmap"):
        with pytest.raises(ValueError, match="the update of client 3 in round 1 is NaN or infinite"):
            train(Poison(), clients_per_round=8, executor=executor)
        kept = train(Poison(), clients_per_round=8, executor=executor, on_bad_update="drop")
        assert kept.rows[0]["clients/dropped"] == 1 and kept.rows[0]["clients/participating"] == 7
        assert all(torch.isfinite(value).all() for value in kept.params.values())


def test_bad_messages_name_client_and_round() -> None:
    @dataclass(frozen=True)
    class Poison(Method):
        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            value = torch.where(torch.as_tensor(ctx.num_samples == SIZES[3]), torch.inf, 1.0)
            return Upload(delta, ctx.client, sum={"count": {"of": value.expand(2)}})

        def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
            counts.append(messages.sum["count"]["of"].tolist())
            return delta, server

    for executor in ("loop", "vmap"):
        counts: list[list[float]] = []
        with pytest.raises(ValueError, match="the update of client 3 in round 1 is NaN or infinite"):
            train(Poison(), clients_per_round=8, executor=executor)
        train(Poison(), clients_per_round=8, executor=executor, on_bad_update="drop", rounds=1)
        assert counts == [[7.0, 7.0]]


def test_a_client_may_keep_parameters_or_send_no_weights() -> None:
    @dataclass(frozen=True)
    class Keep(Method):
        kept_parameters = r"model\.3\."

    @dataclass(frozen=True)
    class KeepAll(Method):
        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            return Upload(None, ctx.client)

    for executor in ("loop", "vmap"):
        untrained = make_trainer(None)
        untrained.prepare(classifier(network=BatchNormMLP), TinyData())
        start = untrained.state
        plain, part, none = (
            train(*methods, module=classifier(network=BatchNormMLP), executor=executor, rounds=2)
            for methods in ((), (Keep(),), (KeepAll(),))
        )
        head = [name for name in start if name.startswith("3.")]
        assert len(head) == 2
        assert all(
            torch.equal(part.state[name], start[name]) == (name in head)
            for name in (n.removeprefix("model.") for n in part.params)
        )
        # Who sends no weights sends no statistics either.
        assert all(torch.equal(none.state[name], value) for name, value in start.items())
        assert none.ledger.total_up == 0
        size = 8 * sum(start[name].numel() for name in head)
        assert plain.ledger.total_up - part.ledger.total_up == 2 * 5 * size
        # In the first round everybody must be told where to start.
        assert plain.ledger.total_down - part.ledger.total_down == 5 * size


def test_what_a_user_should_know_is_noted() -> None:
    from flcog.callbacks import Ditto, FedProx

    def groups(params: Any) -> torch.optim.Optimizer:
        first, *rest = params
        return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": rest}], lr=0.1)

    def notes(*methods: Method, module: Any = None, **data: Any) -> str:
        trainer = make_trainer(None, *methods)
        trainer.prepare(module or classifier(), TinyData(**data))
        return "\n".join(trainer.notes)

    assert "groups" not in notes(module=classifier(groups)) and "groups" not in notes(FedProx(mu=0.1))
    assert "the optimiser's groups differ" in notes(FedProx(mu=0.1), module=classifier(groups))
    assert "Ditto are measured only with data.client_test" in notes(Ditto())
    assert "measured" not in notes(Ditto(), client_test=0.2)


def test_weights_that_are_lost_are_noted() -> None:
    from flcog.callbacks import EqualWeights, FedAvgM, FedDC, FedDisco, FedDyn

    def notes(*methods: Method) -> list[str]:
        trainer = make_trainer(None, *methods)
        trainer.prepare(classifier(), TinyData())
        return [note for note in trainer.notes if "weigh by" in note]

    assert notes(FedDisco(), FedDyn()) == [
        "note: FedDyn is listed after FedDisco and sets the weights: swap them to weigh by FedDisco"
    ]
    assert notes(EqualWeights(), FedDisco()) == [
        "note: FedDisco is listed after EqualWeights and sets the weights: swap them to weigh by EqualWeights"
    ]
    assert len(notes(EqualWeights(), FedDisco(), FedDC())) == 3
    for fine in ((FedDyn(), FedDisco()), (FedDC(), FedDyn()), (FedDisco(), FedAvgM()), (FedDisco(),)):
        assert notes(*fine) == []
    assert notes(FedDisco(stop_round=2), EqualWeights(start_round=2)) == []
    assert len(notes(FedDisco(stop_round=3), EqualWeights(start_round=2))) == 1


def test_dropping_a_client_leaves_the_mean_of_the_others() -> None:
    @dataclass(frozen=True)
    class Constant(Method):
        """Client k uploads its number of samples, as every parameter's change; client 3's is infinite."""

        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            size = torch.as_tensor(ctx.num_samples)
            value = torch.where(size == SIZES[3], torch.inf, size.to(torch.float64))
            return Upload({name: torch.ones_like(d) * value for name, d in delta.items()}, ctx.client)

    trainer = make_trainer(None, Constant(), rounds=1, clients_per_round=8, on_bad_update="drop")
    trainer.prepare(classifier(), TinyData())
    before = {name: value.clone() for name, value in trainer.run.params.items()}
    trainer.train_round()
    sizes = np.array([size for k, size in enumerate(SIZES) if k != 3], dtype=float)
    expected = (sizes**2).sum() / sizes.sum()
    for name, value in trainer.run.params.items():
        torch.testing.assert_close(value - before[name], torch.full_like(value, expected))


def test_only_the_sampled_clients_have_state_and_cost() -> None:
    @dataclass(frozen=True)
    class Everyone(Partitioner):
        def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
            return Partition(np.arange(num_clients, dtype=np.int64) % len(samples), np.arange(num_clients + 1, dtype=np.int64))

    @dataclass(frozen=True)
    class Stateful(Method):
        def init_client(self, params: Any, buffers: Any) -> Any:
            return {"seen": torch.zeros(1)}

        def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
            return Upload(delta, {"seen": ctx.client["seen"] + 1})

    data = TinyData()
    data.num_clients, data.partitioner = 1_000_000, Everyone()
    trainer = train(Stateful(), data=data, clients_per_round=10)
    assert len(trainer.run.clients.slots) == 30  # three cohorts of ten of a million, with nobody twice
    assert all(int(slot["Stateful"]["seen"]) == 1 for slot in trainer.run.clients.slots.values())


def test_ledger_counts_what_crosses() -> None:
    from flcog.callbacks import SCAFFOLD

    plain, corrected = train(rounds=1), train(SCAFFOLD(), rounds=1)
    model = sum(p.numel() for p in plain.params.values()) * 8  # float64
    assert plain.ledger.up == plain.ledger.down == {"model": 5 * model}
    assert corrected.ledger.up == corrected.ledger.down == {"model": 5 * model, "SCAFFOLD": 5 * model}


class Plain(L.LightningModule):
    """A user's own module, unchanged."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = flcog.models.MLP(NUM_FEATURES, (8,), NUM_CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_plain_lightning_module_trains_on_the_loop(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r"what Plain.training_step logs is not kept \(train_loss\)")
        trainer = make_trainer(tmp_path, eval_every=1)
        trainer.fit(Plain(), TinyData())
    ours = make_trainer(tmp_path, eval_every=1)
    ours.fit(classifier(), TinyData())
    assert trainer.history[-1]["train/loss"] == pytest.approx(ours.history[-1]["train/loss"], rel=1e-12)
    assert trainer.history[-1]["test/accuracy"] == pytest.approx(ours.history[-1]["test/accuracy"])
    with pytest.warns(UserWarning, match="executor=vmap falls back to loop: a plain LightningModule"):
        make_trainer(tmp_path, executor="vmap").prepare(Plain(), TinyData())


def test_what_cannot_be_vmapped_falls_back_with_one_line() -> None:
    class Branching(flcog.Classifier):
        def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().per_example_loss(outputs, targets) * (2.0 if outputs.sum() > 0 else 1.0)

    module = Branching(flcog.models.MLP(NUM_FEATURES, (8,), NUM_CLASSES))
    with pytest.warns(UserWarning, match="executor=vmap falls back to loop: this model or method cannot be vectorised"):
        trainer = train(module=module, executor="vmap")
    assert trainer.executor.name == "loop"

    class Own(torch.optim.SGD):
        pass

    with pytest.warns(UserWarning, match="Own is no elementwise optimiser"):
        make_trainer(None, executor="vmap").prepare(classifier(Own), TinyData())


def test_a_batched_program_that_has_run_is_never_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(None, executor="vmap")
    trainer.prepare(classifier(), TinyData())
    trainer.train_round()

    def fails(self: Any, assignment: Any) -> Any:
        raise RuntimeError("out of memory")
        yield

    monkeypatch.setattr(VmapExecutor, "run", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train_round()
    assert trainer.executor.name == "vmap"


def test_auto_says_what_it_chose() -> None:
    tiny, large = (make_trainer(None, executor="auto") for _ in range(2))
    tiny.prepare(classifier(), TinyData())
    assert tiny.executor.name == "vmap" and "small model" in tiny.notes[0]
    large.prepare(flcog.Classifier(flcog.models.SimpleCNN(1)), Pictures())
    assert large.executor.name == "loop" and "only for small models" in large.notes[0]


class Pictures(flcog.FederatedDataModule):
    num_classes = 10

    def load(self) -> Splits:
        return Splits(Samples(torch.zeros(40, 28, 28, 1, dtype=torch.uint8), torch.arange(40) % 10))


def test_batches_are_the_same_for_any_cohort_and_process() -> None:
    from flcog.engine.batching import Batching, make_work

    federation = TinyData().federation
    batching = Batching(4, None, 2.0)
    together = make_work(federation, batching, [0, 3, 5], [4, 8, 6], [1.0] * 3, seed=1, round=2)
    alone = make_work(federation, batching, [3], [8], [1.0], seed=1, round=2)
    np.testing.assert_array_equal(together[1].order, alone[0].order)
    assert not np.array_equal(alone[0].order, make_work(federation, batching, [3], [8], [1.0], seed=1, round=3)[0].order)


def test_an_epoch_reads_every_sample_once() -> None:
    from flcog.engine.batching import Batching, make_work

    federation = TinyData().federation
    for drop_last, sizes in ((False, [4, 4, 4]), (True, [4, 4, 4])):
        work = make_work(federation, Batching(4, None, 1.0, drop_last), [1], [3], [1.0], 0, 0)[0]
        assert work.sizes.tolist() == sizes
        np.testing.assert_array_equal(np.sort(work.order), federation.partition.client(1))
    work = make_work(federation, Batching(4, None, 1.0), [2], [3], [1.0], 0, 0)[0]
    assert work.sizes.tolist() == [4, 4, 2]
    work = make_work(federation, Batching(4, None, 2.0, drop_last=True), [2], [4], [1.0], 0, 0)[0]
    assert work.sizes.tolist() == [4, 4, 4, 4] and work.starts.tolist() == [0, 4, 10, 14]
    small = make_work(federation, Batching(64, 5, None), [6], [5], [1.0], 0, 0)[0]
    assert small.sizes.tolist() == [SIZES[6]] * 5  # a client smaller than a batch steps on all it has
    for start in small.starts:
        np.testing.assert_array_equal(np.sort(small.order[start : start + 4]), federation.partition.client(6))


def test_tampered_checkpoints_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rounds=1)
    trainer.fit(classifier(), TinyData())
    assert trainer.run_dir is not None
    good = trainer.run_dir / "checkpoints" / "last.ckpt"
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(good.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is no readable flcog checkpoint"):
        checkpoint.read(cut)

    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "pwned").touch, ())

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match="is no readable flcog checkpoint"):
        checkpoint.read(tmp_path / "evil.ckpt")
    assert not (tmp_path / "pwned").exists()
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="no flcog checkpoint of format"):
        checkpoint.read(tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="no checkpoint at"):
        checkpoint.read(tmp_path / "nowhere.ckpt")
    wider = flcog.Classifier(flcog.models.MLP(NUM_FEATURES, (9,), NUM_CLASSES))
    with pytest.raises(ValueError, match=r"holds another model: .* is \(8, 6\) there, \(9, 6\) here"):
        make_trainer(tmp_path, rounds=2).fit(wider, TinyData(), ckpt_path=str(good))
    with pytest.raises(ValueError, match="was written by a run with seed 0; this one has 1"):
        make_trainer(tmp_path, rounds=2, seed=1).fit(classifier(), TinyData(), ckpt_path=str(good))


def test_a_masked_batch_is_what_the_shorter_batch_is() -> None:
    from flcog.apply import Apply, ModelFunction

    model = ModelFunction(classifier())
    inputs, targets = torch.randn(5, NUM_FEATURES), torch.tensor([0, 1, 2, 0, 1])
    apply = Apply(model, {})
    padded = apply.loss(model.params, Batch(inputs, targets, torch.tensor([1.0, 1, 1, 0, 0])))
    torch.testing.assert_close(padded, apply.loss(model.params, Batch(inputs[:3], targets[:3])))


def test_the_users_module_ends_as_the_global_model(tmp_path: Path) -> None:
    trainer, module = make_trainer(tmp_path), classifier()
    trainer.fit(module, TinyData())
    for name, value in module.named_parameters():
        assert torch.equal(value, trainer.run.params[name])
    again = make_trainer(tmp_path).test(module, TinyData())
    assert again["test/loss"] == pytest.approx(
        trainer.run.evaluator.on_set(trainer.run.params, {}, TinyData().load().test)["loss"]
    )
