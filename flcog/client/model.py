"""The model that clients train: the user's module, the layers that methods add, and the optimiser."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flcog.client_module import ClientModule, as_client
from flcog.core.global_streams import seeded
from flcog.core.precision import DTYPES, default_dtype, float64_device
from flcog.core.processes import Processes
from flcog.core.randomness import fold
from flcog.core.source import Source
from flcog.core.trees import Tree, first_leaf, form, is_sharded
from flcog.core.types import Params
from flcog.data import FederatedDataModule, Federation
from flcog.functional.model_function import ModelFunction, forward
from flcog.method import Method, Note, Personalisation
from flcog.method.gradient_clip import GradientClip
from flcog.models.lora import adapters
from flcog.settings import Settings

CHANGES_A_STEP = ("loss", "wrap_gradient", "correct_gradient")
"""Hooks of flcog's methods that a module with manual optimisation leaves no place for."""


class SeveralOptimizers(torch.optim.Optimizer):
    """The optimisers of a module with manual optimisation as one list of groups. The module steps each of them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def asks_again(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser computes the loss itself, perhaps several times in a step, as ``LBFGS`` does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Describe an optimiser by its settings that differ from torch's defaults: ``SGD(lr=0.05, momentum=0.9)``."""
    if isinstance(optimizer, SeveralOptimizers):
        return ", ".join(map(describe_optimizer, optimizer.optimizers))
    usual = inspect.signature(type(optimizer)).parameters
    options = {
        name: value
        for name, value in optimizer.defaults.items()
        if name == "lr" or (name in usual and usual[name].default != value)
    }
    groups = f", {len(optimizer.param_groups)} groups of parameters" if len(optimizer.param_groups) > 1 else ""
    return f"{type(optimizer).__name__}({', '.join(f'{name}={value}' for name, value in options.items())}){groups}"


class ClientModel(NamedTuple):
    """The model and the optimiser of each client.

    ``reason`` says why the clients train in Lightning's loops, and is empty if the module may be pure. ``hooked``: whether users' hooks
    between rounds may change the module.
    """

    function: ModelFunction
    optimizer: torch.optim.Optimizer
    notes: list[Note]
    trainer: Any
    reason: str = ""
    hooked: bool = False

    @property
    def tensors(self) -> Params:
        """Parameters and shared buffers by name, as checkpoints store them."""
        return self.function.params | {name: self.function.buffers[name] for name in self.function.shared_buffers}


def make_client_model(
    settings: Settings,
    methods: Sequence[Method],
    model: nn.Module,
    datamodule: FederatedDataModule,
    processes: Processes,
    trainer: Any,
) -> ClientModel:
    """Make the initial model of a run, identical in all processes."""
    client = model if isinstance(model, L.LightningModule) else as_client(model, datamodule.federation.task)
    client, notes = _with_methods(settings, methods, client, datamodule, processes, trainer)
    function = ModelFunction(client, functools.partial(settings.autocast, processes.device))
    optimizers = trainer.make_optimizers(client)
    optimizer = optimizers[0] if len(optimizers) == 1 else SeveralOptimizers(optimizers)
    reason = trainer.reason_for_its_loops(settings.keep_optimizers)
    if client is not model and not isinstance(model, L.LightningModule):
        kind = type(client).__name__
        text = f"{type(model).__name__} trains as a flcog.{kind} by {describe_optimizer(optimizer)}: flcog.{kind}(network, optimizer=...)"
        notes.insert(0, Note("client", f"{text} chooses another"))
    inputs = datamodule.federation.train.inputs
    collated = "a collate_fn mixes the samples of a batch" if isinstance(inputs, Source) and inputs.whole_batches else ""
    _check_steps(client, methods, optimizers, settings.accumulate_grad_batches, reason or collated)
    if not reason:
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return ClientModel(function, optimizer, notes, trainer, reason, trainer.has_users_hooks())


def _with_methods(
    settings: Settings,
    methods: Sequence[Method],
    model: L.LightningModule,
    datamodule: FederatedDataModule,
    processes: Processes,
    trainer: Any,
) -> tuple[L.LightningModule, list[Note]]:
    """Set the module up, let all methods change it, move it to the device, and make it identical in all processes."""
    dtype, device = DTYPES.get(settings.precision, torch.float32), processes.device
    if dtype == torch.float64 and float64_device(device) != device:
        raise ValueError(f"precision={settings.precision}: {device.type} has no float64; use 32-true, or accelerator=cpu")
    trainer.attach(model)
    seed = fold(settings.seed, "configure_model")
    with seeded(seed, processes.device), default_dtype(torch.float32):
        trainer.set_up(again=datamodule.loaders_of is model)
    _check_task(model, datamodule)
    notes = []
    if datamodule.federation.client_test is not None and not isinstance(model, ClientModule):
        text = f"data.client_test holds out samples that nothing measures: {type(model).__name__} is no flcog.ClientModule"
        notes.append(Note("note", text))
    for method in methods:
        model = _with_method(settings, method, model, datamodule.federation, processes)
        if isinstance(method, Personalisation) and method.communicates:
            data = datamodule.federation
            if data.client_test is None and not data.reweighted_test:
                notes.append(Note("note", f"the personal models of {method.name} are tested only with data.client_test above 0"))
            if data.client_val is None:
                notes.append(
                    Note("note", f"{method.name}: only data.client_val above 0 chooses the best round of personal models")
                )
    model = _in_precision(model, device, dtype)
    processes.overwrite(value for value in model.state_dict().values() if not is_sharded(value))
    return model, notes


def _in_precision(model: L.LightningModule, device: torch.device, dtype: torch.dtype) -> L.LightningModule:
    """The module on the device, with its floating-point tensors in this type. Complex tensors keep their type, as in Lightning.

    Complex tensors that clients would send are refused, because the sums, codecs and rules of federated training are real.
    """
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and value.is_complex():
            remedy = "" if name in dict(model.named_parameters()) else ", or register it with persistent=False"
            raise ValueError(
                f"{type(model).__name__}: {name} is {value.dtype}, and clients send real numbers: keep torch.view_as_real of it, and call "
                f"torch.view_as_complex in forward{remedy}"
            )
    # Module.to would turn the others into real numbers.
    apart = [(layer, *pair) for layer in model.modules() for pair in layer.named_buffers(recurse=False) if pair[1].is_complex()]
    for layer, name, _ in apart:
        setattr(layer, name, None)
    model = model.to(device, dtype)
    for layer, name, value in apart:
        setattr(layer, name, value.to(device))
    return model


def _check_task(model: L.LightningModule, datamodule: FederatedDataModule) -> None:
    if not isinstance(model, ClientModule):
        return
    check_pairs(model, datamodule.federation)
    task = datamodule.federation.task
    if model.task != task:
        raise ValueError(
            f"{type(model).__name__} learns {model.task}, but {type(datamodule).__name__} holds {task} data: "
            "use Classifier, MultiLabelClassifier or Regressor accordingly, or set the data's task (by default floats are values and "
            "integers classes)"
        )


def _with_method(
    settings: Settings, method: Method, model: L.LightningModule, federation: Federation, processes: Processes
) -> L.LightningModule:
    """Let one method change the module."""
    if federation.task not in method.tasks:
        raise ValueError(
            f"{method.name} is defined for {' and '.join(method.tasks)}, not for {federation.task} data: remove it"
            + (', or name the targets, as in TorchDataset(train, target="label")' if federation.task == "unlabelled" else "")
        )
    if method.needs_adapters and next(adapters(model), None) is None:
        network = model.model if isinstance(model, ClientModule) else model
        raise ValueError(
            f"{method.name} trains LoRA's adapters, and {type(network).__name__} has none: wrap it in flcog.models.LoRA"
        )
    if not method.overrides("configure_model"):
        return model
    if not isinstance(model, ClientModule) and not method.needs_adapters:
        raise ValueError(
            f"{method.name} changes the model, which must be a flcog.ClientModule; got {type(model).__name__}: put its network into a "
            f"flcog.Classifier, MultiLabelClassifier or Regressor, or remove {method.name}"
        )
    # The initial weights of new layers do not depend on the run's precision, as the model's own weights do not.
    with seeded(fold(settings.seed, "configure_model", method.name), processes.device), default_dtype(torch.float32):
        return method.configure_model(cast(ClientModule, model))


def _check_steps(
    module: L.LightningModule, methods: Sequence[Method], optimizers: Sequence[Any], accumulate: int, mixed: str
) -> None:
    """Refuse methods that have no place in the steps of this module. ``mixed`` says why samples have no gradients of their own."""
    name, manual = type(module).__name__, not module.automatic_optimization
    sharded = any(map(is_sharded, module.parameters()))
    for method in methods:
        if manual and any(map(method.overrides, CHANGES_A_STEP)):
            clips = isinstance(method, GradientClip)
            what = "trainer.gradient_clip_val" if clips else method.name
            raise ValueError(
                f"{what} changes the loss or the gradient of a step, and {name} takes its steps itself (automatic_optimization = False): "
                f"let training_step return the loss, or remove {what}{' and call self.clip_gradients in training_step' * clips}"
            )
        if method.maps_gradient and mixed:
            raise ValueError(
                f"{method.name} takes the gradient of each sample alone, and cannot here ({mixed}): remove one of the two"
            )
        if sharded and any(map(method.overrides, (*CHANGES_A_STEP, "after_step"))):
            raise ValueError(
                f"{method.name} acts in clients' steps, and {name}.configure_model divides the parameters among the processes: remove "
                "one of the two, or train each client by ddp"
            )
    if accumulate > 1 and (manual or any(map(asks_again, optimizers))):
        raise ValueError(
            f"accumulate_grad_batches={accumulate}: {name} takes its steps itself, or its optimiser computes the loss several times in a "
            "step: accumulate in training_step, or use a larger batch size"
        )


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
    """Refuse values in place of class indices, and a model with fewer outputs than the data have labels.

    Cross entropy on a GPU would end the process at such a label without naming it. ``sample`` is one input of the model, [1, ...].
    """
    module = model.module
    if not isinstance(module, ClientModule) or not _loss_is_known(type(module)):
        return
    try:
        with seeded(0, first_leaf(sample).device):
            buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
            outputs = model.frozen(model.params, buffers, forward, sample)
    except Exception:  # training raises it again, with the client and the step
        return
    for part, samples in federation.sets.items():
        if not isinstance(samples.targets, Tensor):
            continue
        if module.task == "classification" and samples.targets.is_floating_point():
            raise ValueError(
                f"{type(module).__name__} learns class indices, and the {part} set's targets are {samples.targets.dtype}: give integers "
                "(targets.long()), or use Regressor for values"
            )
        if outputs.ndim == 2 and (wanted := module.outputs_short_of(outputs, samples.targets)):
            raise ValueError(
                f"{type(module.model).__name__} has {outputs.shape[1]} outputs, and the {part} set has {wanted}: set the model's "
                "num_classes"
            )


def _loss_is_known(cls: type) -> bool:
    """Whether the class that defines the loss also defines ``outputs_short_of``, the number of outputs that the loss needs."""
    return next("outputs_short_of" in vars(base) for base in cls.__mro__ if "per_example_loss" in vars(base))
