"""Addresses of models on Hugging Face, and names of files beside a download."""

from __future__ import annotations

import re

from mlc_llm.errors import InvalidField
from mlc_llm.record import record

FORMS = "HF://user/repo, HF://user/repo:Q4_K_M or HF://user/repo/file.gguf"
PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
"""A name that is safe as the name of a file or a folder."""
COMPLETE = ".complete.json"
"""The ending of the file that is written when a download is complete."""
PARTS = ".parts"
"""The folder of files that are not complete."""
_ADDRESS = re.compile(
    r"(?:hf://|https://huggingface\.co/)([^/]+)/([^/:]+)"
    r"(?::([^/]+)|/(?:(?:resolve|blob)/main/)?(.+))?",
    re.IGNORECASE,
)
_SITE = re.compile(r"\A(?:hf|huggingface)\.co/", re.IGNORECASE)


@record()
class Address:
    """A repository, and the .gguf file in it if the address names one."""

    user: str
    repo: str
    tag: str | None = None
    """The end of the name of the .gguf file, without `.gguf`: `Q4_K_M`."""
    file: str | None = None
    """The path of the .gguf file."""

    @property
    def repository(self) -> str:
        return f"{self.user}/{self.repo}"

    @property
    def whole(self) -> str:
        """The address without a file."""
        return f"HF://{self.user}/{self.repo}"

    def __str__(self) -> str:
        file = f":{self.tag}" if self.tag else f"/{self.file}" if self.file else ""
        return self.whole + file


def parse_address(model: str) -> Address:
    """The parts of an address. Raises InvalidField for another form."""
    found = _ADDRESS.fullmatch(model.rstrip("/"))
    if found is None:
        raise InvalidField("model", model, f"an address is {FORMS}")
    user, repo, tag, file = found.groups()
    names = [user, repo, tag or "x", *(file or "x").split("/")]
    if not all(PLAIN_NAME.fullmatch(name) for name in names):
        raise InvalidField("model", model, f"an address is {FORMS}")
    if tag is not None and tag.lower().endswith(".gguf"):
        tag, file = None, tag
    if file is not None and not file.lower().endswith(".gguf"):
        raise InvalidField("model", model, "a file in a repository must be a .gguf file")
    return Address(user, repo, tag, file)


def meant_address(model: str) -> str:
    """The address that a name without `HF://` may stand for, such as `user/repo` and
    `hf.co/user/repo`; else an empty text."""
    rest, sites = _SITE.subn("", model)
    if not sites and model.lower().endswith(".gguf"):
        return ""  # a path
    try:
        return str(parse_address(f"HF://{rest}"))
    except InvalidField:
        return ""
