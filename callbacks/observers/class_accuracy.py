"""ClassAccuracy: an observer of the test accuracy on each class, and on frequent and rare classes."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from flcog.client_module import ClientModule
from flcog.core.monitor import Monitor
from flcog.method import Callback, Run

GROUPS = ("head", "middle", "tail")


def frequency_groups(counts: Tensor, head: float, tail: float) -> dict[str, Tensor]:
    """The frequent, the rare and the other classes; of two equally frequent classes, the lower number counts as more frequent.

    >>> frequency_groups(torch.tensor([5, 90, 40, 10, 20]), head=0.4, tail=0.2)
    {'head': tensor([1, 2]), 'middle': tensor([4, 3]), 'tail': tensor([0])}
    """
    order = counts.argsort(descending=True, stable=True)
    num_head, num_tail = (round(share * len(counts)) for share in (head, tail))
    num_head = min(num_head, len(counts) - num_tail)
    return dict(zip(GROUPS, order.split([num_head, len(counts) - num_head - num_tail, num_tail]), strict=True))


class ClassAccuracy(Callback):
    """Adds to each evaluation the global model's test accuracy on every class, and on frequent and rare classes.

    The last three columns are means over the most frequent, the medium and the rarest classes of all clients' samples::

        test/class_accuracy_0, ...       accuracy on each class, by its number
        test/class_accuracy_mean, _std   over all classes, with equal weights
        test/class_accuracy_head, _middle, _tail

    The trackers and the run's directory get a picture of the last evaluation, ``class_accuracy``. Each evaluation costs a pass
    over the test set. Figure 8 of FedDisco, https://arxiv.org/abs/2305.19229; its head, middle and tail are 4, 3 and 3 of 10
    classes.

    Args:
        head: share of the classes in the head, in [0, 1].
        tail: share of the classes in the tail, in [0, 1 - head].
        each: whether to add a column for every class; the other columns are always there.

    Example:
        >>> ClassAccuracy(head=0.36, tail=0.31).tail  # CIFAR-100-LT's many, medium and few
        0.31
    """

    def __init__(self, head: float = 0.4, tail: float = 0.3, each: bool = True) -> None:
        if not (head >= 0 and tail >= 0 and head + tail <= 1):
            raise ValueError(f"ClassAccuracy: head and tail must be shares that sum to at most 1; got {head} and {tail}")
        self.head, self.tail, self.each = head, tail, each
        self._last: Tensor | None = None

    def on_fit_start(self, run: Run) -> None:
        self._last = None
        classifies = run.federation.task == "classification" and isinstance(run.model.module, ClientModule)
        if not classifies or run.federation.test is None:
            raise ValueError("ClassAccuracy needs classes, a flcog.Classifier and a test set: remove ClassAccuracy")
        Monitor.check(run.settings.eval_every, self)

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        federation = run.federation
        assert federation.test is not None
        accuracy = run.evaluator.on_classes(run.evaluated_params(), run.buffers, federation.test)
        self._last, tested = accuracy, ~accuracy.isnan()
        if self.each:
            metrics |= {f"test/class_accuracy_{c}": float(accuracy[c]) for c in tested.nonzero().flatten().tolist()}
        metrics["test/class_accuracy_mean"] = float(accuracy[tested].mean())
        metrics["test/class_accuracy_std"] = float(accuracy[tested].std(correction=0))
        for name, classes in self._groups(run).items():
            if tested[classes].any():
                metrics[f"test/class_accuracy_{name}"] = float(accuracy[classes].nanmean())

    def on_fit_end(self, run: Run) -> None:
        if run.processes.is_first and self._last is not None:
            figure = class_figure(self._last, self._groups(run), run.federation.class_names)
            run.trackers.log_figure("class_accuracy", figure, run.round)

    def _groups(self, run: Run) -> dict[str, Tensor]:
        return frequency_groups(run.federation.pooled_label_counts, self.head, self.tail)


def class_figure(accuracy: Tensor, groups: dict[str, Tensor], class_names: tuple[str, ...] | None) -> Figure:
    """A bar for each class, from the most frequent to the rarest, coloured by group."""
    order = torch.cat(list(groups.values()))
    figure = Figure(figsize=(min(12.0, 2 + 0.4 * len(order)), 3))
    axes, position = figure.subplots(), 0
    for (name, classes), colour in zip(groups.items(), ("#1f5f99", "#5f9bcf", "#d98032"), strict=True):
        if len(classes):
            places = range(position, position + len(classes))
            label = f"{name}: {100 * float(accuracy[classes].nanmean()):.1f} %"
            axes.bar(places, 100 * accuracy[classes].nan_to_num().numpy(), color=colour, label=label)
            position += len(classes)
    if len(order) <= 30:
        axes.set_xticks(
            range(len(order)), [class_names[c] if class_names else str(c) for c in order.tolist()], rotation=45, ha="right"
        )
    axes.set(xlabel="Class, from the most frequent to the rarest", ylabel="Test accuracy (%)", ylim=(0, 100))
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure
