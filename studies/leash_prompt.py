"""A leash's classes from a language model, as FedWalk's paper chose them: the question for GPT-4, and the check of its answer.

    python studies/leash_prompt.py prompt --classes airplane,automobile,bird
    python studies/leash_prompt.py read answer.txt --classes airplane,automobile,bird

``flcog leash rank`` chooses without a language model.
"""

import argparse
import ast
import difflib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from flcog.callbacks.fedwalk.command import Ranking, add_options, print_choice, read_classes, read_reference

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def question(classes: Sequence[str], reference: dict[str, str], count: int) -> str:
    """The paper's question for GPT-4 (appendix B.1), after the list that it refers to.

    Args:
        classes: the user's class names.
        reference: the public set's labels, each with its names.
        count: number of labels for each class.
    """
    top = NUMBERS[count] if count < len(NUMBERS) else str(count)
    shown = {
        number: label if label == names else f"{label} {names}" for number, (label, names) in enumerate(reference.items(), 1)
    }
    return (
        f'"Reference Label List": {shown}.\n\n'
        f'For each concept in the following "Client Label List", please select the top {top} most relevant labels from the above '
        '"Reference Label List". Please sort the selected labels for each concept and return them as a dictionary with the concept '
        f"as the key and the top {count} most relevant labels as a list of values. You should return {count * len(classes)} labels "
        f"in total. Client Label List: {dict(enumerate(classes, 1))}."
    )


def read_answer(answer: str, classes: Sequence[str], reference: dict[str, str], count: int) -> Ranking:
    """The dictionary in a model's answer, whose other text is ignored; the error lists all faults at once.

    >>> read_answer("Sure! {'cat': ['tabby']}", ["cat"], {"n02123045": "tabby, tabby cat"}, count=1)
    {'cat': ['n02123045']}
    """
    given, exact, plain = _dictionary(answer), _spellings(reference, str.strip), _spellings(reference, _plain)
    concepts = {_plain(name): name for name in classes}
    faults = [f"{key!r} is not a class" for key in given if _plain(key) not in concepts]
    ranking: Ranking = {}
    for name in classes:
        keys = [key for key in given if _plain(key) == _plain(name)]
        if len(keys) != 1:
            twice = f"answered {len(keys)} times, as {' and '.join(map(repr, keys))}"
            faults.append(f"{name!r} is {twice if keys else 'missing'}")
            continue
        answered = given[keys[0]]
        labels = [answered] if isinstance(answered, str) else list(answered)
        found = [_find(label, reference, exact, plain) for label in labels]
        for label, meant in zip(labels, found, strict=True):
            if not meant:
                close = difflib.get_close_matches(_plain(label), plain, n=1)
                faults.append(f"{label!r} (for {name!r}) is no label" + (f"; {_either(plain[close[0]])} is" if close else ""))
            elif len(meant) > 1:
                faults.append(f"{label!r} (for {name!r}) may be {_either(meant)}")
        ranking[name] = list(dict.fromkeys(meant[0] for meant in found if len(meant) == 1))
        if len(ranking[name]) != count and all(len(meant) == 1 for meant in found):
            repeated = "" if len(found) == len(ranking[name]) else f" ({len(found)} with repetitions)"
            faults.append(f"{name!r} has {len(ranking[name])} different labels{repeated}, {count} are wanted")
    if faults:
        raise ValueError(f"the answer cannot be used: {'; '.join(faults)}. Ask again, or correct it by hand")
    return ranking


def _plain(name: object) -> str:
    return " ".join(str(name).replace("_", " ").lower().split())


def _either(labels: Sequence[str]) -> str:
    return " or ".join(map(repr, labels))


def _find(label: object, reference: dict[str, str], exact: dict[str, list[str]], plain: dict[str, list[str]]) -> list[str]:
    """The labels that a model's answer may mean. After a WordNet id, the name is ignored."""
    # Compare the exact spelling first: in ImageNet a Cardigan is a dog, and a cardigan a garment.
    found = exact.get(str(label).strip()) or plain.get(_plain(label), [])
    wordnet_id = re.match(r"n\d{8}\b", _plain(label))
    return [wordnet_id[0]] if len(found) != 1 and wordnet_id and wordnet_id[0] in reference else found


def _spellings(reference: dict[str, str], form: Callable[[str], str]) -> dict[str, list[str]]:
    """Every spelling of a label (itself, all its names, a single name), with the labels that it may mean; labels before names."""
    labels: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}
    for label, text in reference.items():
        labels.setdefault(form(label), []).append(label)
        for spelling in {form(part) for part in (text, f"{label} {text}", *text.split(","))}:
            names.setdefault(spelling, []).append(label)
    return names | labels


def _dictionary(answer: str) -> dict[object, Sequence[object]]:
    """The dictionary in a text, in JSON or as Python writes it."""
    text = answer[answer.find("{") : answer.rfind("}") + 1]
    for parse in (json.loads, ast.literal_eval):
        try:
            given = parse(text)
        except (ValueError, SyntaxError):
            continue
        if isinstance(given, dict) and all(isinstance(value, str | list | tuple) for value in given.values()):
            return given
    raise ValueError("the answer has no dictionary of lists, {'class': ['label', ...], ...}: ask again, or write one by hand")


def main(arguments: list[str] | None = None) -> None:
    """Write the question for a language model, or check its answer and choose."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_options(commands.add_parser("prompt", help="write the question"))
    read = commands.add_parser("read", help="check the answer, and choose")
    read.add_argument("answer", type=Path, help="a file with the answer")
    add_options(read)
    given = parser.parse_args(arguments)
    classes, reference = read_classes(given.classes), read_reference(given.reference)
    if given.command == "prompt":
        print(question(classes, reference, given.count))
    else:
        print_choice(given, read_answer(given.answer.read_text(encoding="utf-8"), classes, reference, given.count), reference)


if __name__ == "__main__":
    main()
