"""Which kernels run: by name, or the fastest that this machine and this dtype allow."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pellucid.kernels.interface import Kernels


@dataclass(frozen=True)
class KernelChoice:
    """reason: one line for the log, in words; why these kernels and no faster ones."""

    kernels: Kernels
    reason: str


def select_kernels(
    name: str = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    num_threads: int | None = None,
) -> KernelChoice:
    """name: "auto", "cpu" (compiled, needs pellucid_native) or "torch".

    num_threads: None for OMP_NUM_THREADS, or one a physical core. Raises ValueError for a name or dtype that is unknown
    or does not suit the device, RuntimeError where "cpu" was asked for and is not to be had.
    """
    device = torch.device(device)
    if name not in ("auto", "cpu", "torch"):
        raise ValueError(f"kernels={name!r} is unknown; choose auto, cpu or torch")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"kernels='cpu' can't run on device {device}")
    obstacle = "asked for" if name == "torch" else _obstacle_to_cpu_kernels(device, dtype)
    if name == "cpu" or not obstacle:
        from pellucid.kernels.cpu.kernels import CpuKernels

        kernels = CpuKernels(dtype, num_threads)
        return KernelChoice(kernels, f"cpu kernels: {kernels.isa}, {kernels.num_threads} threads")
    from pellucid.kernels.torch_kernels import TorchKernels

    return KernelChoice(TorchKernels(device, dtype), f"torch kernels: {obstacle}")


def _obstacle_to_cpu_kernels(device: torch.device, dtype: torch.dtype) -> str:
    """Why the compiled kernels can't run; empty where they can."""
    from pellucid.kernels.cpu.native import load_native

    if device.type != "cpu":
        return f"device {device}"
    if dtype not in (torch.bfloat16, torch.float32):
        return f"the cpu kernels do not compute in {dtype}"
    _, reason = load_native()
    return reason
