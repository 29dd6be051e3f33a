"""timm's networks by name, each split into features and a head."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flcog.core.checks import at_least
from flcog.core.extras import require
from flcog.core.text import reason
from flcog.models.base import FeatureModel, with_own_dropout
from flcog.models.loading import read_weights


class Timm(FeatureModel):
    """A network of timm (https://github.com/huggingface/pytorch-image-models) by its name, such as ``resnet18``.

    Its pooled features are the features and its last linear layer is the head; if the weights have another number of classes, the
    head is random. Dropout is flcog's, which is the same under both executors and in a resumed run.

    Args:
        name: a name in ``timm.list_models()``.
        num_classes: the number of outputs.
        pretrained: whether to load timm's weights, from the cache of Hugging Face's hub or downloaded into it.
        weights: a file with the network's ``state_dict`` in timm's names, ``.pth`` or ``.safetensors``, to load in their place.
        in_channels: 1 for grey images, 3 for colour; pretrained weights are adapted to other numbers than theirs.
        options: further arguments of ``timm.create_model``, such as ``{"img_size": 32, "patch_size": 4}``.
        **keywords: the same arguments, written directly: ``Timm("vit_tiny_patch16_224", img_size=32)``. In a configuration, a name that
            is close to one of the arguments above counts as a mistake.
    """

    takes_keywords: ClassVar[str] = "options"
    """The argument that gets the other keywords in a configuration."""

    def __init__(
        self,
        name: str,
        num_classes: int = 10,
        pretrained: bool = False,
        weights: str | Path | None = None,
        in_channels: int = 3,
        options: dict[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__()
        timm = require("timm", "Timm", "timm")
        at_least(self, 1, num_classes=num_classes, in_channels=in_channels)
        arguments = {"in_chans": in_channels, **(options or {}), **keywords}
        body: Any
        if weights is not None:
            body = _with_weights(timm, name, Path(weights), num_classes, arguments)
        elif pretrained:
            body = _pretrained(timm, name, num_classes, arguments)
        else:
            body = timm.create_model(name, num_classes=num_classes, **arguments)
        head: Any = body.get_classifier()
        body.reset_classifier(0)
        self.num_features = (
            head.in_features if isinstance(head, nn.Linear) else getattr(body, "head_hidden_size", body.num_features)
        )
        fits = isinstance(head, nn.Linear) and head.out_features == num_classes
        self.body = with_own_dropout(body)
        self.head = head if fits else nn.Linear(self.num_features, num_classes)
        layer: Any
        for layer in body.modules():
            if hasattr(layer, "fused_attn"):  # torch's fused kernel is one client's: batched, it would loop over the clients
                layer.fused_attn = False

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def _pretrained(timm: Any, name: str, num_classes: int, arguments: dict[str, Any]) -> Any:
    try:
        return timm.create_model(name, True, num_classes=num_classes, **arguments)
    except Exception as error:  # the hub's client raises nearly every kind where there is no network
        raise ValueError(
            f"Timm: the pretrained weights of {name} are neither in the hub's cache nor could they be downloaded ({reason(error)}): "
            "give a file with them as weights, or set pretrained to false"
        ) from error


def _with_weights(timm: Any, name: str, path: Path, num_classes: int, arguments: dict[str, Any]) -> nn.Module:
    """Return the network with the file's weights and number of outputs."""
    state = read_weights(path, "Timm")
    network = timm.create_model(name, num_classes=num_classes, **arguments)
    key = next((f"{key}.weight" for key, layer in network.named_modules() if layer is network.get_classifier()), "")
    outputs = len(state[key]) if key in state else 0
    overlay = {"state_dict": state, "num_classes": outputs}
    with torch.random.fork_rng(devices=[]):  # networks are made on the CPU
        loaded: nn.Module = timm.create_model(
            name, pretrained=True, num_classes=outputs, pretrained_cfg_overlay=overlay, **arguments
        )
    return loaded
