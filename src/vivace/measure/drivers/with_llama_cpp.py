"""llama.cpp through its C interface: a context for each shape of test, batches of 512, random ids fed, no sampling."""

import ctypes
import random
import time

import llama_cpp as lc

_SILENT = lc.llama_log_callback(lambda *_: None)  # must outlive the library's use of it
_ROWS = 512


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        lc.llama_log_set(_SILENT, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(model.encode(), lc.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp does not read this file")
        self.version = lc.__version__
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.threads = threads
        self.batch = lc.llama_batch_init(_ROWS, 0, 1)
        self.context = None
        self.shape = (0, 0, 0)  # sequences, cells of each, tokens that each holds now
        self.random = random.Random(0)

    def prefill(self, tokens: int, batch: int, depth: int) -> float:
        self._ready(batch, depth + tokens, depth)
        start = time.perf_counter()
        for seq in range(batch):
            self._fill(seq, depth, tokens)
        return time.perf_counter() - start

    def decode(self, tokens: int, batch: int, depth: int) -> float:
        self._ready(batch, depth + tokens, depth)
        start = time.perf_counter()
        for step in range(tokens):
            self._run([(self._id(), depth + step, seq) for seq in range(batch)], set(range(batch)))
        return time.perf_counter() - start

    def _ready(self, sequences: int, cells: int, depth: int) -> None:
        """A context of that shape with `depth` tokens in each sequence; what is there already is cut back and kept."""
        if self.context is None or self.shape != (sequences, cells, depth):
            if self.context is not None:
                lc.llama_free(self.context)
            params = lc.llama_context_default_params()
            params.n_ctx = sequences * (-(-cells // 256) * 256)
            params.n_batch = params.n_ubatch = _ROWS
            params.n_seq_max = sequences
            params.n_threads = params.n_threads_batch = self.threads
            self.context = lc.llama_init_from_model(self.model, params)
            if not self.context:
                raise RuntimeError(f"no context for {sequences} sequences of {cells} tokens")
            self.shape = sequences, cells, depth
            for seq in range(sequences):
                self._fill(seq, 0, depth)
            return
        memory = lc.llama_get_memory(self.context)
        cut = all(lc.llama_memory_seq_rm(memory, seq, depth, -1) for seq in range(sequences))
        if not cut:  # a cache that has forgotten what lay before a window cannot be cut
            lc.llama_memory_clear(memory, True)
            for seq in range(sequences):
                self._fill(seq, 0, depth)

    def _fill(self, seq: int, first: int, count: int) -> None:
        for begin in range(first, first + count, _ROWS):
            end = min(begin + _ROWS, first + count)
            self._run([(self._id(), position, seq) for position in range(begin, end)], {end - begin - 1})

    def _run(self, rows: list[tuple[int, int, int]], wanted: set[int]) -> None:
        batch = self.batch
        for i, (token, position, seq) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, seq
            batch.logits[i] = i in wanted
        batch.n_tokens = len(rows)
        if lc.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        lc.llama_synchronize(self.context)

    def _id(self) -> int:
        return self.random.randrange(self.vocab)
