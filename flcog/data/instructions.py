"""Instructions: tokenised prompts and answers as a source of batches, padded or packed."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.source import Source

IGNORED = -100
"""The label of tokens without a loss: prompts and padding. torch and transformers use this number, too."""


class Instructions(Source):
    """Tokens of prompts with their answers, in one array. A batch is a dict of tensors [rows, length]:

    - ``input_ids``: the tokens, padded on the right.
    - ``labels``: the tokens of the answers, and -100 elsewhere.
    - ``instruction``: the place in the batch of the instruction that each token belongs to, and -1 for padding.
    - ``position_ids``: the place of each token in its own instruction. Only packed batches have it.

    Args:
        tokens: of all instructions, one after another.
        offsets: instruction i has ``tokens[offsets[i]:offsets[i + 1]]``.
        prompts: the number of tokens of each prompt; the others are the answer.
        row_length: packed batches have rows of at most this number of tokens. None gives every instruction a row.
        tokenizer: turns tokens into text.
    """

    whole_batches = True

    def __init__(
        self, tokens: np.ndarray, offsets: np.ndarray, prompts: np.ndarray, row_length: int | None = None, tokenizer: Any = None
    ) -> None:
        self.tokens, self.offsets, self.prompts, self.row_length = tokens, offsets, prompts, row_length
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a prompt and of its answer."""
        tokens = self.tokens[self.offsets[index] : self.offsets[index + 1]]
        return tokens[: self.prompts[index]], tokens[self.prompts[index] :]

    def read(self, indices: np.ndarray, keys: np.ndarray | None) -> dict[str, Tensor]:
        lengths = (self.offsets[indices + 1] - self.offsets[indices]).tolist()
        rows = [[place] for place in range(len(lengths))] if self.row_length is None else packed(lengths, self.row_length)
        shape = len(rows), max(sum(lengths[place] for place in row) for row in rows)
        ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        labels, instruction = np.full(shape, IGNORED, np.int64), np.full(shape, -1, np.int64)
        for number, row in enumerate(rows):
            start = 0
            for place in row:
                prompt, answer = self.of(int(indices[place]))
                begin, end = start + len(prompt), start + lengths[place]
                ids[number, start:begin], ids[number, begin:end] = prompt, answer
                labels[number, begin:end], instruction[number, start:end] = answer, place
                positions[number, start:end] = np.arange(lengths[place])
                start = end
        batch = {"input_ids": ids, "labels": labels, "instruction": instruction}
        if self.row_length is not None:
            batch["position_ids"] = positions
        return {name: torch.from_numpy(values) for name, values in batch.items()}


def packed(lengths: list[int], row_length: int) -> list[list[int]]:
    """Divide sequences over rows: the longest first, each into the first row with room for it.

    >>> packed([3, 5, 2, 4], row_length=7)
    [[1, 2], [3, 0]]
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        row = next((row for row, free in enumerate(room) if free >= lengths[place]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_length)
        rows[row].append(place)
        room[row] -= lengths[place]
    return rows
