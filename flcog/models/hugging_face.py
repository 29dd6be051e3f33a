"""Classifiers of Hugging Face's transformers, each split into features and a head."""

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from flcog.core.checks import at_least
from flcog.core.extras import require
from flcog.core.trees import Tree
from flcog.models.base import FeatureModel, with_own_dropout
from flcog.models.loading import loading

ATTENTION = "flcog"
"""The name of our attention in transformers' registry."""


class HuggingFace(FeatureModel):
    """A classifier of sequences or images of transformers (https://github.com/huggingface/transformers), pretrained or not.

    Its last linear layer is the head, and the input of the head are the features: BERT's pooled and GPT's last token, ViT's class
    token. Inputs are a dict (``input_ids``, ``attention_mask``), or one tensor: images, or token ids. Of token ids alone, those that
    equal the configuration's ``pad_token_id`` (0 if it has none) are masked as padding; ``AGNews`` pads with 0. A decoder whose
    configuration has no ``pad_token_id``, such as GPT-2's, takes the last token that ``attention_mask`` does not mask.
    Dropout is flcog's, which is the same under both executors and in a resumed run; attention drops nothing.

    Args:
        source: a folder that ``save_pretrained`` wrote, the name of a model on the hub, a configuration such as ``{"model_type":
            "distilbert", "vocab_size": 5000, "n_layers": 2}``, whose weights are drawn, or, in Python, a model that is made already.
        num_classes: the number of outputs. A head for another number of outputs is replaced by a random one.
        pretrained: whether a folder's or the hub's weights are loaded; without them its configuration is.
    """

    def __init__(self, source: str | Path | dict[str, Any] | nn.Module, num_classes: int = 2, pretrained: bool = True) -> None:
        super().__init__()
        require("transformers", "HuggingFace", "transformers")
        at_least(self, 1, num_classes=num_classes)
        body = source if isinstance(source, nn.Module) else _make(source, num_classes, pretrained)
        linear = {name: layer for name, layer in body.named_modules() if isinstance(layer, nn.Linear)}
        name = next((name for name in reversed(linear) if linear[name].out_features == num_classes), None)
        if name is None:
            raise ValueError(
                f"HuggingFace: {type(body).__name__} has no linear head with num_classes={num_classes} outputs: set num_classes"
            )
        self.head, self.num_features = linear[name], linear[name].in_features
        self._place = name
        parent, _, attribute = name.rpartition(".")
        setattr(body.get_submodule(parent), attribute, _LastToken())
        text: Any = body.config.get_text_config()  # type: ignore[operator,union-attr]
        self._padding: int | None = getattr(text, "pad_token_id", None)
        if self._padding is None:
            text.pad_token_id = 0  # without one, decoders refuse batches
        _use_our_attention(body)
        self.body: Any = with_own_dropout(body).train()  # from_pretrained returns it in evaluation mode

    def features(self, x: Tree, /) -> Tensor:
        inputs = dict(x) if isinstance(x, dict) else {self.body.main_input_name: x}
        if "input_ids" in inputs and "attention_mask" not in inputs:
            inputs["attention_mask"] = (inputs["input_ids"] != (self._padding or 0)).long()
        place: Any = self.body.get_submodule(self._place)
        place.mask = inputs.get("attention_mask") if self._padding is None else None
        try:  # Without its head the classifier returns the input of the head.
            return self.body(**inputs, return_dict=True).logits
        finally:
            place.mask = None


class _LastToken(nn.Identity):
    """In the place of the head. If it gets all tokens of a text, of which decoders take one later, each becomes the last real one."""

    mask: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.mask is None or input.ndim != 3:
            return input
        rows, places = (torch.arange(size, device=input.device) for size in input.shape[:2])
        return input[rows, (places * (self.mask != 0)).argmax(-1)][:, None].expand_as(input)


def _make(source: str | Path | dict[str, Any], num_classes: int, pretrained: bool) -> nn.Module:
    from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as SEQUENCES

    with loading(source, "classifier", "HuggingFace"):
        config = AutoConfig.for_model(**source) if isinstance(source, dict) else AutoConfig.from_pretrained(source)
        config.num_labels = num_classes
        auto = AutoModelForSequenceClassification if type(config) in SEQUENCES else AutoModelForImageClassification
        if isinstance(source, dict) or not pretrained:
            made: nn.Module = auto.from_config(config)
        else:
            made = auto.from_pretrained(source, config=config, ignore_mismatched_sizes=True)
    return made


def _use_our_attention(model: Any) -> None:
    """Attention that runs for many clients at once; models that bring their own keep it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def mask(*arguments: Any, **options: Any) -> Any:
        # Whether a mask may be left out depends on its values, which a program for many clients cannot ask for.
        return sdpa_mask(*arguments, **(options | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, mask)
    with suppress(ValueError, NotImplementedError):  # an architecture older than the interface
        model.set_attn_implementation(ATTENTION)


def _attention(module: nn.Module, query: Tensor, *arguments: Any, **options: Any) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # torch's fused kernels have no rule for many clients and would loop over them.
    together = torch._C._functorch.is_functorch_wrapped_tensor(query)
    with sdpa_kernel(SDPBackend.MATH) if together else nullcontext():
        return sdpa_attention_forward(module, query, *arguments, **(options | {"dropout": 0.0}))
