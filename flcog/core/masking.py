"""Secrets in commands and configurations, masked before they are written where others may read them."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

MASK = "***"

_SECRET = re.compile(
    r"token|passw(or)?d|passphrase|secret|credential|api_?key|access_?key|private_?key|(?<![a-z])(key|pwd|auth)(?![a-z])"
)
"""Words in the names of options whose values are secret."""
_HARMLESS = re.compile(r"\s*(true|false|null|none|[-+]?[\d.,]+(e[-+]?\d+)?|)\s*", re.IGNORECASE)
"""Switches and numbers: ``secret: true`` and ``max_tokens: 512`` stay, for they open no door."""
_LOGIN = re.compile(r"(?<=://)[^/\s'\"]+@")
_PAIR = re.compile(
    r"""(?P<name>[\w.-]*(?:token|pass|secret|credential|key|pwd|auth)[\w.-]*)(?P<between>["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;&"'{}\[\]()]+)""",
    re.IGNORECASE,
)
"""A name that may be secret, with its value, inside a text such as YAML, Python or an address's query."""


def masked(value: Any, name: str = "") -> Any:
    """The same tree of dictionaries and lists, without the values of options that look like secrets and without logins in addresses.

    >>> masked({"trainer": {"api_key": "abc", "rounds": 3}, "uri": "https://me:abc@host/?token=abc"})
    {'trainer': {'api_key': '***', 'rounds': 3}, 'uri': 'https://***@host/?token=***'}
    """
    if isinstance(value, dict):
        return {key: masked(item, f"{name}.{key}" if looks_secret(name) else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, name) for item in value]
    if looks_secret(name):
        return value if _HARMLESS.fullmatch(str(value)) and not _is_password(name) else MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """Mask the logins of addresses in a text, and the values of names that look like secrets.

    >>> masked_text("Method(token='abc', mu=0.1)")
    "Method(token='***', mu=0.1)"
    """
    return _PAIR.sub(_masked_pair, _LOGIN.sub(f"{MASK}@", text))


def masked_command(arguments: Sequence[str]) -> str:
    """A command as it could be typed again, but for its secrets.

    >>> masked_command(["flcog", "fit", "--data.token", "abc", "--trainer.rounds=3"])
    "flcog fit --data.token '***' --trainer.rounds=3"
    """
    shown, option = [], ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            option = "" if equals else name
            shown.append(name + equals + masked(value, name) if equals else argument)
        else:
            option = "" if argument.startswith("-") and not looks_secret(option) else option
            shown.append(masked(argument, option))
    return shlex.join(shown)


def looks_secret(name: str) -> bool:
    """Whether an option's value should be masked; tokenizers are no tokens.

    >>> [name for name in ("api_key", "hf_token", "hfToken", "tokenizer", "keypoints", "dbPassword") if looks_secret(name)]
    ['api_key', 'hf_token', 'hfToken', 'dbPassword']
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return _SECRET.search(re.sub(r"tokeni[sz]\w*", "", words)) is not None


def _is_password(name: str) -> bool:
    """Whether even a number may be the secret."""
    return re.search(r"passw(or)?d|passphrase|pwd", name.lower()) is not None


def _masked_pair(pair: re.Match[str]) -> str:
    name, between, value = pair.group("name", "between", "value")
    if not looks_secret(name):
        return pair[0]
    quote = value[0] if value[0] in "\"'" else ""
    return name + between + quote + masked(value.strip(quote) if quote else value, name) + quote
