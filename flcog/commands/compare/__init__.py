"""``flcog compare``: a paper's table as one command."""
