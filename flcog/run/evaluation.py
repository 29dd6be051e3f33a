"""The figures of an evaluation outside ``fit``, as ``trainer.test`` and ``trainer.validate`` return them."""

import warnings
from typing import Any

from flcog.client.messages import Split
from flcog.core.monitor import OF_A_LOADER
from flcog.lightning.trainer import RoundsTrainer
from flcog.run.session import Session
from flcog.server.evaluate import evaluate
from flcog.server.privacy import withhold


class Figures(dict[str, float]):
    """A dict of columns, which also answers as the list of ``lightning.Trainer.test`` does.

    >>> figures = Figures({"test/acc": 0.75})
    >>> figures["test/acc"] == figures[0]["test_acc"] == figures[0]["acc"]
    True

    If several loaders provide the set, each of them has an index.

    >>> figures = Figures({"test/acc/dataloader_idx_0": 0.5, "test/acc/dataloader_idx_1": 0.25, "test/gap": 0.25})
    >>> figures[1]
    {'test/acc/dataloader_idx_1': 0.25, 'test/gap': 0.25}
    """

    def __missing__(self, key: Any) -> Any:
        loaders = sorted({int(name.partition(OF_A_LOADER)[2]) for name in self if OF_A_LOADER in name}) or [0]
        if isinstance(key, int) and key in loaders:
            of_others = tuple(f"{OF_A_LOADER}{loader}" for loader in loaders if loader != key)
            return Figures({name: value for name, value in self.items() if not name.endswith(of_others)}) if of_others else self
        for name, value in self.items():
            if str(key).replace("/", "_") == name.replace("/", "_") or key == name.partition("/")[2]:
                return value
        raise KeyError(f"the figures are {', '.join(self) or 'none'}; got {key!r}")


def measure(run: Session, trainer: RoundsTrainer, split: Split) -> Figures:
    """Evaluate a run's model as it is on its validation or test sets, with the hooks around such an evaluation."""
    figures = evaluate(run.engine, run.server, [split])
    metrics = {name: value for name, value in figures.items() if name.startswith(f"{split}/")}
    withhold(run.engine, metrics)
    if split == "val" and not run.evaluator.own.step_for("validation"):
        trainer.evaluated(run, metrics)
    trainer.publish(metrics)
    if run.engine.central[split] is None and getattr(run.engine.roll_call, split) is None:
        raise ValueError(f"{run.engine.data_name} has no {split} set: set data.client_{split}, or use the other verb")
    if not figures:
        step = f"{type(run.model.module).__name__}.{'validation' if split == 'val' else 'test'}_step"
        warnings.warn(f"the evaluation has no figures: {step} can log them by self.log", stacklevel=6)
    return Figures(metrics)
