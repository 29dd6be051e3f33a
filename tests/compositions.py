"""Sixteen compositions of methods, models, data and executors. A restructuring must keep their numbers to the last bit.

    python tests/compositions.py write FILE     runs them and writes their results
    python tests/compositions.py compare ONE OTHER

Write one file in a checkout of the commit to compare with, another in the working tree, and compare the two. The bits depend on the
machine and the version of torch, so the repository contains no such file. The columns ``comm/*`` are left out because they are
counted, not computed, and the columns ``time/*`` because they are measured.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import MOMENTUM, SGD, BatchNormMLP, TinyData, adapted, classifier, dropout_network, fit

from flcog.callbacks import (
    DENSE,
    MOON,
    SCAFFOLD,
    VHL,
    ClientDropout,
    Ditto,
    EqualWeights,
    FedAdam,
    FedAvgM,
    FedCOG,
    FedDC,
    FedDisco,
    FedDM,
    FedDyn,
    FedExP,
    FedGen,
    FedNova,
    FedProx,
    FedReg,
    FedRep,
    FedSAM,
    FedWalk,
    FineTune,
    FlexLoRA,
    Local,
    Stragglers,
)

Composition = Callable[[Path], Any]


def _run(*methods: Callable[[], Any], module: Callable[[], Any] = classifier, **options: Any) -> Composition:
    """Four rounds with an evaluation after each. The last two rounds resume from the checkpoint."""
    data = options.pop("data", partial(TinyData, client_test=0.25))

    def run(root: Path) -> Any:
        common = {"precision": "32-true", "eval_every": 1, "clients_per_round": 5} | options
        first = fit(root, *(make() for make in methods), module=module(), data=data(), rounds=2, **common)
        path = str(first.run_dir / "checkpoints" / "last.ckpt")
        return fit(root, *(make() for make in methods), module=module(), data=data(), rounds=4, ckpt_path=path, **common)

    return run


RAGGED = {"local_epochs": 2.0}
LEASH = partial(TinyData, order=(0, 1))
COMPOSITIONS: dict[str, Composition] = {
    "fedavg, vmap, momentum": _run(module=partial(classifier, MOMENTUM), executor="vmap", **RAGGED),
    "fedavg, threads, batch norm": _run(module=partial(classifier, SGD, BatchNormMLP), chunk_size=2),
    "scaffold + feddisco + fedavgm, vmap": _run(SCAFFOLD, FedDisco, FedAvgM, executor="vmap", **RAGGED),
    "fedcog + fedprox": _run(partial(FedCOG, num_samples=8, steps=3), FedProx, **RAGGED),
    "fedcog + scaffold, vmap, batch norm": _run(
        partial(FedCOG, num_samples=8, steps=3, start_round=1, lambda_kd="balance"),
        SCAFFOLD,
        module=partial(classifier, SGD, BatchNormMLP),
        executor="vmap",
    ),
    "fedwalk + fednova": _run(partial(FedWalk, leash=LEASH(), tau=5.0), FedNova, **RAGGED),
    "fedwalk + feddyn, vmap": _run(partial(FedWalk, leash=LEASH(), tau=5.0, head="shared"), FedDyn, executor="vmap"),
    "fedrep + fedavgm, batch norm": _run(
        partial(FedRep, head=r"model\.3\."), FedAvgM, module=partial(classifier, SGD, BatchNormMLP)
    ),
    "ditto + fedadam + moon, vmap": _run(Ditto, FedAdam, partial(MOON, projection=4), executor="vmap"),
    "flexlora + feddisco": _run(partial(FlexLoRA, ranks=[1, 2, 4]), FedDisco, module=adapted),
    "fedgen + equal weights + fine-tuning": _run(FedGen, EqualWeights, FineTune),
    "local, vmap": _run(Local, executor="vmap"),
    "feddm": _run(partial(FedDM, images_per_class=2, server_epochs=2), **RAGGED),
    "feddc + fedsam + fedreg, dropout": _run(
        FedDC, FedSAM, FedReg, module=partial(classifier, SGD, dropout_network), executor="vmap"
    ),
    "stragglers + dropouts + fedexp + vhl": _run(Stragglers, ClientDropout, FedExP, VHL, **RAGGED),
    "dense, batch norm": _run(
        partial(DENSE, epochs=1, generator_steps=2, batch_size=4),
        module=partial(classifier, SGD, BatchNormMLP),
        clients_per_round=3,
    ),
}
"""By name."""


def results(root: Path) -> dict[str, Any]:
    """The parameters, buffers, states of server and clients, and metrics of every composition."""
    return {name: _result(name, run, root / str(number)) for number, (name, run) in enumerate(COMPOSITIONS.items())}


def _result(name: str, run: Composition, root: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = run(root)
    rows = [{k: v for k, v in row.items() if not k.startswith(("comm/", "time/"))} for row in trainer.history]
    clients = trainer.run.clients
    states = {client: clients.get(client) for client in clients.clients}
    print(f"{name}: {len(rows)} rounds", flush=True)
    return {"params": trainer.params, "buffers": trainer.buffers, "server": trainer.servers, "clients": states, "rows": rows}


def differences(one: Any, other: Any) -> list[str]:
    """The entries that differ between the results of two files."""
    flat = [dict(torch.utils._pytree.tree_flatten_with_path(each)[0]) for each in (one, other)]
    names = [{torch.utils._pytree.keystr(path): value for path, value in each.items()} for each in flat]
    found = [f"{name}: only in one" for name in names[0].keys() ^ names[1].keys()]
    for name in names[0].keys() & names[1].keys():
        a, b = (torch.as_tensor(each[name]) for each in names)
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.nan_to_num(), b.nan_to_num()):
            found.append(f"{name}: {a.flatten()[:3].tolist()} and {b.flatten()[:3].tolist()}")
    return sorted(found)


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    if verb == "write":
        with tempfile.TemporaryDirectory() as folder:
            torch.save(results(Path(folder)), paths[0])
    else:
        found = differences(*(torch.load(path, weights_only=False) for path in paths))
        print("\n".join(found) or "no difference")
        sys.exit(bool(found))
