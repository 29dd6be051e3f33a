"""The trained model as a file for others: the plain network's state dict, safetensors, or ONNX."""

import copy
import io
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flcog.client_module import ClientModule
from flcog.core.extras import require
from flcog.core.files import replacing
from flcog.run.peft_adapters import write_adapters
from flcog.run.session import Session

Format = Literal["state_dict", "safetensors", "onnx", "peft"]
SUFFIXES: dict[Format, str] = {"state_dict": ".pt", "safetensors": ".safetensors", "onnx": ".onnx"}


def export(run: Session, path: Path, format: Format | None = None) -> None:
    """Write the global model, as it is evaluated, without anything of flcog's around it.

    By default the format is that of the file's suffix. ``peft`` writes a folder with LoRA's adapters alone.
    """
    if format == "peft":
        write_adapters(run, path)
        return
    form: Format | None = format or next((form for form, suffix in SUFFIXES.items() if suffix == path.suffix), None)
    if form not in SUFFIXES:
        known = ", ".join(f"{form} ({suffix})" for form, suffix in SUFFIXES.items())
        raise ValueError(f"cannot tell the format of {path}{'' if format is None else f', {format}'}: give one of {known}")
    network = trained_network(run)
    content = {"state_dict": _state_dict, "safetensors": _safetensors, "onnx": _onnx}[form](network, run)
    with replacing(path) as file:
        file.write(content)


def trained_network(run: Session) -> nn.Module:
    """A copy on the CPU of the user's network (the whole module where it is no ClientModule), in evaluation mode."""
    module = copy.deepcopy(run.model.module).eval()
    state = module.state_dict()
    with torch.no_grad():
        for name, value in (run.evaluated_params() | {name: run.buffers[name] for name in run.buffers if name in state}).items():
            state[name].copy_(value)  # these are the module's own tensors
    network: nn.Module = module.model if isinstance(module, ClientModule) else module
    return network.cpu().eval()


def _state_dict(network: nn.Module, run: Session) -> bytes:
    buffer = io.BytesIO()
    torch.save(network.state_dict(), buffer)
    return buffer.getvalue()


def _safetensors(network: nn.Module, run: Session) -> bytes:
    package = require("safetensors.torch", "safetensors", "export")
    # Copies: tied weights are stored under each of their names.
    tensors: dict[str, Tensor] = {name: value.clone().contiguous() for name, value in network.state_dict().items()}
    return package.save(tensors, {"format": "pt"})


def _onnx(network: nn.Module, run: Session) -> bytes:
    require("onnx", "ONNX", "export")
    require("onnxscript", "ONNX", "export")
    example = run.engine.reader.example
    if not isinstance(example, Tensor):
        raise ValueError(
            "ONNX is written for networks whose input is one tensor; this data's inputs have several parts: export a state_dict"
        )
    if isinstance(network, nn.Module) and example.is_floating_point():
        network, example = network.float(), example.float()
    batch = torch.cat([example, example]).cpu()  # a single row would be taken for a constant
    program: Any = torch.onnx.export(
        network,
        (batch,),
        input_names=["inputs"],
        output_names=["outputs"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    return program.model_proto.SerializeToString()
