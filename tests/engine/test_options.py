"""Options, federations and folders that make a run impossible are refused with a message of one line."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import TinyData, classifier, make_trainer, train
from lightning.pytorch.callbacks import Timer

import flcog
from flcog.callbacks import EarlyStopping, FedProx
from flcog.data import Partition, Partitioner, Samples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 1, "local_epochs": 1}, "set one of trainer.local_steps and trainer.local_epochs, not both"),
        ({"local_steps": 0}, "local_steps must be a whole number of at least 1; got 0"),
        ({"local_epochs": 0.0}, "local_epochs must be positive"),
        ({"local_steps": 1, "rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"local_steps": 1, "clients_per_round": 10.0}, "a count has no decimal point"),
        (
            {"local_steps": 1, "clients_per_round": 0},
            "clients_per_round must be a count (1, 2, ...) or a fraction in (0, 1]; got 0",
        ),
        (
            {"local_steps": 1, "limit_test_batches": "half"},
            "limit_test_batches must be a count (0, 1, ...) or a fraction in [0, 1]; got",
        ),
        ({"local_steps": 1, "executor": "fast"}, "executor must be auto, loop, vmap, vmap-patches or lightning; got 'fast'"),
        ({"local_steps": 1, "precision": "8"}, "Precision '8' is invalid"),
        ({"local_steps": 1, "accelerator": "cuda", "devices": 99}, "devices=99"),
        ({"local_steps": 1, "callbacks": [FedProx]}, "FedProx'>: give objects, and no classes or names"),
        ({"local_steps": 1, "callbacks": ["FedProx"]}, "got 'FedProx': give objects, and no classes or names"),
        (
            {"local_steps": 1, "logger": "wandb"},
            "logger must be one of Lightning's loggers, a list of them, true or false; got 'wandb'",
        ),
        ({"local_steps": 1, "compile": "graph"}, "compile must be false, true or graphs; got 'graph'"),
    ],
)
def test_bad_options_get_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        flcog.FederatedTrainer(**({"logger": False} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"), [("num_rounds", "'rounds'"), ("methods", "'callbacks'"), ("lr", "the model's 'optimizer.lr'")]
)
def test_a_first_guess_at_an_argument_names_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"FederatedTrainer has no argument {name!r}. Did you mean {meant}?")):
        flcog.FederatedTrainer(**{name: 1})


def test_callbacks_are_given_when_a_trainer_is_made() -> None:
    given = [Timer(), EarlyStopping(), FedProx(mu=0.1)]
    trainer = flcog.FederatedTrainer(local_steps=1, logger=False, callbacks=given)  # type: ignore[arg-type]
    assert [callback for callback in trainer.callbacks if callback in given] == given[::-1]
    with pytest.raises(AttributeError, match="callbacks"):
        trainer.callbacks = ()  # type: ignore[misc]


def test_one_callback_needs_no_list() -> None:
    assert flcog.FederatedTrainer(local_steps=1, logger=False, callbacks=FedProx(mu=0.1)).methods == [FedProx(mu=0.1)]  # type: ignore[arg-type]


def test_bad_federations_get_one_line() -> None:
    with pytest.raises(ValueError, match="clients_per_round=9 but the federation has 8 clients"):
        train(clients_per_round=9)

    @dataclass(frozen=True)
    class Sparse(Partitioner):
        def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
            return Partition.from_clients([np.arange(len(samples)), np.zeros(0, np.int64)])

    data = TinyData()
    data.partitioner = Sparse()
    with pytest.raises(ValueError, match="1 of 2 clients have no training samples"):
        train(data=data)
    data.partitioner = "dirichlet"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="partitioner must be an object"):
        train(data=data)


def test_an_unwritable_run_directory_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write .*: File exists"):
        make_trainer(tmp_path / "file").fit(classifier(), TinyData())
