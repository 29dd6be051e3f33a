"""The client: a LightningModule, and the same thing seen as a pure function of its parameters."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import MetricCollection

from flcog.core.precision import number_dtype
from flcog.hooks import Batch, Params
from flcog.metrics import classification_metrics, multilabel_metrics, regression_metrics
from flcog.models import FeatureModel
from flcog.schedules import Piecewise, Schedule


class ClientModule(L.LightningModule):
    """What every client trains. Subclasses say how outputs are scored; the engine masks and averages.

    Args:
        model: a network; one with ``features`` and ``head`` (see :class:`flcog.models.FeatureModel`) serves every method.
        optimizer: the local optimiser, made anew for each client and round.
        lr_schedule: factor on the learning rate, by round.
    """

    task: str
    score_name: str
    """What :meth:`per_example_score` measures."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
        lr_schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        if not callable(optimizer):
            raise ValueError(f"{type(self).__name__}: optimizer must be a class path, such as torch.optim.SGD; got {optimizer}")
        if isinstance(lr_schedule, Piecewise) and min(lr_schedule.values) < 0:
            raise ValueError(f"{type(self).__name__}: lr_schedule's values must be at least 0; got {lr_schedule.values}")
        self.optimizer = optimizer
        self.lr_schedule = lr_schedule

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def features(self, inputs: Tensor) -> Tensor:
        """Penultimate activations."""
        return self._feature_model.features(inputs)

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
                f"{type(self.model).__name__} exposes no features, which a method of this run asks for: "
                "use a model of flcog.models, or subclass flcog.models.FeatureModel"
            )
        return self.model

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task loss of each row, [B]."""
        raise NotImplementedError

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How well each row is predicted, [B]: what is compared between clients."""
        raise NotImplementedError

    def metrics(self, num_classes: int) -> MetricCollection:
        """What an evaluation on a whole set reports."""
        raise NotImplementedError

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        """What keeps outputs of this shape from being scored against a set's targets, if anything does."""
        return ""

    def configure_optimizers(self) -> Any:
        try:
            return self.optimizer(p for p in self.parameters() if p.requires_grad)
        except ValueError as error:  # torch's optimisers check what they are given
            raise ValueError(
                f"{type(self).__name__}: the optimizer refuses an option ({error}): give one in its range"
            ) from error

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """The same loss for a plain ``lightning.Trainer``, e.g. to train on the pooled data for comparison.

        A subclass that writes its own trains by that, one client at a time; a :meth:`per_example_loss` of its own, which the engine
        can mask, serves both executors.
        """
        return self.per_example_loss(self(batch[0]), batch[1]).mean()


class Classifier(ClientModule):
    """One label of several, by cross-entropy."""

    task = "classification"
    score_name = "accuracy"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).to(outputs.dtype)

    def metrics(self, num_classes: int) -> MetricCollection:
        return classification_metrics(num_classes)

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        largest = int(targets.max())
        return f"labels up to {largest}, so it takes {largest + 1} outputs" if outputs.shape[1] <= largest else ""


class MultiLabelClassifier(ClientModule):
    """Any subset of the labels, by binary cross-entropy, averaged over the labels. Clients are compared by their examples' F1."""

    task = "multilabel"
    score_name = "f1"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(1)

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        predicted = (outputs > 0).to(outputs.dtype)
        targets = targets.to(outputs.dtype)
        # An example without labels that gets none is right.
        return (2 * (predicted * targets).sum(1) + 1e-12) / (predicted.sum(1) + targets.sum(1) + 1e-12)

    def metrics(self, num_classes: int) -> MetricCollection:
        return multilabel_metrics(num_classes)

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        return "" if outputs.shape[1] == targets.shape[1] else f"{targets.shape[1]} labels, so it takes as many outputs"


class Regressor(ClientModule):
    """A number, by squared error. Clients are compared by their absolute error."""

    task = "regression"
    score_name = "mae"

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.flatten(1).squeeze(1) - targets.to(outputs.dtype)).square()

    def per_example_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.flatten(1).squeeze(1) - targets.to(outputs.dtype)).abs()

    def metrics(self, num_classes: int) -> MetricCollection:
        return regression_metrics()

    def outputs_short_of(self, outputs: Tensor, targets: Tensor) -> str:
        return "" if outputs[0].numel() == 1 else "one value per sample, so it takes one output"


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over rows that count."""
    dtype = number_dtype(values.dtype)
    if mask is None:
        return values.mean(dtype=dtype)
    return (values * mask).sum(dtype=dtype) / mask.sum(dtype=dtype).clamp(min=1)


class _Dispatch(nn.Module):
    """Lets ``torch.func.functional_call``, which only knows ``forward``, call any method of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.module, *args)


class ModelFunction:
    """A module as a function of (parameters, buffers, inputs), and as itself where the parameters are its own.

    Args:
        module: the client's module, on its device.
        autocast: the precision plugin's context for forward passes.
    """

    def __init__(self, module: L.LightningModule, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.module = module.train()
        self.autocast = autocast
        self.params: Params = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.buffers: Params = dict(module.named_buffers())
        persistent = set(module.state_dict(keep_vars=True))
        self.shared_buffers = [name for name in self.buffers if name in persistent]
        """Buffers that clients upload and the server averages; the others are a client's scratch (dropout keys)."""
        self.eval_module = copy.deepcopy(module).eval().requires_grad_(False)
        self._train_dispatch, self._eval_dispatch = _Dispatch(self.module), _Dispatch(self.eval_module)
        self._keys = {name: f"module.{name}" for name in (*self.params, *self.buffers)}

    @property
    def mixes_rows(self) -> bool:
        """Whether one row's output depends on the others in training (BatchNorm), so that padding rows would be felt."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions, which read channels-last images faster; all else reads contiguous ones faster."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())

    @torch.no_grad()
    def draws(self, sample: Tensor) -> bool:
        """Whether its forward pass in training draws from torch's global stream, as ``nn.Dropout`` does.

        Args:
            sample: one input, [1, ...].
        """
        stream, buffers = torch.default_generator.get_state(), {name: buffer.clone() for name, buffer in self.buffers.items()}
        try:
            # Twice, for BatchNorm asks for more than one.
            self.call(True, self.params, buffers, _forward, torch.cat([sample, sample]))
            return not torch.equal(torch.default_generator.get_state(), stream)
        finally:
            torch.default_generator.set_state(stream)

    def call(self, train: bool, params: Params, buffers: Params, function: Callable[..., Any], *args: Any) -> Any:
        """``function(module, *args)`` with these parameters and buffers in the module's place."""
        state = {self._keys[name]: value for part in (params, buffers) for name, value in part.items()}
        with self.autocast():
            return torch.func.functional_call(self._train_dispatch if train else self._eval_dispatch, state, (function, *args))


class Apply:
    """The client's model as hooks see it: ``apply(params, inputs)``, ``apply.features(...)``, ``apply.loss(...)``.

    Without ``buffers`` it is the client's model in training mode with its own buffers (BatchNorm's statistics move); with
    ``buffers`` it is some other model in evaluation mode: ``apply(ctx.global_params, x, ctx.global_buffers)``.

    Passes in training mode are kept for the step: a method that asks for the features of the batch on which the task loss was just
    computed pays nothing.
    """

    def __init__(self, model: ModelFunction, buffers: Params, live: bool = False) -> None:
        self.model, self.buffers, self._live = model, buffers, live
        self._seen: list[tuple[Params, Tensor, Tensor, Tensor]] = []

    def _call(self, params: Params, buffers: Params | None, function: Callable[..., Any], *args: Any) -> Any:
        if buffers is not None:
            return self.model.call(False, params, buffers, function, *args)
        if self._live and params is self.model.params:
            with self.model.autocast():
                return function(self.model.module, *args)
        return self.model.call(True, params, self.buffers, function, *args)

    def __call__(self, params: Params, inputs: Tensor, buffers: Params | None = None) -> Tensor:
        if buffers is None and (seen := self._recall(params, inputs)):
            return seen[1]
        if not self.model.module.has_features:  # type: ignore[union-attr]
            return self._call(params, buffers, _forward, inputs)
        features, outputs = self._call(params, buffers, _features_and_outputs, inputs)
        if buffers is None:
            self._seen.append((params, inputs, features, outputs))
        return outputs

    def _recall(self, params: Params, inputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Features and outputs of an earlier pass of this step over the very same tensors."""
        return next((seen[2:] for seen in self._seen if seen[0] is params and seen[1] is inputs), None)

    def features(self, params: Params, inputs: Tensor, buffers: Params | None = None) -> Tensor:
        """Penultimate activations."""
        if buffers is None and (seen := self._recall(params, inputs)):
            return seen[0]
        return self._call(params, buffers, _features, inputs)

    def head(self, params: Params, features: Tensor, buffers: Params | None = None) -> Tensor:
        """From penultimate activations to outputs."""
        return self._call(params, buffers, _head, features)

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The client module's own loss of each row."""
        return self.model.module.per_example_loss(outputs, targets)  # type: ignore[operator,union-attr]

    def loss(self, params: Params, batch: Batch, buffers: Params | None = None) -> Tensor:
        """The task loss: the mean over the batch's rows that count."""
        outputs = self(params, batch.inputs, buffers)
        return masked_mean(self.per_example_loss(outputs, batch.targets), batch.mask)


class PlainApply(Apply):
    """A module's that trains itself: its loss is whatever its ``training_step`` returns.

    Args:
        step: what that is told as ``batch_idx``: the client's local step.
    """

    def __init__(self, model: ModelFunction, buffers: Params, live: bool = False, step: int = 0) -> None:
        super().__init__(model, buffers, live)
        self.step = step

    def __call__(self, params: Params, inputs: Tensor, buffers: Params | None = None) -> Tensor:
        return self._call(params, buffers, _forward, inputs)

    def loss(self, params: Params, batch: Batch, buffers: Params | None = None) -> Tensor:
        result = self._call(params, buffers, call_step, "training_step", (batch.inputs, batch.targets), self.step)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(result)[:80]
            raise ValueError(
                f"{type(self.model.module).__name__}.training_step must return the loss, a tensor of one number, or a dict that holds "
                f"it as 'loss'; got {got}"
            )
        return loss.reshape(())


def _forward(module: Any, inputs: Tensor) -> Tensor:
    return module(inputs)


def _features(module: Any, inputs: Tensor) -> Tensor:
    return module.features(inputs)


def _head(module: Any, features: Tensor) -> Tensor:
    return module.head(features)


def _features_and_outputs(module: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    features = module.features(inputs)
    return features, module.head(features)


def trains_itself(module: L.LightningModule) -> bool:
    """Whether its loss is known only by a ``training_step`` of the user's."""
    ours = (L.LightningModule.training_step, ClientModule.training_step)
    return "training_step" in vars(module) or type(module).training_step not in ours


def call_step(module: Any, name: str, batch: tuple[Tensor, Tensor], index: int) -> Any:
    """A module's own ``training_step`` or the like; as in Lightning, the batch's number is given to those who ask for it."""
    step = getattr(module, name)
    return step(batch, index) if is_param_in_hook_signature(step, "batch_idx", min_args=2) else step(batch)


class _NoTrainer:
    """Stands where a module looks for its ``lightning.Trainer``: its epochs are rounds, and it has nothing else."""

    logger, loggers, global_rank, local_rank = None, (), 0, 0

    def __init__(self, round: int) -> None:
        self.current_epoch = round

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of copy and pickle, which take no for an answer
            raise AttributeError(name)
        raise ValueError(
            f"a module asked its trainer for {name}, and there is no lightning.Trainer in federated training: self.current_epoch is "
            "the round, from 0, and batch_idx the client's local step; use these, or leave it out"
        )


@contextmanager
def among_rounds(module: L.LightningModule, round: int) -> Iterator[None]:
    """Tells a module that trains itself which round it is, as ``self.current_epoch``, which otherwise would stay 0."""
    module.trainer = cast(Any, _NoTrainer(round))
    try:
        yield
    finally:
        module.trainer = None


@contextmanager
def captured_logs(module: L.LightningModule) -> Iterator[dict[str, list[float]]]:
    """Collects what a plain module logs: without a ``Trainer``, ``self.log`` has nowhere to go."""
    logged: dict[str, list[float]] = {}

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        logged.setdefault(name, []).append(float(value.detach() if isinstance(value, Tensor) else value))

    def log_dict(values: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            log(name, value)

    module.__dict__.update(log=log, log_dict=log_dict)
    try:
        yield logged
    finally:
        del module.__dict__["log"], module.__dict__["log_dict"]
