"""Checks that only the user can write a folder, because machine code is loaded from the cache.

A folder is safe if it and all folders above it belong to the user or to root, and no other user can
write into them. For a folder above, the sticky bit (as of /tmp) is enough: then other users can
neither remove nor rename what is in it. On Windows nothing is checked: there only the user can
write the user's folders.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mlc_llm.errors import CacheError

_log = logging.getLogger(__name__)

_GROUP_OR_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HAS_OWNERS = sys.platform != "win32"


def why_unsafe(path: Path) -> str | None:
    """Why other users could change files in a folder; None: they cannot. The folder may be missing
    yet."""
    if not _HAS_OWNERS:
        return None
    real = Path(os.path.realpath(path))
    return next(filter(None, (_why(one, above=one != real) for one in (real, *real.parents))), None)


def why_unsafe_inside(folder: Path) -> str | None:
    """The same for a folder that is inside a safe one, and for the files in it. Raises OSError."""
    if not _HAS_OWNERS:
        return None
    return next(filter(None, map(_why, (folder, *folder.iterdir()))), None)


@cache
def settle(root: Path, inside: tuple[str, ...]) -> tuple[Path, str | None]:
    """The cache folder to use, and why it is not `root`. It is `root` if `root` and its folders
    `inside` are safe; otherwise it is a private folder, and a warning is logged. Raises CacheError
    if no private folder can be made."""
    real = Path(os.path.realpath(root)) if _HAS_OWNERS else root
    why = _first_unsafe(real / name for name in ("", *inside))
    if why is None:
        return real, None
    own = _own_folder(why)
    _log.warning("the cache folder %s is not used, because %s; %s is used instead", root, why, own)
    return own, why


def make_folder(folder: Path) -> None:
    """Make a folder, and missing folders above it, for this user only. Raises OSError."""
    missing = [folder]
    for above in folder.parents:
        if above.exists():
            break
        missing.append(above)
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def _first_unsafe(folders: Iterable[Path]) -> str | None:
    return next(filter(None, map(why_unsafe, folders)), None)


def _own_folder(why: str) -> Path:
    """A folder among the temporary files. It is the same one each time, unless another user has
    made a folder with this name."""
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"mlc_llm-{_user()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or why_unsafe(folder) is not None:
            folder = Path(tempfile.mkdtemp(prefix="mlc_llm-"))
    except OSError as error:
        words = f"{why}, and {folder} cannot be used ({error.strerror})"
        raise CacheError(f"{words}; set MLC_LLM_HOME to a folder of your own") from error
    unsafe = why_unsafe(folder)
    if unsafe is not None:
        raise CacheError(f"{why}, and {unsafe}; set MLC_LLM_HOME to a folder of your own")
    return folder


def _why(path: Path, *, above: bool = False) -> str | None:
    """Why one file or folder is unsafe. above: it matters only who can rename what is in it."""
    try:
        found = path.lstat()
    except OSError:  # if it is missing, the user makes it; if it cannot be read, nothing is loaded
        return None
    if found.st_uid not in (0, _user()):
        return f"{path} belongs to another user ({_name_of(found.st_uid)})"
    writers = found.st_mode & _GROUP_OR_OTHERS
    if stat.S_ISLNK(found.st_mode) or (above and found.st_mode & stat.S_ISVTX):
        return None
    if writers == stat.S_IWGRP and _is_own_group(found.st_gid):
        return None
    return f"other users can write {path}" if writers else None


if sys.platform == "win32":

    def _user() -> int:
        return 0

    def _name_of(uid: int) -> str:
        return str(uid)

    def _is_own_group(gid: int) -> bool:
        return False

else:
    import grp
    import pwd

    def _user() -> int:
        return os.geteuid()

    def _name_of(uid: int) -> str:
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)

    def _is_own_group(gid: int) -> bool:
        """Whether the user is the only member. Some systems give each user such a group, which can
        write the user's files."""
        try:
            user, group = pwd.getpwuid(_user()), grp.getgrgid(gid)
        except KeyError:
            return False
        alone = gid == user.pw_gid and set(group.gr_mem) <= {user.pw_name}
        return user.pw_uid != 0 and alone and group.gr_name == user.pw_name
