"""Predictions of a run's global model: on the test set, or on inputs that the user gives; and the file they are written to."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule
from flcog.core.files import replacing
from flcog.core.trees import Tree
from flcog.data import Federation, Samples
from flcog.run.session import Session
from flcog.server.personal import only_personal

Predictions = dict[str, Tensor]
"""By name: ``prediction``, ``probability`` and the like, and ``target`` where it is known; each with the samples as first axis."""


def predict(run: Session, inputs: Tree | None = None) -> Predictions:
    """What the global model says of some inputs, or of the test set (the validation set where there is no test set).

    Args:
        run: whose model, as it is evaluated.
        inputs: in the form in which the data set stores them.
    """
    federation, module = run.federation, run.model.module
    if (alone := only_personal(run.engine, run.server)) is not None:
        raise ValueError(
            f"{alone.name} trains the clients' own models and no global one that could predict: use its clients' figures"
        )
    samples = federation.test or federation.val if inputs is None else _samples(federation, inputs)
    if samples is None:
        raise ValueError(f"{run.engine.data_name} has no test set to predict: give inputs")
    outputs = run.evaluator.outputs(run.evaluated_params(), run.buffers, samples)
    found = module.predictions(outputs) if isinstance(module, ClientModule) else {"output": outputs}
    return found | ({"target": samples.labels.cpu()} if inputs is None else {})


def _samples(federation: Federation, inputs: Tree) -> Samples:
    """The user's inputs as samples, whose targets nobody looks at."""
    own, spec = pytree.tree_flatten(federation.train.inputs)
    given, given_spec = pytree.tree_flatten(inputs)
    if spec != given_spec:
        raise ValueError("inputs must have the parts of the data set's own (a dict with the same names); they have others")
    leaves = [_as_stored(leaf, stored) for leaf, stored in zip(given, own, strict=True)]
    return Samples(pytree.tree_unflatten(leaves, spec), torch.zeros(len(leaves[0]), dtype=torch.int64))


def _as_stored(given: Any, stored: Any) -> Tensor:
    given, like = torch.as_tensor(np.asarray(given)), torch.as_tensor(stored[:1])
    if given.ndim == like.ndim - 1 and like.shape[-1] == 1:
        given = given.unsqueeze(-1)  # grey images without their channel
    if given.shape[1:] != like.shape[1:] or given.is_floating_point() != like.is_floating_point():
        shape = ", ".join(map(str, like.shape[1:]))
        kind, got = (str(tensor.dtype).removeprefix("torch.") for tensor in (like, given))
        raise ValueError(
            f"inputs must be as the data set stores them, {kind} [N, {shape}]; got {got} {list(given.shape)} "
            "(it is the data module that normalises them)"
        )
    return given.to(like.dtype)


def write_predictions(path: Path, predictions: Predictions, class_names: tuple[str, ...] | None = None) -> None:
    """A row a sample as CSV, or the arrays as they are in an .npz; the file's name decides."""
    arrays = {name: value.numpy() for name, value in predictions.items()}
    if path.suffix == ".npz":
        with replacing(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return
    if path.suffix != ".csv":
        raise ValueError(f"predictions are written as .csv or .npz; got {path}")
    columns = {"sample": np.arange(len(next(iter(arrays.values()))))}
    for name in sorted(arrays, key=lambda name: arrays[name].ndim):  # single columns first
        columns |= _columns(name, arrays[name], class_names)
    with replacing(path, "w") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def _columns(name: str, values: np.ndarray, class_names: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    if values.ndim == 1:
        return {name: values}
    flat = values.reshape(len(values), -1)
    labels = class_names if class_names is not None and len(class_names) == flat.shape[1] else range(flat.shape[1])
    return {f"{name}_{label}": flat[:, i] for i, label in enumerate(labels)}
