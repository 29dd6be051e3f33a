"""The command ``flcog leash``: choose a leash's classes from a public data set's labels, with or without a language model."""

import argparse
import json
import os
import re
from pathlib import Path

from flcog.callbacks.fedwalk.leash_ranking import rank, text_similarity, wordnet_similarity
from flcog.callbacks.fedwalk.leash_selection import choose, prompt, read_answer
from flcog.core.commands import parser_of

_INSTEAD = {"text": "give a file with names beside the ids, or rank --by wordnet", "wordnet": "use words that are in WordNet"}
"""The fix for each way to rank, if it finds nothing."""


def read_classes(source: str) -> list[str]:
    """The user's class names: separated by commas, or the lines of a file.

    >>> read_classes("cat, polar bear")
    ['cat', 'polar bear']
    """
    # Not Path.is_file, which fails on a long list of names because it is too long for a path.
    names = _text_of(Path(source)).splitlines() if os.path.isfile(source) else source.split(",")
    classes = [name.strip() for name in names if name.strip()]
    if not classes or len({name.lower() for name in classes}) < len(classes):
        raise ValueError(f"--classes needs different names, separated by commas or one per line of a file; got {source!r}")
    return classes


def read_reference(source: str) -> dict[str, str]:
    """The public set's labels with their names.

    Args:
        source: ``imagenet``, which has only names; a folder with one folder per class, whose names are taken from ImageNet's
            order if there are 1000 folders, and otherwise from ``words.txt`` in it or beside it, as Tiny-ImageNet has; or a file
            with one label per line, which may begin with a WordNet id: ``n02123045 tabby, tabby cat``.
    """
    path = Path(source)
    if source == "imagenet":
        return {name: name for name in _imagenet_names()}
    if path.is_dir():
        folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        if len(folders) == 1000:
            # ImageNet's classes are numbered in the order of their folders.
            return dict(zip(folders, _imagenet_names(), strict=True))
        lists = [folder / "words.txt" for folder in (path, path.parent) if (folder / "words.txt").is_file()]
        names = _read_labels(lists[0]) if lists else {}
        return {folder: names.get(folder, folder) for folder in folders}
    if not path.is_file():
        raise ValueError(f"--reference must be imagenet, a folder of class folders, or a file of labels; found no {source}")
    return _read_labels(path)


def _read_labels(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in _text_of(path).splitlines() if line.strip()]
    pairs = [re.fullmatch(r"(n\d{8})[\s,:]+(.+)", line) for line in lines]
    return {pair[1] if pair else line: pair[2] if pair else line for line, pair in zip(lines, pairs, strict=True)}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be a text file in UTF-8: {error}") from error


def leash(arguments: list[str]) -> None:
    """Choose the classes of a leash, the public data that FedWalk trains on."""
    given = _parser().parse_args(arguments)
    classes, reference = read_classes(given.classes), read_reference(given.reference)
    if not 1 <= given.count <= len(reference):
        raise ValueError(f"--count must lie between 1 and the reference's {len(reference)} labels; got {given.count}")
    if given.command == "prompt":
        print(prompt(classes, reference, given.count))
        return
    if not 1 <= given.keep <= given.count:
        raise ValueError(f"--keep must lie between 1 and --count, {given.count}; got {given.keep}")
    ranking, notes = (_read if given.command == "read" else _rank)(given, classes, reference)
    for name, labels in ranking.items():
        print(f"# {name}: " + "; ".join(_shown(label, reference) + notes.get((name, label), "") for label in labels))
    if given.reference == "imagenet":
        print("# These are names. For folders, as ImageFolders needs them, pass ImageNet's class folders: --reference FOLDER.")
    # A list of strings in JSON is also valid YAML.
    print("classes: " + json.dumps(choose(ranking, given.keep, given.random, reference, given.seed)))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("leash", leash)
    commands = parser.add_subparsers(dest="command", required=True)
    options: dict[str, argparse.ArgumentParser] = {}
    for name, description in (
        ("prompt", "Write the question for a language model."),
        ("read", "Check a language model's answer, and choose."),
        ("rank", "Choose without a language model."),
    ):
        options[name] = commands.add_parser(name, help=description, description=description)
        options[name].add_argument("--classes", required=True, help="your class names: a,b,c or a file with one per line")
        options[name].add_argument(
            "--reference", default="imagenet", help="imagenet, a folder of class folders, or a file of labels"
        )
        options[name].add_argument("--count", type=int, default=4, help="labels ranked for each class")
        if name != "prompt":
            options[name].add_argument("--keep", type=int, default=2, help="labels used for each class")
            options[name].add_argument("--random", type=int, default=0, help="number of these that random labels replace")
            options[name].add_argument("--seed", type=int, default=0, help="seed of the random labels")
    options["read"].add_argument("answer", help="a file with the answer")
    options["rank"].add_argument(
        "--by", choices=("text", "wordnet"), default="text", help="spelling, or WordNet if nltk has installed it"
    )
    return parser


Notes = dict[tuple[str, str], str]
"""A note after a label in the ranking of a class."""


def _read(given: argparse.Namespace, classes: list[str], reference: dict[str, str]) -> tuple[dict[str, list[str]], Notes]:
    """The ranking in a language model's answer."""
    if not Path(given.answer).is_file():
        raise ValueError(f"found no file {given.answer}: save the language model's answer there")
    return read_answer(_text_of(Path(given.answer)), classes, reference, given.count), {}


def _rank(given: argparse.Namespace, classes: list[str], reference: dict[str, str]) -> tuple[dict[str, list[str]], Notes]:
    """The ranking by similarity of names, with the similarity as notes."""
    similarity = (text_similarity if given.by == "text" else wordnet_similarity)(classes, reference)
    unlike = [name for name, row in zip(classes, similarity, strict=True) if not row.any()]
    if unlike:
        raise ValueError(
            f"rank --by {given.by} finds no label similar to {', '.join(unlike)} in {given.reference} (its first label is "
            f"{next(iter(reference.values()))!r}): {_INSTEAD[given.by]}, or ask a language model (flcog leash prompt)"
        )
    ranking = rank(similarity, classes, reference, given.count)
    columns = list(reference)
    notes = {
        (name, label): f" {similarity[classes.index(name), columns.index(label)]:.2f}"
        for name, labels in ranking.items()
        for label in labels
    }
    return ranking, notes


def _shown(label: str, reference: dict[str, str]) -> str:
    return label if label == reference[label] else f"{label} {reference[label]}"


def _imagenet_names() -> list[str]:
    from torchvision.models import ResNet18_Weights

    return list(ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
