"""Sign messages, so that only processes of one run can send them.

A message begins with its HMAC-SHA256. The secret of the run is the key of the HMAC.
"""

from __future__ import annotations

import hashlib
import hmac

from bench.core.errors import MeasurementError

SECRET_VARIABLE = "BENCH_SECRET"  # the controller sets a secret for each job and for each test of links
_DIGEST_BYTES = 32


class SealError(MeasurementError):
    """A message from a process that does not know the secret."""


def sealed(data: bytes, secret: bytes, context: bytes) -> bytes:
    """Return the HMAC-SHA256 of the bytes, followed by the bytes.

    `context` identifies the sender and the number of the message, so a replayed message is invalid.
    """
    return _digest(data, secret, context) + data


def unsealed(data: bytes, secret: bytes, context: bytes) -> bytes:
    """Check the HMAC of a sealed message, and return the message without the HMAC.

    Raises SealError if the sender does not know the secret.
    """
    digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, _digest(rest, secret, context)):
        raise SealError("a message came from a process that does not know the secret of this run")
    return rest


def _digest(data: bytes, secret: bytes, context: bytes) -> bytes:
    return hmac.digest(secret, len(context).to_bytes(4, "big") + context + data, hashlib.sha256)
