"""The semi-private parts of Lightning on which ``flcog/lightning`` relies. An update of Lightning that changes one fails here first."""

import ast
import importlib
import inspect
from typing import Any

import lightning as L
import pytest
from harness import ROOT
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher

from faithful.side_by_side import QUIET

LOOPS, LOGS = "lightning.pytorch.loops.", "lightning.pytorch.trainer.connectors.logger_connector."

METHODS: dict[str, dict[str, tuple[str, str]]] = {
    LOOPS + "fit_loop._FitLoop": {
        "setup_data": ("", "makes the loader, unless there is one"),
        "on_run_start": ("", "calls on_train_start"),
        "on_advance_start": ("", "calls on_train_epoch_start"),
        "on_advance_end": ("", "logs the epoch's values, and calls on_train_epoch_end"),
        "on_run_end": ("", "calls on_train_end"),
    },
    LOOPS + "training_epoch_loop._TrainingEpochLoop": {
        "run": ("data_fetcher", "trains on all batches"),
        "on_run_start": ("data_fetcher", "iterates over the fetcher, but not in the first epoch"),
        "_should_check_val_fx": ("data_fetcher", "whether to validate after a batch"),
        "_accumulated_batches_reached": ("", "whether the optimiser steps after this batch"),
        "_num_ready_batches_reached": ("", "whether all batches are done"),
        "_on_before_fetch": ("", "starts the profiler"),
        "_on_after_fetch": ("", "stops the profiler"),
        "update_lr_schedulers": ("interval, update_plateau_schedulers", "steps the schedulers of an interval"),
    },
    LOOPS + "optimization.automatic._AutomaticOptimization": {
        "_training_step": ("kwargs", "calls training_step"),
        "_make_closure": ("kwargs, optimizer, batch_idx", "the closure of a step"),
        "_make_zero_grad_fn": ("batch_idx, optimizer", "what removes the gradients, or None"),
        "_on_before_zero_grad": ("optimizer", "calls the hook"),
        "_optimizer_zero_grad": ("batch_idx, optimizer", "calls the hook"),
    },
    LOOPS + "optimization.automatic.Closure": {
        "__init__": ("step_fn, backward_fn, zero_grad_fn", "kept with a leading underscore"),
        "closure": ("*args, **kwargs", "one evaluation of the loss and its gradient"),
    },
    LOOPS + "evaluation_loop._EvaluationLoop": {
        "__init__": ("trainer, trainer_fn, stage, verbose, inference_mode", "makes another loop of a stage"),
        "run": ("*args, **kwargs", "returns the logged values of each loader"),
        "_on_evaluation_start": ("*args, **kwargs", "calls the hook"),
        "_on_evaluation_epoch_start": ("*args, **kwargs", "calls the hook"),
        "_on_evaluation_epoch_end": ("", "calls the hook after the last batch"),
        "_on_evaluation_end": ("*args, **kwargs", "calls the hook"),
    },
    LOOPS + "utilities": {"_select_data_fetcher": ("trainer, stage", "the fetcher of training")},
    LOGS + "logger_connector._LoggerConnector": {
        "log_metrics": ("metrics, step", "sends values to the loggers"),
        "log_eval_end_metrics": ("metrics", "sends the values of an evaluation"),
        "update_eval_epoch_metrics": ("", "the values of an evaluation"),
        "on_batch_start": ("batch, dataloader_idx", "a batch begins"),
        "on_batch_end": ("", "a batch ends"),
        "epoch_end_reached": ("", "values are those of epochs from here on"),
        "reset_results": ("", "forgets values"),
        "reset_metrics": ("", "forgets callback_metrics"),
    },
    LOGS + "result._ResultCollection": {
        "log": (
            "fx, name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, sync_dist, sync_dist_fn, sync_dist_group, "
            "add_dataloader_idx, batch_size, metric_attribute, rank_zero_only",
            "takes a value",
        ),
        "metrics": ("on_step", "the values for callbacks, loggers and the progress bar"),
        "_forked_name": ("result_metric, on_step", "a name, and its name with _step or _epoch"),
    },
    LOGS + "result._ResultMetric": {"to": ("*args, **kwargs", "moves a value, which is called value, to a device")},
    LOGS + "result._Sync": {"no_op": ("value, *_, **__", "leaves a value as it is")},
    "lightning.pytorch.trainer.call": {
        "_call_callback_hooks": ("trainer, hook_name, *args, monitoring_callbacks, **kwargs", "calls a hook of all callbacks"),
        "_call_lightning_module_hook": ("trainer, hook_name, *args, pl_module, **kwargs", "calls a hook of the module"),
        "_call_configure_model": ("trainer", "calls configure_model"),
    },
    "lightning.pytorch.trainer.connectors.checkpoint_connector._CheckpointConnector": {
        "dump_checkpoint": ("weights_only", "the contents of a checkpoint"),
        **dict.fromkeys(
            (
                "restore_callbacks",
                "restore_datamodule",
                "restore_precision_plugin_state",
                "restore_optimizers",
                "restore_lr_schedulers",
            ),
            ("", "restores a part of the loaded checkpoint"),
        ),
    },
    "lightning.pytorch.trainer.connectors.callback_connector._CallbackConnector": {
        "_attach_model_callbacks": ("", "gathers configure_callbacks"),
        "_attach_model_logging_functions": ("", "lets callbacks log"),
    },
    "lightning.pytorch.trainer.connectors.data_connector._DataConnector": {
        "attach_data": (
            "model, train_dataloaders, val_dataloaders, test_dataloaders, predict_dataloaders, datamodule",
            "shows the module",
        ),
    },
    "lightning.pytorch.core.LightningModule": {"_on_before_batch_transfer": ("batch, dataloader_idx", "calls the hook")},
}

ATTRIBUTES: dict[str, str] = {
    "fit_loop._combined_loader fit_loop._data_source fit_loop._skip_backward fit_loop._can_stop_early": "fit loop",
    "fit_loop.epoch_progress.current.completed fit_loop.max_batches fit_loop.epoch_loop.batch_idx": "progress",
    "fit_loop.epoch_loop._batches_that_stepped fit_loop.epoch_loop.val_loop fit_loop.epoch_loop._results": "the epoch loop",
    "fit_loop.epoch_loop.batch_progress.is_last_batch fit_loop.epoch_loop.batch_progress.current.ready": "progress of batches",
    "fit_loop.epoch_loop.automatic_optimization._skip_backward": "no backward pass",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed": "global_step",
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed": "global_step with manual optimisation",
    "validate_loop._stage validate_loop._trainer_fn validate_loop._data_source.instance validate_loop._max_batches": "evaluation",
    "validate_loop._combined_loader validate_loop._results validate_loop._has_run validate_loop._logged_outputs": "evaluation",
    "predict_loop._data_source.instance predict_loop.return_predictions": "predictions",
    "_logger_connector._callback_metrics _logger_connector._logged_metrics _logger_connector._progress_bar_metrics": "values",
    "_logger_connector._first_loop_iter _checkpoint_connector._loaded_checkpoint _detect_anomaly": "logs, checkpoints, anomalies",
    "_data_connector _callback_connector profiler._lightning_module strategy._root_device": "connectors and strategy",
    "lightning_module._trainer lightning_module._device": "the module",
}


def parameters(function: Any) -> str:
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = [kinds.get(each.kind, "") + each.name for each in inspect.signature(function).parameters.values()]
    return ", ".join(name for name in found if name != "self")


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in METHODS.items() for name in names])
def test_functions_have_their_parameters(owner: str, name: str) -> None:
    path, _, kind = owner.rpartition(".")
    try:
        found = getattr(importlib.import_module(path), kind)
    except AttributeError:
        found = importlib.import_module(owner)
    assert parameters(getattr(found, name)) == METHODS[owner][name][0], METHODS[owner][name][1]


def test_attributes_exist() -> None:
    trainer = L.Trainer(**QUIET | {"max_steps": 2, "limit_val_batches": 1})
    trainer.fit(BoringModel())
    for names in ATTRIBUTES:
        for path in names.split():
            found: Any = trainer
            for name in path.split("."):
                assert hasattr(found, name), f"{path}: {type(found).__name__} has no {name}"
                found = getattr(found, name)
    fetcher = _PrefetchDataFetcher()
    assert fetcher.fetched == 0 and hasattr(fetcher, "_start_profiler") and hasattr(fetcher, "_stop_profiler")


def test_the_list_is_complete() -> None:
    """Each attribute with a leading underscore that the room reads belongs to one of its own classes, or is listed above."""
    listed = {name for names in METHODS.values() for name in names}
    listed |= {name for names in ATTRIBUTES for path in names.split() for name in path.split(".")}
    listed |= {"_start_profiler", "_stop_profiler", "_step_fn", "_backward_fn", "_zero_grad_fn"}  # of fetchers and closures
    own, read = set[str](), set[str]()
    for file in (ROOT / "flcog" / "lightning").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                mine = isinstance(node.value, ast.Name) and node.value.id == "self"
                (own if mine and isinstance(node.ctx, ast.Store) else read).add(node.attr)
    others = read - own - listed - {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}  # torch's
    assert others - {"_backward_hooks", "_post_accumulate_grad_hooks", "_replace"} == set()
