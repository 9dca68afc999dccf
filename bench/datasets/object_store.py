"""Read and write objects, or ranges of objects, of an S3 service with boto3. Every response has a timeout.

As for any program that uses boto3, the endpoint (AWS_ENDPOINT_URL), the region and the credentials come from the
environment.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

SCHEME = "s3://"
REQUIRES = "boto3"
_MOST_CONNECTIONS = 64


class SilentServerError(OSError):
    """The server did not respond in time."""


def is_installed() -> bool:
    """Return whether boto3 can be imported."""
    return find_spec(REQUIRES) is not None


class ObjectStore:
    """One bucket. If an ObjectStore is sent to another process, the ObjectStore makes a new client in that process.

    `received_bytes`: the bytes of all objects that this process has read.

    If the service sends nothing for `timeout_s`, the methods raise SilentServerError. For other failures, the methods
    raise OSError.
    """

    def __init__(self, bucket: str, timeout_s: float) -> None:
        self.bucket, self._timeout_s = bucket, timeout_s
        self.received_bytes = 0
        self._lock, self._made = Lock(), None

    def __getstate__(self) -> tuple[str, float]:
        """Return the state from which another process can rebuild this object."""
        return self.bucket, self._timeout_s

    def __setstate__(self, state: tuple[str, float]) -> None:
        """Begin without a client."""
        self.__init__(*state)  # type: ignore[misc]

    def put(self, path: Path, data: Any) -> None:
        """Write an object."""
        with _failures():
            self._client().put_object(Bucket=self.bucket, Key=str(path), Body=data)

    def read(self, path: Path, target: Any, offset: int = 0, block_bytes: int = 0) -> None:
        """Read bytes of an object into `target`, from byte `offset` on, until `target` is full.

        `block_bytes`: the size of one request. If `block_bytes` is 0, a single request gets all bytes.

        Raises EOFError with the object's name if the object ends earlier.
        """
        view = memoryview(target)
        step = block_bytes or len(view)
        for begin in range(0, len(view), step):
            part = view[begin : begin + step]
            first = offset + begin
            with _failures():
                answer = self._client().get_object(
                    Bucket=self.bucket, Key=str(path), Range=f"bytes={first}-{first + len(part) - 1}"
                )
                done = self._fill(part, answer["Body"].readinto)
            if done < len(part):
                raise EOFError(f"{SCHEME}{self.bucket}/{path} ends {len(part) - done} bytes too early")

    def stream(self, path: Path) -> io.BufferedReader:
        """Open an object to be read from its beginning to its end."""
        with _failures():
            body = self._client().get_object(Bucket=self.bucket, Key=str(path))["Body"]
        return io.BufferedReader(_Body(self, body), 1 << 20)

    def keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size of each object whose key begins with `prefix`."""
        with _failures():
            for page in self._client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                yield from ((found["Key"], found["Size"]) for found in page.get("Contents", ()))

    def remove(self, prefix: str) -> tuple[int, int]:
        """Remove all objects whose keys begin with `prefix`.

        Return the number of removed objects, and their total size in bytes.
        """
        num, num_bytes = 0, 0
        for key, size in list(self.keys(prefix)):
            with _failures():
                self._client().delete_object(Bucket=self.bucket, Key=key)
            num, num_bytes = num + 1, num_bytes + size
        return num, num_bytes

    def count(self, num_bytes: int) -> None:
        """Add bytes that were received."""
        with self._lock:
            self.received_bytes += num_bytes

    def _fill(self, view: memoryview, readinto: Callable[[memoryview], int]) -> int:
        done = 0
        while done < len(view) and (count := readinto(view[done:])):
            done += count
        self.count(done)
        return done

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _new_client(self._timeout_s)
            return self._made


class _Body(io.RawIOBase):
    """The body of a response as a file."""

    def __init__(self, store: ObjectStore, body: Any) -> None:
        self._store, self._body = store, body

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        with _failures():
            count = int(self._body.readinto(target))
        self._store.count(count)
        return count

    def close(self) -> None:
        self._body.close()
        super().close()


def _new_client(timeout_s: float) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"total_max_attempts": 1},  # a repeated request would be timed as a single request
        max_pool_connections=_MOST_CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", config=config)


@contextmanager
def _failures() -> Iterator[None]:
    """Raise SilentServerError if boto3 reports a connection timeout or a read timeout.

    Raise OSError for any other error of boto3.
    """
    from botocore import exceptions

    silent = (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError)
    try:
        yield
    except silent as error:
        raise SilentServerError(str(error)) from None
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        raise OSError(str(error)) from None
