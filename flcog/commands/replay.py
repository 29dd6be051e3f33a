"""The command ``flcog replay``: one client's local update of one round again, step by step, from a run's directory."""

from pathlib import Path

from flcog.commands.lightning_cli import FederatedCLI
from flcog.core.commands import Command


def replay(arguments: list[str]) -> None:
    """Run one client's local update of one round again, alone."""
    parser = REPLAY.parser()
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--round", type=int, required=True, help="the round, counted from 1")
    parser.add_argument("--client", type=int, required=True, help="the client's number")
    options = parser.parse_args(arguments)
    config = Path(options.run) / "config.yaml"
    if not config.is_file():
        raise ValueError(f"{options.run} holds no config.yaml: give the directory of a run started by `flcog fit`")
    cli = FederatedCLI(["--config", str(config), "--trainer.logger", "false", "--trainer.executor", "loop"])
    cli.trainer.replay(cli.model, cli.datamodule, Path(options.run), options.round - 1, options.client)


REPLAY = Command("replay", replay)
