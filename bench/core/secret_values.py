"""Keep secret values out of written files. Each secret value is replaced by a reference in `env:`, or by a mask.

`env: {HF_TOKEN: from-environment}` names a variable of the controller's environment. Only the reference is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.core.errors import RefusedError

FROM_ENVIRONMENT = "from-environment"
MASK = "(masked)"

# Words of a variable's name, between underscores. IB_PKEY, RKEY and MKEY are ordinary settings, and so is PWD alone.
_WORD = (
    r"PASS|PWD|PASSKEY|COOKIES?|BEARER|AUTHORIZATION|CREDENTIALS?|CREDS?|KEY|KEYS|APIKEY|TOKENS?|SECRETS?|"
    r"PASSWORDS?|PASSWD|PASSPHRASE"
)
_NAME = re.compile(
    rf"(?:^|_)(?:{_WORD})$|TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSKEY|CREDENTIAL|COOKIE|BEARER|"
    rf"(?:API|ACCESS|PRIVATE|AUTH)_?KEY",
    re.IGNORECASE,
)
_HARMLESS = frozenset(("PWD", "OLDPWD", "KEY", "KEYS", "PASS"))
_FORMS = (
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bhf_[A-Za-z0-9]{20,}|\bsk-[\w-]{20,}|\bxox[abprs]-[\w-]+|"
    r"\beyJ[\w-]{10,}\.[\w.-]*|-----BEGIN [A-Z ]*KEY-----"
)
_LONG = r"(?<![\w/.-])(?=[^\s,:]*\d)(?=[^\s,:]*[A-Za-z])[A-Za-z0-9+_]{32,}={0,2}(?![\w/.-])"  # long and random
_USER = re.compile(r"(://)[^/@\s:'\"]*:[^/@\s'\"]+@")  # https://user:password@host
_SIGNED = re.compile(
    r"([?&](?:sig|signature|token|access_token|api_?key|key|password|secret|[\w-]*-(?:signature|credential|"
    r"security-token))=)[^&\s'\"]+",
    re.IGNORECASE,
)
_VALUE = re.compile(f"{_FORMS}|{_LONG}")
_KNOWN_FORM = re.compile(_FORMS)
# Each match of _KNOWN_FORM contains one of these texts, and the search for them is faster.
_MARKS = ("AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "hf_", "sk-", "xox", "eyJ", "-----BEGIN")
# NAME=value of a shell line, NAME: value of YAML
_ASSIGNED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)(=|: +)('[^']*'|\"[^\"]*\"|[^\s,;}'\"]+)")
_BLOCK = 1 << 20  # bytes
_SHORTEST = 4  # shorter secrets are not masked in texts, because ordinary words contain them


def is_secret_name(name: str) -> bool:
    """Check whether a variable of this name holds a secret."""
    return name not in _HARMLESS and _NAME.search(name) is not None


def masked(name: str, value: str) -> str:
    """Return the value of a variable in a form that may be written to a file.

    The result is `(masked)` if the value is a secret. A reference to an environment variable is returned unchanged.
    """
    if value == FROM_ENVIRONMENT:
        return value
    secret = is_secret_name(name) or _VALUE.search(value) or masked_text(value) != value
    return MASK if secret else value


def masked_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with secret values masked."""
    return {name: masked(name, value) for name, value in env.items()}


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values in `env`. If a value is a reference to an environment variable, look up its value."""
    found = []
    for name, value in env.items():
        if value == FROM_ENVIRONMENT:
            found.append(os.environ.get(name, ""))
        elif masked(name, value) != value:
            found.append(value)
    return tuple(value for value in found if len(value) >= _SHORTEST)


def masked_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask secrets in a text.

    The values in `secrets` are masked. The function also masks tokens, the values of variables with secret names, and
    passwords and signatures in URLs.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _SIGNED.sub(rf"\1{MASK}", _USER.sub(rf"\1{MASK}@", text))
    if any(mark in text for mark in _MARKS):
        text = _KNOWN_FORM.sub(MASK, text)
    return _ASSIGNED.sub(_masked_assignment, text)


def masked_file(path: Path, secrets: Iterable[str] = (), start: int = 0) -> None:
    """Apply `masked_text` to a file in place, from byte `start` on.

    The function reads blocks of whole lines, and masks a secret of several lines line by line. If the file has nothing
    to mask, it is not rewritten. Raises OSError.
    """
    known = {line for secret in secrets for line in secret.splitlines() if len(line) >= _SHORTEST}
    with path.open("r+b") as file:
        file.seek(start)
        written = start
        changed: list[bytes] = []
        while lines := file.readlines(_BLOCK):
            text = b"".join(lines).decode(errors="surrogateescape")
            masked = masked_text(text, known)
            if masked != text or changed:
                changed.append(masked.encode(errors="surrogateescape"))
            else:
                written = file.tell()
        if changed:
            file.seek(written)
            file.writelines(changed)
            file.truncate()


def _masked_assignment(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    if not is_secret_name(name) or value.strip("'\"") in (MASK, FROM_ENVIRONMENT) or value.strip('"').startswith("$"):
        return found[0]
    if between != "=" and name != name.upper():
        return found[0]  # YAML keys such as `key: value` are not variables
    return f"{name}{between}{MASK}"


def masked_plain(data: Any, secrets: Iterable[str] = ()) -> Any:
    """Apply `masked_text` to every text in plain JSON data, and return the result."""
    known = tuple(secrets)
    if isinstance(data, str):
        return masked_text(data, known)
    if isinstance(data, Mapping):
        return {name: masked_plain(value, known) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [masked_plain(value, known) for value in data]
    return data


def resolved(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with each reference replaced by its value.

    Raises RefusedError for a reference without a value.
    """
    found = dict(env)
    for name, value in env.items():
        if value == FROM_ENVIRONMENT:
            if name not in os.environ:
                raise RefusedError(
                    f"env: {name}: {FROM_ENVIRONMENT} needs a value, but {name} is not set here: export {name} first"
                )
            found[name] = os.environ[name]
    return found
