"""The configuration of a user's script in a file of its own, as LightningCLI's ``save_config_kwargs`` describe it."""

import tempfile
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import SaveConfigCallback

from flcog.core.files import OWNER_ONLY, replacing
from flcog.core.masking import masked
from flcog.method import Callback, Run
from flcog.run.directory import keep_earlier


class SavedConfig(Callback):
    """Writes the configuration once, in the main process, when a run begins, and calls the user's ``save_config``.

    Every run writes ``config.yaml`` itself.
    """

    def __init__(self, saver: SaveConfigCallback, cli: Any) -> None:
        self._saver, self._cli = saver, cli
        self._own_file = saver.save_to_log_dir and saver.config_filename != "config.yaml"

    def on_fit_start(self, run: Run) -> None:
        if not run.processes.is_first:
            return
        if self._own_file:
            self._write(run.directory)
        self._saver.save_config(self._cli.trainer, self._cli.model, "fit")

    def _write(self, directory: Path) -> None:
        saver, config = self._saver, self._cli.trainer.config
        permissions = OWNER_ONLY if masked(config) != config else None
        with tempfile.TemporaryDirectory() as folder:
            saver.parser.save(saver.config, str(Path(folder, saver.config_filename)), skip_none=False, multifile=saver.multifile)
            for file in Path(folder).iterdir():
                content, path = file.read_text(), directory / file.name
                if path.is_file() and path.read_text() != content and not saver.overwrite:
                    keep_earlier(path)
                with replacing(path, "w", permissions=permissions) as written:
                    written.write(content)
