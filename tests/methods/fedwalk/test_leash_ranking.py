"""The choice of a leash's classes: the rankers, the choice, and the command."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from flcog.callbacks.fedwalk.command import choose, leash, rank, read_classes, read_reference, text_similarity, wordnet_similarity
from flcog.datamodules.leash_classes import LEASHES
from methods.fedwalk.leash_table import CIFAR10_TOP4, CLASSES, REFERENCE

# The choice -------------------------------------------------------------------------------------------------------------------------


def test_the_papers_leash_is_the_best_two_of_its_table() -> None:
    ranking = {name: list(labels) for name, labels in CIFAR10_TOP4.items()}
    chosen = choose(ranking, per_class=2)
    assert set(chosen) == set(LEASHES["cifar10_lh"]) and len(chosen) == 20
    assert set(chosen[:10]) == set(LEASHES["cifar10_lh"][:10])
    mixed = choose(ranking, per_class=2, random=10, reference=LEASHES["cifar10_hh"], seed=3)
    assert mixed[:10] == chosen[:10] and set(mixed[10:]) <= set(LEASHES["cifar10_hh"]) and len(set(mixed)) == 20
    assert mixed == choose(ranking, per_class=2, random=10, reference=LEASHES["cifar10_hh"], seed=3)
    assert mixed != choose(ranking, per_class=2, random=10, reference=LEASHES["cifar10_hh"], seed=4)
    assert set(choose(ranking, per_class=2, random=20, reference=LEASHES["cifar10_hh"])) == set(LEASHES["cifar10_hh"])


# The rankers ------------------------------------------------------------------------------------------------------------------------


def test_spelling_finds_what_is_called_alike() -> None:
    similarity = text_similarity(CLASSES, REFERENCE)
    assert similarity.shape == (2, 7) and similarity.min() >= 0 and similarity.max() == pytest.approx(1.0)
    ranking = rank(similarity, CLASSES, REFERENCE, 2)
    assert ranking == {"cat": ["n02123045", "n02123159"], "polar bear": ["n02134084", "n02132136"]}
    assert rank(np.zeros((1, 3)), ["x"], {"a": "", "b": "", "c": ""}, 2) == {"x": ["a", "b"]}


class Word:
    """A stand-in for a WordNet meaning: a number, which is more similar to nearer numbers."""

    def __init__(self, place: float) -> None:
        self.place = place

    def wup_similarity(self, other: "Word") -> float | None:
        return None if other.place < 0 else 1 / (1 + abs(self.place - other.place))


def test_wordnet_compares_the_first_meanings(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"cat": [Word(0), Word(9)], "polar_bear": [Word(5)], "lynx": [Word(2)], "ghost": [Word(-1)]}
    wordnet: Any = ModuleType("wordnet")
    wordnet.synsets = lambda name, part: words.get(name, [])
    wordnet.synset_from_pos_and_offset = lambda part, offset: Word({2123045: 1, 2134084: 5}[offset])
    corpus: Any = ModuleType("nltk.corpus")
    corpus.wordnet = wordnet
    monkeypatch.setitem(sys.modules, "nltk", ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    reference = {
        "n02123045": "tabby",
        "n02134084": "ice bear",
        "wild cat": "unheard of, lynx",
        "x": "unheard of",
        "ghost": "ghost",
    }
    similarity = wordnet_similarity(CLASSES, reference)
    assert similarity == pytest.approx(np.array([[1 / 2, 1 / 6, 1 / 3, 0, 0], [1 / 5, 1, 1 / 4, 0, 0]]))


# The command ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def reference_file(tmp_path: Path) -> str:
    path = tmp_path / "reference.txt"
    path.write_text("\n".join(f"{label} {names}" for label, names in REFERENCE.items()) + "\n\n")
    return str(path)


def test_labels_come_from_files_folders_and_imagenet(tmp_path: Path, reference_file: str) -> None:
    assert read_reference(reference_file) == REFERENCE
    (tmp_path / "plain.txt").write_text("tench\ngreat white shark\n")
    assert read_reference(str(tmp_path / "plain.txt")) == {"tench": "tench", "great white shark": "great white shark"}
    imagenet = read_reference("imagenet")
    assert len(imagenet) == 1000 and next(iter(imagenet)) == "tench"
    for name in ("n2", "n1"):
        (tmp_path / "folders" / name).mkdir(parents=True)
    assert read_reference(str(tmp_path / "folders")) == {"n1": "n1", "n2": "n2"}
    for number in range(998):
        (tmp_path / "folders" / f"x{number:03d}").mkdir()
    assert list(read_reference(str(tmp_path / "folders")).items())[:2] == [("n1", "tench"), ("n2", "goldfish")]
    (tmp_path / "classes.txt").write_text("cat\n\n polar bear \n")
    assert read_classes(str(tmp_path / "classes.txt")) == read_classes("cat, polar bear,") == CLASSES


def test_from_names_to_the_config(reference_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--classes", ",".join(CLASSES), "--reference", reference_file, "--count", "2"]
    leash(["rank", *task, "--keep", "1"])
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"classes": ["n02123045", "n02134084"]} and "Ursus Maritimus 1.00" in out


def test_tiny_imagenets_folders_are_named_by_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("n02123045", "n02132136", "n02992529", "n02127052"):
        (tmp_path / "train" / label).mkdir(parents=True)
    task = ["rank", "--classes", "cat,brown bear", "--reference", str(tmp_path / "train"), "--keep", "1"]
    with pytest.raises(ValueError, match="--by text finds no name similar to cat, brown bear"):
        leash(task)
    (tmp_path / "words.txt").write_text("\n".join(f"{label}\t{names}" for label, names in REFERENCE.items()))
    leash(task)
    assert yaml.safe_load(capsys.readouterr().out) == {"classes": ["n02123045", "n02132136"]}
