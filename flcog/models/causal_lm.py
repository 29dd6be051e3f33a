"""Decoders of Hugging Face's transformers that predict the next token, with weights in few bits if asked for."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flcog.core.checks import one_of
from flcog.core.extras import require
from flcog.models.base import with_own_dropout
from flcog.models.loading import loading

Weights = Literal["run", "bfloat16", "8bit", "4bit"]


class CausalLM(nn.Module):
    """A decoder of transformers (https://github.com/huggingface/transformers), which predicts the next token.

    It returns the logits [rows, length, vocabulary]. Put :class:`flcog.models.LoRA` around it to train and send adapters alone: the
    frozen weights are then in memory once in each process, in the type that ``weights`` names.

    Args:
        source: a folder that ``save_pretrained`` wrote, a name on the hub, or a configuration such as ``{"model_type": "llama",
            "hidden_size": 64, ...}``, whose weights are drawn.
        weights: the type of frozen weights. ``run`` is that of ``trainer.precision``. ``bfloat16`` needs the precision ``bf16-mixed``
            or ``bf16-true``. ``8bit`` and ``4bit`` (QLoRA's NF4, Dettmers et al., https://arxiv.org/abs/2305.14314) are bitsandbytes'
            linear layers, and need the extra ``quantized``.
        gradient_checkpointing: whether the backward pass computes the layers' activations again, instead of keeping them.
    """

    def __init__(
        self, source: str | Path | dict[str, Any], weights: Weights = "run", gradient_checkpointing: bool = False
    ) -> None:
        super().__init__()
        require("transformers", "CausalLM", "llm")
        one_of(self, get_args(Weights), weights=weights)
        if weights in ("8bit", "4bit"):
            require("bitsandbytes", f"CausalLM(weights={weights!r})", "quantized")
        self.source, self.weights = str(source) if not isinstance(source, dict) else "", weights
        body: Any = with_own_dropout(_make(source, weights)).train()  # from_pretrained returns it in evaluation mode
        for layer in body.modules():
            if type(layer).__module__.startswith("bitsandbytes."):
                layer.training = True
                layer.__class__ = type(type(layer).__name__, (_Shared, type(layer)), {})
        self.body: Any = body
        self.mixing = _mixing(body)
        self.checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            body.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def forward(self, input_ids: Tensor, instruction: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """The logits of every next token.

        Args:
            input_ids: the tokens, padded on the right.
            instruction: see :class:`flcog.data.instructions.Instructions`; positions alone tell instructions apart here.
            position_ids: of a packed batch.
        """
        self._check()
        if position_ids is not None and self.mixing:
            raise ValueError(
                f"CausalLM: packing=true needs a decoder that keeps the instructions of a row apart, and {type(self.body).__name__} "
                f"{self.mixing}: set packing=false"
            )
        # Without a mask, transformers begins a new text where positions do not go on, in the masks of all kinds of attention.
        return self.body(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits

    def _check(self) -> None:
        """Refuse a pass that the backward pass could not repeat."""
        # With other tensors in place of the parameters, the backward pass would compute the layers again with the parameters.
        repeats = self.checkpointing and self.training and torch.is_grad_enabled()
        if repeats and any(not isinstance(value, nn.Parameter) for value in _parameters(self)):
            raise ValueError(
                "CausalLM: gradient_checkpointing cannot repeat a pass at other parameters than the client's, which a method of this "
                "run (or executor=vmap) makes: set gradient_checkpointing to false, or leave that method out"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CausalLM":
        if self.weights != "bfloat16":
            return super()._apply(fn, recurse)

        def keep(value: Tensor) -> Tensor:
            """Move a tensor. Frozen weights keep their type."""
            moved = fn(value)
            return moved if value.requires_grad or moved.dtype == value.dtype else value.to(moved.device)

        return super()._apply(keep, recurse)

    def generate(self, prompt: Tensor, new_tokens: int, end: int | None) -> Tensor:
        """Continue a prompt [length] by its most probable next tokens, up to the token ``end``. Returns the new tokens."""
        tokens = prompt
        for _ in range(new_tokens):
            following = self(tokens[None])[0, -1].argmax()
            tokens = torch.cat([tokens, following[None]])
            if end is not None and int(following) == end:
                break
        return tokens[len(prompt) :]


class _Shared(nn.Module):
    """A layer of bitsandbytes that all copies of a model share, always in training mode.

    These layers move their weights' tables from the weight to the layer in the first pass, and on CPUs repack the weight in the first
    pass of an evaluation, so that two layers cannot share a weight.
    """

    def __deepcopy__(self, memo: Any) -> "_Shared":
        return self

    def train(self, mode: bool = True) -> "_Shared":
        return self


def scales(module: nn.Module) -> dict[str, Tensor]:
    """What turns the integers of bitsandbytes' layers into weights, such as scales: they are neither parameters nor buffers."""
    return {
        f"{name}.{entry}": value
        for name, layer in module.named_modules()
        if isinstance(layer, _Shared)
        for entry, value in layer.state_dict().items()
        if entry not in layer._parameters
    }


def _parameters(module: nn.Module) -> list[Any]:
    """The values in the places of parameters, which ``torch.func.functional_call`` may have replaced."""
    return [value for layer in module.modules() for value in layer._parameters.values() if value is not None]


def _mixing(body: Any) -> str:
    """The reason against packing, or empty: the second of two instructions in a row must have a gradient of exactly 0 for the first.

    It has another with layers that are no attention, such as convolutions and state spaces, and with masks that ignore positions.
    """
    if "position_ids" not in inspect.signature(body.forward).parameters:
        return "mixes them"
    embedded: list[Tensor] = []

    def watch(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[0]

    hook = body.eval().get_input_embeddings().register_forward_hook(watch)
    try:
        places = torch.arange(4, device=body.device)[None]
        with torch.enable_grad():
            logits = body(
                input_ids=places % body.config.get_text_config().vocab_size, position_ids=places % 2, use_cache=False
            ).logits
            (gradient,) = torch.autograd.grad(logits[0, 2:].float().square().sum(), embedded)
    except Exception as error:  # for example because its kernels need a GPU
        return f"could not be tried ({' '.join(str(error).split())[:200] or type(error).__name__})"
    finally:
        hook.remove()
        body.train()
    return "mixes them" if gradient[0, :2].any() else ""


def _make(source: str | Path | dict[str, Any], weights: Weights) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    options: dict[str, Any] = {"dtype": torch.bfloat16 if weights == "bfloat16" else torch.float32}
    if weights in ("8bit", "4bit"):
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=weights == "8bit", load_in_4bit=weights == "4bit", bnb_4bit_quant_type="nf4"
        )
        options["device_map"] = {"": "cuda" if torch.cuda.is_available() else "cpu"}
    with loading(source, "decoder", f"CausalLM(weights={weights!r})"):
        if isinstance(source, dict):
            made: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**source), **options)
        else:
            made = AutoModelForCausalLM.from_pretrained(source, **options)
    return made
