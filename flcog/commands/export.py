"""The command ``flcog export``: writes a run's network as a file that needs no flcog."""

from pathlib import Path

from flcog.commands.of_a_run import IMPORT_FROM, checkpoint_of, open_run
from flcog.core.commands import parser_of
from flcog.core.files import short
from flcog.run.export import SUFFIXES


def export(arguments: list[str]) -> None:
    """Write a run's trained network for others: a torch state dict, safetensors, ONNX, or LoRA's adapters for peft."""
    parser = parser_of("export", export)
    parser.add_argument("run", type=Path, help="the run's directory")
    formats = "state_dict by default, as torch.load reads it"
    # A shell's completion reads the names from here.
    parser.add_argument("--format", choices=["state_dict", "safetensors", "onnx", "peft"], default="state_dict", help=formats)
    parser.add_argument("--checkpoint", help="best (by default), last, or a file")
    parser.add_argument(
        "--output", type=Path, help="the file; model.pt, model.safetensors, model.onnx or the folder model in the run's directory"
    )
    parser.add_argument("--import-from", type=Path, metavar="FOLDER", help=IMPORT_FROM)
    options = parser.parse_args(arguments)
    output = options.output or options.run / f"model{SUFFIXES.get(options.format, '')}"
    checkpoint = checkpoint_of(options.run, options.checkpoint)
    cli = open_run(options.run, options.import_from)
    cli.trainer.export(output, options.format, cli.model, cli.datamodule, str(checkpoint))
    print(f"{short(output)}: {type(getattr(cli.model, 'model', cli.model)).__name__} of {short(checkpoint)}")
