"""The disk cache: entries survive, damage heals, the size is limited, and several processes may write at once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torch_tpu import settings
from torch_tpu.runtime import cache
from torch_tpu.runtime.diskcache import DiskCache

ROOT = Path(__file__).resolve().parents[2]
KEY = "ab" * 32


@pytest.fixture
def disk(tmp_path):
    return DiskCache(tmp_path / "programs", limit=1 << 20)


def entry(disk: DiskCache, key: str = KEY) -> Path:
    return disk.directory / key[:2] / f"{key}.program"


def test_round_trip(disk):
    assert disk.get(KEY) is None
    disk.put(KEY, b"program")
    assert disk.get(KEY) == b"program"
    disk.put(KEY, b"another")
    assert DiskCache(disk.directory, disk.limit).get(KEY) == b"another"
    assert disk.usage().entries == 1
    assert disk.clear() == 1 and disk.get(KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: b"X" + content[1:],
        lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
        lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:],
    ],
)
def test_damage_is_found_and_deleted(disk, counters, damage):
    disk.put(KEY, b"program" * 100)
    path = entry(disk)
    path.write_bytes(damage(path.read_bytes()))
    assert disk.get(KEY) is None
    assert not path.exists() and counters.disk_errors == 1
    disk.put(KEY, b"again")
    assert disk.get(KEY) == b"again"


def test_the_longest_unused_entries_go_first(tmp_path):
    disk = DiskCache(tmp_path / "programs", limit=10_000)
    keys = [f"{number:02x}" * 32 for number in range(12)]
    for age, key in enumerate(keys[:9]):
        disk.put(key, bytes(900))
        os.utime(entry(disk, key), (1000 + age, 1000 + age))
    assert disk.get(keys[0]) is not None  # used now, so no longer the oldest
    for key in keys[9:]:
        disk.put(key, bytes(900))
    assert disk.usage().num_bytes <= disk.limit
    assert disk.get(keys[0]) is not None and disk.get(keys[11]) is not None
    assert disk.get(keys[1]) is None


def test_what_is_larger_than_the_limit_is_not_stored(tmp_path):
    disk = DiskCache(tmp_path / "programs", limit=100)
    disk.put(KEY, bytes(100))
    assert disk.get(KEY) is None and disk.usage().entries == 0


def test_the_directory_is_private(tmp_path):
    directory = tmp_path / "programs"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    disk = DiskCache(directory, 1 << 20)
    disk.put(KEY, b"program")
    for path in (directory, directory / KEY[:2], entry(disk)):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    disk = DiskCache(tmp_path / "programs", 1 << 20)
    assert "belongs to another user" in disk.problem
    disk.put(KEY, b"program")
    assert disk.get(KEY) is None


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    disk = DiskCache(tmp_path / "file" / "programs", 1 << 20)
    assert "cannot be made" in disk.problem
    disk.put(KEY, b"program")
    assert disk.get(KEY) is None and disk.usage().entries == 0


WRITER = """
import sys
from torch_tpu.runtime.diskcache import DiskCache
disk = DiskCache(sys.argv[1], 60_000)
for turn in range(40):
    for number in range(20):
        key = f"{number:02x}" * 32
        content = disk.get(key)
        assert content is None or (len(content) == 5000 and len(set(content)) == 1), "a torn entry"
        disk.put(key, bytes([turn]) * 5000)
assert not disk.problem, disk.problem
"""


def test_several_processes(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "programs")]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, problem = process.communicate(timeout=120)
        assert process.returncode == 0, problem
    assert not list((tmp_path / "programs").rglob("*.part"))


def test_keys_hold_all_that_matters(monkeypatch):
    base = cache.key("text", (("option", 1),), "cpu", "cpu")
    assert base == cache.key("text", (("option", 1),), "cpu", "cpu") and len(base) == 64
    others = [
        cache.key("text2", (("option", 1),), "cpu", "cpu"),
        cache.key("text", (("option", 2),), "cpu", "cpu"),
        cache.key("text", (("option", 1),), "tpu", "cpu"),
        cache.key("text", (("option", 1),), "cpu", "other"),
    ]
    for change in ((cache, "processor", lambda: "another"), (cache.jaxlib, "__version__", "9"), (cache, "FORMAT", "9")):
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            cache.environment.cache_clear()
            others.append(cache.key("text", (("option", 1),), "cpu", "cpu"))
    cache.environment.cache_clear()
    assert len({base, *others}) == 8


def test_the_settings_choose_the_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with settings.override(cache=True, cache_dir=""):
        assert cache.disk().directory == tmp_path / "torch_tpu" / "programs"
    with settings.override(cache=True, cache_dir=str(tmp_path / "here"), cache_limit=77):
        assert cache.disk().directory == tmp_path / "here" / "programs" and cache.disk().limit == 77
    with settings.override(cache=False):
        assert cache.disk() is None


def test_recent_forgets_what_was_not_used():
    recent: cache.Recent[int] = cache.Recent(8)
    for number in range(100):
        recent.put(number, number)
        assert recent.get(0) == 0  # always in use
        assert len(recent) <= 8
    assert recent.get(99) == 99 and recent.get(50) is None
    recent.clear()
    assert len(recent) == 0 and recent.get(0) is None
