"""Predictions of a run's global model, or of a client's own, on the test set or on new inputs; and the file they are written to."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule
from flcog.core.files import replacing
from flcog.core.source import Source
from flcog.core.trees import first_leaf
from flcog.data import Federation, NewInputs, Samples
from flcog.data.samples import require_finite_inputs
from flcog.lightning.contract import has_step, is_users
from flcog.run.session import Session

Predictions = dict[str, Any]
"""By name: tensors ``prediction``, ``probability`` and the like, and ``target`` where it is known, each with the samples as first axis;
and for new inputs an array ``sample`` of their names."""


class ByBatch(list[Any]):
    """The results of a ``predict_step`` for each batch, with the names of new inputs."""

    names: Sequence[Any] = ()


def predict(run: Session, new: NewInputs | None = None, client: int | None = None) -> Predictions | ByBatch:
    """Return the model's predictions for some inputs, or for the test set (the validation set if there is no test set).

    A module with its own ``predict_step`` decides them: one result for each batch, as from ``lightning.Trainer``.
    """
    federation, module, weights = run.federation, run.model.module, run.weights(client)
    samples = federation.test or federation.val if new is None else _samples(federation, new.inputs)
    if samples is None:
        raise ValueError(f"{run.engine.data_name} has no test set to predict: give inputs")
    evaluator = run.evaluator
    count = evaluator.number_predicted(samples)
    names = () if new is None else new.names[:count]
    if has_step(module, "predict"):
        results = ByBatch(evaluator.own.predictions(*weights, samples, np.arange(count)))
        results.names = names
        return results
    if not is_users(module, "forward") and not isinstance(module, ClientModule):
        raise ValueError(f"{type(module).__name__} has neither predict_step nor forward, and predictions need one: write it")
    outputs = evaluator.outputs(*weights, samples)
    found = module.predictions(outputs) if isinstance(module, ClientModule) else {"output": outputs}
    if new is not None:
        return {"sample": np.asarray(names)} | found
    return found | ({"target": samples.labels[:count].cpu()} if samples.labelled else {})


def by_name(predictions: Predictions | list[Any]) -> Predictions:
    """The predictions by name, to be written: the results of a ``predict_step`` are tensors, or dicts of tensors, for each batch."""
    if isinstance(predictions, dict):
        return predictions
    named = [result if isinstance(result, dict) else {"prediction": result} for result in predictions]
    names = {"sample": np.asarray(predictions.names)} if isinstance(predictions, ByBatch) and len(predictions.names) else {}
    return names | {name: torch.cat([result[name] for result in named]) for name in named[0]}


def _samples(federation: Federation, inputs: Any) -> Samples:
    """Return the user's inputs as samples with zeros for targets."""
    stored, padded = federation.train.inputs, False
    if not isinstance(inputs, Source):
        if isinstance(stored, Source):  # items of a data set, which have no form until one is read
            stored, padded = stored.read(np.zeros(1, np.int64), None), stored.whole_batches
        own, spec = pytree.tree_flatten(stored)
        given, given_spec = pytree.tree_flatten(inputs)
        if spec != given_spec:
            raise ValueError(
                "inputs must have the parts of the data set's own (a dict with the same names); they have other parts"
            )
        leaves = [_as_stored(leaf, stored, padded) for leaf, stored in zip(given, own, strict=True)]
        inputs = pytree.tree_unflatten(leaves, spec)
    train, targets = federation.train, torch.zeros(len(first_leaf(inputs)), dtype=torch.int64)
    returned = train.returned and train.returned._replace(targets=targets)
    samples = Samples(inputs, targets, whole=train.whole, returned=returned)
    if not train.whole:  # items of other forms than pairs may use NaN in a sense of their own
        require_finite_inputs(samples, "the array to predict")
    return samples


def _as_stored(given: Any, stored: Any, padded: bool) -> Tensor:
    """Return the user's array in the type of the stored inputs; refuse values that this type cannot hold."""
    array, like = np.asarray(given), torch.as_tensor(stored[:1])
    kind, real = str(like.dtype).removeprefix("torch."), like.is_floating_point()
    if array.ndim == like.ndim - 1 and like.shape[-1] == 1 and not padded:
        array = array[..., None]  # grey images without their channel
    fits = array.ndim == like.ndim if padded else array.shape[1:] == like.shape[1:]
    if not fits or array.dtype.kind not in ("f" if real else "biu"):
        shape = ", ".join("any length" if padded else str(length) for length in like.shape[1:])
        raise ValueError(
            f"inputs must be as the data set stores them, {kind} [N, {shape}]; got {array.dtype} {list(array.shape)} "
            "(it is the data module that normalises them)"
        )
    if not real and array.size and not torch.iinfo(like.dtype).min <= array.min() <= array.max() <= torch.iinfo(like.dtype).max:
        raise ValueError(
            f"inputs hold numbers from {array.min()} to {array.max()}, and the data set stores {kind}: give inputs in its range"
        )
    return torch.from_numpy(np.ascontiguousarray(array.astype(kind)))


def write_predictions(path: Path, predictions: Predictions, class_names: tuple[str, ...] | None = None) -> None:
    """A row a sample as CSV, with the names of classes, or the arrays as they are in an .npz; the file's name decides."""
    arrays = {name: np.asarray(value) for name, value in predictions.items()}
    if path.suffix == ".npz":
        with replacing(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return
    if path.suffix != ".csv":
        raise ValueError(f"predictions are written as .csv or .npz; got {path}")
    columns = {"sample": np.arange(len(next(iter(arrays.values()))))}
    for name, values in sorted(arrays.items(), key=lambda item: item[1].ndim):  # single columns first
        if class_names and name in ("prediction", "target") and values.ndim == 1 and values.dtype.kind == "i":
            values = np.asarray([*class_names, *range(len(class_names), values.max(initial=0) + 1)])[values]
        flat = values.reshape(len(values), -1)
        labels = class_names if class_names is not None and len(class_names) == flat.shape[1] else range(flat.shape[1])
        columns |= {name: values} if values.ndim == 1 else {f"{name}_{label}": flat[:, i] for i, label in enumerate(labels)}
    with replacing(path, "w") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
