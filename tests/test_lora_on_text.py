"""A small pretrained transformer is fine-tuned with LoRA on token files like AG News. Adapters made by peft train as well."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import SGD, TinyData, assert_close, train
from torch import nn

import flcog
from flcog.commands.cli import main
from flcog.models import MLP, HuggingFace, LoRA
from flcog.run.metrics_table import read_rows

pytestmark = pytest.mark.slow

CONFIGURATION = {"model_type": "distilbert", "vocab_size": 200, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
TOPIC_WORDS = 20

CONFIG = """
trainer: {{rounds: 5, local_steps: 15, clients_per_round: 4, logger: false, accelerator: cpu, default_root_dir: {root}}}
data:
  class_path: flcog.datamodules.AGNews
  init_args:
    tokens: {tokens}
    vocab_size: 200
    num_clients: 8
    batch_size: 16
    partitioner: {{class_path: flcog.datamodules.Dirichlet, init_args: {{beta: 2.0}}}}
model:
  class_path: flcog.Classifier
  init_args:
    optimizer: {{class_path: torch.optim.Adam, init_args: {{lr: 0.005}}}}
    model:
      class_path: flcog.models.LoRA
      init_args:
        rank: 4
        alpha: 8
        targets: [q_lin, v_lin, ffn]
        model:
          class_path: flcog.models.HuggingFace
          init_args: {{source: {pretrained}, num_classes: 4}}
"""


def articles(count: int, rng: np.random.Generator, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Texts of four topics. A quarter of the words belong to the topic, the others to all topics.

    Token ids start at 2. The texts have different lengths and are padded with 0.
    """
    topics = rng.integers(4, size=count)
    tokens = rng.integers(100, 200, size=(count, 24))
    own = words[topics[:, None], rng.integers(TOPIC_WORDS, size=tokens.shape)]
    tokens = np.where(rng.random(tokens.shape) < 0.25, own, tokens)
    return np.where(np.arange(24) < rng.integers(12, 25, size=(count, 1)), tokens, 0), topics


def pretrain(folder: Path, tokens: np.ndarray, labels: np.ndarray) -> None:
    """Pretrain a network on other topics over the same words."""
    torch.manual_seed(0)
    network = HuggingFace(CONFIGURATION, num_classes=4)
    adam = torch.optim.Adam(network.parameters(), lr=3e-3)
    inputs, targets = torch.from_numpy(tokens), torch.from_numpy(labels)
    for rows in [rows for _ in range(4) for rows in torch.randperm(len(inputs)).split(32)]:
        adam.zero_grad()
        nn.functional.cross_entropy(network(inputs[rows]), targets[rows]).backward()
        adam.step()
    network.body.save_pretrained(folder)


@pytest.mark.usefixtures("command_line")
def test_a_small_transformer_learns_ag_news_tokens_by_its_adapters(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    rng = np.random.default_rng(0)
    words = np.arange(2, 2 + 4 * TOPIC_WORDS).reshape(4, TOPIC_WORDS)
    others = np.roll(words, TOPIC_WORDS // 2).reshape(4, TOPIC_WORDS)  # half of each topic's words come from the topic before
    pretrain(tmp_path / "pretrained", *articles(800, rng, others))
    (train_tokens, train_labels), (test_tokens, test_labels) = (articles(count, rng, words) for count in (1200, 400))
    np.savez(tmp_path / "ag.npz", tokens_train=train_tokens, y_train=train_labels, tokens_test=test_tokens, y_test=test_labels)
    config = CONFIG.format(root=tmp_path / "runs", tokens=tmp_path / "ag.npz", pretrained=tmp_path / "pretrained")
    (tmp_path / "config.yaml").write_text(config)
    main(["fit", "-c", str(tmp_path / "config.yaml")])
    (run,) = (tmp_path / "runs").glob("2*")
    rows = read_rows(run / "metrics.csv")
    assert rows[-1]["test/accuracy"] > 0.85
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    trained = sum(value.numel() for value in saved["params"].values())
    assert {name.rsplit(".", 1)[-1] for name in saved["params"] if "head" not in name} == {"A", "B"}
    assert rows[-1]["comm/up_bytes"] == 4 * 4 * trained
    frozen = torch.load(run / "checkpoints" / saved["frozen"], weights_only=True)["params"]
    assert sum(value.numel() for value in frozen.values()) > 3 * trained


def test_our_adapters_compute_what_pefts_do_and_pefts_train_too() -> None:
    peft = pytest.importorskip("peft")

    def network() -> MLP:
        torch.manual_seed(0)
        return MLP(6, (8,), 3)

    def theirs() -> Any:
        setting = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["hidden.0"], modules_to_save=["head"])
        return peft.get_peft_model(network(), setting)

    ours, other = LoRA(network(), rank=2, alpha=4), theirs()
    layer = other.base_model.model.hidden[0]
    nn.init.normal_(ours.hidden[0].B)
    layer.lora_A["default"].weight.data.copy_(ours.hidden[0].A.data)
    layer.lora_B["default"].weight.data.copy_(ours.hidden[0].B.data)
    rows = torch.randn(5, 6)
    torch.testing.assert_close(other(rows), ours(rows))
    runs = [train(module=flcog.Classifier(model, SGD), data=TinyData()) for model in (ours, other)]
    assert runs[0].ledger.up == runs[1].ledger.up
    names = {"hidden.0.A": "lora_A", "hidden.0.B": "lora_B", "head.weight": "head.modules_to_save.default.weight"}
    pefts = {a: next(value for name, value in runs[1].state.items() if b in name) for a, b in names.items()}
    assert_close({name: runs[0].state[name] for name in names}, pefts)
