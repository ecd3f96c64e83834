"""Secrets stay out of everything that is kept or shown: values of secret environment variables are recognized and replaced."""

import os
import re
from functools import lru_cache

from marin_core.errors import ConfigError

_SECRET_NAME = re.compile(r"(?i)(^|_)(key|token|secret|password|passwd|passphrase|credential|credentials|pat|dsn)(_|$)|apikey|password$")
_SHORTEST_SECRET = 8
"""Shorter values stand in ordinary text by chance, and are no secret worth the name."""


def secrets_of_environment() -> dict[str, str]:
    """Value → name of every environment variable whose name says that it holds a secret; longest values first."""
    named = {os.environ.get(name, ""): name for name in os.environ if _is_secret(name)}
    return dict(sorted(((value, name) for value, name in named.items() if len(value) >= _SHORTEST_SECRET), key=lambda item: -len(item[0])))


@lru_cache(maxsize=4096)  # every document that is written asks for every variable
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """The text with every secret value replaced by `[redacted NAME]`."""
    for value, name in secrets_of_environment().items():
        if value in text:
            text = text.replace(value, f"[redacted {name}]")
    return text


def refuse_secrets(text: str, where: str) -> None:
    """Refuse text that enters an artifact's identity and holds a secret.

    Raises:
        ConfigError: naming the variable, never its value.
    """
    for value, name in secrets_of_environment().items():
        if value in text:
            raise ConfigError(
                f"{where} holds the value of the environment variable {name}",
                advice=f"Leave it out of the experiment: jobs read {name} from their environment.",
            )
