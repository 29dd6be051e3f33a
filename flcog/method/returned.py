"""Check what a method's hooks return: a mistake gets one line with the method, the hook, the result and the expected result.

The checks compare types, names and shapes. They run no operator of torch, and they also work under ``torch.func.vmap`` and
``torch.func.grad``.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.states import difference, not_saved
from flcog.core.types import Batch, Params, Slot
from flcog.method.aggregator import UploadAggregator, UploadMatrix
from flcog.method.broadcast_stage import BroadcastStage, SentBroadcast
from flcog.method.context import Gradient, GradientFunction, Upload
from flcog.method.method import Method
from flcog.method.personal import Personal
from flcog.method.selection import Participants

T = TypeVar("T")


def is_checked(step: Tensor | int) -> bool:
    """Whether parameters that a hook returns in each local step are checked: in a client's first step, because shapes take microseconds.

    The number of the step is a tensor if the step is being compiled, which happens once.
    """
    return isinstance(step, Tensor) or step == 0


def check_params(method: Method, hook: str, values: Any, like: Params, some: bool = False, kind: str = "parameter") -> Params:
    """Refuse anything but a dict with a tensor of the right shape for every parameter.

    Args:
        method: whose hook has returned the values.
        hook: its name.
        values: the returned values.
        like: tensors with the right names and shapes.
        some: whether names may be missing.
        kind: what the names belong to, for messages.
    """
    if not isinstance(values, Mapping):
        _refuse(method, hook, _form(values), f"a dict of tensors by {kind}")
    for name, value in values.items():
        if name not in like:
            _refuse_name(method, hook, name, like, kind)
        if not isinstance(value, Tensor):
            _refuse(method, hook, f"{_form(value)} for {name}", f"a tensor of shape {list(like[name].shape)}")
        if value.shape != like[name].shape:
            shapes = f"shape {list(value.shape)}, and the {kind} has {list(like[name].shape)}"
            raise ValueError(f"{method.name}.{hook} returned {name} with {shapes}")
    if not some and len(values) < len(like):
        _refuse(method, hook, f"nothing for {next(name for name in like if name not in values)}", f"a tensor for every {kind}")
    return values  # type: ignore[return-value]


def check_parts(method: Method, hook: str, values: Any, wanted: str, counts: Collection[int] = (2,)) -> Any:
    """Refuse anything but a tuple with one of these numbers of parts, which ``wanted`` names."""
    if not isinstance(values, tuple | list) or len(values) not in counts:
        _refuse(method, hook, _form(values), wanted)
    return values


def check_pair(method: Method, hook: str, values: Any, like: Params, second: str) -> tuple[Params, Slot]:
    """Refuse anything but a tuple of parameters and a tree, which ``second`` names."""
    first, slot = check_parts(method, hook, values, f"(params, {second})")
    return check_params(method, hook, first, like), slot


def check_scalar(method: Method, hook: str, value: Any, name: str = "") -> Tensor:
    """Refuse anything but a number, or a tensor without axes. ``name`` is that of the part of the result, if it has several."""
    if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.ndim == 0):
        _refuse(method, hook, f"{_form(value)}{name and f' as {name}'}", "a scalar (a tensor of shape [])")
    return value  # type: ignore[return-value]


def check_gradient_function(method: Method, function: Any, step: Tensor | int) -> GradientFunction:
    """Refuse anything but a function, whose own results are checked when it is called in a client's first step."""
    hook = "wrap_gradient"
    if not callable(function):
        _refuse(method, hook, _form(function), "a function gradient(params, batch)")
    if not is_checked(step):
        return function  # type: ignore[no-any-return]

    def gradient(at: Params, batch: Batch) -> Gradient:
        result = function(at, batch)
        if not isinstance(result, Gradient):
            _refuse(method, hook, f"a function that returned {_form(result)}", "a function that returns a flcog.Gradient")
        check_params(method, hook, result.values, at)
        check_scalar(method, hook, result.loss, "the loss")
        return result

    return gradient


def check_upload(method: Method, value: Any, like: Params) -> Upload:
    """Refuse anything but an upload whose change of the model, if it has one, has names and shapes of parameters."""
    hook = "finish_client"
    if not isinstance(value, Upload):
        _refuse(method, hook, _form(value), "flcog.Upload(delta, state)")
    if value.delta is not None:
        check_params(method, hook, value.delta, like, some=True)
    for name in ("mean", "sum"):
        if not isinstance(message := getattr(value, name), Mapping):
            _refuse(method, hook, f"{_form(message)} as Upload.{name}", "a dict of messages there")
        check_leaves(method, hook, dict(message), f"Upload.{name}")
    return value._replace(state={} if value.state is None else check_tensors(method, hook, value.state, "Upload.state"))


def check_personal(method: Method, value: Any, like: Params) -> Personal:
    """Refuse anything but a personal model with all parameters. A model with a forward of its own may have others."""
    if not isinstance(value, Personal):
        _refuse(method, "personal", _form(value), "flcog.Personal(params)")
    if value.forward is None:
        check_params(method, "personal", value.params, like)
    return value


def check_combined(method: UploadAggregator, values: Any, uploads: UploadMatrix) -> tuple[Tensor, Slot]:
    """Refuse anything but a tuple of a vector as long as the rows and a state."""
    wanted, (length,) = "(vector, state), with a vector of {} numbers like each row of uploads.values", uploads.values.shape[1:]
    vector, state = check_parts(method, "combine", values, wanted.format(length))
    if not isinstance(vector, Tensor) or vector.shape != (length,):
        _refuse(method, "combine", f"{_form(vector)} as the vector", wanted.format(length))
    return vector, state


def check_tensors(method: Method, hook: str, tree: Any, part: str) -> Slot:
    """Convert the Python numbers of a client's state or random numbers to tensors, and refuse anything else but tensors."""
    return pytree.tree_map_only((int, float), torch.as_tensor, check_leaves(method, hook, tree, part))


def check_saved(method: Method, hook: str, state: Any) -> Slot:
    """Refuse a server state with parts that no checkpoint can hold."""
    for place, value in not_saved(state, "its state"):
        consequence = "which no checkpoint can hold: keep tensors, numbers, texts, lists and dicts in the state"
        raise ValueError(f"{method.name}.{hook} returned {_form(value)} in {place}, {consequence}")
    return state


def check_kept(method: Method, hooks: Sequence[str], new: Any, first: Any, of: str = "") -> None:
    """Refuse a new state that a resumed run would refuse, because its structure, types or shapes are not those of the first state.

    Args:
        method: whose state it is.
        hooks: the hook that makes the first state, and those that may have returned the new one.
        new, first: the states.
        of: the client, for messages.
    """
    if (fault := difference(new, first, f"the state{of}")) is not None:
        place, now, before = fault
        raise ValueError(
            f"{method.name}.{' or '.join(hooks[1:])} returned {now} as {place}, and {hooks[0]} returned {before}: keep the keys, types "
            "and shapes of the first state, so that the run can be resumed"
        )


def check_type(method: Method, hook: str, value: Any, kind: type[T], wanted: str) -> T:
    """Refuse anything but a value of this type."""
    if not isinstance(value, kind):
        _refuse(method, hook, _form(value), wanted)
    return value


def check_participants(method: Method, value: Any) -> Participants:
    """Refuse anything but participants whose clients are whole numbers."""
    wanted = "flcog.Participants([...]) with the numbers of the clients as ints"
    clients = check_type(method, "select", value, Participants, wanted).clients
    if isinstance(clients, Tensor) or not isinstance(clients, Iterable):
        _refuse(method, "select", f"Participants of {_form(clients)}", f"{wanted}, such as tensor.tolist()")
    if (wrong := next((client for client in clients if not isinstance(client, Integral)), None)) is not None:
        _refuse(method, "select", f"Participants with {_form(wrong)}", wanted)
    return value  # type: ignore[no-any-return]


def check_sent(method: BroadcastStage, value: Any, count: int) -> SentBroadcast:
    """Refuse a sent broadcast without the bytes of each of ``count`` clients."""
    sent = check_type(method, "send_down", value, SentBroadcast, "flcog.method.SentBroadcast(broadcast, state, sizes)")
    for sender, each in sent.sizes.items():
        if not isinstance(each, Sequence) or len(each) != count:
            raise ValueError(
                f"{method.name}.send_down must return sizes with the bytes of each of the {count} clients, by sender; got {each!r} for "
                f"{sender}"
            )
    return sent


def check_finished(method: Method, values: Any, like: Mapping[str, Params]) -> Mapping[str, Params]:
    """Refuse anything but the combined changes of parameters and buffers, in the shapes of one client's."""
    if not isinstance(values, Mapping) or any(part not in values for part in like):
        _refuse(method, "finish", _form(values), f"a dict of {' and '.join(like)}, like the values of one client")
    for part, tensors in like.items():
        check_params(method, "finish", values[part], tensors, kind="parameter" if part == "delta" else "buffer")
    return values


def check_leaves(method: Method, hook: str, tree: Any, part: str) -> Any:
    """Refuse a tree with anything but tensors and numbers as its leaves."""
    if not all(isinstance(leaf, Tensor | int | float) for leaf in pytree.tree_leaves(tree)):
        for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
            if not isinstance(leaf, Tensor | int | float):
                wanted = "tensors and numbers there, which torch.as_tensor(array) makes of a NumPy array"
                _refuse(method, hook, f"{_form(leaf)} as {part}{pytree.keystr(path)}", wanted)
    return tree


def check_decoded(method: Method, value: Any, shape: tuple[int, ...]) -> Tensor:
    """Refuse anything but a vector of this shape."""
    if not isinstance(value, Tensor) or value.shape != shape:
        _refuse(method, "decode", _form(value), f"a tensor of shape {list(shape)}, as field.shape says")
    return value


def check_weights(method: Method, value: Any, count: int) -> Tensor:
    """Refuse anything but a tensor. Its length and its values are the caller's to check."""
    if not isinstance(value, Tensor):
        _refuse(method, "weights", _form(value), f"a tensor of {count} weights, one for each client of the cohort")
    return value


def check_mask(method: Method, values: Any, params: Params) -> Mapping[str, Tensor]:
    """Refuse anything but a dict of boolean tensors that broadcast to the shapes of the parameters."""
    if not isinstance(values, Mapping):
        _refuse(method, "mask", _form(values), "a dict of boolean tensors by parameter")
    for name, mask in values.items():
        if name not in params:
            _refuse_name(method, "mask", name, params, "parameter")
        shape = params[name].shape
        wanted = f"a boolean tensor that broadcasts to shape {list(shape)}, such as torch.tensor(False)"
        if not isinstance(mask, Tensor):
            _refuse(method, "mask", f"{_form(mask)} for {name}", wanted)
        sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
        if mask.dtype != torch.bool or mask.ndim > len(shape) or any(own not in (1, size) for own, size in sizes):
            _refuse(method, "mask", f"{_form(mask)} and type {mask.dtype} for {name}", wanted)
    return values


def _refuse_name(method: Method, hook: str, name: Any, like: Params, kind: str) -> NoReturn:
    """Refuse a name that is not in ``like``, and suggest a similar name from there."""
    whole = [known for known in like if known.endswith(f".{name}")] or difflib.get_close_matches(str(name), like, n=1)
    if whole:
        raise ValueError(f"{method.name}.{hook} returned {name!r}, which is no {kind}; did you mean {whole[0]!r}?")
    _refuse(method, hook, f"{name!r}, which is no {kind}", f"tensors for {', '.join(like)}")


def _refuse(method: Method, hook: str, got: str, wanted: str) -> NoReturn:
    raise ValueError(f"{method.name}.{hook} returned {got}, and must return {wanted}")


def _form(value: Any) -> str:
    """Describe a returned value in words."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
