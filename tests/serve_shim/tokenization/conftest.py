"""The embedded model's tokenizer and the reference that was recorded for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve_shim.loading.gguf_file import GgufFile
from serve_shim.loading.source import resolve_source
from serve_shim.tokenization import Tokenizer, gguf_tokenizer

_REFERENCE = Path(__file__).parents[2] / "data" / "smollm2_greedy.json"


@pytest.fixture(scope="session")
def embedded() -> Tokenizer:
    tokenizer = gguf_tokenizer(GgufFile(resolve_source(None).path).metadata)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="session")
def entries() -> list[dict[str, Any]]:
    reference = json.loads(_REFERENCE.read_text(encoding="utf-8"))
    return reference["completions"] + reference["chat"]
