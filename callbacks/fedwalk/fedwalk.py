"""FedWalk: the server also trains the global model on public data, the leash, which guides the clients' learning."""

from dataclasses import dataclass

import torch

from flcog.callbacks.fedwalk.leash import OnLeash, value_at
from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.precision import number_dtype, to_float64_device
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import Cohort, Context, Messages, Upload
from flcog.schedules import Schedule


def cosine_and_length(move: Params, other: Params) -> tuple[float, float]:
    """The cosine between two moves of a model, and the first one's length over the second's; 0 if undefined.

    >>> cosine_and_length({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.0, 10.0])})
    (0.8, 0.5)
    """
    first, second = (torch.cat([to_float64_device(part[name]).flatten().double() for name in move]) for part in (move, other))
    inner, length, other_length = first @ second, first.norm(), second.norm()
    if not length or not other_length:
        return 0.0, 0.0
    return float(inner / (length * other_length)), float(length / other_length)


def log_loss_ratio(client_loss: float, leash_loss: float) -> float:
    """``log2(L^c / L^s)``; -inf before the leash has been measured.

    >>> log_loss_ratio(4.0, 1.0), log_loss_ratio(4.0, float("inf"))
    (2.0, -inf)
    """
    # In torch a loss of 0 gives inf or nan instead of an error, and a comparison with nan means "do not leash".
    return float(torch.log2(torch.tensor(client_loss, dtype=torch.float64) / leash_loss))


def task_loss(apply: Apply, params: Params, batch: Batch) -> Slot:
    """The mean loss of a batch in evaluation mode."""
    return {"loss": apply.frozen(params, apply.buffers).loss(batch)}


@dataclass(frozen=True)
class FedWalk(OnLeash):
    """After each aggregation the server takes SGD steps on public data, the leash, unless its loss is already far below the clients'.

    With W the aggregated model, L_k client k's loss on all of its data after local training, and F the leash's loss::

        L^c <- beta L^c + (1 - beta) mean_k L_k
        if log2(L^c / L^s) < tau:
            W <- W - lr grad F(W)      for num_steps batches
            L^s <- F(W)                on all leash data

    Otherwise L^s keeps its value. L^c starts at 0, as in the paper. L^s starts at infinity, which the paper leaves open, so the
    first round takes leash steps. The paper gives no value of beta; the default 0.9 is ours. Because L^c starts at 0, it stays
    low for about 1 / (1 - beta) rounds, and more of these rounds take leash steps; ``bias_correction`` divides L^c by 1 - beta^t.

    The paper does not say how 20 leash classes fit the model's 10 outputs. Here the leash has a linear head of its own on the
    model's features. The head stays on the server: clients neither receive nor decay it, and the ledger counts one number per
    client and round, L_k. Both means use the aggregation weights; list ``EqualWeights`` for the paper's unweighted ones. The
    server descends the leash's loss alone, without momentum or weight decay. Clients with a momentum of m take steps of up to 1 /
    (1 - m) times the leash's at the same learning rate; Algorithm 1 has plain steps on both sides. Each process of a run repeats
    the leash steps.

    List FedWalk after methods that change the server's step (FedNova, SCAFFOLD, FedAvgM, FedOpt's, FedDyn, FedDC, FedExP);
    otherwise they treat the leash's steps as the clients'. A FedNova listed after it multiplies the leash's steps by the clients'
    number of steps (for 5 steps by 5, by 13 with a momentum of 0.9), and before that shows the leash a model that has moved by
    less.

    Each round logs ``fedwalk/client_loss`` (L^c as compared), ``fedwalk/llr`` (the ratio's logarithm as compared),
    ``fedwalk/applied``, ``fedwalk/leash_loss`` (L^s after the round) and ``fedwalk/steps`` (leash steps so far). Two further
    columns compare the leash's move of the model with the clients' aggregated move: ``fedwalk/cosine`` between the two, and
    ``fedwalk/length`` of the first over the second. Both are 0 in rounds without leash steps.

    Zhai et al., The Dog Walking Theory: Rethinking Convergence in Federated Learning, 2024, https://arxiv.org/abs/2404.11888.

    Args:
        leash: the public data. FedWalk uses its whole training set, in batches of its ``batch_size`` (the paper's 64). The model
            must accept inputs of its size.
        tau: bound on the ratio's logarithm, or its schedule by round. -inf is FedAvg, inf takes leash steps in every round. The
            paper's values rise over the rounds: 0, 0.5, 1 for a leash close to the clients' data, -1, -0.5, 0 and -1.3, -1.1 for
            more distant ones. The paper does not say in which rounds they change.
        num_steps: leash steps in a round, if it takes any (T_s), >= 1.
        lr: step size of the leash steps (gamma), > 0, or its schedule by round, of step sizes and not of factors (``Piecewise``);
            None for the clients' learning rate of the round, as in the paper.
        beta: memory of L^c, in [0, 1).
        bias_correction: whether to correct L^c for its start at 0.
        head: ``own``, or ``shared``: the model's head, for a leash with the same classes in the same order. Only the kind of
            label and the number of classes are checked.
        mode: ``eval`` or ``train``: in ``train``, leash steps update BatchNorm's statistics and use dropout.

    Example:
        >>> from flcog.datamodules import Digits
        >>> FedWalk(leash=Digits(), tau=0.5).num_steps
        1
    """

    tau: float | Schedule = 0.0
    num_steps: int = option(1, ">= 1")
    beta: float = option(0.9, "[0, 1)")
    bias_correction: bool = False

    def configure_model(self, model: ClientModule) -> ClientModule:
        self._leash.check(model)
        return model

    def init_server(self, params: Params) -> Slot:
        real = number_dtype()
        losses = {"client_loss": torch.zeros((), dtype=real), "leash_loss": torch.full((), torch.inf, dtype=real)}
        # The first leash step makes the head, because only then the number of features is known.
        return losses | {"rounds": torch.tensor(0), "steps": torch.tensor(0), "head": {}}

    over_data = staticmethod(task_loss)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, ctx.state, mean={"loss": ctx.data.mean["loss"]})

    def server_step(
        self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort
    ) -> tuple[Params, Slot, Params]:
        rounds, steps, head = int(server["rounds"]) + 1, int(server["steps"]), server["head"]
        mean = self.beta * float(server["client_loss"]) + (1 - self.beta) * float(messages.mean["loss"])
        client_loss = mean / (1 - self.beta**rounds) if self.bias_correction else mean
        leash_loss, leash = float(server["leash_loss"]), self._leash
        llr = log_loss_ratio(client_loss, leash_loss)
        # A loss of nan never takes leash steps.
        applied = llr < value_at(self.tau, cohort.round)
        cosine, length, buffers = 0.0, 0.0, cohort.buffers
        if applied:
            # A step in training mode updates BatchNorm's statistics in place.
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
            apply = Apply(cohort.apply.model, buffers)
            aggregated = {name: value + delta[name] for name, value in params.items()}
            head = head or leash.make_head(apply, aggregated, cohort.rng(f"{self.name} head"))
            lr = cohort.optimisation.lr if self.lr is None else value_at(self.lr, cohort.round)
            new, head = leash.walk(apply, aggregated, head, lr, range(steps, steps + self.num_steps), cohort.seed)
            leash_loss, steps = leash.loss(apply, new, head), steps + self.num_steps
            cosine, length = cosine_and_length({name: value - aggregated[name] for name, value in new.items()}, delta)
            delta = {name: value - params[name] for name, value in new.items()}
        figures = {"client_loss": client_loss, "leash_loss": leash_loss, "llr": llr, "applied": float(applied)}
        for name, value in {**figures, "steps": float(steps), "cosine": cosine, "length": length}.items():
            cohort.log(f"fedwalk/{name}", value)
        losses = {name: server[name].new_tensor(value) for name, value in (("client_loss", mean), ("leash_loss", leash_loss))}
        return delta, losses | {"rounds": torch.tensor(rounds), "steps": torch.tensor(steps), "head": head}, buffers
