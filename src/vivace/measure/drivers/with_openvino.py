"""OpenVINO GenAI on random token ids, with its own defaults; it re-quantises the weights of the file when it loads.

Prompts are timed by the clock, up to the choice of the first token; generation by the times it notes for its tokens.
"""

import time
from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        try:
            self.pipe = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
        except RuntimeError as error:  # the reason is the last line; the others are places in its source
            raise RuntimeError(f"OpenVINO does not read it: {str(error).strip().splitlines()[-1]}") from None
        self.version = version("openvino-genai")
        self.vocab = len(self.pipe.get_tokenizer().get_vocab())
        self.random = np.random.default_rng(0)

    def prefill(self, tokens: int, batch: int, depth: int) -> float:
        if depth:
            raise ValueError("prompts can only be timed from an empty cache")
        prompts = self._prompts(batch, tokens)
        start = time.perf_counter()
        self._generate(prompts, 1)
        return time.perf_counter() - start

    def decode(self, tokens: int, batch: int, depth: int) -> float:
        times = self._generate(self._prompts(batch, max(depth, 1)), tokens + 1)
        return (times[-1] - times[0]) / 1000

    def _prompts(self, batch: int, tokens: int) -> openvino_genai.TokenizedInputs:
        ids = self.random.integers(0, self.vocab, (batch, tokens))
        return openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))

    def _generate(self, prompts: openvino_genai.TokenizedInputs, tokens: int) -> list[float]:
        """The times in milliseconds at which each of `tokens` tokens (of all sequences together) was there."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        times = self.pipe.generate(prompts, config).perf_metrics.raw_metrics.m_new_token_times
        if len(times) != tokens:
            raise RuntimeError(f"{len(times)} tokens were generated, not {tokens}")
        return times
