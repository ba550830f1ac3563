"""transformers in bfloat16 on the weights of the file, de-quantised; the cache is the library's own."""

import copy
import os
import random
import time
import warnings

import torch
import transformers


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        folder, file = os.path.split(os.path.abspath(model))
        where = {"gguf_file": file} if file.endswith(".gguf") else {}
        path = folder if where else model
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **where).eval()
        self.vocab = self.model.config.get_text_config().vocab_size
        self.version = transformers.__version__
        self.random = random.Random(0)
        self.deep = (0, 0, None)  # batch, depth, cache

    def prefill(self, tokens: int, batch: int, depth: int) -> float:
        cache = self._cache(batch, depth)
        ids = self._ids(batch, tokens)
        start = time.perf_counter()
        with torch.inference_mode():
            self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start

    def decode(self, tokens: int, batch: int, depth: int) -> float:
        cache = self._cache(batch, depth)
        start = time.perf_counter()
        with torch.inference_mode():
            for _ in range(tokens):
                cache = self.model(self._ids(batch, 1), past_key_values=cache, use_cache=True).past_key_values
        return time.perf_counter() - start

    def _cache(self, batch: int, depth: int):
        if depth == 0:
            return None
        if self.deep[:2] != (batch, depth):
            with torch.inference_mode():
                out = self.model(self._ids(batch, depth), use_cache=True, logits_to_keep=1)
            self.deep = batch, depth, out.past_key_values
        return copy.deepcopy(self.deep[2])

    def _ids(self, batch: int, count: int) -> torch.Tensor:
        return torch.tensor([[self.random.randrange(self.vocab) for _ in range(count)] for _ in range(batch)])
