"""A download survives cut connections and kills, and is checked before it gets its name."""

import errno
import hashlib
import ssl
import urllib.error

import numpy as np
import pytest

from sirc.data.catalogue import download as module
from sirc.data.catalogue.download import DownloadError, download, remote_size
from sirc.progress import Progress
from support.http_server import Server

CONTENT = np.random.default_rng(0).bytes(700_000)


@pytest.fixture
def server():
    with Server() as running:
        running.files["/a.bin"] = CONTENT
        yield running


@pytest.fixture(autouse=True)
def naps(monkeypatch):
    """The seconds of each wait, which takes no time."""
    waits = []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    return waits


@pytest.fixture
def retries(monkeypatch):
    """Set the number of attempts without a new byte."""
    return lambda count: monkeypatch.setattr(module, "_RETRIES", count)


def test_a_file_comes_whole_and_only_once(server, tmp_path):
    path = download(server.base + "/a.bin", tmp_path / "deep" / "a.bin")
    assert path.read_bytes() == CONTENT
    download(server.base + "/a.bin", path)
    assert server.requests == [("/a.bin", None)]
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def test_a_cut_connection_goes_on_from_where_it_was(server, tmp_path, naps):
    server.cuts = [300_000, 100_000]
    path = download(server.base + "/a.bin", tmp_path / "a.bin")
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-", "bytes=400000-"]
    assert naps == [1, 1]  # bytes came in between


class Killer(Progress):
    def task(self, name, total, *, done=0, unit="images"):
        assert (name, total, unit) == ("a.bin", len(CONTENT), "bytes")
        raise KeyboardInterrupt


def stop_after(server, path, count, **options):
    """Download, and be stopped when `count` bytes have come."""
    server.cuts = [count]
    words = rf"after {count:,} of 700,000 bytes, 1 times in a row.*it continues"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_RETRIES", 0)
        with pytest.raises(DownloadError, match=words):
            download(server.base + "/a.bin", path, **options)
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.bin.part", "a.bin.part.json"]
    assert path.with_name("a.bin.part").read_bytes() == CONTENT[:count]


def test_a_stopped_download_is_continued_by_the_next_call(server, tmp_path):
    path = tmp_path / "a.bin"
    with pytest.raises(KeyboardInterrupt):
        download(server.base + "/a.bin", path, progress=Killer())
    stop_after(server, path, 300_000)
    with pytest.raises(KeyboardInterrupt):
        download(server.base + "/a.bin", path, progress=Killer())
    assert download(server.base + "/a.bin", path).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, None, "bytes=300000-", "bytes=300000-"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]


def test_a_download_that_was_stopped_at_its_last_byte_is_not_requested_again(server, tmp_path):
    stop_after(server, tmp_path / "a.bin", 300_000)
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_part_of_another_version_is_thrown_away(server, tmp_path):
    stop_after(server, tmp_path / "a.bin", 300_000)
    server.files["/a.bin"], server.tag = CONTENT[::-1], '"v2"'
    assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT[::-1]


def test_a_part_longer_than_the_file_is_thrown_away(server, tmp_path):
    stop_after(server, tmp_path / "a.bin", 300_000)
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"more")
    assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_has_its_checksum(server, tmp_path, kind):
    right = f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    assert download(server.base + "/a.bin", tmp_path / "a.bin", checksum=right).read_bytes() == CONTENT
    wrong = f"{kind}:{hashlib.new(kind, b'other').hexdigest()}"
    with pytest.raises(DownloadError, match=rf"the {kind.upper()} checksum \w+{wrong[-8:]}; got \w+{right[-8:]}"):
        download(server.base + "/a.bin", tmp_path / "b.bin", checksum=wrong)
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]


def test_a_checksum_lets_two_halves_be_joined_without_a_version(tmp_path):
    checksum = f"md5:{hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()}"
    with Server(tag=None) as server:
        server.files["/a.bin"] = CONTENT
        stop_after(server, tmp_path / "a.bin", 300_000, checksum=checksum)
        (tmp_path / "a.bin.part.json").unlink()
        assert download(server.base + "/a.bin", tmp_path / "a.bin", checksum=checksum).read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-"]


def test_two_processes_do_not_write_to_one_file(server, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / "a.bin.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match=r"another process is fetching '.*a.bin'"):
            download(server.base + "/a.bin", tmp_path / "a.bin")
    assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("step", ["file_digest", "os.replace"])
def test_the_lock_is_held_until_the_file_has_its_name(server, tmp_path, monkeypatch, step):
    pytest.importorskip("fcntl")
    checksum, refused = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", []
    owner, name = (module.os, "replace") if step == "os.replace" else (module, step)
    original = getattr(owner, name)

    def begin_another(*args):
        with pytest.raises(DownloadError, match="another process is fetching") as caught:
            download(server.base + "/a.bin", tmp_path / "a.bin", checksum=checksum)
        refused.append(caught.value)
        return original(*args)

    monkeypatch.setattr(owner, name, begin_another)
    assert download(server.base + "/a.bin", tmp_path / "a.bin", checksum=checksum).read_bytes() == CONTENT
    assert len(refused) == len(server.requests) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]


def test_a_bad_certificate_is_final(tmp_path, monkeypatch):
    reason = ssl.SSLCertVerificationError(1, "certificate verify failed")
    reason.verify_message = "certificate has expired"
    asked = []

    def refuse(*args, **named):
        asked.append(args)
        raise urllib.error.URLError(reason)

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(DownloadError, match=r"is not valid \(certificate has expired\). Check the clock"):
        download("https://example.org/a.bin", tmp_path / "a.bin")
    assert len(asked) == 1


def test_a_read_only_disk_is_not_taken_for_a_broken_network(server, tmp_path):
    class ReadOnly(Progress):
        def task(self, name, total, *, done=0, unit="images"):
            raise OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(DownloadError, match=r"Read-only file system. Make it writable, and run this again"):
        download(server.base + "/a.bin", tmp_path / "a.bin", progress=ReadOnly())
    assert len(server.requests) == 1


def test_a_full_disk_is_not_taken_for_a_broken_network(server, tmp_path):
    class Full(Progress):
        def task(self, name, total, *, done=0, unit="images"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match=r"No space left on device. Make room, and run this again"):
        download(server.base + "/a.bin", tmp_path / "a.bin", progress=Full())
    assert len(server.requests) == 1


def test_the_size_is_asked_without_fetching(server):
    assert remote_size(server.base + "/a.bin") == len(CONTENT)
    assert remote_size(server.base + "/missing") is None


def test_a_file_that_changed_is_fetched_from_the_start(server, tmp_path, monkeypatch):
    def change(seconds):
        server.files["/a.bin"], server.tag = CONTENT[::-1], '"v2"'

    server.cuts = [300_000]
    monkeypatch.setattr(module.time, "sleep", change)
    assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_sends_all_again(tmp_path):
    with Server(ranges=False) as server:
        server.files["/a.bin"] = CONTENT
        server.cuts = [300_000]
        path = download(server.base + "/a.bin", tmp_path / "a.bin")
        assert path.read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-"]


def test_without_a_version_nothing_is_joined(tmp_path):
    with Server(tag=None) as server:
        server.files["/a.bin"] = CONTENT
        server.cuts = [300_000]
        assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, None]


def test_a_weak_version_is_not_trusted(tmp_path):
    with Server(tag='W/"v1"') as server:
        server.files["/a.bin"] = CONTENT
        server.cuts = [300_000]
        assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, None]


def test_a_server_that_resumes_at_the_wrong_place_is_not_believed(server, tmp_path, retries):
    retries(1)
    server.cuts, server.lies = [300_000], {"start": 5}
    with pytest.raises(DownloadError, match="the server sent 'bytes 300005-"):
        download(server.base + "/a.bin", tmp_path / "x")


def test_a_file_of_unknown_length_comes_too(server, tmp_path):
    server.lies = {"length": True}
    assert download(server.base + "/a.bin", tmp_path / "x").read_bytes() == CONTENT


def test_busy_servers_are_asked_again_after_longer_and_longer_waits(server, tmp_path, naps, retries):
    server.errors = [(503, {}), (500, {}), *((503, {"Retry-After": wait}) for wait in ("7", "9999", "²"))]
    assert download(server.base + "/a.bin", tmp_path / "x").read_bytes() == CONTENT
    assert naps == [1, 2, 7, 60, 16]
    server.errors = [(503, {})] * 3
    retries(2)
    with pytest.raises(DownloadError, match=r"HTTP 503 Service Unavailable, 3 times in a row"):
        download(server.base + "/a.bin", tmp_path / "y")


@pytest.mark.parametrize("code", [404, 403, 400])
def test_a_refusal_is_final(server, tmp_path, code):
    server.errors = [(code, {})]
    with pytest.raises(
        DownloadError, match=rf"a.bin' cannot be fetched: the server answered HTTP {code} .*Look for its new address"
    ):
        download(server.base + "/a.bin", tmp_path / "x")
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_is_said_so(tmp_path, retries):
    retries(1)
    with Server() as server:
        url = server.base + "/a.bin"
    with pytest.raises(DownloadError, match=r"refused.* 2 times in a row.*Check the network"):
        download(url, tmp_path / "x")
