"""The disk cache: entries survive, damage heals, the size is limited, and several processes may write at once."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from torch_tpu import settings
from torch_tpu.runtime import archive, cache
from torch_tpu.runtime import entry as entries
from torch_tpu.runtime.diskcache import DiskCache

ROOT = Path(__file__).resolve().parents[2]
KEY = "ab" * 32
HERE = {"format": "2", "platform": "cpu", "jaxlib": "1.0", "processor": "x86_64 avx avx512f"}


@pytest.fixture
def disk(tmp_path):
    return DiskCache(tmp_path / "programs", limit=1 << 20)


def entry(disk: DiskCache, key: str = KEY) -> Path:
    return disk.directory / key[:2] / f"{key}.program"


def test_round_trip(disk):
    assert disk.get(KEY) is None
    disk.put(KEY, b"program", {})
    assert disk.get(KEY) == b"program"
    disk.put(KEY, b"another", {})
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
    disk.put(KEY, b"program" * 100, {})
    path = entry(disk)
    path.write_bytes(damage(path.read_bytes()))
    assert disk.get(KEY) is None
    assert not path.exists() and counters.disk_errors == 1
    disk.put(KEY, b"again", {})
    assert disk.get(KEY) == b"again"


def test_the_longest_unused_entries_go_first(tmp_path):
    disk = DiskCache(tmp_path / "programs", limit=10_000)
    keys = [f"{number:02x}" * 32 for number in range(12)]
    for age, key in enumerate(keys[:9]):
        disk.put(key, bytes(900), {})
        os.utime(entry(disk, key), (1000 + age, 1000 + age))
    assert disk.get(keys[0]) is not None  # used now, so no longer the oldest
    for key in keys[9:]:
        disk.put(key, bytes(900), {})
    assert disk.usage().num_bytes <= disk.limit
    assert disk.get(keys[0]) is not None and disk.get(keys[11]) is not None
    assert disk.get(keys[1]) is None


def test_what_is_larger_than_the_limit_is_not_stored(tmp_path):
    disk = DiskCache(tmp_path / "programs", limit=100)
    disk.put(KEY, bytes(100), {})
    assert disk.get(KEY) is None and disk.usage().entries == 0


def test_the_directory_is_private(tmp_path):
    directory = tmp_path / "programs"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    disk = DiskCache(directory, 1 << 20)
    disk.put(KEY, b"program", {})
    for path in (directory, directory / KEY[:2], entry(disk)):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path


def test_links_are_not_followed(tmp_path, counters):
    elsewhere = DiskCache(tmp_path / "elsewhere", 1 << 20)
    elsewhere.put(KEY, b"program", {})
    (tmp_path / "link").symlink_to(elsewhere.directory)
    linked = DiskCache(tmp_path / "link", 1 << 20)
    assert "is a symbolic link" in linked.problem and linked.get(KEY) is None
    disk = DiskCache(tmp_path / "programs", 1 << 20)
    entry(disk).parent.mkdir()
    entry(disk).symlink_to(entry(elsewhere))
    assert disk.get(KEY) is None and counters.disk_errors == 1
    disk.put(KEY, b"another", {})
    assert disk.get(KEY) == b"another" and elsewhere.get(KEY) == b"program"


def test_an_entry_that_others_can_write_is_not_loaded(disk, counters):
    disk.put(KEY, b"program", {})
    entry(disk).chmod(0o666)
    assert disk.get(KEY) is None and counters.disk_errors == 1 and not entry(disk).exists()


def test_an_entry_under_another_name_is_not_loaded(disk, counters):
    disk.put(KEY, b"program", {})
    other = "cd" * 32
    entry(disk, other).parent.mkdir()
    entry(disk).rename(entry(disk, other))
    assert disk.get(other) is None and counters.disk_errors == 1


def test_a_deleted_directory_is_made_again(disk):
    disk.put(KEY, b"program", {})
    shutil.rmtree(disk.directory)
    assert disk.get(KEY) is None
    disk.put(KEY, b"program", {})
    assert disk.get(KEY) == b"program" and not disk.problem
    assert not disk.directory.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def test_what_killed_processes_left_is_swept(tmp_path):
    disk = DiskCache(tmp_path / "programs", 1 << 20)
    folder = disk.directory / "ab"
    folder.mkdir()
    (folder / "old.part").write_bytes(b"half")
    (folder / "new.part").write_bytes(b"half")
    os.utime(folder / "old.part", (1000, 1000))
    disk.put(KEY, b"program", {})
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.program", "new.part"]


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    disk = DiskCache(tmp_path / "programs", 1 << 20)
    assert "belongs to another user" in disk.problem
    disk.put(KEY, b"program", {})
    assert disk.get(KEY) is None


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    disk = DiskCache(tmp_path / "file" / "programs", 1 << 20)
    assert "cannot be made" in disk.problem
    disk.put(KEY, b"program", {})
    assert disk.get(KEY) is None and disk.usage().entries == 0


def test_a_folder_in_the_place_of_an_entry_is_damage(disk, counters):
    entry(disk).mkdir(parents=True)
    (entry(disk) / "file").write_text("")
    assert disk.get(KEY) is None and counters.disk_errors == 1
    disk.put(KEY, b"program", {})
    assert disk.get(KEY) == b"program" and not disk.problem


def test_a_full_disk_is_still_read(disk, monkeypatch):
    disk.put(KEY, b"program", {})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    disk.put("cd" * 32, b"another", {})
    assert "cannot be written" in disk.problem
    assert disk.get(KEY) == b"program"


WRITER = """
import sys
from torch_tpu.runtime.diskcache import DiskCache
disk = DiskCache(sys.argv[1], 60_000)
for turn in range(40):
    for number in range(20):
        key = f"{number:02x}" * 32
        content = disk.get(key)
        assert content is None or (len(content) == 5000 and len(set(content)) == 1), "a torn entry"
        disk.put(key, bytes([turn]) * 5000, {})
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
    def key(text="text", option=1, platform="cpu", kind="cpu", runtime="1"):
        return cache.key(text, (("option", option),), cache.environment(platform, kind, runtime))

    base = key()
    assert base == key() and len(base) == 64
    found = {base, key(text="text2"), key(option=2), key(platform="tpu"), key(kind="other"), key(runtime="2")}
    for change in (
        (cache, "processor", lambda: "another"),
        (cache.jaxlib, "__version__", "9"),
        (cache, "FORMAT", "9"),
        (cache, "_version", lambda: "9"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            found.add(key())
    for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "--xla_something=1")
            found.add(key())
    assert len(found) == 12


GRAPHS = """module @fused_2_graph_{0}_fwd_graph_{1}_bwd {{
func.func public @main(%a: f32) {{ func.call @graph_{0}_fwd(%a) func.call @graph_{1}_bwd(%a) }}
func.func private @graph_{0}_fwd(%a: f32) {{ stablehlo.sine %a }}
func.func private @graph_{1}_bwd(%a: f32) {{ {2} %a }}
}}"""


def test_keys_do_not_depend_on_how_many_graphs_there_were():
    def key(text):
        return cache.key(text, (), {})

    cosine = GRAPHS.format(0, 0, "stablehlo.cosine")
    assert key(cosine) == key(GRAPHS.format(7, 7, "stablehlo.cosine")) == key(cosine.replace("@fused_2_graph_0", "@f"))
    assert key(cosine) != key(GRAPHS.format(0, 0, "stablehlo.tangent"))
    swapped = cosine.replace("call @graph_0_fwd", "call @x").replace("call @graph_0_bwd", "call @graph_0_fwd")
    assert key(cosine) != key(swapped.replace("call @x", "call @graph_0_bwd")), "which is called first matters"
    kernels = ["stablehlo.custom_call @graph_1_kernel", "stablehlo.custom_call @graph_2_kernel"]
    assert key(cosine + kernels[0]) != key(cosine + kernels[1]), "kernels are known by their names"


def test_a_processor_is_known_by_its_instructions(monkeypatch, tmp_path):
    def processor(flags):
        monkeypatch.setattr("builtins.open", lambda *_, **__: io.StringIO(f"flags\t: {flags}\n"))
        cache.processor.cache_clear()
        return cache.processor()

    try:
        plain = processor("fpu avx avx2 hypervisor tsc_known_freq")
        assert plain == processor("avx2 avx fpu md_clear")
        assert plain != processor("avx2 avx fpu avx512f") != processor("avx2 avx fpu avx512f amx_tile")
        assert plain != processor("avx2 avx fpu unheard_of")
    finally:
        cache.processor.cache_clear()


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


def filled(tmp_path, name: str, entries: dict[str, tuple[bytes, dict[str, str]]]) -> DiskCache:
    disk = DiskCache(tmp_path / name, 1 << 20)
    for key, (payload, about) in entries.items():
        disk.put(key, payload, about)
    return disk


def import_here(path, disk):
    return archive.import_from(path, disk, lambda about: cache.unfit(about, HERE))


def test_export_and_import(tmp_path, counters):
    keys = [f"{number:02x}" * 32 for number in range(4)]
    source = filled(tmp_path, "source", {key: (key.encode() * 9, HERE) for key in keys})
    entry(source, keys[3]).write_bytes(b"damaged")
    file = tmp_path / "programs.bin"
    assert archive.export_to(file, source) == 3 and counters.disk_errors == 1
    assert not file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    target = filled(tmp_path, "target", {keys[0]: (b"mine", HERE)})
    entry(target, keys[1]).parent.mkdir()
    entry(target, keys[1]).write_bytes(b"damaged")
    found = import_here(file, target)
    assert (found.added, found.present, found.damaged, found.rejected, found.complete) == (2, 1, 0, {}, True)
    assert target.get(keys[0]) == b"mine"  # never overwritten
    assert [target.get(key) for key in keys[1:3]] == [key.encode() * 9 for key in keys[1:3]]
    assert target.read(keys[1]).about == {**HERE, "key": keys[1]}
    assert archive.export_to(tmp_path / "again.bin", source) == 3
    assert (tmp_path / "again.bin").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"jaxlib": "0.9"}, "made with jaxlib 0.9; here it is 1.0"),
        ({"platform": "tpu"}, "made with platform tpu; here it is cpu"),
        ({"format": ""}, "made with format unset; here it is 2"),
        (
            {"processor": "x86_64 avx avx512f amx_tile avx9"},
            "made for a processor that has amx_tile avx9, which this one lacks",
        ),
        ({"processor": "x86_64 avx"}, "made for a processor that lacks avx512f"),
    ],
)
def test_what_was_made_elsewhere_is_rejected(tmp_path, change, reason):
    source = filled(tmp_path, "source", {KEY: (b"program", HERE | change)})
    archive.export_to(tmp_path / "file", source)
    target = DiskCache(tmp_path / "target", 1 << 20)
    assert import_here(tmp_path / "file", target).rejected == {reason: 1}
    assert target.usage().entries == 0


def test_damaged_files_give_what_is_whole_of_them(tmp_path):
    keys = [f"{number:02x}" * 32 for number in range(3)]
    source = filled(tmp_path, "source", {key: (bytes(500), HERE) for key in keys})
    file = tmp_path / "programs.bin"
    archive.export_to(file, source)
    whole = file.read_bytes()
    each = (len(whole) - len(archive.MAGIC) - 8) // 3
    file.write_bytes(whole[: len(archive.MAGIC) + each + 100])
    found = import_here(file, DiskCache(tmp_path / "cut", 1 << 20))
    assert (found.added, found.complete) == (1, False)
    place = len(archive.MAGIC) + each + each // 2
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    found = import_here(file, DiskCache(tmp_path / "flipped", 1 << 20))
    assert (found.added, found.damaged, found.complete) == (2, 1, True)
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match="was not written by `torch-tpu cache export`"):
        import_here(file, source)


def test_a_key_that_is_a_path_is_damage(tmp_path):
    bad = "../" * 20 + "etc0"
    content = entries.pack({**HERE, "key": bad}, b"program")
    (tmp_path / "file").write_bytes(archive.MAGIC + len(content).to_bytes(8, "little") + content + bytes(8))
    target = DiskCache(tmp_path / "target", 1 << 20)
    assert len(bad) == 64 and import_here(tmp_path / "file", target).damaged == 1
    assert target.usage().entries == 0


IMPORTER = """
import sys
from torch_tpu.runtime import archive
from torch_tpu.runtime.diskcache import DiskCache
disk = DiskCache(sys.argv[1], 1 << 20)
found = archive.import_from(sys.argv[2], disk, lambda about: "")
assert found.added + found.present == 40 and found.complete and not found.damaged, found
assert not disk.problem, disk.problem
"""


def test_several_processes_import_at_once(tmp_path):
    keys = [f"{number:02x}" * 32 for number in range(40)]
    archive.export_to(tmp_path / "file", filled(tmp_path, "source", {key: (bytes(900), HERE) for key in keys}))
    command = [sys.executable, "-c", IMPORTER, str(tmp_path / "target"), str(tmp_path / "file")]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, problem = process.communicate(timeout=120)
        assert process.returncode == 0, problem
    target = DiskCache(tmp_path / "target", 1 << 20)
    assert all(target.get(key) == bytes(900) for key in keys)
