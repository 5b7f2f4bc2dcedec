"""Device and dtype: what was asked for, or what suits the machine."""

from __future__ import annotations

import torch

from pellucid.kernels.cpu.native import load_native

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


def choose_device(name: str) -> torch.device:
    """auto: a GPU where torch sees one. Raises ValueError where the device is unknown or not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is not known; choose auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={name!r} is not supported; choose auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: torch sees no CUDA device here; choose cpu, or install torch with CUDA")
    return device


def choose_dtype(name: str, model_dtype: str, device: torch.device) -> torch.dtype:
    """auto: the model's own on a GPU; on a CPU bfloat16, half of whose bytes float32 would read for each token.

    model_dtype: as in HF's config.json. Raises ValueError for a name that is not known.
    """
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f"dtype={name!r} is not known; choose auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cpu":
        return torch.bfloat16 if _cpu_computes_bfloat16() else torch.float32
    return DTYPES.get(model_dtype, torch.bfloat16)


def _cpu_computes_bfloat16() -> bool:
    return load_native()[0] is not None or torch.ops.mkldnn._is_mkldnn_bf16_supported()
