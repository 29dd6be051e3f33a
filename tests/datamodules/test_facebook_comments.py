"""Facebook comments on small files in their format."""

from pathlib import Path

import numpy as np

from datamodules.common import everything
from flcog.datamodules import FacebookComments


def write_posts(root: Path) -> dict[str, np.ndarray]:
    rng, tables = np.random.default_rng(0), {}
    for name, rows in (("Training/Features_Variant_2.csv", 50), ("Testing/Features_TestSet.csv", 20)):
        table = np.round(rng.random((rows, 54)) * 1e5, 3)
        table[:, 37], table[:, -1] = 0, rng.poisson(3, rows)  # "post promotion status" is always 0
        (root / "Dataset" / name).parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(root / "Dataset" / name, table, delimiter=",", fmt="%.10g")
        tables[name] = table
    return tables


def test_facebook_comments(tmp_path: Path) -> None:
    tables = write_posts(tmp_path)
    train, test = tables.values()
    federation = FacebookComments(str(tmp_path), variant=2, num_clients=3).federation
    assert federation.task == "regression" and federation.num_classes == 10 and federation.test is not None
    np.testing.assert_allclose(federation.train.targets, np.log1p(train[:, -1]), rtol=1e-6)
    inputs, _ = everything(federation, federation.test)
    std = train[:, :-1].std(0)
    std[37] = 1
    np.testing.assert_allclose(inputs, (test[:, :-1] - train[:, :-1].mean(0)) / std, rtol=1e-3, atol=1e-4)
    raw = FacebookComments(str(tmp_path), variant=2, log_target=False, num_classes=4, num_clients=3).federation
    np.testing.assert_array_equal(raw.train.targets, train[:, -1])
    assert sum(raw.label_counts(k).sum() for k in range(3)) == 50 and len(raw.label_counts(0)) == 4
