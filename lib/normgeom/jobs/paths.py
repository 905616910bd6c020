"""What a name that was given stands for: asked before any work, and an error names the argument."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def is_folder(argument: str, name: str | os.PathLike) -> bool:
    """Whether there is a folder of that name.

    Raises:
        ValueError: the name is no text.
        OSError: it is too long, or the system does not let it be looked at.
    """
    return _ask(Path.is_dir, argument, name)


def is_file(argument: str, name: str | os.PathLike) -> bool:
    """Whether there is a file of that name; raises as :func:`is_folder`."""
    return _ask(Path.is_file, argument, name)


def _ask(question: Callable[[Path], bool], argument: str, name: str | os.PathLike) -> bool:
    check_text(argument, name)
    try:
        return question(Path(name))
    except OSError as error:
        raise OSError(f"{argument}: {os.fspath(name)!r:.80} cannot be looked at ({error.strerror})") from error


def check_text(argument: str, name: str | os.PathLike) -> None:
    """Raise a ValueError if a name is not UTF-8, or the system's encoding makes of it what is not."""
    try:
        os.fspath(name).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(
            f"{argument}: expected a name in UTF-8, got {os.fsencode(name)!r:.80}; rename it, or set PYTHONUTF8=1 "
            "where the locale is not UTF-8"
        ) from None
