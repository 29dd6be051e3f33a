"""``python -m flcog``."""

from flcog.cli import main

main()
