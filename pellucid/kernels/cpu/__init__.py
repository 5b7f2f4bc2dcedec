"""The CPU backend: `CpuKernels` over the compiled module `pellucid_native` (see native/README.md)."""
