"""``python -m flcog``."""

from flcog.commands.cli import main

main()
