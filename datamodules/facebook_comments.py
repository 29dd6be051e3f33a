"""Facebook Comment Volume: a regression of how many comments a post will get."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.checks import at_least, within
from flcog.data import FederatedDataModule, Preprocess, Samples, Splits
from flcog.data.preprocess import moments
from flcog.datamodules.files import missing_files, reading

_HOW_TO_GET = "unpack Dataset.zip of https://archive.ics.uci.edu/dataset/363 and pass --data.data_dir"


class FacebookComments(FederatedDataModule):
    """53 features of a post and its page, and the comments that the post gets in the hours that follow; 40,949 training posts.

    Reads ``Features_Variant_<k>.csv`` and ``Features_TestSet.csv``, from any folder below ``data_dir``. The last of their 54
    columns is the target (Singh et al. 2015, https://doi.org/10.5013/IJSSST.a.16.05.16, https://archive.ics.uci.edu/dataset/363).
    FedDisco uses them to extend the discrepancy to regression, with bins of the target as classes
    (https://arxiv.org/abs/2305.19229, appendix B.8).

    Features are standardised by the training set's means and standard deviations.

    Args:
        data_dir: the folder with the files above.
        variant: 1 to 5; variant k observes every post at k times, so it has about k times as many rows.
        log_target: predict log(1 + comments). More than half of the posts get no comment and some over a thousand, so without the
            logarithm a few posts would dominate the squared error.
        num_classes: the number of bins of equal mass that replace classes in methods that use label counts.
    """

    task = "regression"

    def __init__(
        self,
        data_dir: str = "data/facebook_comments",
        variant: int = 1,
        log_target: bool = True,
        num_classes: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        within(self, "[1, 5]", variant=variant)
        at_least(self, 2, num_classes=num_classes)
        self.data_dir, self.variant, self.log_target, self.num_classes = Path(data_dir), variant, log_target, num_classes

    def load(self) -> Splits:
        return self._splits

    def preprocess(self) -> Callable[[Tensor], Tensor]:
        features = self._splits.train.inputs
        assert isinstance(features, Tensor)
        return Preprocess(*moments(features))

    @cached_property
    def _splits(self) -> Splits:
        return Splits(self._read(f"Features_Variant_{self.variant}.csv"), self._read("Features_TestSet.csv"))

    def _read(self, name: str) -> Samples:
        path = next(iter(sorted(self.data_dir.rglob(name))), None)
        if path is None:
            raise missing_files("FacebookComments", [self.data_dir / "**" / name], _HOW_TO_GET)
        with reading(path):
            table = np.loadtxt(path, delimiter=",", ndmin=2)
        targets = np.log1p(table[:, -1]) if self.log_target else table[:, -1]
        return Samples(torch.from_numpy(table[:, :-1].astype(np.float32)), torch.from_numpy(targets.astype(np.float32)))
