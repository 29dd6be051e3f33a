"""InstructionTuning: the LightningModule that trains a decoder on the answers to instructions."""

from functools import partial
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric

from flcog.data.instructions import IGNORED


class InstructionTuning(L.LightningModule):
    """Trains a decoder on the answers to instructions, as OpenFedLLM (https://arxiv.org/abs/2402.06954) and FlowerTune do.

    The loss of a batch is the mean cross-entropy of its answers' tokens. An evaluation gives ``loss`` and ``perplexity`` over all
    answers' tokens of a set, and ``exact_match``: the share of answers that the model would give word for word if it chose the
    most probable token each time.

    Args:
        model: a :class:`flcog.models.CausalLM`, as a rule in :class:`flcog.models.LoRA`.
        optimizer: makes the local optimiser of each client and round. AdamW with a learning rate of 5e-5 by default.
        lr_scheduler: makes a scheduler, which advances once in each round.
    """

    def __init__(
        self, model: nn.Module, optimizer: OptimizerCallable | None = None, lr_scheduler: LRSchedulerCallable | None = None
    ) -> None:
        super().__init__()
        self.model = model.train()
        self.optimizer: OptimizerCallable = optimizer or partial(torch.optim.AdamW, lr=5e-5, weight_decay=0.0)
        self.lr_scheduler = lr_scheduler
        self.mean_loss, self.perplexity, self.exact_match = MeanMetric(), Perplexity(), MeanMetric()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.model(**{name: value for name, value in batch.items() if name != "labels"})

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        losses, counted = answer_losses(self(batch), batch["labels"])
        return losses.sum() / counted.sum().clamp(min=1)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        logits = self(batch)
        losses, counted = answer_losses(logits, batch["labels"])
        tokens, loss = counted.sum(), losses.sum() / counted.sum()
        wrong = (logits[:, :-1].argmax(-1) != batch["labels"][:, 1:]) & counted
        instructions = batch["instruction"].max() + 1
        missed = batch["instruction"][:, 1:][wrong].unique().numel()
        self.mean_loss.update(loss, tokens)
        self.perplexity.update(loss, tokens)
        self.exact_match.update(1 - missed / instructions, instructions)
        self.log_dict({"loss": self.mean_loss, "perplexity": self.perplexity, "exact_match": self.exact_match})

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        """Refuse: the logits of every token would fill gigabytes, and say little. A subclass may return what it needs."""
        raise ValueError(
            "InstructionTuning makes no predictions for flcog predict: the callback GeneratedAnswers writes the model's answers, and "
            "flcog export RUN --format peft the adapters, for other programs"
        )

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(p for p in self.parameters() if p.requires_grad)
        return optimizer if self.lr_scheduler is None else ([optimizer], [self.lr_scheduler(optimizer)])


class Perplexity(MeanMetric):
    """The exponential of the mean loss of a token."""

    def compute(self) -> Tensor:
        return super().compute().exp()


def answer_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each next token, and whether it belongs to an answer. Both are [rows, length - 1]; other tokens have 0."""
    following = labels[:, 1:]
    values = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(values.flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(following.shape), following != IGNORED
