"""Check before round 1 that a client module finds pairs in the data, and that its model has enough outputs for the labels."""

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule
from flcog.core.global_streams import seeded
from flcog.core.trees import Tree, first_leaf, form
from flcog.data import Federation
from flcog.functional.model_function import ModelFunction, forward


def check_pairs(module: ClientModule, federation: Federation) -> None:
    """Refuse data that are not pairs of tensors, an input and a target, from which every client module learns."""
    name = type(module).__name__
    for part, samples in federation.sets.items():
        if not samples.whole and samples.labelled:
            continue
        items = samples.gather(torch.zeros(1, dtype=torch.int64))
        odd = [leaf for leaf in pytree.tree_leaves(items) if not isinstance(leaf, Tensor)]
        if not samples.labelled or odd:
            found = f"contains a {type(odd[0]).__name__}" if samples.labelled else f"is {form(items)}"
            raise ValueError(
                f"{name} learns from pairs of an input and a target, which are tensors, and a batch of the {part} set {found}: return "
                'pairs, name the targets (target="label"), make tensors in a transform (a tokenizer, for text), or give a '
                "LightningModule whose training_step takes such batches"
            )


@torch.no_grad()
def check_outputs(model: ModelFunction, sample: Tree, federation: Federation) -> None:
    """Refuse targets of another kind than the module learns, and a model with fewer outputs than the data have labels.

    Cross entropy on a GPU would end the process at such a label without naming it. ``sample`` is one input of the model, [1, ...].
    """
    module = model.module
    if not isinstance(module, ClientModule) or not _loss_is_known(type(module)):
        return
    for part, samples in federation.sets.items():
        if not isinstance(samples.targets, Tensor):
            raise ValueError(
                f"{type(module).__name__} learns from one tensor of targets, and the {part} set's are a {type(samples.targets).__name__}: "
                "give one tensor, or write a subclass whose per_example_loss, per_example_score and metrics read all of them"
            )
        if module.task == "classification" and samples.targets.is_floating_point():
            raise ValueError(
                f"{type(module).__name__} learns class indices, and the {part} set's targets are {samples.targets.dtype}: give integers "
                "(targets.long()), or use Regressor for values"
            )
    try:
        with seeded(0, first_leaf(sample).device):
            buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
            outputs = model.frozen(model.params, buffers, forward, sample)
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
