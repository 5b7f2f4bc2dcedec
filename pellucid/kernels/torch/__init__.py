"""The torch backend: plain, right, the oracle of the others. Entry: `pellucid.kernels.torch_kernels.TorchKernels`."""
