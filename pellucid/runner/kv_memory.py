"""What memory a machine has for the KV cache. The arithmetic over it is in `pellucid.core.kv_budget`. Torch-free."""

from __future__ import annotations

from pathlib import Path

DEFAULT_CPU_KV_BYTES = 4 << 30  # as much as a person with a laptop would give without being asked
CPU_STEP_TOKENS = 512  # prefill is as fast per token from here on, and nobody's stream waits long for a step
GPU_STEP_TOKENS = 8192
_NO_LIMIT = 1 << 60  # cgroup v1 writes its "none" as a number near 2**63


def default_max_num_batched_tokens(device_type: str) -> int:
    return CPU_STEP_TOKENS if device_type == "cpu" else GPU_STEP_TOKENS


def default_cpu_kv_bytes(share_bytes: int, longest_request_bytes: int) -> int:
    """A modest pool, unless one request of the longest kind needs more; never more than the stated share of memory."""
    return min(share_bytes, max(DEFAULT_CPU_KV_BYTES, longest_request_bytes))


def available_memory_bytes(root: Path = Path("/")) -> int:
    """What this process can still take: the machine's available memory, or what its control groups leave, if less.

    root: where /proc and /sys are looked for.
    """
    import psutil

    available = psutil.virtual_memory().available
    return max(min([available, *_left_by_control_groups(root)]), 0)


def _left_by_control_groups(root: Path) -> list[int]:
    """Bytes below the limit, for every group this process is in (a parent's limit holds for its children)."""
    left = []
    for directory in _memory_groups(root):
        limit = _read_number(directory / "memory.max", directory / "memory.limit_in_bytes")
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = _read_number(directory / "memory.current", directory / "memory.usage_in_bytes") or 0
        left.append(limit - used + _reclaimable(directory / "memory.stat"))
    return left


def _memory_groups(root: Path) -> list[Path]:
    """The directories of this process's memory groups, innermost first, in version 1 or 2 of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
        elif number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        else:
            continue
        inner = mount / path.lstrip("/")
        # inside a container the path may name what only the host can see; the mount itself is then our group
        groups += [group for group in (inner, *inner.parents) if group == mount or mount in group.parents]
    return groups


def _reclaimable(stat: Path) -> int:
    """File pages that count as used, and are given up for the asking."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    for name in ("total_inactive_file", "inactive_file"):
        if values.get(name, "").isdigit():
            return int(values[name])
    return 0


def _read_number(*paths: Path) -> int | None:
    """The number in the first of these files that there is; None where there is none, or it says "max"."""
    for path in paths:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
