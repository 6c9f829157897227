"""A file is whole or absent, and a file that is not what was written is never read as if it were."""

import errno
import os
import signal
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sirc._utils.files import _SWEPT, atomic_write, read_metadata, read_npz, read_safetensors, write_safetensors
from sirc.errors import StoreError

TENSORS = {
    "half": torch.arange(5, dtype=torch.float16),
    "long": torch.arange(3),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "brain": torch.ones(3, 1, dtype=torch.bfloat16),
    "flag": torch.tensor([True, False, True]),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 4),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, TENSORS, {"format": "test/1", "words": "“ö” {}"})
    return path


def test_tensors_and_metadata_come_back(path):
    tensors, metadata = read_safetensors(path)
    assert metadata == {"format": "test/1", "words": "“ö” {}"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].data_ptr() % tensor.element_size() == 0


def test_metadata_are_read_without_the_data(path):
    expected = {"format": "test/1", "words": "“ö” {}"}
    assert read_metadata(path) == expected
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert read_metadata(path) == expected  # only a reader of the data looks at them
    path.write_bytes(damaged[:-1])
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        read_metadata(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_metadata(path.with_name("other"))


def test_the_checksum_travels_in_the_files_own_header(path):
    with safe_open(path, framework="pt") as file:
        assert len(file.metadata()["sha256"]) == 64


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tensors_are_mapped_not_read(tmp_path):
    path = tmp_path / "big.safetensors"
    write_safetensors(path, {"x": torch.zeros(1 << 20)}, {})
    tensors, _ = read_safetensors(path)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        ranges = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(str(path))]
    address = tensors["x"].data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def test_writing_to_a_mapped_tensor_does_not_reach_the_file(path):
    before = path.read_bytes()
    tensors, _ = read_safetensors(path)
    tensors["long"][0] = 99
    assert path.read_bytes() == before


@pytest.mark.slow
def test_every_flipped_byte_is_noticed(path, attack):
    content = path.read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"x.safetensors' cannot be trusted: .*If sirc wrote it, delete it"):
            read_safetensors(path)
    attack.tried("flipped bits in a safetensors file", len(content), "noticed by the checksum")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_file_is_noticed(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StoreError, match="cannot be trusted: not a whole safetensors file"):
        read_safetensors(path)


def test_exchanged_tensors_and_changed_metadata_are_noticed(path):
    tensors, metadata = read_safetensors(path)
    with safe_open(path, framework="pt") as file:
        digest = file.metadata()["sha256"]
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    renamed = {("half" if name == "long" else "long" if name == "half" else name): t for name, t in tensors.items()}
    for contents, words in ((renamed, metadata), (tensors, metadata | {"format": "test/2"})):
        save_file(contents, path, metadata=words | {"sha256": digest})
        with pytest.raises(StoreError, match="its content does not match its checksum"):
            read_safetensors(path)
        read_safetensors(path, verify=False)


def test_a_file_without_checksum_is_foreign(path):
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(StoreError, match="it has no checksum, so sirc did not write it"):
        read_safetensors(path)
    assert read_safetensors(path, foreign=True)[0]["x"].tolist() == [1, 1]


def test_unknown_types_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"`x` must have a dtype among .* got torch.complex64. Convert it first"):
        write_safetensors(tmp_path / "x.safetensors", {"x": torch.ones(1, dtype=torch.complex64)}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_writer_that_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "x"
    atomic_write(path, lambda file: file.write(b"old"))

    def half(file):
        file.write(b"ne")
        file.flush()
        raise error

    with pytest.raises(error):
        atomic_write(path, half)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"old"


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"/x' cannot be written: No space left on device") as caught:
        atomic_write(tmp_path / "x", lambda file: file.write(b"new"))
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_replaced_is_told_without_the_temporary_one(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match=r"/x' cannot be written: ") as caught:
        atomic_write(tmp_path / "x", lambda file: file.write(b"new"))
    assert ".tmp" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="elsewhere"):  # what the writer read is named as it is
        atomic_write(tmp_path / "y", lambda _: Path("/elsewhere").read_bytes())


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    seen = []

    def write(file):
        file.write(b"new")
        file.flush()
        seen.append(path.read_bytes())

    atomic_write(path, write)
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"


def test_data_are_synced_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def watched(handle):
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), replace(*paths)))
    atomic_write(tmp_path / "x", lambda file: file.write(b"new"))
    assert calls == ["file", "rename", "folder"]


def test_files_have_the_permissions_of_any_other_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    atomic_write(tmp_path / "ours", lambda file: file.write(b""))
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


class Poison:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_pickled_objects_are_never_read(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, logits=np.array([Poison()], dtype=object))
    with pytest.raises(StoreError, match="which is never read because it can run code"):
        read_npz(path, ["logits"])
    torch.save({"logits": Poison()}, path)
    with pytest.raises(StoreError):
        read_npz(path, ["logits"])


def test_a_damaged_npz_is_noticed(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, logits=np.ones((100, 100)))
    content = path.read_bytes()
    for damaged in (b"", b"junk", content[:500], content[:-10], content[:2000] + b"\1" + content[2001:]):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"x.npz' cannot be trusted: not a whole .npz file"):
            read_npz(path, ["logits"])
    with open(path, "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(StoreError, match="it holds a single array"):
        read_npz(path, ["logits"])


def _fork(work):
    """Run `work` in a process of its own, which must end by itself or by a kill."""
    if not (child := os.fork()):
        try:
            work()
        finally:
            os._exit(0)
    return child


def age(file, seconds=90):
    """Let a file be written so long ago."""
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_what_a_killed_writer_left_is_swept_and_what_a_live_one_writes_is_not(tmp_path):
    path = tmp_path / "x"
    atomic_write(path, lambda file: file.write(b"old"))
    killed = _fork(lambda: atomic_write(path, lambda file: os.kill(os.getpid(), signal.SIGKILL)))
    os.waitpid(killed, 0)
    (left,) = tmp_path.glob(".x.*.tmp")
    assert path.read_bytes() == b"old"

    begun, go = os.pipe(), os.pipe()

    def slowly(file):
        os.write(begun[1], b"1")
        os.read(go[0], 1)
        file.write(b"slow")

    writing = _fork(lambda: atomic_write(path, slowly))  # sees the folder as this process does: swept before
    os.read(begun[0], 1)
    (live,) = set(tmp_path.glob(".x.*.tmp")) - {left}
    age(live)  # the lock alone says that its writer lives, not the time
    _SWEPT.clear()  # as in the next process
    atomic_write(path, lambda file: file.write(b"new"))
    assert not left.exists()
    assert live.exists()
    assert path.read_bytes() == b"new"
    os.write(go[1], b"1")
    assert os.waitpid(writing, 0)[1] == 0
    assert path.read_bytes() == b"slow"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("clock", [0, -7200, 7200])
def test_what_was_written_within_a_minute_by_the_clock_of_the_file_system_is_not_swept(tmp_path, monkeypatch, clock):
    real = os.fstat

    def of_server(descriptor):
        mode, ino, dev, _, *owner_and_size, atime, mtime, ctime = real(descriptor)
        return os.stat_result((mode, ino, dev, 0, *owner_and_size, atime, mtime + clock, ctime))  # some count no links

    young, old = (tmp_path / f".y.1-0123abc{digit}.tmp" for digit in (1, 2))
    for file, seconds in ((young, 5), (old, 65)):
        file.touch()
        age(file, seconds - clock)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", of_server)
        atomic_write(tmp_path / "x", lambda file: file.write(b"all"))
    assert {*tmp_path.iterdir()} == {tmp_path / "x", young}


def test_what_another_computer_left_is_swept_after_a_minute_by_the_same_process(tmp_path, monkeypatch):
    monkeypatch.setattr("sirc._utils.files._computer", lambda: "0123abcd")
    theirs, ours = tmp_path / ".y.89abcdef-1-0123abcd.tmp", tmp_path / ".y.0123abcd-1-0123abcd.tmp"
    for file in (theirs, ours):
        file.touch()
    atomic_write(tmp_path / "x", lambda file: file.write(b"all"))
    assert {*tmp_path.iterdir()} == {tmp_path / "x", theirs}  # it may be locked there
    age(theirs)
    atomic_write(tmp_path / "x", lambda file: file.write(b"all"))
    assert {*tmp_path.iterdir()} == {tmp_path / "x"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_writer_whose_file_is_swept_before_it_is_locked_takes_another_name(tmp_path, monkeypatch):
    import fcntl

    lock, swept = fcntl.flock, []

    def late(file, how):
        if not swept and how == fcntl.LOCK_EX:  # now another process comes first
            (name,) = tmp_path.glob(".x.*.tmp")
            swept.append(name)
            child = _fork(lambda: atomic_write(tmp_path / "y", lambda file: file.write(b"other")))
            assert os.waitpid(child, 0)[1] == 0
            assert not name.exists()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    atomic_write(tmp_path / "x", lambda file: file.write(b"all"))
    assert len(swept) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"all", "y": b"other"}


def test_only_what_looks_like_ours_is_swept(tmp_path):
    others = [tmp_path / name for name in (".x.tmp", "x.1-0123abcd.tmp", ".x.1-0123abcd.tmp.bak", ".x.one-two.tmp")]
    for file in others:
        file.touch()
    (tmp_path / ".y.1-0123abcd.tmp").touch()
    for file in tmp_path.iterdir():
        age(file)
    atomic_write(tmp_path / "x", lambda file: file.write(b"all"))
    assert {*tmp_path.iterdir()} == {*others, tmp_path / "x"}


def test_a_checksum_computed_beside_the_writing_gives_the_same_file(tmp_path, monkeypatch):
    tensors = {"b": torch.arange(50.0), "a": torch.arange(7)}
    write_safetensors(tmp_path / "small", tensors, {"x": "y"})
    monkeypatch.setattr("sirc._utils.files._MUCH", 0)
    write_safetensors(tmp_path / "large", tensors, {"x": "y"})
    assert (tmp_path / "small").read_bytes() == (tmp_path / "large").read_bytes()
    assert torch.equal(read_safetensors(tmp_path / "large")[0]["b"], tensors["b"])
