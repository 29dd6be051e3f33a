"""GeneratedAnswers: writes the answers of an instruction-tuned model to some instructions of the test set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flcog.core.checks import at_least
from flcog.core.files import replacing
from flcog.data.instructions import Instructions
from flcog.method import Callback, Run
from flcog.models import CausalLM


class GeneratedAnswers(Callback):
    """Writes answers of the global model to some instructions of the test set into ``answers.json`` of the run, for ``flcog report``.

    The instructions are evenly spaced over the test set. At each token the model chooses the most probable one. The file has the
    answers of the last time.

    Args:
        num_answers: the number of instructions, at least 1.
        new_tokens: the most tokens of an answer, at least 1.
        every_n_rounds: rounds between two times; the last round always counts. 0 means the last round alone.
    """

    def __init__(self, num_answers: int = 4, new_tokens: int = 64, every_n_rounds: int = 0) -> None:
        at_least(self, 1, num_answers=num_answers, new_tokens=new_tokens)
        at_least(self, 0, every_n_rounds=every_n_rounds)
        self.num_answers, self.new_tokens, self.every_n_rounds = num_answers, new_tokens, every_n_rounds

    def on_fit_start(self, run: Run) -> None:
        instructions_of(run)

    def on_round_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        last = round == run.settings.rounds or run.should_stop
        if not run.processes.is_first or not (last or (self.every_n_rounds and round % self.every_n_rounds == 0)):
            return
        source, params = instructions_of(run), run.evaluated_params()
        chosen = np.unique(np.linspace(0, len(source) - 1, self.num_answers).astype(np.int64)).tolist()
        with torch.no_grad():
            rows = [run.model.frozen(params, run.buffers, self.answer, source, index) for index in chosen]
        with replacing(Path(run.directory) / "answers.json", "w") as file:
            json.dump({"round": round, "answers": rows}, file, indent=2)

    def answer(self, module: torch.nn.Module, source: Instructions, index: int) -> dict[str, str]:
        """The prompt of an instruction, the answer in the data, and the model's own."""
        decoder = next(layer for layer in module.modules() if isinstance(layer, CausalLM))
        text: Any = source.tokenizer
        prompt, answer = (torch.from_numpy(tokens.astype(np.int64)) for tokens in source.of(index))
        made = decoder.generate(prompt.to(decoder.body.device), self.new_tokens, text.eos_token_id)
        parts = {"prompt": prompt, "expected": answer, "generated": made}
        return {name: text.decode(tokens.tolist(), skip_special_tokens=True) for name, tokens in parts.items()}


def instructions_of(run: Run) -> Instructions:
    """The instructions of the test set."""
    source = None if run.federation.test is None else run.federation.test.inputs
    decodes = any(isinstance(layer, CausalLM) for layer in run.model.module.modules())
    if not isinstance(source, Instructions) or source.tokenizer is None or not decodes:
        raise ValueError(
            "GeneratedAnswers needs a flcog.models.CausalLM and InstructionData with a test file: give them, or remove GeneratedAnswers"
        )
    return source
