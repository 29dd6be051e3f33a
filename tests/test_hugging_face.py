"""Hugging Face's classifiers compute the same as in transformers, load weights from folders, and train equally in all executors."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, TinyData, assert_close, train
from torch import Tensor

import flcog
from flcog.callbacks import MOON, FedDecorr
from flcog.models import HuggingFace, LoRA

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")

BERT_LIKE = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "max_position_embeddings": 16, **BERT_LIKE},
    "distilbert": {"model_type": "distilbert", "vocab_size": 30, "dim": 12, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
    "roberta": {"model_type": "roberta", "max_position_embeddings": 16, "pad_token_id": 0, **BERT_LIKE},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 30,
        "n_embd": 12,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "llama": {"model_type": "llama", "num_key_value_heads": 1, **BERT_LIKE},
    "vit": {"model_type": "vit", "image_size": 8, "patch_size": 4, "num_channels": 1, **BERT_LIKE},
}


def model_of(name: str) -> HuggingFace:
    torch.manual_seed(0)
    configuration = {key: value for key, value in CONFIGURATIONS[name].items() if name != "vit" or key != "vocab_size"}
    return HuggingFace(configuration, num_classes=3)


class Sentences(TinyData):
    """Token ids with some padding, with or without an attention mask. For a vision model, images."""

    def __init__(self, kind: str = "tokens", **options: Any) -> None:
        super().__init__(order=(1, 2, 3, 5), **options)
        self.kind = kind

    def load(self) -> flcog.Splits:
        return flcog.Splits(
            *(flcog.Samples(self._inputs(part.inputs), part.targets) for part in (super().load().train, super().load().test))
        )

    def _inputs(self, values: Tensor) -> Any:
        if self.kind == "images":
            return (values.repeat(1, 11)[:, :64].reshape(-1, 8, 8, 1)).contiguous()
        tokens = (values * 5).round().long().clamp(-14, 14) + 15
        tokens[::2, 4:] = 0
        return tokens if self.kind == "tokens" else {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_computes_what_transformers_does(name: str) -> None:
    ours = model_of(name).eval()
    theirs = copy.deepcopy(ours.body)
    parent, _, attribute = [n for n, layer in theirs.named_modules() if isinstance(layer, torch.nn.Identity)][-1].rpartition(".")
    setattr(theirs.get_submodule(parent), attribute, ours.head)
    theirs.set_attn_implementation("eager")
    if name == "vit":
        images = torch.randn(4, 1, 8, 8)
        torch.testing.assert_close(ours(images), theirs(pixel_values=images).logits)
        return
    tokens = torch.randint(1, 30, (4, 8))
    tokens[::2, 5:] = 0
    batch = {"input_ids": tokens, "attention_mask": (tokens > 0).long()}
    torch.testing.assert_close(ours(batch), theirs(**batch).logits)
    torch.testing.assert_close(ours(tokens), ours(batch))
    assert ours.features(batch).shape == (4, ours.num_features) == (4, 12)
    assert not torch.allclose(ours(torch.where(tokens > 0, tokens, 7)), ours(batch)), "padding is masked"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoders_without_a_pad_token_take_the_last_token_of_the_mask(tmp_path: Path, name: str) -> None:
    """Their padding is often the end-of-text token, here 1, and token 0 is a word."""
    torch.manual_seed(0)
    configuration = transformers.AutoConfig.for_model(**CONFIGURATIONS[name], num_labels=3)
    transformers.AutoModelForSequenceClassification.from_config(configuration).save_pretrained(tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, pad_token_id=1).eval()
    ours = HuggingFace(tmp_path, num_classes=3).eval()
    tokens, mask = torch.tensor([[5, 6, 7, 8, 0], [9, 10, 1, 1, 1], [9, 0, 1, 1, 1]]), torch.zeros(3, 5, dtype=torch.int64)
    for row, length in enumerate(lengths := (5, 2, 2)):
        mask[row, :length] = 1
    found = ours({"input_ids": tokens, "attention_mask": mask})
    torch.testing.assert_close(found, theirs(input_ids=tokens, attention_mask=mask).logits)
    texts = [tokens[row : row + 1, :length] for row, length in enumerate(lengths)]
    alone = [ours({"input_ids": text, "attention_mask": torch.ones_like(text)}) for text in texts]
    torch.testing.assert_close(found, torch.cat(alone))


@pytest.mark.parametrize("lora", [False, True], ids=["all", "adapters"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_all_executors_train_it(name: str, lora: bool) -> None:
    data = Sentences("images" if name == "vit" else "tokens" if name == "bert" else "dict")
    options: dict[str, Any] = {"rounds": 1, "local_steps": 2, "clients_per_round": 3, "data": data}
    runs = []
    for how in ({"executor": "loop"}, {"chunk_size": 2}, {"executor": "vmap"}):
        network = LoRA(model_of(name), rank=2) if lora else model_of(name)
        runs.append(train(MOON(projection=4), FedDecorr(), module=flcog.Classifier(network, SGD), **options, **how))
    assert [run.executor.name for run in runs] == ["loop", "loop", "vmap"] and runs[1].executor.clients_at_once == 2
    assert_close(runs[1].state, runs[0].state, 0)
    assert_close(runs[2].state, runs[0].state, 1e-9)
    if lora:
        inner = [name for name in runs[0].params if "head" not in name and "projection" not in name]
        assert {name.rsplit(".", 1)[-1] for name in inner} == {"A", "B"}


def test_a_folder_is_what_the_hub_would_have_given(tmp_path: Path) -> None:
    theirs = transformers.AutoModelForSequenceClassification.from_config(
        transformers.AutoConfig.for_model(**CONFIGURATIONS["bert"], num_labels=3)
    ).eval()
    theirs.save_pretrained(tmp_path / "bert")
    tokens = torch.randint(1, 30, (4, 8))
    ours = HuggingFace(str(tmp_path / "bert"), num_classes=3).eval()
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)
    other = HuggingFace(tmp_path / "bert", num_classes=5).eval()
    torch.testing.assert_close(other.features(tokens), ours.features(tokens))
    assert other(tokens).shape == (4, 5)
    fresh = HuggingFace(tmp_path / "bert", num_classes=3, pretrained=False).eval()
    assert not torch.allclose(fresh(tokens), ours(tokens))
    made = HuggingFace(copy.deepcopy(theirs), num_classes=3).eval()
    torch.testing.assert_close(made(tokens), ours(tokens))


def test_a_bare_classifier_of_transformers_trains_too() -> None:
    def bare() -> Any:
        torch.manual_seed(0)
        return transformers.AutoModelForSequenceClassification.from_config(
            transformers.AutoConfig.for_model(
                **CONFIGURATIONS["bert"], num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
            )
        )

    options: dict[str, Any] = {"rounds": 1, "local_steps": 2, "clients_per_round": 3, "data": Sentences("dict")}
    plain = train(module=flcog.Classifier(bare(), SGD), **options)
    wrapped = train(module=flcog.Classifier(HuggingFace(bare(), 3), SGD), **options)
    head = "model.classifier.weight"
    assert_close({"head": plain.params[head]}, {"head": wrapped.params["model.head.weight"]}, 1e-6)


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"^HuggingFace: .*/nothing is neither a folder with a classifier, nor"):
        HuggingFace(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"^HuggingFace: Linear has no linear head with num_classes=5 outputs: set num_classes"):
        HuggingFace(torch.nn.Linear(2, 3), num_classes=5)
