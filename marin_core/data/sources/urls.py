"""URLs without what nobody may see: credentials and signed queries are never recorded, logged or raised."""

import re
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from marin_core.errors import ConfigError

SECRET_PARAMETER = re.compile(
    r"(?i)^(x-(amz|goog|ms|oss|cos)-.*|.*(signature|token|secret|password|passwd|credential|api[-_]?key).*"
    r"|awsaccesskeyid|googleaccessid|key-pair-id|policy|sig|key|auth|expires|pass|pwd)$"
)
"""Names of query parameters that grant access: those of signed URLs of the large stores and content networks, and plain tokens."""


def bare_url(url: str) -> str:
    """A URL without user, password, query and fragment: what records, logs and errors may show."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "<no readable URL>"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def refuse_credentials(url: str, field: str) -> None:
    """Refuse a URL that would carry a secret into an artifact's identity.

    Raises:
        ConfigError: naming field and URL, but neither user, password nor query. It isn't a `ValueError`, since pydantic
            would repeat the whole input of a field that raises one.
    """
    parts = urlsplit(url)
    named = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if SECRET_PARAMETER.match(name)]
    if "@" in parts.netloc or named:
        what = f"a query that grants access ({named[0]})" if named else "a user or password"
        raise ConfigError(
            f"field {field!r}: {bare_url(url)} has {what}",
            advice="Leave it out: a configuration is public. A host's login belongs into ~/.netrc of whoever runs the job.",
        )


def checked_http_url(url: str, field: str) -> str:
    """The URL, if it is http(s), names a host and carries no secret.

    Raises:
        ConfigError: if it carries a secret, or can't be read and so might.
        ValueError: if it is something else.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"field {field!r} holds no readable URL", advice="Give an http or https URL.") from None
    refuse_credentials(url, field)
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("must be an http or https URL with a host")
    if any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise ValueError("must not hold spaces or control characters; encode them as %20")
    return url


def name_of(url: str) -> str:
    """The last component of the URL's path, decoded; empty if the path ends in a slash."""
    return unquote(urlsplit(url).path.rpartition("/")[2])
