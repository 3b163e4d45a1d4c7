"""Text to token ids and back, streaming, and chat templates in a bounded sandbox."""

from serve_shim.tokenization.gguf_tokenizer import gguf_tokenizer
from serve_shim.tokenization.hf_tokenizer import hf_tokenizer
from serve_shim.tokenization.token_stream import TokenStream
from serve_shim.tokenization.tokenizer import Tokenizer

__all__ = ["TokenStream", "Tokenizer", "gguf_tokenizer", "hf_tokenizer"]
