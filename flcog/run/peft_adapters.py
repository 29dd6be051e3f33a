"""A run's LoRA adapters as files that ``peft.PeftModel.from_pretrained`` loads."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flcog.core.extras import require
from flcog.core.files import replacing, replacing_folder
from flcog.models import CausalLM, HuggingFace, Timm
from flcog.models.lora import Adapter, adapters
from flcog.run.session import Session


def write_adapters(run: Session, folder: Path) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` (https://github.com/huggingface/peft)."""
    package = require("safetensors.torch", "peft's format", "export")
    params, found = run.evaluated_params(), dict(adapters(run.model.module))
    others = sorted(set(params) - {f"{name}.{side}" for name in found for side in "AB"})
    if not found or others:
        wrong = f"trains {others[0]}" if others else "has no adapters"
        raise ValueError(
            f"peft's format is for runs that train LoRA's adapters alone, and this run {wrong}: use another --format"
        )
    if folder.exists():
        raise ValueError(f"{folder} exists: remove it, or give another --output")
    start = _before_base(run.model.module, found)
    in_base = {name: name.removeprefix(start) for name in found}
    tensors = dict(item for name, adapter in found.items() for item in _tensors(name, in_base[name], adapter, params))
    with replacing_folder(folder) as aside:
        package.save_file(tensors, aside / "adapter_model.safetensors", {"format": "pt"})
        with replacing(aside / "adapter_config.json", "w") as file:
            json.dump(_configuration(run.model.module, found, list(in_base.values())), file, indent=2)


def _before_base(module: nn.Module, found: Collection[str]) -> str:
    """The start of the adapters' names that the network itself, as its own package makes it, does not have."""
    for name, layer in module.named_modules():
        if isinstance(layer, CausalLM | HuggingFace | Timm):
            return f"{name}.body."
    owners = {name.partition(".")[0] for name in found}
    return f"{owners.pop()}." if len(owners) == 1 else ""


def _tensors(name: str, in_base: str, adapter: Adapter, params: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """An adapter's two matrices under peft's names."""
    a, b = (params[f"{name}.{side}"].detach().cpu().contiguous() for side in "AB")
    b = b[:, :, None, None] if isinstance(adapter.layer, nn.Conv2d) else b
    start = f"base_model.model.{in_base}"
    return [(f"{start}.lora_A.weight", a), (f"{start}.lora_B.weight", b)]


def _configuration(module: nn.Module, found: dict[str, Adapter], targets: list[str]) -> dict[str, Any]:
    first = next(iter(found.values()))
    decoder = next((layer for layer in module.modules() if isinstance(layer, CausalLM)), None)
    return {
        "peft_type": "LORA",
        "task_type": None if decoder is None else "CAUSAL_LM",
        "base_model_name_or_path": None if decoder is None else decoder.source or None,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "target_modules": targets,
        "fan_in_fan_out": type(first.layer).__name__ == "Conv1D",
        "bias": "none",
        "inference_mode": True,
    }
