"""``flcog compare`` refuses malformed tables in one line, and no name of a row or column leads outside ``--out``."""

import random
import re
from pathlib import Path

import pytest
from harness import ROOT

from flcog.commands.cli import main
from flcog.commands.compare.plan import cells
from flcog.commands.compare.table_file import read_table


def complaint(table: Path, out: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit:
        main(["compare", str(table), "--out", str(out), *arguments])
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.startswith("flcog: error: ") and error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "holds list, not a mapping with `rows`"),
        (b"rows: {\xe9t\xe9: }\n", "is not UTF-8"),
        ("rows: {A: }".encode("utf-16"), "is not UTF-8"),
        (b"", "holds NoneType"),
        (b"just text", "holds str"),
        (b"rows: table.yaml", "takes its rows or columns from itself: "),
        (b"rows: {A: }\ncolumns: ./table.yaml", "takes its rows or columns from itself: "),
        (b"rows: other.yaml", "takes its rows or columns from itself: "),
        (b"rows: 3", "rows in .* must be names"),
        (b"rows: [A, B]", "rows in .* must be names"),
        (b"rows: {A: }\ncolumns: 1.5", "columns in .* must be names"),
        (b"rows: {A: 3}", "row A in .* may have configs"),
        (b"rows: {A: {configs: base.yaml}}", "configs of row A in .* must be a list of files"),
        (b"rows: {A: {configs: [3]}}", "configs of row A in .* must be a list of files"),
        (b"rows: {A: {configs: [" + b"x" * 5000 + b"]}}", "which is no file"),
        (b"rows: {A: {arguments: [a]}}", "arguments of row A in .* must be options"),
        (b"rows: {A: {arguments: &a {x: *a}}}", "contains itself .Circular"),
        (b'rows: {A: {arguments: {x: "\\0"}}}', "the zero byte"),
        (b'rows: {"\\uD800": }', "contains characters that are not UTF-8"),
        (b"rows: {A: }\nseeds: text", "seeds in .* must be a list of whole numbers"),
        (b"rows: {A: }\nseeds: [true]", "seeds in .* must be a list of whole numbers"),
        (b"rows: {A: }\nseeds: [-1]", "seeds in .* must be a list of whole numbers"),
        (b"rows: {A: }\nlast: true", "last in .* must be a whole number"),
        (b"rows: {A: }\nmetric: [a]", "metric in .* must be a column"),
        (b"rows: {A: }\npublished: text", "published in .* must be figures by row and column"),
        (b"rows: {A: }\npublished: {A: 3}", "published in .* must be figures by row and column"),
        (b"rows: {A: }\ncolumns: {x: }\npublished: {A: {x: high}}", "published in .* must be figures, .*; A, x is 'high'"),
        (b"rows: {A: }\ncolumns: {x: }\npublished: {A: {x: [1, 2, 3]}}", r"must be figures, .*; A, x is \[1, 2, 3\]"),
        (b"rows: {A: }\ncolumns: {x: }\npublished: {A: {x: .nan}}", "must be figures, .*; A, x is nan"),
        (
            b"rows: {A: }\npublished: {A: {'': {speed: 3}}}",
            "may have score, gain, rounds, seconds, bytes, saved for a cell; A is {'speed': 3}",
        ),
        (b"rows: {A: }\npublished: {A: {'': {rounds: never}}}", "or for rounds \"> 100\"; A is 'never'"),
        (b"rows: {A: }\npublished: {A: {'': '> 100'}}", "must be figures, .*; A is '> 100'"),
        (b"rows: {A: }\nvary: [partition_seed]", r"vary in .* must be \[seed\] or \[seed, partition_seed\]; got"),
        (b"rows: {A: }\nagainst: B", "against in .* must be a row, or rows by the rows to compare; got 'B'"),
        (b"rows: {A: }\nagainst: {A: B}", "against in .* must be a row, .*; got 'B'"),
        (b"rows: {A: }\nagainst: [A]", "against in .* must be a row, .*; got .*'A'"),
        (b"rows: {A: }\nconfidence: 95", "confidence in .* must lie between 0 and 1, such as 0.95; got 95"),
        (b"rows: {A: }\nsummary: median", "summary in .* must be best or last or mean"),
        (b"rows: {A: }\nsummary: [best]", "summary in .* must be best or last or mean"),
        (b"rows: {A: }\nover_rounds: 10", "over_rounds in .* must be true or false"),
        (b"rows: {A: }\nmargin: 0\nreason: r", "margin in .* must be points above 0, .*; got 0"),
        (b"rows: {A: }\nmargin: -1\nreason: r", "margin in .* must be points above 0, .*; got -1"),
        (b"rows: {A: }\nmargin: {rounds: 1}\nreason: r", "margin in .* must be points above 0, .*; got {'rounds': 1}"),
        (b"rows: {A: }\nmargin: 1", "has margin 1: give the reason for it under reason"),
        (b"rows: {A: }\naverage: [x]", "average in .* must be text"),
        (b"rows: {A: }\naverage: x\nworst: x", "worst in .* must be the name of a further column"),
        (b"rows: {A: }\ncolumns: {x: }\naverage: x", "average in .* must be the name of a further column"),
        (b"rows: {A: }\nreproduces: Table 1", "reproduces in .* must be a list of texts"),
        (b"rows: {A: }\ndeviations: [3]", "deviations in .* must be a list of texts"),
        (
            b"rows: {A: }\nreproduces: ['FedCOG, Table 1']",
            "has reproduces: list the contradictions to the paper under deviations",
        ),
        (b"rows: {A: {arguments: {data.partition_seed: 3}}}\nvary: [seed, partition_seed]", "data.partition_seed is given, and"),
        (b"rows: {A: {arguments: {x: 2024-99-99}}}", "cannot be read: ValueError: month"),
        (b"rows: " + b"[" * 3000, "are nested too deeply"),
        (b"rows: {a/b: , a b: }", "a/b · seed 0 and a b · seed 0 would both be run in"),
        (b"3: x\nrows: {A: }", "has 3; a table may have"),
    ],
)
@pytest.mark.slow
def test_malformed_tables(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.yaml").write_bytes(content)
    (tmp_path / "other.yaml").write_text("{rows: table.yaml}")
    assert re.search(message, complaint(tmp_path / "table.yaml", tmp_path / "out", capsys))
    assert not (tmp_path / "out").exists()


def test_a_folder_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file" in complaint(tmp_path, tmp_path / "out", capsys)


@pytest.mark.slow
def test_any_bytes_are_a_table_or_one_line(tmp_path: Path) -> None:
    """Bytes of shipped tables are replaced, removed or inserted at random."""
    draw, path = random.Random(0), tmp_path / "table.yaml"
    sources = [path.read_bytes() for path in sorted((ROOT / "configs/tables").glob("digits*.yaml"))]
    sources.append(
        b"title: t\nrows: {A: {arguments: {a: 1}}, B: }\ncolumns: {x: , y: {configs: []}}\nseeds: [0, 1]\npublished: {A: {x: [1, 2]}}\n"
        b"against: {B: A}\nvary: [seed]\nsummary: mean\nconfidence: 0.9\nreproduces: [a]\ndeviations: []\naverage: all\n"
    )
    for _ in range(300):
        content = bytearray(draw.choice(sources))
        for _ in range(draw.randint(1, 8)):
            place = draw.randrange(len(content))
            content[place : place + draw.randint(0, 3)] = bytes(
                draw.choice(b"[]{}:,-&*!|>'\"#%@` \n\t0aA.~\x00\xff") for _ in range(draw.randint(0, 3))
            )
        path.write_bytes(content)
        try:
            cells(read_table(path), tmp_path / "out", [])
        except ValueError as error:
            assert error.__traceback__ and "\n" not in str(error), content


@pytest.mark.parametrize("name", ["..", ".", "...", "a/b", "/etc", "../../x", "a\\b", "~"])
def test_names_stay_below_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text(f"rows: {{'{name}': }}\ncolumns: {{'{name}': }}")
    out = tmp_path / "out"
    (cell,) = cells(read_table(tmp_path / "table.yaml"), out, [])
    assert len(cell.folder.relative_to(out).parts) == 3 and cell.folder.resolve().is_relative_to(out.resolve())


def test_seeds_are_run_once(tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text("{rows: {A: }, seeds: [1, 0, 1]}")
    assert read_table(tmp_path / "table.yaml").seeds == (1, 0)
