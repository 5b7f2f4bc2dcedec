"""usage: llama_worker.py FILE.gguf ; llama.cpp through llama-cpp-python, two threads, flash attention on.

Prompts are computed one after another, then all sequences decode together, with argmax on the host.
"""

from __future__ import annotations

import sys

from protocol import keep_stdout_clean, serve

keep_stdout_clean()

import llama_cpp as llama  # noqa: E402
import numpy as np  # noqa: E402

MAX_SEQUENCES = 32

llama.llama_backend_init()
model_params = llama.llama_model_default_params()
model_params.n_gpu_layers = 0
model = llama.llama_model_load_from_file(sys.argv[1].encode(), model_params)
params = llama.llama_context_default_params()
params.n_ctx = MAX_SEQUENCES * 2304
params.n_batch, params.n_ubatch = 4096, 512
params.n_threads = params.n_threads_batch = 2
params.n_seq_max = MAX_SEQUENCES
params.kv_unified = False
params.flash_attn_type = 1
context = llama.llama_init_from_model(model, params)
memory = llama.llama_get_memory(context)
vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def decode(rows: list[tuple[int, int, int, bool]]) -> None:
    """rows: (token, position, sequence, whether its logits are wanted)."""
    batch = llama.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
    status = llama.llama_decode(context, batch)
    llama.llama_batch_free(batch)
    if status != 0:
        raise RuntimeError(f"llama_decode returned {status}")


def greedy(row: int) -> int:
    logits = llama.llama_get_logits_ith(context, row)
    return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())


def run(prompts: list[list[int]], output_len: int) -> None:
    llama.llama_memory_clear(memory, True)
    tokens = []
    for sequence, prompt in enumerate(prompts):
        decode([(token, i, sequence, i == len(prompt) - 1) for i, token in enumerate(prompt)])
        tokens.append(greedy(-1))
    for step in range(output_len - 1):
        decode([(token, len(prompts[s]) + step, s, True) for s, token in enumerate(tokens)])
        tokens = [greedy(s) for s in range(len(prompts))]


serve(run, vocab_size)
