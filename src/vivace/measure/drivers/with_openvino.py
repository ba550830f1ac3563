"""OpenVINO GenAI takes text and times itself: seconds are its own rates scaled to the asked number of tokens."""

import random
from importlib.metadata import version

import openvino_genai

_WORDS = ("the", "dragon", "went", "over", "hill", "found", "small", "bright", "stone", "under", "old", "river")


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        self.pipe = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
        self.version = version("openvino-genai")
        self.random = random.Random(0)

    def prefill(self, tokens: int, batch: int, depth: int) -> float:
        if batch != 1 or depth:
            raise ValueError("only single prompts from an empty cache can be timed")
        metrics = self._generate(tokens, 1)
        return tokens * metrics.get_ttft().mean / 1000 / metrics.get_num_input_tokens()

    def decode(self, tokens: int, batch: int, depth: int) -> float:
        if batch != 1:
            raise ValueError("only one sequence at a time can be timed")
        return tokens / self._generate(max(depth, 1), tokens).get_throughput().mean

    def _generate(self, words: int, tokens: int):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        return self.pipe.generate([" ".join(self.random.choices(_WORDS, k=words))], config).perf_metrics
