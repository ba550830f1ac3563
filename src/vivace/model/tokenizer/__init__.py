"""Text to token ids and back, from GGUF metadata or from the files of a Hugging Face folder."""

from vivace.model.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
