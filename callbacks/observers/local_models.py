"""LocalModels: measures the models that clients send, before they are averaged."""

from dataclasses import dataclass

import torch

from flcog.client_module import ClientModule
from flcog.core.monitor import lower_is_better, main_metric
from flcog.method import Method, Run
from flcog.metrics import reweighted, spread


@dataclass(frozen=True)
class LocalModels(Method):
    """Changes nothing, and adds to each evaluation the accuracy of the cohort's local models and their distance from the global one.

    For a client's model y_k as it was sent, and x the global model at the end of the round, over the clients of the round::

        local/distance_*            ||x - y_k||, over parameters
        local/test_accuracy_*       of y_k on the global test set: the general knowledge that remains after local training
        local/reweighted_accuracy_* of y_k on the global test set, every class weighted by its share of the client's own samples
        local/client_accuracy_*     of y_k on the client's own test part (``data.client_test``)

    each with ``mean``, ``std``, ``worst_decile`` (for the distance, the most distant decile) and quantiles ``q10``, ``q50``,
    ``q90``. Other tasks have their own score instead of accuracy, and no reweighted one. The first three are Figure 2 of FedCOG
    (Ye et al., ICLR 2024), https://arxiv.org/abs/2312.05966. Its authors' code makes the "personalized test dataset" by
    reweighting, which takes no data from training. Costs two evaluations for each client of the cohort: limit the rounds with
    ``start_round`` and ``stop_round``.

    It reads single clients' whole models, so it cannot run together with secure aggregation or FedDM.
    """

    individual_uploads = True

    def on_evaluation_end(self, run: Run, round: int, metrics: dict[str, float]) -> None:
        federation, evaluate, module = run.federation, run.evaluator, run.model.module
        scores: dict[str, list[float]] = {}
        uploads = run.method_record(self.name).uploads
        for upload in uploads.clients:
            client, buffers = upload.client, uploads.buffers | upload.buffers
            params = {name: value + upload.delta[name] for name, value in uploads.params.items()}
            distance = torch.stack([(params[name] - value).norm() for name, value in run.params.items()]).norm()
            scores.setdefault("local/distance", []).append(float(distance))
            if federation.test is not None:
                figures = {f"test/{name}": value for name, value in evaluate.on_set(params, buffers, federation.test).items()}
                if name := main_metric(figures):
                    scores.setdefault(f"local/{name.replace('/', '_')}", []).append(figures[name])
                if federation.task == "classification" and isinstance(module, ClientModule):
                    accuracy = evaluate.on_classes(params, buffers, federation.test)
                    own_accuracy = reweighted(accuracy, federation.label_counts(client))
                    if not own_accuracy.isnan():
                        scores.setdefault("local/reweighted_accuracy", []).append(float(own_accuracy))
            own = None if federation.client_test is None else federation.client_test.client(client)
            if own is not None and len(own) and isinstance(module, ClientModule):
                name = f"local/client_{module.score_name}"
                scores.setdefault(name, []).append(evaluate.on_rows(params, buffers, own))
        for name, values in scores.items():
            worse = name != "local/distance" and not lower_is_better(name)
            metrics |= spread(torch.tensor(values, dtype=torch.float64), name, lower_is_better=not worse)
