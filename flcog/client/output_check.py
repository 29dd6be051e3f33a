"""Check before round 1 that a client module finds pairs in the data, and that its model has enough outputs and embedded ids."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.token_ids import UnknownIdsError, data_ids_checked
from flcog.client_module import ClientModule
from flcog.core.global_streams import seeded
from flcog.core.source import Source
from flcog.core.trees import Tree, first_leaf, form
from flcog.data import Federation, Samples
from flcog.functional.model_function import ModelFunction, forward


def check_pairs(module: ClientModule, federation: Federation) -> None:
    """Refuse data that are not pairs of an input and a target, from which every client module learns.

    Args:
        module: the client's module.
        federation: the data sets.
    """
    name = type(module).__name__
    for part, samples in federation.sets.items():
        if not samples.whole and samples.labelled:
            if samples.for_steps is not None:
                _check_collated(samples, samples.for_steps)
            continue
        items = samples.gather(torch.zeros(1, dtype=torch.int64))
        if not samples.labelled:
            raise ValueError(
                f"{name} learns from pairs of an input and a target, and a batch of the {part} set is {form(items)}: return pairs, "
                'name the targets (target="label"), or give a LightningModule whose training_step takes such batches'
            )
        parts = pytree.tree_leaves(items, is_leaf=_is_named_with_gaps)
        if odd := [part for part in parts if not isinstance(part, Tensor)]:
            raise ValueError(
                f"{name} takes tensors, and a batch of the {part} set contains a {type(odd[0]).__name__}: make tensors in a transform (a "
                "tokenizer, for text), or give a LightningModule whose training_step takes such batches"
            )


def _check_collated(samples: Samples, batches: Source) -> None:
    """Refuse a ``collate_fn`` whose targets differ from the items' own: the split, the metrics and client modules use the latter."""
    rows = np.arange(min(8, len(samples)))
    made, own = batches.read(rows, None), samples.labels[: len(rows)].cpu()
    targets = made[1] if isinstance(made, tuple | list) and len(made) == 2 else None
    if isinstance(targets, Tensor) and not torch.equal(targets.reshape(-1).to(own.dtype), own.reshape(-1)):
        raise ValueError(
            f"collate_fn makes the targets {targets.reshape(-1)[:4].tolist()} of items whose targets are "
            f"{own.reshape(-1)[:4].tolist()}, and a flcog.ClientModule learns the items' own: change them in the data set, or give a "
            "LightningModule"
        )


def _is_named_with_gaps(part: Any) -> bool:
    """Whether it is a named tuple with None for some of its fields, such as a PackedSequence of sorted sequences."""
    return isinstance(part, tuple) and hasattr(part, "_fields") and any(field is None for field in part)


@torch.no_grad()
def check_outputs(model: ModelFunction, sample: Tree, federation: Federation) -> None:
    """Refuse a model with fewer outputs, or fewer embedded ids, than the training, validation or test set need.

    Args:
        model: the client's model, with its parameters on the device that trains.
        sample: one input of the model, [1, ...].
        federation: the data sets.
    """
    module = model.module
    if not isinstance(module, ClientModule) or not _loss_is_known(type(module)):
        return
    for part, samples in federation.sets.items():
        if not isinstance(samples.targets, Tensor):
            kind = type(samples.targets).__name__
            raise ValueError(
                f"{type(module).__name__} learns from one tensor of targets, and the {part} set's are a {kind}: give one tensor, or "
                "write a subclass whose per_example_loss, per_example_score and metrics read all of them"
            )
        if module.task == "classification" and samples.targets.is_floating_point():
            raise ValueError(
                f"{type(module).__name__} learns class indices, and the {part} set's targets are {samples.targets.dtype}: give integers "
                "(targets.long()), or use Regressor for values"
            )
    try:
        with seeded(0, first_leaf(sample).device), data_ids_checked(model.module, sample, federation):
            buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
            outputs = model.frozen(model.params, buffers, forward, sample)
    except UnknownIdsError:
        raise
    except Exception:  # training raises it again, with the client and the step
        return
    for part, samples in federation.sets.items():
        if outputs.ndim == 2 and (wanted := module.outputs_short_of(outputs, samples.targets)):
            raise ValueError(
                f"{type(module.model).__name__} has {outputs.shape[1]} outputs, and the {part} set has {wanted}: set the model's "
                "num_classes"
            )


def _loss_is_known(cls: type) -> bool:
    """Whether the class that defines the loss also defines ``outputs_short_of``, the number of outputs that the loss needs."""
    return next("outputs_short_of" in vars(base) for base in cls.__mro__ if "per_example_loss" in vars(base))
