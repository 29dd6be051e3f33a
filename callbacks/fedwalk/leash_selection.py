"""The choice of a leash's classes from a public data set: the question for a language model, and the check of its answer."""

import ast
import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Ranking = dict[str, list[str]]
"""For each of the user's classes, the most similar labels of the reference, best first."""

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def prompt(classes: Sequence[str], reference: dict[str, str], count: int) -> str:
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


def choose(ranking: Ranking, per_class: int, random: int = 0, reference: Iterable[str] = (), seed: int = 0) -> list[str]:
    """The leash's classes: first the best label of every class, then the second best of every class, and so on, each label once.

    Args:
        ranking: the labels to choose from.
        per_class: labels for each class (2 of the paper's 4).
        random: number of the last labels that random ones from ``reference`` replace: 0 for low heterogeneity (LH), half
            of them for the paper's MH, all for HH.
        reference: all labels.
        seed: seed of the draw.

    >>> choose({"cat": ["tabby", "lynx"], "tiger": ["tabby", "lynx", "puma"]}, per_class=1)
    ['tabby', 'lynx']
    """
    chosen: list[str] = []
    for _ in range(per_class):
        for name, labels in ranking.items():
            new = next((label for label in labels if label not in chosen), None)
            if new is None:
                raise ValueError(
                    f"all {len(labels)} labels of {name!r} are taken by other classes too: raise --count, or lower --keep"
                )
            chosen.append(new)
    if not 0 <= random <= len(chosen):
        raise ValueError(f"random must lie between 0 and the {len(chosen)} labels chosen; got {random}")
    kept = chosen[: len(chosen) - random]
    others = [label for label in reference if label not in kept]
    if len(others) < random:
        raise ValueError(
            f"the reference has {len(others)} labels besides the {len(kept)} kept, too few for random={random}: lower it"
        )
    return kept + [others[i] for i in np.random.default_rng(seed).permutation(len(others))[:random]]


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
