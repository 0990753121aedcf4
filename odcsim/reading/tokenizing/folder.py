"""A tokenizer as it lies on disk: `tokenizer.json`, and beside it the chat template and the special tokens."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.reading.tokenizing.template import ChatTemplate
from odcsim.support.inputs import read_text, reading

MODEL, CONFIG, TEMPLATE, OTHERS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates",
)
SPECIAL = "bos_token eos_token unk_token sep_token pad_token cls_token mask_token".split()
GIVE = f"give a folder with a {MODEL}, as save_pretrained writes it; nothing is fetched"


@dataclass(frozen=True)
class TokenizerFolder:
    """What is needed to count as a trainer does."""

    path: Path  # of tokenizer.json
    special: Mapping[str, str]  # token by what it is for: eos_token and the like
    template: ChatTemplate | None

    @property
    def eos(self) -> str:
        return self.special.get("eos_token", "")

    @cached_property
    def digest(self) -> str:
        """Of all that a count depends on."""
        sources = dict(self.template.sources) if self.template else {}
        sha = hashlib.sha256(json.dumps([sources, dict(self.special)], sort_keys=True).encode())
        sha.update(import_module("tokenizers").__version__.encode())
        with self.path.open("rb") as file:
            sha.update(hashlib.file_digest(file, "sha256").digest())
        return sha.hexdigest()


def open_folder(given: str | Path) -> TokenizerFolder:
    path = Path(given)
    path = path / MODEL if path.is_dir() else path
    if not path.is_file():
        raise InputError("no such tokenizer", where=str(path), fix=GIVE)
    for package in ("tokenizers", "jinja2"):
        try:
            import_module(package)
        except ImportError:
            problem, fix = f"counting tokens needs {package}", "install it with: pip install 'odcsim[tokenize]'"
            raise InputError(problem, where=str(path), fix=fix) from None
    folder, config = path.parent, {}
    if (folder / CONFIG).is_file():
        with reading(folder / CONFIG, missing=GIVE, expected="a JSON object"):
            config = json.loads(read_text(folder / CONFIG))
            if not isinstance(config, dict):
                raise ValueError("no object")
    special = {}
    for name in SPECIAL:  # each a token, or an object that holds one
        token = config.get(name)
        token = str(token.get("content", "")) if isinstance(token, dict) else token
        if token and isinstance(token, str):
            special[name] = token
    sources = _templates(folder, config)
    source = folder / (TEMPLATE if (folder / TEMPLATE).is_file() else CONFIG)
    return TokenizerFolder(path, special, ChatTemplate(sources, special, str(source)) if sources else None)


def tokenizer_at(path: Path) -> Any:
    """Whole texts are counted, whatever the file says of cutting and padding. Not to be called where a file may not
    take all memory or end the process."""
    try:
        tokenizer = import_module("tokenizers").Tokenizer.from_buffer(path.read_bytes())
    except BaseException as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"is not a tokenizer ({reason})", where=str(path), fix=GIVE) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files of their own win over the config, in which there is one template, or a list of named ones."""
    given = config.get("chat_template")
    sources = {"default": given} if isinstance(given, str) else {}
    if isinstance(given, list):
        named = [one for one in given if isinstance(one, dict) and {"name", "template"} <= {*one}]
        sources = {str(one["name"]): str(one["template"]) for one in named}
    if (folder / TEMPLATE).is_file():
        files = {"default": folder / TEMPLATE}
        files |= {path.stem: path for path in sorted((folder / OTHERS).glob("*.jinja"))}
        sources = {}
        for name, path in files.items():
            with reading(path, missing=GIVE, expected="a chat template"):
                sources[name] = read_text(path)
    return sources if "default" in sources else {}
