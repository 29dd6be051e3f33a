"""ClientModule, the LightningModule that every client trains, and its subclasses Classifier, MultiLabelClassifier and Regressor."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from flcog.core.lightning_packages import lightning_base
from flcog.core.trees import Tree, call, form
from flcog.core.users_code import is_users
from flcog.metrics import classification_metrics, multilabel_metrics, regression_metrics
from flcog.models import FeatureModel
from flcog.schedules import Piecewise, Schedule


class ClientModule(L.LightningModule, ABC):
    """The LightningModule that every client trains. Subclasses define the loss and the score of each row.

    Args:
        model: a network. Some methods need ``features`` and ``head`` (see :class:`flcog.models.FeatureModel`). If the inputs are a
            dict, they are passed as keywords if the network's forward has parameters of all these names, else as one dict.
        optimizer: a function that makes the local optimiser for each client and round. The default is SGD with a learning rate of
            0.01 and a momentum of 0.9, which other optimisers do not inherit.
        lr_schedule: a factor on the learning rate, by round.
        output: the key or the position of the outputs, for a network that returns a dict or a tuple. By default the outputs are the
            tensor that the network returns, or its ``logits``.
        metrics: of torchmetrics, for evaluations beside the task's own: one, or several by name. They take outputs and targets.
    """

    task: str
    score_name: str
    """What :meth:`per_example_score` measures."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerCallable | None = None,  # a default of SGD would add SGD's options to a user's optimiser
        lr_schedule: Schedule | None = None,
        output: str | int | None = None,
        metrics: Metric | dict[str, Metric] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.output = model, output
        given = {type(metrics).__name__: metrics} if isinstance(metrics, Metric) else metrics or {}
        self._given_metrics: dict[str, Metric | MetricCollection] = {**given}
        if optimizer is not None and not callable(optimizer):
            raise ValueError(f"{type(self).__name__}: optimizer must be a class path, such as torch.optim.SGD; got {optimizer}")
        if isinstance(lr_schedule, Piecewise) and min(lr_schedule.values) < 0:
            raise ValueError(f"{type(self).__name__}: lr_schedule's values must be at least 0; got {lr_schedule.values}")
        self.optimizer: OptimizerCallable = optimizer or partial(torch.optim.SGD, lr=0.01, momentum=0.9)
        self.lr_schedule = lr_schedule

    def forward(self, inputs: Tree, /) -> Tensor:
        return outputs_of(self.model, call(self.model, inputs), self.output)

    def features(self, inputs: Tree, /) -> Tensor:
        """Penultimate activations."""
        return call(self._feature_model.features, inputs)

    def head(self, features: Tensor) -> Tensor:
        """From penultimate activations to outputs."""
        return self._feature_model.head(features)

    @property
    def has_features(self) -> bool:
        return isinstance(self.model, FeatureModel)

    @property
    def _feature_model(self) -> FeatureModel:
        if not isinstance(self.model, FeatureModel):
            raise ValueError(
                f"{type(self.model).__name__} exposes no features, which a method of this run needs: "
                "use a model of flcog.models, or subclass flcog.models.FeatureModel"
            )
        return self.model

    @abstractmethod
    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task loss of each row, [B]."""

    @abstractmethod
    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The quality of each row's prediction, [B]. Clients are compared by its mean."""

    @abstractmethod
    def metrics(self, num_classes: int) -> MetricCollection:
        """The task's metrics of an evaluation on a whole set."""

    def all_metrics(self, num_classes: int) -> MetricCollection:
        """The task's metrics, and those that the user gave."""
        return MetricCollection([self.metrics(num_classes), MetricCollection(self._given_metrics)])

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        """Predictions from the outputs [B, ...], by name, for :meth:`FederatedTrainer.predict`."""
        return {"output": outputs}

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        """A description of targets that need more outputs, such as "12 classes"; empty if there are enough outputs."""
        return ""

    def configure_optimizers(self) -> Any:
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise ValueError(
                f"{type(self).__name__} has no parameter that trains: let requires_grad be True for some, or give another network"
            )
        try:
            return self.optimizer(p for p in self.parameters() if p.requires_grad)
        except ValueError as error:
            if any(is_users(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
                raise  # a user's own optimiser keeps its traceback
            raise ValueError(f"{type(self).__name__}: optimizer: {error}") from error

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """For ``load_from_checkpoint``: frozen weights are not in the file and keep their initial values."""
        frozen = {name: value.detach() for name, value in self.state_dict(keep_vars=True).items() if not value.requires_grad}
        checkpoint["state_dict"] = frozen | checkpoint["state_dict"]

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The same loss for a plain ``lightning.Trainer``, for example to train on the pooled data as a baseline.

        A subclass may override it, and then one client is trained at a time. Both executors can run an overridden
        :meth:`per_example_loss`, because the engine can mask its rows.
        """
        return self.per_example_loss(self(batch[0]), batch[1]).mean()


class Classifier(ClientModule):
    """Predicts the class of each sample, with the cross-entropy loss."""

    task = "classification"
    score_name = "accuracy"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).to(outputs.dtype)

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1), "probability": outputs.softmax(1)}

    def metrics(self, num_classes: int) -> MetricCollection:
        return classification_metrics(num_classes)

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        largest = int(targets.max())
        return f"labels up to {largest}, so it takes {largest + 1} outputs" if outputs.shape[1] <= largest else ""


class MultiLabelClassifier(ClientModule):
    """Predicts any subset of the labels, with the mean binary cross-entropy over the labels. The score is each sample's F1."""

    task = "multilabel"
    score_name = "f1"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(1)

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        predicted = (outputs > 0).to(outputs.dtype)
        targets = targets.to(outputs.dtype)
        # An example without labels is right if no label is predicted.
        return (2 * (predicted * targets).sum(1) + 1e-12) / (predicted.sum(1) + targets.sum(1) + 1e-12)

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"prediction": (outputs > 0).long(), "probability": outputs.sigmoid()}

    def metrics(self, num_classes: int) -> MetricCollection:
        return multilabel_metrics(num_classes)

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        return "" if outputs.shape[1] == targets.shape[1] else f"{targets.shape[1]} labels, so it takes as many outputs"


class Regressor(ClientModule):
    """Predicts one or several numbers per sample, with the mean squared error. The score is the mean absolute error."""

    task = "regression"
    score_name = "mae"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _mean_over_columns((_values(outputs, targets) - targets.to(outputs.dtype)).square())

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _mean_over_columns((_values(outputs, targets) - targets.to(outputs.dtype)).abs())

    def predictions(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"prediction": outputs.flatten(1).squeeze(1)}

    def metrics(self, num_classes: int) -> MetricCollection:
        return regression_metrics()

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        columns = targets[0].numel()
        if outputs[0].numel() == columns:
            return ""
        if columns == 1:
            return "one value per sample, so it takes one output (numbers of classes must be integers)"
        return f"{columns} values per sample, so it takes {columns} outputs"


def _values(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs in the shape of the targets: [B] or [B, columns]."""
    return outputs.flatten(1).squeeze(1) if targets.ndim == 1 else outputs.flatten(1)


def _mean_over_columns(errors: Tensor) -> Tensor:
    return errors if errors.ndim == 1 else errors.mean(1)


def outputs_of(network: nn.Module, returned: Any, output: str | int | None = None) -> Tensor:
    """Find the outputs in the value that a network has returned.

    Args:
        network: the network.
        returned: a tensor, an object or dict with ``logits`` as transformers' classifiers return, or another dict or tuple.
        output: the key or the position of the outputs in a dict or tuple.
    """
    name = "logits" if output is None else output
    if isinstance(returned, Mapping):
        outputs = returned.get(name)
    elif isinstance(returned, tuple | list) and isinstance(name, int):
        outputs = returned[name] if -len(returned) <= name < len(returned) else None
    else:
        outputs = getattr(returned, name, returned) if isinstance(name, str) else returned
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{type(network).__name__} returns {form(returned)}, and output={output!r} names no tensor in it: give the client the key or "
            "the position of its outputs, such as output=0"
        )
    return outputs


def as_client(network: nn.Module, task: str) -> ClientModule:
    """Wrap a bare network in the client module for the data's task."""
    kinds: dict[str, type[ClientModule]] = {kind.task: kind for kind in (Classifier, MultiLabelClassifier, Regressor)}
    if task not in kinds:
        raise ValueError(
            f"{type(network).__name__} has no loss, and the data have no targets to choose one by: give a LightningModule with a "
            'training_step, or name the targets (target="label")'
        )
    return kinds[task](network)


def trains_itself(module: nn.Module) -> bool:
    """Whether the user's module defines its own ``training_step``, so that only this step can compute the loss."""
    base = lightning_base(module, "LightningModule") or L.LightningModule
    name = "training_step"
    inherited = [getattr(kind, name) for kind in (base, ClientModule)]
    return name in vars(module) or getattr(type(module), name) not in inherited
