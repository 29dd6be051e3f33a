"""Instruction tuning: a tiny random Llama and a tokenizer trained here learn answers in JSON lines, without a network."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flcog
from flcog import callbacks
from flcog.commands.cli import main
from flcog.data.instructions import IGNORED, Instructions, packed
from flcog.datamodules import Dirichlet, InstructionData
from flcog.datamodules.instruction_data import TEMPLATES
from flcog.functional.apply import ModelFunction
from flcog.models import CausalLM, InstructionTuning, LoRA
from flcog.models.instruction_tuning import answer_losses
from flcog.models.lora import adapters

SUMS = [
    {"instruction": f"Add {a} and {b}", "output": str(a + b), "category": "large" if a + b > 6 else "small"}
    for a in range(6)
    for b in range(6)
]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random Llama with a tokenizer."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEMPLATES["alpaca"].fill(row["instruction"], "") for row in SUMS], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,  # large enough for attention and adapters to affect the outputs
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def module(llama: str, seed: int = 0, **options: Any) -> InstructionTuning:
    torch.manual_seed(seed)
    return InstructionTuning(LoRA(CausalLM(llama, **options), rank=4, alpha=8, targets=["q_proj", "v_proj"]), optimizer=sgd)


def data(folder: Path, llama: str, **options: Any) -> InstructionData:
    train, test = write_lines(folder / "train.jsonl", SUMS[::2]), write_lines(folder / "test.jsonl", SUMS[1::2])
    return InstructionData(train, llama, **({"test": test, "num_clients": 2, "batch_size": 3} | options))


def fit(
    folder: Path, model: InstructionTuning, datamodule: InstructionData, *methods: Any, **options: Any
) -> flcog.FederatedTrainer:
    settings: dict[str, Any] = {"rounds": 2, "local_steps": 2, "logger": False, "accelerator": "cpu"} | options
    trainer = flcog.FederatedTrainer(callbacks=list(methods), default_root_dir=str(folder / "runs"), **settings)
    trainer.fit(model, datamodule)
    return trainer


def trained(model: InstructionTuning) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


def test_batches_contain_prompts_answers_and_padding() -> None:
    tokens, offsets, prompts = np.arange(10, 21), np.array([0, 5, 7, 11]), np.array([3, 1, 2])
    batch = Instructions(tokens, offsets, prompts).read(np.array([2, 1]), None)
    assert batch["input_ids"].tolist() == [[17, 18, 19, 20], [15, 16, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 19, 20], [-100, 16, -100, -100]]
    assert batch["instruction"].tolist() == [[0, 0, 0, 0], [1, 1, -1, -1]]
    batch = Instructions(tokens, offsets, prompts, row_length=7).read(np.array([0, 1, 2]), None)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 14, 15, 16], [17, 18, 19, 20, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 3, 0, 0, 0]]
    assert batch["instruction"].tolist() == [[0] * 5 + [1] * 2, [2] * 4 + [-1] * 3]


def test_packed_rows_hold_every_sequence_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 200).tolist()
    rows = packed(lengths, 60)
    assert sorted(place for row in rows for place in row) == list(range(200))
    assert max(sum(lengths[place] for place in row) for row in rows) <= 60
    assert len(rows) <= 1.25 * sum(lengths) / 60


def test_the_loss_counts_answers_only() -> None:
    """The losses equal a cross-entropy that is computed token by token."""
    logits, labels = torch.randn(2, 5, 7, dtype=torch.float64), torch.tensor([[-100, -100, 3, 6, -100], [-100, 1, 0, 2, 5]])
    expected = [
        math.log(sum(math.exp(v) for v in logits[row, place - 1].tolist())) - float(logits[row, place - 1, labels[row, place]])
        for row in range(2)
        for place in range(1, 5)
        if labels[row, place] != IGNORED
    ]
    losses, counted = answer_losses(logits, labels)
    assert counted.sum() == 6
    torch.testing.assert_close(losses[counted], torch.tensor(expected, dtype=torch.float64))
    assert not losses[~counted].any()


@pytest.mark.slow
def test_templates_and_the_end_of_answers(tmp_path: Path, llama: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(llama)
    rows = [{"instruction": "Add", "input": "1 2", "output": "3"}, {"instruction": "Say", "context": "", "response": "hi"}]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    alpaca = "### Instruction:\nAdd\n\n### Input:\n1 2\n\n### Response:\n", "request.\n\n### Instruction:\nSay\n\n### Response:\n"
    vicuna = "USER: Add\n1 2 ASSISTANT:", "questions. USER: Say ASSISTANT:"
    for template, prompts, answers in (("alpaca", alpaca, ("3", "hi")), ("vicuna", vicuna, (" 3", " hi"))):
        source = InstructionData(path, llama, template=template, num_clients=1).federation.train.inputs
        for row in range(2):
            prompt, answer = (tokenizer.decode(tokens) for tokens in source.of(row))
            assert prompt.endswith(prompts[row]) and answer == answers[row] + "</s>"


@pytest.mark.slow
def test_one_client_trains_as_a_plain_loop_with_peft(tmp_path: Path, llama: str) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model, source = module(llama).double(), data(tmp_path, llama, num_clients=1, batch_size=18)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    other = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64), config).double()
    for name, adapter in adapters(model.model.body):
        layer = other.base_model.model.get_submodule(name)
        layer.lora_A["default"].weight.data.copy_(adapter.A.data)
    optimizer = torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=0.5)
    batch = source.federation.train.inputs.read(np.arange(18), None)
    for _ in range(4):
        optimizer.zero_grad()
        logits = other(input_ids=batch["input_ids"]).logits[:, :-1]  # with labels, its loss is in 32 bits
        nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED).backward()
        optimizer.step()
    fit(tmp_path, model, source, local_steps=4, rounds=1, precision="64-true")
    for name, adapter in adapters(model.model.body):
        layer = other.base_model.model.get_submodule(name)
        for ours, theirs in (("A", layer.lora_A), ("B", layer.lora_B)):
            torch.testing.assert_close(getattr(adapter, ours), theirs["default"].weight, rtol=1e-9, atol=1e-12)
    assert max(float(adapter.B.abs().max()) for _, adapter in adapters(model)) > 0.01


@pytest.mark.slow
def test_packed_batches_have_the_losses_of_single_rows(tmp_path: Path, llama: str) -> None:
    """An instruction does not attend to the others in its row, and its positions start at 0."""
    model = module(llama).double()
    for _, adapter in adapters(model):
        nn.init.normal_(adapter.B)
    alone, together = (
        data(tmp_path, llama, packing=packing, max_length=200).federation.train.inputs.read(np.arange(6), None)
        for packing in (False, True)
    )
    assert len(together["input_ids"]) < len(alone["input_ids"]) == 6
    torch.testing.assert_close(model.training_step(together, 0), model.training_step(alone, 0), rtol=1e-9, atol=0)
    losses = [answer_losses(model(batch), batch["labels"])[0] for batch in (together, alone)]
    torch.testing.assert_close(*(values[values != 0].sort().values for values in losses), rtol=1e-9, atol=0)


SMALL = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LIKE_LLAMA = {**SMALL, "intermediate_size": 16, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4, "pad_token_id": 0}
GPT = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
LINEAR = {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")}
PACKED: list[dict[str, Any]] = [
    {"model_type": "llama", **LIKE_LLAMA},
    {"model_type": "mistral", **LIKE_LLAMA},
    {"model_type": "qwen2", **LIKE_LLAMA, "use_sliding_window": True, "max_window_layers": 0},
    {"model_type": "gemma3_text", **LIKE_LLAMA},
    {"model_type": "falcon", **SMALL, "alibi": True},
    {"model_type": "gpt2", **GPT},
    {"model_type": "gemma2", **LIKE_LLAMA},  # this and the next have eager attention alone
    {"model_type": "gpt_neo", **SMALL, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
]
UNPACKED: list[dict[str, Any]] = [
    {"model_type": "lfm2", **LIKE_LLAMA, "layer_types": ["conv", "full_attention"]},
    {"model_type": "qwen3_5_text", **LIKE_LLAMA, **LINEAR, "layer_types": ["linear_attention", "full_attention"]},
    {"model_type": "opt", **SMALL, "ffn_dim": 16, "word_embed_proj_dim": 16},
    {"model_type": "bloom", **SMALL, "n_layer": 2, "n_head": 2},
    {"model_type": "mamba", **SMALL, "state_size": 4},
]


def batches_of_both_kinds() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Four instructions in rows of their own, and in two rows. The longest has 14 tokens."""
    lengths = np.array([14, 11, 5, 9])
    tokens = np.random.default_rng(0).integers(3, 60, lengths.sum())
    parts = tokens, np.concatenate([[0], lengths.cumsum()]), np.array([3, 4, 2, 5])
    alone, packed = (Instructions(*parts, row_length=length).read(np.arange(4), None) for length in (None, 25))
    return alone, packed


def drawn(configuration: dict[str, Any]) -> InstructionTuning:
    """A random decoder whose weights are large enough for attention to affect the outputs."""
    torch.manual_seed(0)
    model = InstructionTuning(CausalLM(configuration)).double().eval()
    for value in model.parameters():
        if value.ndim > 1:
            value.data.mul_(8)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("configuration", PACKED, ids=lambda configuration: configuration["model_type"])
def test_decoders_that_pack_have_the_losses_of_single_rows_and_of_transformers(configuration: dict[str, Any]) -> None:
    """Windows of 4 tokens are shorter than the instructions."""
    pytest.importorskip("transformers")
    model, (alone, packed) = drawn(configuration), batches_of_both_kinds()
    with torch.no_grad():
        loss, total, counted = model.training_step(packed, 0), 0.0, 0
        torch.testing.assert_close(loss, model.training_step(alone, 0), rtol=1e-6, atol=0)
        for row in range(4):
            own = alone["instruction"][row] >= 0
            ids, labels = (alone[name][row : row + 1, own] for name in ("input_ids", "labels"))
            count = int((labels != IGNORED).sum())
            total += float(model.model.body(input_ids=ids, labels=labels).loss) * count
            counted += count
    assert float(loss) == pytest.approx(total / counted, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", UNPACKED, ids=lambda configuration: configuration["model_type"])
def test_decoders_that_would_mix_packed_instructions_refuse_them(configuration: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    model, (alone, packed) = drawn(configuration), batches_of_both_kinds()
    assert model.training_step(alone, 0).isfinite()
    with pytest.raises(ValueError, match=r"^CausalLM: packing=true needs .*, and \w+ mixes them: set packing=false$"):
        model.training_step(packed, 0)


@pytest.mark.slow
def test_evaluation_gives_perplexity_and_greedy_matches(tmp_path: Path, llama: str) -> None:
    """The model trains on the test instructions, so that it answers some correctly. Its greedy answers are compared one by one."""
    from transformers import AutoTokenizer

    model, source = module(llama), data(tmp_path, llama, test=write_lines(tmp_path / "same.jsonl", SUMS[:8:2]), num_clients=1)
    model.optimizer = lambda parameters: torch.optim.Adam(parameters, lr=0.02)
    trainer = fit(tmp_path, model, source, local_steps=30, rounds=2)
    row, test = trainer.history[-1], source.federation.test.inputs
    assert row["test/perplexity"] == pytest.approx(math.exp(row["test/loss"]), rel=1e-5)
    learnt = model.eval()
    end, matches = AutoTokenizer.from_pretrained(llama).eos_token_id, 0
    for index in range(len(test)):
        prompt, answer = test.of(index)
        with torch.no_grad():
            made = learnt.model.generate(torch.from_numpy(prompt.astype(np.int64)), len(answer), end)
        matches += made.tolist() == answer.tolist()
    assert row["test/exact_match"] == pytest.approx(matches / len(test))


@pytest.mark.slow
def test_only_adapters_are_sent_and_frozen_weights_are_held_once(tmp_path: Path, llama: str) -> None:
    model = module(llama)
    trainer = fit(tmp_path, model, data(tmp_path, llama), chunk_size=2, local_steps=1, rounds=1)
    count = sum(value.numel() for value in trained(model).values())
    assert count == 2 * 4 * (64 + 64) + 2 * 4 * (64 + 32)
    assert trainer.history[-1]["comm/up_bytes"] == 2 * 4 * count
    frozen = [value for value in model.parameters() if not value.requires_grad]
    assert sum(value.numel() for value in frozen) > 10 * count
    function = ModelFunction(model)
    held = {value.data_ptr() for value in (*function.module.parameters(), *function.copy_of(model).parameters())}
    assert all(value.data_ptr() in held for value in frozen)
    assert len(held) == len({value.data_ptr() for value in frozen}) + 2 * len(trained(model))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_bfloat16_weights(tmp_path: Path, llama: str, precision: Any) -> None:
    model = module(llama, weights="bfloat16")
    row = fit(tmp_path, model, data(tmp_path, llama), precision=precision, rounds=1).history[-1]
    assert {value.dtype for value in model.parameters() if not value.requires_grad} == {torch.bfloat16}
    assert {value.dtype for value in trained(model).values()} == {torch.bfloat16 if precision == "bf16-true" else torch.float32}
    assert math.isfinite(row["test/loss"])


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["4bit", "8bit"])
def test_quantised_weights(tmp_path: Path, llama: str, weights: Any) -> None:
    """A run's losses are close to the losses with exact weights, and its module in training mode has the loss of the evaluation."""
    pytest.importorskip("bitsandbytes")
    model = module(llama, weights=weights)
    quantised = [value for value in model.parameters() if value.dtype in (torch.uint8, torch.int8)]
    assert len(quantised) == 2 * 7
    rows = [fit(tmp_path, one, data(tmp_path, llama), rounds=1, local_steps=1).history[-1] for one in (model, module(llama))]
    assert rows[0]["test/loss"] == pytest.approx(rows[1]["test/loss"], rel=0.03)
    assert rows[0]["train/loss"] == pytest.approx(rows[1]["train/loss"], rel=0.03)
    source = data(tmp_path, llama).federation.test
    batch = source.inputs.read(np.arange(len(source)), None)
    with torch.no_grad():  # the module stays in training mode
        losses, counted = answer_losses(model.train()(batch), batch["labels"])
    assert float(losses.sum() / counted.sum()) == pytest.approx(rows[0]["test/loss"], rel=1e-3)
    assert rows[0]["comm/up_bytes"] == rows[1]["comm/up_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods",
    [
        lambda: [callbacks.FedProx(mu=0.1), callbacks.FedDisco()],
        lambda: [callbacks.SCAFFOLD(), callbacks.FedAvgM()],
        lambda: [callbacks.Quantize(), callbacks.ClipUpdate(norm=0.01)],
        lambda: [callbacks.FFALoRA()],
        lambda: [callbacks.FlexLoRA(ranks=[1, 2])],
        lambda: [callbacks.DPFedAvg(clip=0.1, noise_multiplier=0.5)],
    ],
    ids=["FedProx, FedDisco", "SCAFFOLD, FedAvgM", "Quantize, ClipUpdate", "FFALoRA", "FlexLoRA", "DPFedAvg"],
)
def test_methods_combine_with_it(tmp_path: Path, llama: str, methods: Any) -> None:
    source = data(tmp_path, llama, category="category", partitioner=Dirichlet(beta=5.0, min_size=3))
    assert source.federation.class_names == ("large", "small")
    plain = fit(tmp_path, module(llama), source).history[-1]
    row = fit(tmp_path, module(llama), source, *methods()).history[-1]
    assert math.isfinite(row["test/loss"]) and row["test/loss"] != plain["test/loss"]


@pytest.mark.slow
def test_accumulated_gradients_and_resuming(tmp_path: Path, llama: str) -> None:
    whole = fit(tmp_path / "a", module(llama), data(tmp_path, llama, packing=True), accumulate_grad_batches=2)
    first = fit(tmp_path / "b", module(llama), data(tmp_path, llama, packing=True), accumulate_grad_batches=2, rounds=1)
    checkpoint = next(Path(first.log_dir or tmp_path / "b").rglob("last.ckpt"))
    trainer = flcog.FederatedTrainer(
        rounds=2, local_steps=2, logger=False, accelerator="cpu", accumulate_grad_batches=2, default_root_dir=str(tmp_path / "b")
    )
    trainer.fit(module(llama), data(tmp_path, llama, packing=True), ckpt_path=str(checkpoint))
    assert trainer.history[-1]["test/loss"] == whole.history[-1]["test/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [False, True], ids=["A is trained", "A is drawn and frozen"])
@pytest.mark.parametrize("weights", ["run", "bfloat16", "4bit", "8bit"])
def test_a_named_decoder_is_not_in_checkpoints_and_a_changed_one_is_refused(
    tmp_path: Path, llama: str, weights: Any, drawn: bool
) -> None:
    if weights.endswith("bit"):
        pytest.importorskip("bitsandbytes")
    files = pytest.importorskip("safetensors.torch")
    base = str(shutil.copytree(llama, tmp_path / "base"))
    options: dict[str, Any] = {"precision": "bf16-mixed" if weights == "bfloat16" else "32-true", "eval_every": 1}

    def train(root: str, rounds: int, seed: int = 0, ckpt_path: Path | None = None) -> flcog.FederatedTrainer:
        trainer = flcog.FederatedTrainer(
            **{"rounds": rounds, "local_steps": 2, "logger": False, "accelerator": "cpu", **options},
            default_root_dir=str(tmp_path / root),
        )
        model = module(base, seed, weights=weights)
        for _, adapter in adapters(model):
            adapter.A.requires_grad_(not drawn)
        trainer.fit(model, data(tmp_path, llama), ckpt_path=ckpt_path and str(ckpt_path))
        return trainer

    whole, first = train("whole", 2), train("half", 1)
    (last,) = (tmp_path / "half").rglob("last.ckpt")
    written = [name for path in last.parent.glob("frozen-*") for name in torch.load(path, weights_only=True)["params"]]
    assert bool(written) == drawn and all(name.endswith(".A") for name in written)
    assert first.history[0]["test/loss"] == whole.history[0]["test/loss"]
    # Another seed draws other matrices A. The resumed run reads frozen ones from their own file, trained ones from the checkpoint.
    assert train("half", 2, 5, last).history[-1]["test/loss"] == whole.history[-1]["test/loss"]
    tensors = files.load_file(Path(base, "model.safetensors"))
    for change in (lambda value: value.roll(1, 0).contiguous(), lambda value: 2 * value):  # the second change affects only scales
        changed = {name: change(value) if "down_proj" in name else value for name, value in tensors.items()}
        files.save_file(changed, Path(base, "model.safetensors"), {"format": "pt"})
        with pytest.raises(ValueError, match=rf"last.ckpt was trained with other frozen weights than {base} has now: load those"):
            train("half", 3, 0, last)


def test_files_without_instructions_are_no_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Characters:
        eos_token_id = 0

        def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    monkeypatch.setattr("flcog.datamodules.instruction_data._tokenizer", lambda name: Characters())
    for name, rows in (("a", SUMS[:3]), ("b", []), ("c", [{"instruction": "x" * 600, "output": "y"}]), ("d", SUMS[:5])):
        write_lines(tmp_path / f"{name}.jsonl", rows)
    federation = InstructionData(str(tmp_path), "a tokenizer").federation
    of_clients = [federation.train.users[federation.partition.client(k)].tolist() for k in range(2)]
    assert federation.num_clients == 2 and of_clients == [["a.jsonl"] * 3, ["d.jsonl"] * 5]


@pytest.mark.slow
def test_long_prompts_are_left_out_and_long_answers_cut(tmp_path: Path, llama: str) -> None:
    long = [{"instruction": "x " * 300, "output": "y"}, {"instruction": "x", "output": "y " * 300}]
    source = InstructionData(write_lines(tmp_path / "a.jsonl", long), llama, num_clients=1, max_length=200)
    (texts,) = source.federation.train.inputs.read(np.array([0]), None)["input_ids"]
    assert len(texts) == 200 and len(source.federation.train) == 1
    assert "1 of 2 instructions" in source.notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"instruction": "a", "output": "b"}\n{"instruction": ', "line 2 cannot be read, correct or remove it: JSONDecodeError"),
        ('\n{"instruction": "a"}', "line 2 cannot be read, .*: it needs a text 'output' or 'response', and has .*instruction"),
        ('{"instruction": "a", "output": 3}', "line 1 cannot be read, .*: it needs a text 'output' or 'response', and has .*3"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: str, message: str) -> None:
    from flcog.datamodules.instruction_data import read_lines

    (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_lines(tmp_path / "train.jsonl", None))


def test_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="template must be alpaca or vicuna; got 'chat'"):
        InstructionData("x", "y", template="chat")
    with pytest.raises(FileNotFoundError, match=r"InstructionData found no .*x.jsonl"):
        InstructionData(str(tmp_path / "x.jsonl"), "y").load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no file \*\.jsonl"):
        list(InstructionData(str(tmp_path / "empty"), "y")._lines(tmp_path / "empty"))
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r"CausalLM needs transformers, which is not installed: pip install 'flcog\[llm\]'"):
        CausalLM("x")


@pytest.mark.slow
def test_peft_loads_the_exported_adapters(tmp_path: Path, llama: str) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model, source = module(llama), data(tmp_path, llama)
    trainer = fit(tmp_path, model, source)
    trainer.export(tmp_path / "adapters", "peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapters")).eval()
    tokens = source.federation.train.inputs.read(np.arange(2), None)["input_ids"]
    with torch.no_grad():
        expected, plain = model.eval().model(tokens), CausalLM(llama).eval()(tokens)
        torch.testing.assert_close(loaded(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    assert (expected - plain).abs().max() > 0.01
    with pytest.raises(ValueError, match="exists: remove it"):
        trainer.export(tmp_path / "adapters", "peft")


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
def test_the_recipe_runs_and_the_report_shows_answers(
    tmp_path: Path, llama: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hasattr(torch, "fake"):
        monkeypatch.setattr(torch.fake, "get_amp_supported_dtype", lambda: [torch.bfloat16], raising=False)
    options = {
        "data.train": write_lines(tmp_path / "train.jsonl", SUMS[::2]),
        "data.test": write_lines(tmp_path / "test.jsonl", SUMS[1::2]),
        "data.tokenizer": llama,
        "data.num_clients": 2,
        "model.model.model.source": llama,
        "trainer.rounds": 1,
        "trainer.eval_every": 1,
        "trainer.local_steps": 1,
        "trainer.accelerator": "cpu",
        "trainer.logger": "false",
        "trainer.default_root_dir": tmp_path / "runs",
        "trainer.callbacks+": "GeneratedAnswers",
        "trainer.callbacks.new_tokens": 3,
    }
    main(["fit", "-c", "llm", *(word for name, value in options.items() for word in (f"--{name}", str(value)))])
    assert "memory" in capsys.readouterr().out
    run = next((tmp_path / "runs").glob("*/config.yaml")).parent
    answers = json.loads((run / "answers.json").read_text())
    assert answers["round"] == 1 and len(answers["answers"]) == 4
    assert answers["answers"][0]["expected"] == SUMS[1]["output"]
    main(["report", str(run)])
    page = (run / "report.html").read_text()
    assert "the model&#39;s answer" in page and "Add 0 and 1" in page
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["predict", str(run)])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "InstructionTuning" in line]
    assert "InstructionTuning makes no predictions" in line
    main(["export", str(run), "--format", "peft"])
    assert {path.name for path in (run / "model").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.slow
def test_a_folder_has_a_file_for_each_client(tmp_path: Path, llama: str) -> None:
    (tmp_path / "clients").mkdir()
    for client, size in enumerate((3, 1, 5)):
        write_lines(tmp_path / "clients" / f"{client}.jsonl", SUMS[:size])
    assert InstructionData(str(tmp_path / "clients"), llama).federation.partition.sizes.tolist() == [3, 1, 5]
