"""``flcog cite`` prints every paper that a run is based on, from a single list of entries."""

import re
import sys
from pathlib import Path

import pytest
import yaml

import flcog.callbacks
import flcog.datamodules
from flcog.commands.cite import ADDRESS, citations
from flcog.commands.cli import main
from flcog.data import FederatedDataModule
from flcog.method import Method

pytestmark = pytest.mark.usefixtures("command_line")

WITHOUT = {"ArrayData", "InstructionData"}
"""Classes without a paper: they hold the user's own data."""

CITED = [
    cls
    for package in (flcog.callbacks, flcog.datamodules)
    for name in package.__all__
    if isinstance(cls := getattr(package, name), type)
    and issubclass(cls, Method | FederatedDataModule)
    and ADDRESS.search(cls.__doc__ or "")
]


@pytest.mark.parametrize("cls", CITED, ids=lambda cls: cls.__name__)
def test_whoever_names_a_paper_has_its_entry(cls: type) -> None:
    assert bool(citations(cls)) != (cls.__name__ in WITHOUT)


def make_run(folder: Path, methods: list[str], callbacks: list[str], data: object) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump({"methods": methods, "data": "Digits"}))
    paths = [{"class_path": path, "init_args": {}} for path in callbacks]
    (folder / "config.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": paths}, "data": data}))


def keys(printed: str) -> list[str]:
    return re.findall(r"^@\w+{(\w+),$", printed, flags=re.MULTILINE)


def test_a_run_is_cited_with_its_split_and_ones_own_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_cite.py").write_text(
        'class Mine:\n    """A method.\n\n    Doe et al., A Title of\n    Ours, ICML 2030, https://arxiv.org/abs/3001.00001.\n    """\n'
    )
    split = {"class_path": "flcog.datamodules.Dirichlet", "init_args": {"beta": 0.1}}
    data = {"class_path": "flcog.datamodules.Digits", "init_args": {"partitioner": split}}
    paths = ["flcog.callbacks.SCAFFOLD", "flcog.callbacks.FedProx", "flcog.callbacks.ClassAccuracy", "mine_to_cite.Mine"]
    make_run(tmp_path, ["SCAFFOLD()", "FedProx(mu=0.1)", "Mine()", "Gone(x=1)"], paths, data)
    main(["cite", ".", "--import-from", "."])
    printed = capsys.readouterr().out
    expected = ["flcog", "mcmahan2017", "karimireddy2020", "li2020fedprox", "doe2030", "alpaydin1998", "yurochkin2019"]
    assert keys(printed)[:7] == expected
    assert "% FedProx\n@inproceedings{li2020fedprox,\n  author = {Li, Tian and Sahu" in printed
    assert (
        "@misc{doe2030,\n  author = {Doe and others},\n  title = {A Title of Ours},\n  howpublished = {ICML},\n  year = {2030}"
        in printed
    )
    assert printed.endswith("% No paper is named by Gone\n")


def test_a_run_made_in_python_has_no_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, ["FedSAM(rho=0.1)"], [], None)
    (tmp_path / "config.yaml").unlink()
    main(["cite", str(tmp_path)])
    assert keys(capsys.readouterr().out) == ["flcog", "mcmahan2017", "qu2022", "caldarola2022", "alpaydin1998"]
    with pytest.raises(SystemExit):
        main(["cite", str(tmp_path / "nowhere")])
    assert "holds no run.yaml" in capsys.readouterr().err


def test_only_a_folder_that_one_trusts_is_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of a stranger's run may contain Python modules. They are imported only if ``--import-from`` names the folder."""
    monkeypatch.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))  # as `python -m flcog` does
    (tmp_path / "evil_to_cite.py").write_text("open('executed', 'w')\nraise SystemExit\n")
    make_run(tmp_path, ["Evil()"], ["evil_to_cite.Evil"], None)
    main(["cite", "."])
    assert "% No paper is named by Evil" in capsys.readouterr().out and not (tmp_path / "executed").exists()
    main(["cite", ".", "--import-from", str(tmp_path)])
    assert "% No paper is named by Evil" in capsys.readouterr().out and (tmp_path / "executed").exists()
