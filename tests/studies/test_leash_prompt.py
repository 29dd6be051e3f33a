"""A leash's classes from a language model: the paper's question, and valid and invalid answers."""

import json
from pathlib import Path

import pytest
import yaml
from leash_prompt import main, question, read_answer
from methods.fedwalk.leash_table import CIFAR10_TOP4, CLASSES, REFERENCE

ANSWER = {"cat": ["tabby", "n02123159"], "polar bear": ["Ice_Bear", "n02132136: bear, brown"]}
READ = {"cat": ["n02123045", "n02123159"], "polar bear": ["n02134084", "n02132136"]}


def test_the_prompt_is_the_papers() -> None:
    text = question(list(CIFAR10_TOP4), {"tench": "tench", "goldfish": "goldfish"}, 4)
    assert text.startswith("\"Reference Label List\": {1: 'tench', 2: 'goldfish'}.")
    assert text.endswith(
        'For each concept in the following "Client Label List", please select the top four most relevant labels from the above '
        '"Reference Label List". Please sort the selected labels for each concept and return them as a dictionary with the concept '
        "as the key and the top 4 most relevant labels as a list of values. You should return 40 labels in total. Client Label List: "
        "{1: 'airplane', 2: 'automobile', 3: 'bird', 4: 'cat', 5: 'deer', 6: 'dog', 7: 'frog', 8: 'horse', 9: 'ship', 10: 'truck'}."
    )
    assert "the top 12 most relevant" in question(CLASSES, REFERENCE, 12)


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(ANSWER),
        str(ANSWER),
        f"Here you are:\n```python\n{ANSWER}\n```\nAnything else?",
        json.dumps({"CAT": ANSWER["cat"], "Polar_Bear": ANSWER["polar bear"]}, indent=2),
    ],
    ids=["json", "python", "talkative", "other spellings"],
)
def test_answers_are_read_however_they_are_written(answer: str) -> None:
    assert read_answer(answer, CLASSES, REFERENCE, 2) == READ


FAULTS: dict[str, tuple[object, str]] = {
    "an unknown label": (ANSWER | {"cat": ["tabbi", "tiger cat"]}, r"'tabbi' \(for 'cat'\) is no label; 'n02123045' is"),
    "a name of two labels": (
        ANSWER | {"cat": ["cell", "tabby"]},
        r"cannot be used: 'cell' \(for 'cat'\) may be 'n02992529' or 'n09999999'\. Ask",
    ),
    "too few": (ANSWER | {"cat": ["tabby"]}, "'cat' has 1 different labels, 2 are wanted"),
    "a missing class": ({"cat": ANSWER["cat"]}, "'polar bear' is missing"),
    "a class twice": (ANSWER | {"Cat": ["lynx", "tabby"]}, "'cat' is answered 2 times, as 'cat' and 'Cat'"),
    "no dictionary": ("I cannot help with that.", "no dictionary of lists"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_cannot_be_used_says_why(fault: str) -> None:
    answer, message = FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        read_answer(str(answer), CLASSES, REFERENCE, 2)


@pytest.fixture
def reference_file(tmp_path: Path) -> str:
    path = tmp_path / "reference.txt"
    path.write_text("\n".join(f"{label} {names}" for label, names in REFERENCE.items()) + "\n\n")
    return str(path)


def test_from_the_prompt_to_the_config(tmp_path: Path, reference_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--classes", ",".join(CLASSES), "--reference", reference_file, "--count", "2"]
    main(["prompt", *task])
    assert capsys.readouterr().out.strip() == question(CLASSES, REFERENCE, 2)
    (tmp_path / "answer.txt").write_text(f"Sure: {ANSWER}")
    main(["read", str(tmp_path / "answer.txt"), *task])
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"classes": ["n02123045", "n02134084", "n02123159", "n02132136"]}
    assert "# cat: n02123045 tabby, tabby cat; n02123159 tiger cat" in out
    main(["read", str(tmp_path / "answer.txt"), *task, "--keep", "1", "--random", "1", "--seed", "2"])
    first, second = yaml.safe_load(capsys.readouterr().out)["classes"]
    assert first == "n02123045" and second in REFERENCE
