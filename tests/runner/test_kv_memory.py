"""The memory that is there is the machine's or the container's, whichever is less."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pellucid.runner.kv_memory import DEFAULT_CPU_KV_BYTES, available_memory_bytes, default_cpu_kv_bytes

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    class Memory:
        available = 64 * GIB

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_control_groups_it_is_what_the_machine_has(tmp_path):
    assert available_memory_bytes(tmp_path) == 64 * GIB


def test_a_container_of_version_2_counts_reclaimable_pages_as_free(tmp_path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {2 * GIB}\ninactive_file {GIB}\n",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 6 * GIB


def test_a_parents_limit_holds_too(tmp_path):
    files = {
        "proc/self/cgroup": "0::/user/service\n",
        "sys/fs/cgroup/user/service/memory.max": "max\n",
        "sys/fs/cgroup/user/service/memory.current": "5\n",
        "sys/fs/cgroup/user/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/user/memory.current": f"{GIB}\n",
    }
    assert available_memory_bytes(write(tmp_path, files)) == GIB


def test_a_container_of_version_1_whose_path_only_the_host_knows(tmp_path):
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 2 * GIB


def test_no_limit_is_no_limit_in_either_version(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 64 * GIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 0


@pytest.mark.parametrize(
    ("share", "longest", "expected"),
    [
        (20 * GIB, GIB, DEFAULT_CPU_KV_BYTES),
        (20 * GIB, 6 * GIB, 6 * GIB),
        (20 * GIB, 60 * GIB, 20 * GIB),
        (GIB, GIB // 2, GIB),
    ],
)
def test_the_default_pool_is_modest_and_never_more_than_its_share(share, longest, expected):
    assert default_cpu_kv_bytes(share, longest) == expected
