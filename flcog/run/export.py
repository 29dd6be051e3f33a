"""The trained model as a file for others: the plain network's state dict, safetensors, or ONNX; LoRA's adapters as peft's files."""

import copy
import io
import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flcog.client_module import ClientModule
from flcog.core.extras import require
from flcog.core.files import replacing, replacing_folder
from flcog.models import CausalLM, HuggingFace, Timm
from flcog.models.lora import adapters
from flcog.run.session import Session

Format = Literal["state_dict", "safetensors", "onnx", "peft"]
SUFFIXES: dict[Format, str] = {"state_dict": ".pt", "safetensors": ".safetensors", "onnx": ".onnx"}


def export(run: Session, path: Path, format: Format | None = None, client: int | None = None) -> None:
    """Write the global model, as it is evaluated, or a client's own, without anything of flcog's around it.

    By default the format is that of the file's suffix. ``peft`` writes a folder with LoRA's adapters alone.
    """
    if format == "peft":
        write_adapters(run, path, client)
        return
    form: Format | None = format or next((form for form, suffix in SUFFIXES.items() if suffix == path.suffix), None)
    if form not in SUFFIXES:
        known = ", ".join(f"{form} ({suffix})" for form, suffix in SUFFIXES.items())
        raise ValueError(f"cannot tell the format of {path}{'' if format is None else f', {format}'}: give one of {known}")
    network = trained_network(run, client)
    if form == "onnx":
        content = _onnx(network, run.engine.reader.example)
    elif form == "safetensors":
        package = require("safetensors.torch", "safetensors", "export")
        # Copies: tied weights are stored under each of their names.
        content = package.save(
            {name: value.clone().contiguous() for name, value in network.state_dict().items()}, {"format": "pt"}
        )
    else:
        buffer = io.BytesIO()
        torch.save(network.state_dict(), buffer)
        content = buffer.getvalue()
    with replacing(path) as file:
        file.write(content)


def trained_network(run: Session, client: int | None = None) -> nn.Module:
    """A copy on the CPU of the user's network (the whole module where it is no ClientModule), in evaluation mode."""
    module = copy.deepcopy(run.model.module)
    state, (params, buffers) = module.state_dict(), run.weights(client)
    with torch.no_grad():
        for name, value in (params | {name: value for name, value in buffers.items() if name in state}).items():
            state[name].copy_(value)  # these are the module's own tensors
    network: nn.Module = module.model if isinstance(module, ClientModule) else module
    return network.cpu().eval()


def _onnx(network: nn.Module, example: Any) -> bytes:
    require("onnx", "ONNX", "export")
    require("onnxscript", "ONNX", "export")
    if not isinstance(example, Tensor):
        raise ValueError(
            "ONNX is written for networks whose input is one tensor; this data's inputs have several parts: export a state_dict"
        )
    if example.is_floating_point():
        network, example = network.float(), example.float()
    program: Any = torch.onnx.export(
        network,
        (torch.cat([example, example]).cpu(),),  # a single row would be taken for a constant
        input_names=["inputs"],
        output_names=["outputs"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    return program.model_proto.SerializeToString()


def write_adapters(run: Session, folder: Path, client: int | None = None) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``, which ``peft.PeftModel.from_pretrained`` loads."""
    package = require("safetensors.torch", "peft's format", "export")
    module, (params, _) = run.model.module, run.weights(client)
    found = dict(adapters(module))
    others = sorted(set(params) - {f"{name}.{side}" for name in found for side in "AB"})
    if not found or others:
        wrong = f"trains {others[0]}" if others else "has no adapters"
        raise ValueError(
            f"peft's format is for runs that train LoRA's adapters alone, and this run {wrong}: use another --format"
        )
    if folder.exists():
        raise ValueError(f"{folder} exists: remove it, or give another --output")
    # The start of the adapters' names that the network itself, as its own package makes it, does not have.
    start = next(
        (f"{name}.body." for name, layer in module.named_modules() if isinstance(layer, CausalLM | HuggingFace | Timm)), ""
    )
    owners = {name.partition(".")[0] for name in found}
    start = start or (f"{owners.pop()}." if len(owners) == 1 else "")
    targets, tensors = [name.removeprefix(start) for name in found], dict[str, Tensor]()
    for target, (name, adapter) in zip(targets, found.items(), strict=True):
        a, b = (params[f"{name}.{side}"].detach().cpu().contiguous() for side in "AB")
        tensors[f"base_model.model.{target}.lora_A.weight"] = a
        tensors[f"base_model.model.{target}.lora_B.weight"] = b[:, :, None, None] if isinstance(adapter.layer, nn.Conv2d) else b
    first = next(iter(found.values()))
    decoder = next((layer for layer in module.modules() if isinstance(layer, CausalLM)), None)
    configuration = {
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
    with replacing_folder(folder) as aside:
        package.save_file(tensors, aside / "adapter_model.safetensors", {"format": "pt"})
        with replacing(aside / "adapter_config.json", "w") as file:
            json.dump(configuration, file, indent=2)
