"""FedDM: clients send no weights but a few images each, chosen so that the model behaves on them as on the clients' data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.parts.noise import draw_key, normal
from flcog.callbacks.parts.server_generators import descend, example_of, one_hot
from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Gradient, GradientFunction, Messages, Method, Upload


def class_means(values: Tensor, labels: Tensor, num_classes: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean of the rows [B, D] of each class, [C, D], and their number, [C]; 0 for a class without rows.

    >>> class_means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), 2)
    (tensor([[0.],
            [2.]]), tensor([0., 2.]))
    """
    members = one_hot(labels, num_classes, values.dtype)
    if mask is not None:
        members = members * mask.to(values.dtype)[:, None]
    counts = members.sum(0, dtype=number_dtype(values.dtype))
    return members.T @ values / counts.clamp(min=1)[:, None], counts


def perturb(params: Params, key: Tensor, step: Tensor | int, rho: float) -> Params:
    """``params`` plus Gaussian noise that is cut to the norm ``rho``."""
    if rho == 0:
        return params
    noise = normal(key, step, (sum(value.numel() for value in params.values()),))
    parts = (noise * (rho / noise.norm()).clamp(max=1)).split([value.numel() for value in params.values()])
    return {name: value + part.view_as(value).to(value.dtype) for (name, value), part in zip(params.items(), parts, strict=True)}


MODEL_READERS = dict.fromkeys(
    ("DENSE", "FedAMP", "FedFomo", "FedGen", "FedPAC", "FlexLoRA", "LocalModels"),
    "it reads clients' models, and these clients send none",
)
"""Methods that a method without uploaded models excludes."""


@dataclass(frozen=True)
class FedDM(Method):
    """Trains no model at the clients: each optimises images to resemble its data to the model, and the server trains on them.

    In every local step client k takes a batch, draws a model w from a ball around the received x, and moves its images S by SGD
    along the gradient of the loss over the batch's classes c, with f_w a sample's features or outputs::

        sum_c ||mean_{batch, c} f_w - mean_{S, c} f_w||^2   for features and for outputs,   w = x + Gaussian noise of norm <= rho

    S starts as ``images_per_class`` of the client's own samples of each class, and the client sends only S. The server then
    trains x on the images of the round's clients. The local optimiser, other methods' losses and ``train/loss`` (0) have no
    meaning here: the loss is ``feddm/matching_loss``. BatchNorm always runs in evaluation mode. The paper's clients take 1000
    steps, with 256 samples of a class in each: set ``local_steps`` and ``batch_size`` accordingly. The server sees single
    clients' images. Methods that read clients' models, such as DENSE and FedAMP, are refused beside it: its clients send none.

    The images are unbounded. If the map from inputs to features and outputs stretches distances by up to s, the SGD of the images
    diverges once ``image_lr`` exceeds about ``images_per_class`` (1 + ``image_momentum``) / s^2. ``feddm/matching_loss`` and
    rounding errors then grow, until an update is NaN. Lower ``image_lr`` in that case; clipping the model's gradient has no
    effect.

    Xiong et al., FedDM: Iterative Distribution Matching for Communication-Efficient Federated Learning, CVPR 2023,
    https://arxiv.org/abs/2207.09653.

    Args:
        images_per_class: size of a client's set, >= 1.
        image_lr: learning rate of the images' SGD, > 0.
        image_momentum: momentum of the images' SGD, in [0, 1).
        rho: radius of the ball, >= 0.
        server_epochs: passes of the server over the images, >= 1.
        server_batch_size: images in a step of the server, >= 1.
        server_lr: learning rate of the server's SGD, > 0.
        server_momentum: momentum of the server's SGD, in [0, 1).
        server_weight_decay: weight decay of the server's SGD, >= 0.
    """

    images_per_class: int = option(10, ">= 1")
    image_lr: float = option(1.0, "> 0")
    image_momentum: float = option(0.5, "[0, 1)")
    rho: float = option(5.0, ">= 0")
    server_epochs: int = option(500, ">= 1")
    server_batch_size: int = option(256, ">= 1")
    server_lr: float = option(0.01, "> 0")
    server_momentum: float = option(0.9, "[0, 1)")
    server_weight_decay: float = option(5e-4, ">= 0")

    individual_uploads = True
    tasks = ("classification",)
    plain_batches = True
    excludes = {**MODEL_READERS, "FedNova": "FedDM's clients do not move the model, so that FedNova has no steps to count"}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        example_of(client)  # raises an error for token ids
        device, chosen = client.targets.device, []
        targets, own = client.targets.cpu(), torch.arange(client.num_samples)
        for label in range(client.num_classes):
            of_class = own[targets == label]
            # A missing class gets some sample, which is set to 0 below, so that all clients' tensors have the same shape.
            of_class = of_class if len(of_class) else own[:1]
            repeats = -(-self.images_per_class // len(of_class))
            order = torch.cat([torch.randperm(len(of_class), generator=rng) for _ in range(repeats)])
            chosen.append(of_class[order[: self.images_per_class]])
        images: Tensor = client.inputs(torch.cat(chosen))
        present = (client.label_counts > 0).to(device, torch.get_default_dtype())
        images = images.to(torch.get_default_dtype()).unflatten(0, (client.num_classes, -1))
        return {"key": draw_key(rng), "images": images * present.view(-1, *[1] * (images.ndim - 1)), "present": present}

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def nothing(params: Params, batch: Batch) -> Gradient:
            zero = next(iter(params.values())).new_zeros(())
            return Gradient({name: torch.zeros_like(value) for name, value in params.items()}, ctx.buffers, zero)

        return nothing

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        x, buffers, images = ctx.received.params, ctx.received.buffers, ctx.draws["images"]
        state = ctx.state or {"images": images, "velocity": torch.zeros_like(images), "loss": images.new_zeros(())}
        model = apply.frozen(perturb(x, ctx.draws["key"], ctx.step, self.rho), buffers)

        def embed(inputs: Tensor) -> list[Tensor]:
            features = model.features(inputs)
            return [features, model.head(features)]

        real = [class_means(values, batch.targets, len(images), batch.mask) for values in embed(batch.inputs)]

        def matching(images: Tensor) -> Tensor:
            made = [values.unflatten(0, images.shape[:2]).mean(1) for values in embed(images.flatten(0, 1))]
            return torch.stack(
                [((means - own).square().sum(1) * (counts > 0)).sum() for (means, counts), own in zip(real, made, strict=True)]
            ).sum()

        slope, loss = torch.func.grad_and_value(matching)(state["images"])
        velocity = self.image_momentum * state["velocity"] + slope
        return x, {"images": state["images"] - self.image_lr * velocity, "velocity": velocity, "loss": loss}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        made = {"images": ctx.state["images"], "present": ctx.draws["present"]}
        return Upload(None, {}, mean={"loss": ctx.state["loss"]}, sum=made)

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        # Sorted by client, because the server's shuffle must not depend on the executor's order.
        uploads = sorted(messages.individual, key=lambda upload: upload.client)
        sets = [(upload.sum["images"], upload.sum["present"] > 0) for upload in uploads]
        inputs = torch.cat([images[present].flatten(0, 1) for images, present in sets])
        labels = torch.cat([present.nonzero().repeat_interleave(self.images_per_class) for _, present in sets])
        model = {name: (value + delta[name]).requires_grad_() for name, value in params.items()}
        sgd = torch.optim.SGD(model.values(), self.server_lr, self.server_momentum, weight_decay=self.server_weight_decay)
        rng = cohort.rng("FedDM")
        for _ in range(self.server_epochs):
            for rows in torch.randperm(len(inputs), generator=rng).to(inputs.device).split(self.server_batch_size):
                loss = cohort.apply.frozen(model, cohort.buffers).loss(Batch(inputs[rows], labels[rows]))
                descend(sgd, model.values(), loss)
        cohort.log("feddm/matching_loss", messages.mean["loss"])
        cohort.log("feddm/server_loss", loss.detach())
        return {name: value.detach() - params[name] for name, value in model.items()}, server
