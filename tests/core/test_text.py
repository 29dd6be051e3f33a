"""Tables in Markdown."""

from flcog.core.text import markdown


def test_a_cell_stays_one_cell() -> None:
    assert markdown(["a|b", "c"], [["x\ny", True], ["|", 1]]) == "| a\\|b | c |\n|---|---|\n| x y | yes |\n| \\| | 1 |"
