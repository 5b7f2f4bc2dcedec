"""Pellucid's CPU kernels. See native/README.md; `pellucid.kernels.cpu` is what uses them."""

from pellucid_native._native import *  # noqa: F403
