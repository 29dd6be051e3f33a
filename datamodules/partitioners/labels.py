"""The class of each sample, as splits by label see it, for class indices, multi-label rows and regression targets."""

import numpy as np

from flcog.data import Samples

REGRESSION_BINS = 10


def class_labels(samples: Samples) -> np.ndarray:
    """One class per sample, as every split by label sees it: int64 [N], numbered 0 to C - 1 without gaps, in label order.

    - *Classification*: the target.
    - *Multi-label*: the sample's rarest label (of equally rare ones, the first); samples without any label form one more class.
      By its commonest label nearly every photograph would be of the same class, and the rare labels, which make multi-label
      clients differ, would be spread evenly. Stratified splits of such data start from the rarest label for that reason
      (Sechidis et al. 2011, https://doi.org/10.1007/978-3-642-23808-6_10).
    - *Regression*: ten bins of equal mass, of the first of several values. Repeated values stay in one bin, so heavily tied targets
      have fewer.
    """
    targets = samples.labels.detach().cpu().numpy()
    if targets.ndim == 2 and np.issubdtype(targets.dtype, np.floating) and not np.isin(targets, (0, 1)).all():
        targets = targets[:, 0]  # a regression's values
    if targets.ndim == 2:
        labels = np.full(len(targets), targets.shape[1])
        # From the commonest to the rarest, which so has the last word.
        for label in np.argsort(np.count_nonzero(targets, axis=0), kind="stable")[::-1]:
            labels[targets[:, label] != 0] = label
    elif np.issubdtype(targets.dtype, np.floating):
        if not np.isfinite(targets).all():
            raise ValueError("the regression targets hold NaN or infinite values: remove those samples before splitting the set")
        labels = np.searchsorted(np.quantile(targets, np.linspace(0, 1, REGRESSION_BINS + 1)[1:-1]), targets)
    else:
        labels = targets
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
