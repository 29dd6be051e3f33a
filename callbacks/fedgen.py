"""FedGen: the server trains a generator of features against the clients' heads, and clients train on the generated features."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.callbacks.parts.distillation import log_probabilities
from flcog.callbacks.parts.noise import draw_key, uniform
from flcog.callbacks.parts.parameters import head_weight
from flcog.callbacks.parts.server_generators import descend, feature_generator, features_of
from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.trees import first_leaf
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply, masked_mean
from flcog.method import ClientView, Cohort, Context, Messages, Method, Upload


def generator_loss(features: Tensor, noise: Tensor, labels: Tensor, outputs: Sequence[Tensor], shares: Tensor) -> Tensor:
    """The generator's loss, without the weight of the diversity: ``sum_k mean(s_k,y CE(outputs_k, y)) + diversity``.

    ``outputs`` are those of each client's head, and ``shares`` each client's share of each class's samples, [K, C].
    """
    losses = [
        (share[labels] * F.cross_entropy(output, labels, reduction="none")).mean()
        for output, share in zip(outputs, shares, strict=True)
    ]
    distances = (noise[:, None] - noise).square().mean(2) * (features[:, None] - features).abs().mean(2)
    return torch.stack(losses).sum() + (-distances.mean()).exp()


@dataclass(frozen=True)
class FedGen(Method):
    """Trains a generator of features at the server, against all clients' heads; clients also train on the generated features.

    The generator G makes features from uniform noise e and a label y. With head_k client k's head and s_ky the client's share of
    the cohort's samples of class y, the server minimises, by Adam, over the cohort's labels y::

        sum_k E[s_ky CE(head_k(G(e, y)), y)] + exp(-mean_ij(||e_i - e_j||^2 / |e|  *  ||G_i - G_j||_1 / |G|))

    From the second round on, each local step in round t (or the first ``guided_steps``) adds, with p(.) the softmax,::

        decay^t (alpha E[CE(head(G(e, y')), y')] + beta KL(p(head(G(e, y))) || p(model(x))))

    The y' are uniform, (x, y) is the client's batch, and the first argument of the KL has no gradient. The server sees single
    clients' models and label counts. The generator has BatchNorm; clients run it in evaluation mode.

    Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021,
    https://arxiv.org/abs/2105.10056; https://github.com/zhuangdizhu/FedGen, whose third server term has weight 0.

    Args:
        alpha: strength of the clients' cross-entropy, >= 0; 10 in all of the authors' settings.
        beta: strength of the clients' divergence, >= 0; the authors take 10 for MNIST and 1 for EMNIST.
        decay: factor by round on both strengths, and on the generator's learning rate, in (0, 1].
        guided_steps: number of local steps with the two terms, >= 0, counted from the start of a round; None for all. The
            authors' rounds have 20 steps, all of them guided. In rounds of 400 steps, 20 guided ones would leave most of the
            training unchanged.
        batch_size: generated features in a step of client or server, >= 2.
        noise_dim: length of e, >= 1; the authors' values are 32 for MNIST and EMNIST, 64 for CIFAR.
        hidden: width of the generator, >= 1; the authors' values are 256 and 512.
        server_steps: steps of the generator's training in a round, >= 1.
        lr: learning rate of the generator's Adam, > 0; the authors use 3e-4, and 1e-4 for EMNIST.
        weight_decay: weight decay of the generator's Adam, >= 0.
        seed: seed of the generator's first weights.
    """

    alpha: float = option(10.0, ">= 0")
    beta: float = option(10.0, ">= 0")
    decay: float = option(0.98, "(0, 1]")
    guided_steps: int | None = option(None, ">= 0")
    batch_size: int = option(32, ">= 2")
    noise_dim: int = option(32, ">= 1")
    hidden: int = option(256, ">= 1")
    server_steps: int = option(50, ">= 1")
    lr: float = option(3e-4, "> 0")
    weight_decay: float = option(0.01, ">= 0")
    seed: int = option(0, ">= 0")

    individual_uploads = True
    tasks = ("classification",)

    def init_server(self, params: Params) -> Slot:
        head = head_weight(self, params)
        num_classes, num_features = head.shape
        generator = feature_generator(self.noise_dim, num_classes, self.hidden, num_features, self.seed)
        return {"generator": {name: value.to(head) for name, value in generator.items()}, "adam": {}}

    def broadcast(self, server: Slot) -> Slot:
        return {"generator": server["generator"]}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        # In the first round the generator is untrained.
        scale = self.decay ** (client.round - self.start_round) if client.round > self.start_round else 0.0
        counts = client.label_counts.to(number_dtype())
        return {"key": draw_key(rng), "scale": torch.tensor(scale, dtype=number_dtype()), "counts": counts}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        generator, key, step = ctx.broadcast["generator"], ctx.draws["key"], ctx.step
        noise = uniform(key, step, (self.batch_size, self.noise_dim), stream=0)
        labels = (uniform(key, step, (self.batch_size,), stream=1) * ctx.draws["counts"].shape[-1]).long()
        cross_entropy = F.cross_entropy(apply.head(params, features_of(generator, noise, labels)), labels)
        own = first_leaf(batch.targets)
        noise = uniform(key, step, (len(own), self.noise_dim), stream=2)
        teacher = log_probabilities(apply.head(params, features_of(generator, noise, own)).detach())
        student = log_probabilities(apply(params, batch.inputs))
        divergence = masked_mean((teacher.exp() * (teacher - student)).sum(1), batch.mask)
        guided = 1 if self.guided_steps is None else step < self.guided_steps
        return ctx.draws["scale"] * guided * (self.alpha * cross_entropy + self.beta * divergence)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, ctx.state, sum={"counts": ctx.draws["counts"]})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        uploads = messages.individual
        models = [{name: value + upload.delta[name] for name, value in params.items()} for upload in uploads]
        counts = torch.stack([upload.sum["counts"] for upload in uploads])
        shares, present = counts / counts.sum(0).clamp(min=1), counts.sum(0).nonzero().squeeze(1)
        generator = {name: value.clone() for name, value in server["generator"].items()}
        leaves = {name: value.requires_grad_() for name, value in generator.items() if name not in ("norm.mean", "norm.var")}
        rate = self.lr * self.decay ** (cohort.round - self.start_round)
        adam = torch.optim.Adam(leaves.values(), rate, weight_decay=self.weight_decay)
        for name, state in server["adam"].items():
            adam.state[leaves[name]] = {key: value.clone() for key, value in state.items()}
        rng, device = cohort.rng("FedGen"), counts.device
        for _ in range(self.server_steps):
            labels = present[torch.randint(len(present), (self.batch_size,), generator=rng).to(device)]
            noise = torch.rand(self.batch_size, self.noise_dim, generator=rng).to(device)
            features = features_of(generator, noise, labels, training=True)
            outputs = [
                cohort.apply.frozen(model, upload.buffers).head(features) for model, upload in zip(models, uploads, strict=True)
            ]
            loss = generator_loss(features, noise, labels, outputs, shares)
            descend(adam, leaves.values(), loss)
        cohort.log("fedgen/generator_loss", loss.detach())
        states = {name: dict(adam.state[leaf]) for name, leaf in leaves.items()}
        return delta, {"generator": {name: value.detach() for name, value in generator.items()}, "adam": states}
