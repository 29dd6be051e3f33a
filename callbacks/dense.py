"""DENSE: the server distils the clients' ensemble into one model, on images generated from the ensemble itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.parts.distillation import distillation_loss, log_probabilities
from flcog.callbacks.parts.server_generators import batch_norm_distances, descend, example_of, input_generator, random_view
from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Cohort, Context, Messages, Method, Upload


def divergence_where_different(teacher: Tensor, student: Tensor) -> Tensor:
    """The mean of KL(p(teacher) || p(student)) over rows, where a row counts only if the two predict different classes.

    >>> sure = torch.tensor([[9.0, 0.0]])
    >>> float(divergence_where_different(sure, sure)), bool(divergence_where_different(sure, -sure) > 8)
    (0.0, True)
    """
    differs = teacher.argmax(1) != student.argmax(1)
    log_teacher, log_student = log_probabilities(teacher), log_probabilities(student)
    return (differs * (log_teacher.exp() * (log_teacher - log_student)).sum(1)).mean()


@dataclass(frozen=True)
class DENSE(Method):
    """Lets the server train the new global model to imitate the clients' ensemble, on images generated from the ensemble.

    With teacher(x) the mean of the clients' outputs, G a generator that starts from new weights in every epoch, and z its noise,
    which is also trained::

        x = G(z):  min_{G, z}  oh CE(teacher(x), y) + bn sum_{k, layer} (||mean(x) - mu|| + ||var(x) - sigma^2||)
                               - adv mean(1[teacher and student differ] KL(teacher(x) || student(x)))
        student:   min  T^2 KL(p(teacher(x) / T) || p(student(x) / T))  over all x generated so far, once an epoch

    with y uniform and mu, sigma^2 the statistics of client k's BatchNorm layer. DENSE is designed for a single round
    (``trainer.rounds: 1``) of long local training; further rounds repeat it. The server sees single clients' models. The student
    starts from the clients' mean, so that methods listed before still count (the authors' starts from random weights), and keeps
    the clients' mean BatchNorm statistics. Costs epochs * (generator_steps + epochs / 2) passes through every client's model.

    Zhang et al., DENSE: Data-Free One-Shot Federated Learning, NeurIPS 2022, https://arxiv.org/abs/2112.12371;
    https://github.com/zj-jayzhang/DENSE.

    Args:
        epochs: repetitions of generating a batch and distilling on all batches, >= 1.
        generator_steps: steps of Adam in each epoch, >= 1.
        batch_size: images generated in an epoch, and in a step of the student, >= 2.
        generator_lr: learning rate of the generator's Adam, > 0.
        oh: weight of the labels in the generator's loss, >= 0.
        bn: weight of the BatchNorm statistics, >= 0.
        adv: weight of the student's errors, >= 0.
        temperature: T, > 0.
        lr: learning rate of the student's SGD, > 0.
        momentum: momentum of the student's SGD, in [0, 1).
        crop: largest random shift, in pixels, of the images that models see, >= 0.
        flip: whether models see half of the images mirrored; not for digits.
        latent: length of z, >= 1.
        width: channels of the generator, >= 1.
    """

    epochs: int = option(200, ">= 1")
    generator_steps: int = option(30, ">= 1")
    batch_size: int = option(256, ">= 2")
    generator_lr: float = option(1e-3, "> 0")
    oh: float = option(1.0, ">= 0")
    bn: float = option(1.0, ">= 0")
    adv: float = option(1.0, ">= 0")
    temperature: float = option(20.0, "> 0")
    lr: float = option(0.005, "> 0")
    momentum: float = option(0.9, "[0, 1)")
    crop: int = option(4, ">= 0")
    flip: bool = True
    latent: int = option(256, ">= 1")
    width: int = option(64, ">= 1")

    individual_uploads = True
    tasks = ("classification",)
    plain_batches = True

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"shape": torch.tensor(example_of(client).shape[1:])}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        # The server has no data from which it could learn the inputs' shape.
        return Upload(delta, ctx.state, sum={"shape": ctx.draws["shape"]})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        uploads, apply, device = messages.individual, cohort.apply, next(iter(params.values())).device
        clients = [({name: value + upload.delta[name] for name, value in params.items()}, upload.buffers) for upload in uploads]
        student = {name: (value + delta[name]).requires_grad_() for name, value in params.items()}
        models = [apply.frozen(model, statistics) for model, statistics in clients]
        student_model = apply.frozen(student, cohort.buffers)  # these buffers are already the clients' mean
        sgd = torch.optim.SGD(student.values(), self.lr, self.momentum)
        rng, pool = cohort.rng("DENSE"), torch.empty(0, device=device)
        shape = tuple(uploads[0].sum["shape"].tolist())

        def teacher(images: Tensor) -> Tensor:
            return torch.stack([client(images) for client in models]).mean(0)

        for _ in range(self.epochs):
            images = self._synthesise(teacher, student_model, shape, apply.model.module, rng)
            pool = torch.cat([pool, images]) if len(pool) else images
            for rows in torch.randperm(len(pool), generator=rng).to(device).split(self.batch_size):
                images = random_view(pool[rows], self.crop, self.flip, rng)
                with torch.no_grad():
                    targets = teacher(images)
                loss = distillation_loss(student_model(images), targets, temperature=self.temperature)
                descend(sgd, student.values(), loss)
        cohort.log("dense/distillation_loss", loss.detach())
        return {name: value.detach() - params[name] for name, value in student.items()}, server

    def _synthesis_loss(self, teacher: Tensor, student: Tensor, labels: Tensor, distances: Tensor) -> Tensor:
        """The loss of generated images: low if the teacher is sure of the labels, the batch statistics match BatchNorm's, and the
        student disagrees with the teacher."""
        sure = self.oh * F.cross_entropy(teacher, labels)
        return sure + self.bn * distances - self.adv * divergence_where_different(teacher, student)

    def _synthesise(
        self,
        teacher: Callable[[Tensor], Tensor],
        student: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],
        network: nn.Module,
        rng: torch.Generator,
    ) -> Tensor:
        """A batch of images from a generator that is trained for this batch: the images of the step with the least loss."""
        device = next(network.parameters()).device
        generator = input_generator(shape, self.latent, self.width, rng).to(device)
        z = torch.randn(self.batch_size, self.latent, generator=rng).to(device).requires_grad_()
        learnt = [*generator.parameters(), z]
        adam = torch.optim.Adam(learnt, self.generator_lr, betas=(0.5, 0.999))
        least, best, labels = float("inf"), torch.empty(0), None
        for _ in range(self.generator_steps):
            images = generator(z)
            view = random_view(images, self.crop, self.flip, rng)
            with batch_norm_distances(network) as distances:
                outputs = teacher(view)
            if labels is None:
                labels = torch.randint(outputs.shape[1], (self.batch_size,), generator=rng).to(device)
            distance = torch.stack(distances).sum() if distances else outputs.new_zeros(())
            loss = self._synthesis_loss(outputs, student(view), labels, distance)
            if float(loss.detach()) < least:
                least, best = float(loss.detach()), images.detach()
            descend(adam, learnt, loss)
        return best
