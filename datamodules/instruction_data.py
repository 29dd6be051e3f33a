"""InstructionData: instructions with answers in JSON lines, for instruction tuning."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flcog.core.checks import at_least, one_of
from flcog.core.extras import require
from flcog.data import FederatedDataModule, Samples, Splits
from flcog.data.instructions import Instructions
from flcog.data.samples import Task
from flcog.datamodules.files import reading, require_files
from flcog.models.loading import loading

NAMES = {"instruction": ("instruction",), "input": ("input", "context"), "answer": ("output", "response")}
"""The names of a line's texts in common data sets: Alpaca's and Dolly's."""

HOW_TO_GET = "give a file of JSON lines with instruction and output, or a folder with one such file for each client"


class Template(NamedTuple):
    """The texts of a prompt, whose answer follows it."""

    prompt: str  # of an instruction
    with_input: str  # of an instruction with an input
    before_answer: str = ""  # between the prompt and the answer; it counts as part of the answer

    def fill(self, instruction: str, input: str) -> str:
        """The prompt of an instruction, whose input may be empty."""
        return (
            self.with_input.format(instruction=instruction, input=input) if input else self.prompt.format(instruction=instruction)
        )


TEMPLATES = {
    "alpaca": Template(
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\n{instruction}\n\n### Response:\n",
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
        "appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
    ),
    "vicuna": Template(
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
        "answers to the user's questions. USER: {instruction} ASSISTANT:",
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
        "answers to the user's questions. USER: {instruction}\n{input} ASSISTANT:",
        " ",
    ),
}
"""The formats that models of these names expect: https://github.com/tatsu-lab/stanford_alpaca and https://github.com/lm-sys/FastChat."""


class Line(NamedTuple):
    """The texts of a line."""

    instruction: str
    input: str
    answer: str
    category: str


class InstructionData(FederatedDataModule):
    """Instructions with answers, for :class:`flcog.models.InstructionTuning`.

    Every line of a file is a JSON object with the texts ``instruction`` and ``output`` (or ``response``), and perhaps ``input`` (or
    ``context``), as in Alpaca (https://github.com/tatsu-lab/stanford_alpaca) and Dolly
    (https://huggingface.co/datasets/databricks/databricks-dolly-15k). A folder has one file for each client; a single file is
    divided by a partitioner. The loss counts the tokens of answers and of the end-of-text token behind them.

    A batch has ``batch_size`` instructions. ``packing`` puts them into fewer rows of at most ``max_length`` tokens, in which no
    instruction attends to another, so that losses stay the same and less padding is computed. Numbers of samples, weights and
    splits count instructions in both cases.

    Args:
        train: a file of JSON lines, or a folder with a file (``*.jsonl``) for each client, in the order of their names. A file
            without instructions is no client.
        tokenizer: a folder that ``save_pretrained`` wrote, or a name on the hub.
        test: a file to measure perplexity and exact match on.
        val: a file to choose the best round by.
        template: ``alpaca`` or ``vicuna``, the text around instructions.
        max_length: the most tokens of an instruction with its answer. Answers are cut; an instruction whose prompt alone is as long
            is left out, which a note says.
        packing: whether training batches are packed.
        category: the field with each instruction's category, such as Dolly's ``category``. Partitioners by label and FedDisco use it
            as the label.
    """

    def __init__(
        self,
        train: str,
        tokenizer: str,
        test: str | None = None,
        val: str | None = None,
        template: str = "alpaca",
        max_length: int = 512,
        packing: bool = False,
        category: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(self, 2, max_length=max_length)
        one_of(self, TEMPLATES, template=template)
        self.files = {"train": Path(train)} | {
            part: Path(path) for part, path in (("test", test), ("val", val)) if path is not None
        }
        self.tokenizer, self.template, self.max_length = tokenizer, TEMPLATES[template], max_length
        self.packing, self.category = packing, category
        self.num_classes = 0  # of categories, which the files name

    @property
    def task(self) -> Task:  # type: ignore[override]
        return "unlabelled" if self.category is None else "classification"

    def load(self) -> Splits:
        require_files("InstructionData", self.files.values(), HOW_TO_GET)
        tokenizer = _tokenizer(self.tokenizer)
        lines = {part: list(self._lines(path)) for part, path in self.files.items()}
        if self.category is not None:
            self.class_names = tuple(sorted({line.category for _, line in lines["train"]}))
            self.num_classes = len(self.class_names)
        return Splits(**{part: self._samples(part, lines[part], tokenizer) for part in self.files})

    def _lines(self, path: Path) -> Iterator[tuple[str, Line]]:
        """The lines of a file or of a folder's files, each with the name of its file."""
        for file in _files_of(path):
            for line in read_lines(file, self.category):
                yield file.name, line

    def _samples(self, part: str, lines: Sequence[tuple[str, Line]], tokenizer: Any) -> Samples:
        prompts, answers = _tokens([line for _, line in lines], self.template, tokenizer)
        kept = [i for i, prompt in enumerate(prompts) if len(prompt) < self.max_length]
        if len(kept) < len(lines):
            left_out = f"{len(lines) - len(kept):,} of {len(lines):,} instructions of {self.files[part]} left out"
            self.notes += (f"{left_out}: their prompts alone have max_length={self.max_length} tokens or more",)
        texts = [np.asarray((prompts[i] + answers[i])[: self.max_length], np.int32) for i in kept]
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
        source = Instructions(
            np.concatenate([np.zeros(0, np.int32), *texts]),
            offsets,
            np.array([len(prompts[i]) for i in kept], np.int64),
            self.max_length if self.packing and part == "train" else None,
            tokenizer,
        )
        users = np.array([lines[i][0] for i in kept], np.str_) if self.files[part].is_dir() else None
        return Samples(source, self._targets([lines[i][1] for i in kept], part), users, whole=True)

    def _targets(self, lines: Sequence[Line], part: str) -> Any:
        if self.category is None:
            return ()
        assert self.class_names is not None
        column = {name: i for i, name in enumerate(self.class_names)}
        with reading(self.files[part], f"each {self.category} must be one of the training lines"):
            return torch.tensor([column[line.category] for line in lines])


def _files_of(path: Path) -> list[Path]:
    """A folder's files in the order of their names, or the file itself."""
    paths = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"InstructionData: {path} has no file *.jsonl: {HOW_TO_GET}")
    return paths


def read_lines(path: Path, category: str | None) -> Iterator[Line]:
    """Read a file of JSON lines. Empty lines are skipped."""
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            if content.strip():
                with reading(f"{path}, line {number}", "correct or remove it"):
                    line = _line(json.loads(content), category)
                yield line


def _line(entry: Any, category: str | None) -> Line:
    names = NAMES | {"category": (category,) if category else ()}
    found = {key: next((entry[name] for name in choices if name in entry), None) for key, choices in names.items()}
    for key, choices in names.items():
        if not isinstance(found[key], str) and (found[key] is not None or (choices and key != "input")):
            raise ValueError(f"it needs a text {' or '.join(map(repr, choices))}, and has {entry!r:.200}")
    return Line(*(found[name] or "" for name in Line._fields))


def _tokenizer(source: str) -> Any:
    package = require("transformers", "InstructionData", "llm")
    with loading(source, "tokenizer", "InstructionData"):
        tokenizer = package.AutoTokenizer.from_pretrained(source)
    return tokenizer


def _tokens(lines: Sequence[Line], template: Template, tokenizer: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of prompts and of answers, which are tokenised apart, so that their border is exact."""
    if not lines:
        return [], []
    prompts = tokenizer([template.fill(line.instruction, line.input) for line in lines])["input_ids"]
    answers = tokenizer([template.before_answer + line.answer for line in lines], add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    # Some tokenizers end every text, and a prompt must not end here.
    prompts = [prompt[:-1] if len(prompt) > 1 and prompt[-1] == end else prompt for prompt in prompts]
    return prompts, [[*answer, end] for answer in answers]
