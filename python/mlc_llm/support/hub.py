"""Downloads from repositories on Hugging Face, with the extra package huggingface_hub."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from types import ModuleType

from mlc_llm.errors import UserError
from mlc_llm.support.progress import is_quiet

LISTING_S = 7.0
"""Seconds to wait for the list of files. With all imports, a user waits less than ten."""

_PLAIN_WORDS = {
    "RepositoryNotFoundError": "there is no such repository, or it is private",
    "GatedRepoError": "its makers ask you to accept their licence on huggingface.co first",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
}
"""Name of an exception of huggingface_hub -> words. Its own text begins with a number."""


def require_hub() -> ModuleType:
    """The package huggingface_hub. Raises UserError if it is not installed."""
    try:
        import huggingface_hub as package
    except ImportError:
        raise UserError('HF:// models need an extra package: pip install "mlc-llm[hub]"') from None
    if is_quiet():
        from huggingface_hub.utils import disable_progress_bars, logging

        disable_progress_bars()
        logging.set_verbosity_error()
    module: ModuleType = package
    return module


def list_files(repository: str) -> list[str]:
    """The names of all files of `repository` (user/name). One request, no retries.

    Raises TimeoutError after LISTING_S, and all errors of the library and its HTTP client.
    """
    api = require_hub().HfApi()
    names: list[str] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            info = api.model_info(repository, timeout=LISTING_S)
            names.extend(one.rfilename for one in info.siblings or ())
        except BaseException as error:
            errors.append(error)

    # Looking up the name of a host has no time limit, so it runs on a thread that may be left.
    thread = Thread(target=ask, name="hub-listing", daemon=True)
    thread.start()
    thread.join(LISTING_S)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {LISTING_S:g} seconds")
    if errors:
        raise errors[0]
    return names


def fetch_files(repository: str, names: Iterable[str], folder: Path) -> None:
    """Download the named files of `repository` into `folder`. An earlier part is continued.

    Raises all errors of the library and its HTTP client.
    """
    patterns = [glob.escape(name) for name in names]
    require_hub().snapshot_download(repository, allow_patterns=patterns, local_dir=folder)


def plain_reason(error: Exception) -> str:
    """One line for users about an error of the library, of its HTTP client or of the system."""
    known = _PLAIN_WORDS.get(type(error).__name__)
    return known or (str(error).strip() or type(error).__name__).splitlines()[0]
