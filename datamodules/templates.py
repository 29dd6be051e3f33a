"""Prompt templates for instruction tuning: the texts around an instruction, by name."""

from typing import NamedTuple


class Template(NamedTuple):
    """The texts of a prompt, whose answer follows it.

    Args:
        prompt: the prompt of an instruction.
        with_input: the prompt of an instruction with an input.
        before_answer: the text between the prompt and the answer, which counts as part of the answer.
    """

    prompt: str
    with_input: str
    before_answer: str = ""

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
