"""FedCOG: clients generate inputs that complement their data, and distil the global model on them."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.callbacks.fedcog.generation import LATENT, Divergence, generate, images, initial_weights, target_loss
from flcog.callbacks.parts.distillation import distillation_loss, rows_of_step
from flcog.callbacks.parts.server_generators import example_of
from flcog.core.checks import at_least, option, within
from flcog.core.precision import number_dtype
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, Method, Upload


def complement(counts: Tensor) -> Tensor:
    """Each label's lack of samples against the client's most frequent label, ``max(d) - d`` (A.1.1); ones if all are equal.

    >>> complement(torch.tensor([500, 0, 400, 200, 400]))
    tensor([  0, 500, 100, 300, 100])
    """
    missing = counts.max() - counts
    return missing if missing.any() else torch.ones_like(counts)


def allot(shares: Tensor, num_samples: int, rng: torch.Generator) -> Tensor:
    """``num_samples`` labels in proportion to the shares, in random order; the largest remainders are rounded up.

    >>> allot(torch.tensor([0, 500, 100, 300, 100]), 10, torch.Generator().manual_seed(0)).bincount()
    tensor([0, 5, 1, 3, 1])
    """
    exact = shares.double() * num_samples / shares.sum()
    # Among equal remainders the choice is random, so that every label gets its turn over the rounds.
    drawn = torch.randperm(len(shares), generator=rng)
    by_remainder = drawn[(exact.floor() - exact)[drawn].argsort(stable=True)]
    counts = exact.floor().long()
    counts[by_remainder[: num_samples - int(counts.sum())]] += 1
    return torch.arange(len(shares)).repeat_interleave(counts)[torch.randperm(num_samples, generator=rng)]


@dataclass(frozen=True)
class FedCOG(Method):
    """Every client first generates inputs that the global model recognises and its own last model does not. It then trains on its
    own data, and on the global model's outputs for the generated inputs.

    With x the received model, y_k the client's last local model, y its present one, d_k its numbers of samples by label::

        generation:    D' = argmin  CE(x(D'), labels) + lambda_dis [1 - JS(x(D'), y_k(D'))]      (eq. 1 and 2)
        training:      F_k(y) + lambda_kd KL(x(D') || y(D'))                                     (eq. 3)
        or:            (1 - w) F_k(y) + w KL(x(D') || y(D')),   w = |m| / (|d_k| + |m|),   m = max(d_k) - d_k    (A.2.2)

    Generation is Adam on the inputs, which start as Gaussian noise in the model's input space. Each local step uses the next
    ``batch_size`` of them. Clients and server exchange only the model. Each client keeps its last local model, also in the rounds
    before ``start_round``. A new client has none and uses the received model x instead. Nothing then disagrees with x, and the
    client generates from the global model alone.

    The paper leaves the details of multi-label data open. Here the losses are binary cross-entropy and each label's Bernoulli
    divergence, averaged over the labels. Every input is generated for one label, and labels get numbers of inputs as classes do.
    So each label gets its share of inputs, even a label that the client has never seen. The global model's outputs then tell
    which other labels the input shows.

    Ye et al., Fake It Till Make It: Federated Learning with Consensus-Oriented Generation, ICLR 2024,
    https://arxiv.org/abs/2312.05966. The authors' code (https://github.com/rui-ye/FedCOG) differs: it takes 500 steps,
    ``targets="complementary"``, ``lambda_kd="balance"`` (with a note that this distillation does not suit CIFAR-10) and
    ``divergence="code"``. Four differences have no option. The code rounds a label's number of inputs down. It distils the
    outputs of the step with the least loss, but the inputs of the last step. Its hard labels are the global model's own
    predictions. For multi-label data it sums the divergences over the labels, which are averaged here: multiply lambda_kd by the
    number of labels.

    Args:
        num_samples: number N of inputs that each client generates in a round, >= 0. With 0 nothing is distilled: this is FedAvg,
            or under ``balance`` the control that gives the task loss its weight of A.2.2 and has no other loss.
        targets: their labels: ``uniform``, or ``complementary`` to the client's own (A.1.1; uniform for a balanced client).
        steps: steps of generation, >= 0; 0 is the ablation with Gaussian noise.
        lambda_dis: weight of the disagreement, >= 0; 0 is the ablation that generates from the global model alone.
        divergence: eq. 2, or the form of the authors' code, see :func:`~flcog.callbacks.fedcog.generation.disagreement`.
        lr: learning rate of Adam, > 0.
        betas: coefficients of Adam, each in [0, 1).
        generation_batch_size: inputs in memory at a time while the client generates and the teacher reads them, for clients of
            little memory (A.4.3); None for all.
        generator: train a convolutional generator and its latent vectors instead of the inputs themselves (A.4.2); images only.
        lambda_kd: weight of the distillation, >= 0, where 0 is FedAvg; or ``balance`` for the weights of A.2.2, which weight the
            inputs by the samples that the client lacks for balanced data. ``balance`` with ``complementary`` targets came near
            the paper's figures on Fashion-MNIST; 0.01 did not on NIID-2. ``balance`` also multiplies local steps by 1 - w, and
            this alone accounts for much of the gain: compare with ``num_samples=0``, as configs/tables/fedcog-controls.yaml does
            (RESULTS.md).
        hard_labels: the ablation that learns the inputs' labels instead of the global model's outputs.
        batch_size: generated inputs in a local step, >= 1.

    Example:
        >>> FedCOG(start_round=50, targets="complementary", lambda_kd="balance").active(0)
        True
    """

    num_samples: int = option(256, ">= 0")
    targets: Literal["uniform", "complementary"] = "uniform"
    steps: int = option(100, ">= 0")
    lambda_dis: float = option(0.1, ">= 0")
    divergence: Divergence = "paper"
    lr: float = option(0.01, "> 0")
    betas: tuple[float, float] = (0.5, 0.9)
    generation_batch_size: int | None = option(None, ">= 1")
    generator: bool = False
    lambda_kd: float | Literal["balance"] = 0.01
    hard_labels: bool = False
    batch_size: int = option(64, ">= 1")

    tasks = ("classification", "multilabel")
    plain_batches = True
    phase = "generating"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lambda_kd != "balance":
            at_least(self, 0, "lambda_kd")
        for beta in self.betas:
            within(self, "[0, 1)", betas=beta)

    @property
    def _disagrees(self) -> bool:
        return self.num_samples > 0 and self.steps > 0 and self.lambda_dis > 0 and self.lambda_kd != 0

    def active(self, round: int) -> bool:
        # The first round of generation needs the local models of earlier rounds.
        return super().active(max(round, self.start_round) if self._disagrees else round)

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        if not self._disagrees:
            return {}
        # A new client's last local model is the global one, so that the two agree.
        return {"params": params, "buffers": buffers}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        shape = example_of(client).shape[1:]
        if client.round < self.start_round or self.lambda_kd == 0:
            return {}
        draws: Slot = {}
        counts = client.label_counts
        if self.lambda_kd == "balance":
            missing = (counts.max() - counts).sum()
            draws["w"] = (missing / (counts.sum() + missing).clamp(min=1)).to(number_dtype())
        if self.num_samples == 0:
            return draws
        shares = complement(counts) if self.targets == "complementary" else torch.ones_like(counts)
        labels = allot(shares, self.num_samples, rng)
        if client.task == "multilabel":
            labels = F.one_hot(labels, client.num_classes).to(torch.get_default_dtype())
        draws["labels"] = labels
        if self.generator:
            draws["weights"] = initial_weights(shape[0], rng)
            draws["canvas"] = torch.empty(0, *shape)  # carries the images' size: draws are tensors
        draws["noise"] = torch.randn(self.num_samples, *((LATENT,) if self.generator else shape), generator=rng)
        return draws

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        if "noise" not in ctx.draws:
            return params, {}
        received = ctx.received
        last = (ctx.state["params"], ctx.state["buffers"]) if self._disagrees else None
        inputs = make_inputs(self, apply, ctx.draws, received, last)
        if self.hard_labels:
            return params, {"inputs": inputs}
        teacher, parts = apply.frozen(*received), inputs.split(self.generation_batch_size or len(inputs))
        return params, {"inputs": inputs, "teacher": torch.cat([teacher(part) for part in parts])}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        learnt = self._learnt(apply, params, ctx) if ctx.inputs else torch.zeros_like(task_loss)
        if self.lambda_kd != "balance":
            return self.lambda_kd * learnt
        return ctx.draws["w"] * (learnt - task_loss) if ctx.draws else learnt

    def _learnt(self, apply: Apply, params: Params, ctx: Context) -> Tensor:
        """The distillation loss on this step's generated inputs."""
        rows = rows_of_step(ctx.step, self.batch_size, self.num_samples, ctx.inputs["inputs"].device)
        labels, outputs = ctx.draws["labels"], apply(params, ctx.inputs["inputs"][rows])
        if self.hard_labels:
            return target_loss(outputs, labels[rows])
        return distillation_loss(outputs, ctx.inputs["teacher"][rows], multilabel=labels.ndim == 2)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        if not self._disagrees:
            return Upload(delta, ctx.state)
        return Upload(delta, {"params": params, "buffers": {name: ctx.buffers[name] for name in ctx.state["buffers"]}})


def make_inputs(
    method: FedCOG, apply: Apply, draws: Slot, received: tuple[Params, Params], last: tuple[Params, Params] | None
) -> Tensor:
    """The inputs that a client generates."""
    generator = {}
    if method.generator:
        size = draws["canvas"].shape[-2:]
        generator = {"weights": draws["weights"], "decode": partial(images, size=size)}
    return generate(
        draws["noise"],
        draws["labels"],
        global_model=apply.frozen(*received),
        local_model=None if last is None else apply.frozen(*last),
        lambda_dis=method.lambda_dis,
        steps=method.steps,
        lr=method.lr,
        betas=method.betas,
        batch_size=method.generation_batch_size,
        divergence=method.divergence,
        **generator,
    )
