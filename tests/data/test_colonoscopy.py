"""Fetching survives cut connections and kills, and every frame of every video becomes an image."""

import http.server
import threading
from fractions import Fraction

import av
import numpy as np
import pytest

from sirc.data import fetch_colonoscopy, image_folder
from sirc.data.catalogue.colonoscopy import DownloadError, download, write_frames
from sirc.errors import ImageError
from sirc.progress import Progress


class Server:
    """Serves `files` on localhost; `cuts` are how many bytes to send before hanging up, one for each answer."""

    def __init__(self, *, ranges=True, tag='"v1"'):
        self.files, self.requests, self.cuts, self.errors = {}, [], [], []
        self.ranges, self.tag, self.lies = ranges, tag, {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        content = self.files.get(handler.path)
        if self.errors or content is None:
            code, headers = self.errors.pop(0) if self.errors else (404, {})
            handler.send_response(code)
            for key, value in headers.items():
                handler.send_header(key, value)
            handler.end_headers()
            return
        start = 0
        if wanted and self.ranges and handler.headers.get("If-Range") == self.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                handler.send_response(416)
                handler.end_headers()
                return
            handler.send_response(206)
            handler.send_header(
                "Content-Range", f"bytes {start + self.lies.get('start', 0)}-{len(content) - 1}/{len(content)}"
            )
        else:
            handler.send_response(200)
        if self.tag:
            handler.send_header("ETag", self.tag)
        if "length" not in self.lies:
            handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        handler.wfile.write(content[start:] if cut is None else content[start : start + cut])
        handler.close_connection = True


CONTENT = np.random.default_rng(0).bytes(700_000)


@pytest.fixture
def server():
    with Server() as running:
        running.files["/a.bin"] = CONTENT
        yield running


class Naps(list):
    def __call__(self, seconds):
        self.append(seconds)


def test_a_file_comes_whole_and_only_once(server, tmp_path):
    path = download(server.base + "/a.bin", tmp_path / "deep" / "a.bin")
    assert path.read_bytes() == CONTENT
    download(server.base + "/a.bin", path)
    assert server.requests == [("/a.bin", None)]
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def test_a_cut_connection_goes_on_from_where_it_was(server, tmp_path):
    server.cuts = [300_000, 100_000]
    naps = Naps()
    path = download(server.base + "/a.bin", tmp_path / "a.bin", sleep=naps)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-", "bytes=400000-"]
    assert naps == [1, 1]  # bytes came in between


def test_a_killed_download_leaves_nothing_behind(server, tmp_path):
    class Killer(Progress):
        def task(self, name, total, *, done=0, unit="images"):
            assert (name, total, done, unit) == ("a.bin", len(CONTENT), 0, "bytes")
            raise KeyboardInterrupt

    server.cuts = [5000]
    with pytest.raises(DownloadError, match=r"the connection ended after 5,000 of 700,000 bytes, 1 times in a row"):
        download(server.base + "/a.bin", tmp_path / "a.bin", retries=0)
    with pytest.raises(KeyboardInterrupt):
        download(server.base + "/a.bin", tmp_path / "a.bin", progress=Killer())
    assert list(tmp_path.iterdir()) == []
    assert download(server.base + "/a.bin", tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_file_that_changed_is_fetched_from_the_start(server, tmp_path):
    def change(seconds):
        server.files["/a.bin"], server.tag = CONTENT[::-1], '"v2"'

    server.cuts = [300_000]
    assert download(server.base + "/a.bin", tmp_path / "a.bin", sleep=change).read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_sends_all_again(tmp_path):
    with Server(ranges=False) as server:
        server.files["/a.bin"] = CONTENT
        server.cuts = [300_000]
        path = download(server.base + "/a.bin", tmp_path / "a.bin", sleep=Naps())
        assert path.read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-"]


def test_without_a_version_nothing_is_joined(tmp_path):
    with Server(tag=None) as server:
        server.files["/a.bin"] = CONTENT
        server.cuts = [300_000]
        assert download(server.base + "/a.bin", tmp_path / "a.bin", sleep=Naps()).read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, None]


def test_a_weak_version_is_not_trusted(tmp_path):
    with Server(tag='W/"v1"') as server:
        server.files["/a.bin"] = CONTENT
        server.cuts = [300_000]
        assert download(server.base + "/a.bin", tmp_path / "a.bin", sleep=Naps()).read_bytes() == CONTENT
        assert [wanted for _, wanted in server.requests] == [None, None]


def test_a_server_that_resumes_at_the_wrong_place_is_not_believed(server, tmp_path):
    server.cuts, server.lies = [300_000], {"start": 5}
    with pytest.raises(DownloadError, match="the server sent 'bytes 300005-"):
        download(server.base + "/a.bin", tmp_path / "x", retries=1, sleep=Naps())


def test_a_file_of_unknown_length_comes_too(server, tmp_path):
    server.lies = {"length": True}
    assert download(server.base + "/a.bin", tmp_path / "x").read_bytes() == CONTENT


def test_busy_servers_are_asked_again_after_longer_and_longer_waits(server, tmp_path):
    server.errors = [(503, {}), (500, {}), (429, {"Retry-After": "7"}), (503, {"Retry-After": "9999"})]
    naps = Naps()
    assert download(server.base + "/a.bin", tmp_path / "x", sleep=naps).read_bytes() == CONTENT
    assert naps == [1, 2, 7, 60]
    server.errors = [(503, {})] * 3
    with pytest.raises(DownloadError, match=r"HTTP 503 Service Unavailable, 3 times in a row"):
        download(server.base + "/a.bin", tmp_path / "y", retries=2, sleep=Naps())


@pytest.mark.parametrize("code", [404, 403, 400])
def test_a_refusal_is_final(server, tmp_path, code):
    server.errors = [(code, {})]
    with pytest.raises(
        DownloadError, match=rf"a.bin' cannot be fetched: the server answered HTTP {code} .*Look for its new address"
    ):
        download(server.base + "/a.bin", tmp_path / "x", sleep=Naps())
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_is_said_so(tmp_path):
    with Server() as server:
        url = server.base + "/a.bin"
    with pytest.raises(DownloadError, match=r"refused.* 2 times in a row.*Check the network"):
        download(url, tmp_path / "x", retries=1, sleep=Naps())


def film(path, frames, size=(64, 48), color=0):
    """A video whose frame i is grey of brightness 20 + 4·i, with a tint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(25))
        stream.width, stream.height = size
        stream.pix_fmt, stream.bit_rate = "yuv420p", 4_000_000
        for i in range(frames):
            pixels = np.full((size[1], size[0], 3), 20 + 4 * i, np.uint8)
            pixels[..., 0] += color
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def test_every_frame_becomes_an_image(tmp_path):
    video = film(tmp_path / "v.mp4", 23)
    assert write_frames(video, tmp_path / "out", "v") == 23
    images = image_folder(tmp_path / "out", labelled=False)
    assert [images.path(i).name for i in (0, 22)] == ["v_00000.jpg", "v_00022.jpg"]
    for i in range(23):
        assert np.asarray(images.image(i)).mean() == pytest.approx(20 + 4 * i, abs=4)


LENGTHS = {"hyperplasic": 3, "serrated": 4, "adenoma": 5}


@pytest.fixture
def site(tmp_path):
    with Server() as server:
        for lesion, frames in LENGTHS.items():
            for number in (1, 2):
                content = film(tmp_path / "site" / "x.mp4", frames + number).read_bytes()
                server.files[f"/set/{lesion.title()}/{lesion}_{number:02}/videos/NBI.mp4"] = content
        yield server


def test_the_first_videos_of_each_lesion_are_fetched_and_cut(site, tmp_path):
    found = fetch_colonoscopy(tmp_path / "c", base=site.base + "/set/", videos=2)
    expected = {f"{lesion}_{n:02}_NBI": frames + n for lesion, frames in LENGTHS.items() for n in (1, 2)}
    assert found.frames == expected
    assert found.total == sum(expected.values()) == 33
    assert found.ok
    assert found.expected is None
    names = sorted(file.name for file in (tmp_path / "c" / "images").iterdir())
    assert len(names) == 33
    assert names[0] == "adenoma_01_NBI_00000.jpg"
    assert "33 frames in" in str(found)
    before = len(site.requests)
    assert fetch_colonoscopy(tmp_path / "c", base=site.base + "/set", videos=2) == found
    assert len(site.requests) == before


@pytest.mark.slow
def test_ten_videos_of_each_are_compared_with_the_papers_number(site, tmp_path):
    for lesion in LENGTHS:
        for number in range(1, 11):
            first = site.files[f"/set/{lesion.title()}/{lesion}_01/videos/NBI.mp4"]
            site.files[f"/set/{lesion.title()}/{lesion}_{number:02}/videos/NBI.mp4"] = first
    found = fetch_colonoscopy(tmp_path / "c", base=site.base + "/set")
    assert (found.total, found.ok) == (150, False)
    assert "(the paper has 12,312)" in str(found)


def test_only_the_video_that_was_cut_short_is_cut_again(site, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    fetch_colonoscopy(folder, base=site.base + "/set", videos=2)
    (folder / "images" / "serrated_02_NBI_00001.jpg").unlink()  # as a kill or a careless hand leaves it
    (folder / "images" / "serrated_02_NBI_00099.jpg").write_bytes(b"left over")
    other = (folder / "images" / "adenoma_01_NBI_00000.jpg").stat().st_mtime_ns
    found = fetch_colonoscopy(folder, base=site.base + "/set", videos=2)
    assert found.total == 33 == len(list((folder / "images").iterdir()))
    assert (folder / "images" / "adenoma_01_NBI_00000.jpg").stat().st_mtime_ns == other
    assert len(site.requests) == 6  # the video itself was still there


def test_a_broken_video_is_named_when_the_others_are_done(site, tmp_path):
    good = site.files["/set/Serrated/serrated_01/videos/NBI.mp4"]
    site.files["/set/Serrated/serrated_01/videos/NBI.mp4"] = good[: len(good) // 2]
    with pytest.raises(
        ImageError, match=r"1 of 3 videos cannot be decoded: '.*serrated_01_NBI.mp4' is damaged.*Delete"
    ):
        fetch_colonoscopy(tmp_path / "c", base=site.base + "/set", videos=1)
    kept = {file.name[:10] for file in (tmp_path / "c" / "images").iterdir()}
    assert kept == {"hyperplasi", "adenoma_01"}
    site.files["/set/Serrated/serrated_01/videos/NBI.mp4"] = good
    (tmp_path / "c" / "videos" / "serrated_01_NBI.mp4").unlink()
    assert fetch_colonoscopy(tmp_path / "c", base=site.base + "/set", videos=1).total == 4 + 5 + 6


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"\x00" * 4000])
def test_a_file_that_is_no_video_is_named(tmp_path, content):
    (tmp_path / "v.mp4").write_bytes(content)
    with pytest.raises(ImageError, match=r"v.mp4' is damaged after 0 frames"):
        write_frames(tmp_path / "v.mp4", tmp_path / "out", "v")


def test_a_video_that_is_not_there_stops_the_run_with_its_address(site, tmp_path):
    with pytest.raises(DownloadError, match=r"/set/Hyperplasic/hyperplasic_03/videos/NBI.mp4' .*HTTP 404"):
        fetch_colonoscopy(tmp_path / "c", base=site.base + "/set", videos=3)
