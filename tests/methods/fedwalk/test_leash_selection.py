"""The choice of a leash's classes: the paper's prompt, valid and invalid answers, the offline rankers, and the command."""

import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from flcog.callbacks.fedwalk.command import leash, read_classes, read_reference
from flcog.callbacks.fedwalk.leash_ranking import rank, text_similarity, wordnet_similarity
from flcog.callbacks.fedwalk.leash_selection import choose, prompt, read_answer
from flcog.datamodules.leash_classes import LEASHES
from methods.fedwalk.leash_table import CIFAR10_TOP4

CLASSES = ["cat", "polar bear"]
REFERENCE = {
    "n02123045": "tabby, tabby cat",
    "n02123159": "tiger cat",
    "n02127052": "lynx, catamount",
    "n02134084": "ice bear, polar bear, Ursus Maritimus",
    "n02132136": "brown bear, bruin",
    "n02992529": "cellular telephone, cell",
    "n09999999": "cell",
}
ANSWER = {"cat": ["tabby", "n02123159"], "polar bear": ["Ice_Bear", "n02132136: bear, brown"]}
READ = {"cat": ["n02123045", "n02123159"], "polar bear": ["n02134084", "n02132136"]}


# The prompt and its answer ----------------------------------------------------------------------------------------------------------


def test_the_prompt_is_the_papers() -> None:
    text = prompt(list(CIFAR10_TOP4), {"tench": "tench", "goldfish": "goldfish"}, 4)
    assert text.startswith("\"Reference Label List\": {1: 'tench', 2: 'goldfish'}.")
    assert text.endswith(
        'For each concept in the following "Client Label List", please select the top four most relevant labels from the above '
        '"Reference Label List". Please sort the selected labels for each concept and return them as a dictionary with the concept '
        "as the key and the top 4 most relevant labels as a list of values. You should return 40 labels in total. Client Label List: "
        "{1: 'airplane', 2: 'automobile', 3: 'bird', 4: 'cat', 5: 'deer', 6: 'dog', 7: 'frog', 8: 'horse', 9: 'ship', 10: 'truck'}."
    )
    assert "the top 12 most relevant" in prompt(CLASSES, REFERENCE, 12)


def test_the_prompts_reference_list_is_one_of_the_labels() -> None:
    listed = re.search(r"Reference Label List\": ({.*?})\.\n", prompt(CLASSES, REFERENCE, 2))
    assert listed is not None
    shown = ast.literal_eval(listed[1])
    assert shown[1] == "n02123045 tabby, tabby cat" and len(shown) == len(REFERENCE)
    # An answer may repeat the labels as the prompt shows them.
    answer = json.dumps({"cat": [shown[1], shown[2]], "polar bear": [shown[6], shown[7]]})
    assert list(read_answer(answer, CLASSES, REFERENCE, 2)["polar bear"]) == ["n02992529", "n09999999"]


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(ANSWER),
        str(ANSWER),
        f"Here you are:\n```python\n{ANSWER}\n```\nAnything else?",
        json.dumps({"CAT": ANSWER["cat"], "Polar_Bear": ANSWER["polar bear"]}, indent=2),
        str({name: tuple(labels) for name, labels in ANSWER.items()}),
    ],
    ids=["json", "python", "talkative", "other spellings", "tuples"],
)
def test_answers_are_read_however_they_are_written(answer: str) -> None:
    assert read_answer(answer, CLASSES, REFERENCE, 2) == READ


FAULTS: dict[str, tuple[object, str]] = {
    "an unknown label": (ANSWER | {"cat": ["tabbi", "tiger cat"]}, r"'tabbi' \(for 'cat'\) is no label; 'n02123045' is"),
    "a label by its first word": (ANSWER | {"cat": ["lynx of Spain", "tabby"]}, "'lynx of Spain'"),
    "a label like no other": (ANSWER | {"cat": ["tabby", "zzzz"]}, r"'zzzz' \(for 'cat'\) is no label[.;]"),
    "a name of two labels": (
        ANSWER | {"cat": ["cell", "tabby"]},
        r"cannot be used: 'cell' \(for 'cat'\) may be 'n02992529' or 'n09999999'\. Ask",
    ),
    "too few": (ANSWER | {"cat": ["tabby"]}, "'cat' has 1 different labels, 2 are wanted"),
    "too many": (ANSWER | {"cat": ["tabby", "tiger cat", "lynx"]}, "'cat' has 3 different labels, 2 are wanted"),
    "one twice": (ANSWER | {"cat": ["tabby", "tabby cat"]}, r"'cat' has 1 different labels \(2 with repetitions\), 2 are wanted"),
    "a missing class": ({"cat": ANSWER["cat"]}, "'polar bear' is missing"),
    "a class twice": (ANSWER | {"Cat": ["lynx", "tabby"]}, "'cat' is answered 2 times, as 'cat' and 'Cat'"),
    "another class": (ANSWER | {"dog": ["tabby", "lynx"]}, "'dog' is not a class"),
    "no dictionary": ("I cannot help with that.", "no dictionary of lists"),
    "numbers for lists": ({"cat": 1, "polar bear": 2}, "no dictionary of lists"),
}


@pytest.mark.parametrize(("answer", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_bad_answers_say_what_is_wrong(answer: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_answer(str(answer), CLASSES, REFERENCE, 2)


@pytest.mark.parametrize("with_ids", [False, True])
def test_labels_that_differ_in_capitals_alone_are_not_confused(with_ids: bool) -> None:
    """In ImageNet, Cardigan is a dog and cardigan a garment."""
    dog, garment = ("n02113186", "n02963159") if with_ids else ("Cardigan", "cardigan")
    reference = {dog: "Cardigan", garment: "cardigan", "pullover": "pullover"} if with_ids else read_reference("imagenet")
    for answer, label in (("Cardigan", dog), ("cardigan", garment), (f"{dog} Cardigan", dog)):
        if with_ids or answer in reference:
            assert read_answer(str({"coat": [answer]}), ["coat"], reference, 1) == {"coat": [label]}
    with pytest.raises(ValueError, match=f"'CARDIGAN' \\(for 'coat'\\) may be '{dog}' or '{garment}'"):
        read_answer(str({"coat": ["CARDIGAN"]}), ["coat"], reference, 1)


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        read_answer(str({"cat": ["tabby"], "dog": []}), CLASSES, REFERENCE, 2)
    assert str(caught.value).count(";") == 2 and "correct it by hand" in str(caught.value)


def test_the_papers_own_answer_repeats_itself() -> None:
    reference = {label: label for labels in CIFAR10_TOP4.values() for label in labels}
    with pytest.raises(ValueError, match=r"'airplane' has 3 .*'dog' has 3 .*'ship' has 3 different labels \(4 with"):
        read_answer(str(CIFAR10_TOP4), list(CIFAR10_TOP4), reference, 4)


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


def test_a_choice_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match="all 1 labels of 'b' are taken"):
        choose({"a": ["x"], "b": ["x"]}, per_class=1)
    with pytest.raises(ValueError, match="random must lie between 0 and the 2 labels chosen; got 3"):
        choose({"a": ["x", "y"]}, per_class=2, random=3, reference=["x", "y", "z"])
    with pytest.raises(ValueError, match="1 labels besides the 0 kept, too few for random=2: lower it"):
        choose({"a": ["x", "y"]}, per_class=2, random=2, reference=["z"])


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
    wordnet.ensure_loaded = lambda: None
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


def test_wordnet_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(ValueError, match=r"pip install nltk.*rank --by text"):
        wordnet_similarity(CLASSES, REFERENCE)


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
    with pytest.raises(ValueError, match="found no nowhere"):
        read_reference("nowhere")
    (tmp_path / "classes.txt").write_text("cat\n\n polar bear \n")
    assert read_classes(str(tmp_path / "classes.txt")) == read_classes("cat, polar bear,") == CLASSES
    for source in ("cat,Cat", ","):
        with pytest.raises(ValueError, match="--classes needs different names"):
            read_classes(source)


def test_a_hundred_names_are_not_taken_for_a_file() -> None:
    names = [f"kind of thing {number}" for number in range(100)]
    assert read_classes(",".join(names)) == names


def test_from_the_prompt_to_the_config(tmp_path: Path, reference_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--classes", ",".join(CLASSES), "--reference", reference_file, "--count", "2"]
    leash(["prompt", *task])
    assert capsys.readouterr().out.strip() == prompt(CLASSES, REFERENCE, 2)
    (tmp_path / "answer.txt").write_text(f"Sure: {ANSWER}")
    leash(["read", str(tmp_path / "answer.txt"), *task])
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"classes": ["n02123045", "n02134084", "n02123159", "n02132136"]}
    assert "# cat: n02123045 tabby, tabby cat; n02123159 tiger cat" in out
    leash(["read", str(tmp_path / "answer.txt"), *task, "--keep", "1", "--random", "1", "--seed", "2"])
    first, second = yaml.safe_load(capsys.readouterr().out)["classes"]
    assert first == "n02123045" and second in REFERENCE
    leash(["rank", *task, "--keep", "1"])
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"classes": ["n02123045", "n02134084"]} and "Ursus Maritimus 1.00" in out


def test_tiny_imagenets_folders_are_named_by_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("n02123045", "n02132136", "n02992529", "n02127052"):
        (tmp_path / "train" / label).mkdir(parents=True)
    task = ["rank", "--classes", "cat,brown bear", "--reference", str(tmp_path / "train"), "--keep", "1"]
    with pytest.raises(
        ValueError, match=r"finds no label similar to cat, brown bear in .*first label is 'n02123045'\): give a file with names"
    ):
        leash(task)
    (tmp_path / "words.txt").write_text("\n".join(f"{label}\t{names}" for label, names in REFERENCE.items()))
    leash(task)
    assert yaml.safe_load(capsys.readouterr().out) == {"classes": ["n02123045", "n02132136"]}


def test_names_alone_come_with_a_word_of_warning(capsys: pytest.CaptureFixture[str]) -> None:
    leash(["rank", "--classes", "tabby cat"])
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"classes": ["tabby", "tiger cat"]} and "--reference FOLDER" in out


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no such answer": (["read", "missing.txt"], "found no file missing.txt"),
    "count": (["rank", "--count", "8"], "--count must lie between 1 and the reference's 7 labels; got 8"),
    "keep": (["rank", "--keep", "5"], "--keep must lie between 1 and --count, 4; got 5"),
    "random": (["rank", "--random", "9"], "random must lie between 0 and the 4 labels chosen; got 9"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_of_the_command_line(arguments: list[str], message: str, reference_file: str) -> None:
    with pytest.raises(ValueError, match=message):
        leash([*arguments, "--classes", "cat,polar bear", "--reference", reference_file])
