"""Fetching the videos continues after a stop, and every frame of every video becomes an image."""

from fractions import Fraction

import av
import numpy as np
import pytest

from sirc.data import fetch_colonoscopy, image_folder
from sirc.data.catalogue.colonoscopy import write_frames
from sirc.data.catalogue.download import DownloadError
from sirc.errors import ImageError
from support.http_server import Server


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
