"""Check who may change a stored run, because the plan of a run starts programs.

A user, even root, can continue only the user's own runs, and only if no other user can change them. It is safe to read
the runs of other users (report, compare, explain).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from bench.core.codes import Code, Coded


class OwnerCode(Code):
    """Reasons why this user must not continue a run."""

    OTHER_OWNER = (
        "other-owner",
        "{path} belongs to {owner}, not to {user}: a plan starts programs, so only {owner} can continue this run",
    )
    OTHERS_MAY_WRITE = (
        "others-may-write",
        "{path} of {owner} can be changed by other users: check its plan.json, then run `chmod -R go-w {folder}`",
    )
    NOT_READABLE = "not-readable", "{path} cannot be examined ({why}): who may change this run is unknown"


def distrust(folder: Path) -> Coded | None:
    """Return why this user must not continue the run in `folder`, or None if the user may continue it.

    A user may continue a run only if no other user can change it.
    """
    user = os.geteuid()
    for path in _decisive(folder):
        try:
            found = path.stat()
        except OSError as error:
            return Coded.of(OwnerCode.NOT_READABLE, path=str(path), why=error.strerror)
        names = {"path": str(path), "owner": _user_name(found.st_uid)}
        if found.st_uid != user:
            return Coded.of(OwnerCode.OTHER_OWNER, user=_user_name(user), **names)
        by_group = found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, user)
        if by_group or found.st_mode & stat.S_IWOTH:
            return Coded.of(OwnerCode.OTHERS_MAY_WRITE, folder=str(folder), **names)
    return None


def _decisive(folder: Path) -> Iterator[Path]:
    """Yield the folder of a run, and the files that determine what a continued run measures."""
    yield folder
    yield from sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")])


def _is_private(group: int, user: int) -> bool:
    """Check whether a group has the user's name and no other member."""
    try:
        name, found = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
