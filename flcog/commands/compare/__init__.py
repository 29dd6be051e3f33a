"""``flcog compare``: fills a table with one command."""
