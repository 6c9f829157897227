"""Public datasets come whole, checked and in the layout that experiments expect, from archives of the real shape."""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torchvision.datasets as vision
from PIL import Image

from sirc.data import Source, benchmarks, check, fetch_dataset, open_source, public_dataset, public_datasets
from sirc.data.catalogue import public
from sirc.data.catalogue.download import DownloadError
from sirc.data.catalogue.unpack import unpack
from sirc.progress import Progress, Task
from support import benchmark_folders
from support.http_server import Server


def picture(value=0, form="JPEG"):
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (value % 256, 10, 20)).save(out, form)
    return out.getvalue()


def tar(files, mode="w:gz"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def idx(array):
    """The format of MNIST's files."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


IMAGES = {f"banded/banded_{i:04}.jpg": picture(i) for i in range(3)}
CATEGORIES = {
    f"101_ObjectCategories/{kind}/image_{i:04}.jpg": picture(i)
    for kind in ("BACKGROUND_Google", "ant", "bass")
    for i in range(2)
}
# By dataset, the content of each of its files, in the shape that its makers gave it.
CONTENT = {
    "textures": [
        tar({**{f"dtd/images/{name}": image for name, image in IMAGES.items()}, "dtd/imdb/imdb.mat": b"x"}),
        b"banded/banded_0000.jpg\nbanded/banded_0002.jpg\n",
    ],
    "colorectal": [
        zipped({f"Kather_texture_2016_image_tiles_5000/01_TUMOR/{i}.tif": picture(i, "TIFF") for i in range(4)})
    ],
    "inaturalist": [tar({f"./iNaturalist/images/{i:040x}.jpg": picture(i) for i in range(3)})],
    "openimage-o": [
        tar({f"test/{i:016x}.jpg": picture(i) for i in range(5)}),
        "".join(f"{i:016x}.jpg\n" for i in (0, 2, 4)).encode(),
    ],
    "imagenet-o": [tar({f"imagenet-o/n0{i:07}/{i}.JPEG": picture(i) for i in range(3)}, "w")],
    "sun": [tar({f"SUN/images/{i}.jpg": picture(i) for i in range(3)})],
    "mnist": [
        idx(np.full((4, 28, 28), 7, np.uint8)),
        idx(np.array([0, 1, 2, 3], np.uint8)),
        idx(np.full((2, 28, 28), 9, np.uint8)),
        idx(np.array([1, 0], np.uint8)),
    ],
    "caltech101": [
        zipped({"caltech-101/101_ObjectCategories.tar.gz": tar(CATEGORIES), "__MACOSX/caltech-101/._x": b"x"})
    ],
    "eurosat": [zipped({f"2750/{kind}/{kind}_{i}.jpg": picture(i) for kind in ("Forest", "River") for i in range(2)})],
}


@pytest.fixture
def server():
    with Server() as running:
        yield running


def served(server, name, contents=None, **changes):
    """A dataset of the catalogue whose files are these contents on the test's server."""
    dataset, contents = public_dataset(name), contents or CONTENT[name]
    files = []
    for file, content in zip(dataset.files, contents, strict=True):
        place = f"/{name}/{file.url.rpartition('/')[2]}"
        server.files[place] = content
        kind = file.checksum.partition(":")[0]
        checksum = f"{kind}:{hashlib.new(kind, content).hexdigest()}" if kind else ""
        replaced = {"url": server.base + place, "size": len(content), "checksum": checksum, **changes}
        files.append(dataclasses.replace(file, **replaced))
    return dataclasses.replace(dataset, files=tuple(files))


@pytest.fixture
def small(monkeypatch):
    """The benchmarks with the sizes of the test's archives, so that `check` finds nothing missing."""
    shrunk = []
    for one in benchmarks():
        size = {"textures": 2, "colorectal": 4}.get(one.key, 3)
        parts = tuple(dataclasses.replace(part, size=part.size and size) for part in one.splits)
        shrunk.append(dataclasses.replace(one, splits=parts))
    monkeypatch.setattr("sirc.data.catalogue.benchmarks.benchmarks", lambda: tuple(shrunk))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["textures", "colorectal", "inaturalist", "openimage-o", "imagenet-o"])
def test_a_benchmark_is_ready_when_it_has_come(server, tmp_path, name):
    dataset = served(server, name)
    assert not dataset.is_in(tmp_path)
    fetch_dataset(dataset, tmp_path)
    report = check(name, tmp_path / dataset.folder, decode=True)
    assert report.ok, str(report)
    assert dataset.is_in(tmp_path)
    assert len(open_source(Source(name), root=tmp_path, preprocess=None, labelled=False)) == report.counts["test"]
    left = sorted(entry.name for entry in (tmp_path / ".downloads").iterdir())
    assert left == [f".{name}.lock", f"{name}.json"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torchvision leaves files open
@pytest.mark.parametrize(("name", "counts"), [("mnist", (4, 2)), ("caltech101", (4,)), ("eurosat", (4,))])
def test_torchvision_opens_what_has_come(server, tmp_path, name, counts):
    dataset = served(server, name)
    fetch_dataset(dataset, tmp_path)
    source = Source(dataset.use.removeprefix('dataset = "').removesuffix('"'))
    splits = ("train", "test") if len(counts) == 2 else (None,)
    opened = [open_source(source, root=tmp_path, split=split, preprocess=None) for split in splits]
    assert tuple(map(len, opened)) == counts
    assert opened[0].image(0).mode == "RGB"


def test_a_plain_folder_of_images_is_named_as_the_catalogue_says(server, tmp_path):
    fetch_dataset(served(server, "sun"), tmp_path)
    assert public_dataset("sun").use == 'dataset = "folder", path = "SUN/images"'
    assert len(open_source(Source("folder", path="SUN/images"), root=tmp_path, preprocess=None, labelled=False)) == 3


def test_a_second_call_fetches_nothing(server, tmp_path):
    dataset = served(server, "textures")
    first = fetch_dataset(dataset, tmp_path)
    before = len(server.requests)
    assert fetch_dataset(dataset, tmp_path) == first
    assert len(server.requests) == before


def test_only_what_is_missing_is_fetched(server, tmp_path):
    dataset = served(server, "textures")
    fetch_dataset(dataset, tmp_path)
    server.requests.clear()
    (tmp_path / "dtd" / "texture.txt").unlink()
    fetch_dataset(dataset, tmp_path)
    assert server.requests == [("/textures/texture.txt", None)]


def test_an_archive_that_was_cut_in_the_middle_is_continued(server, tmp_path, monkeypatch):
    dataset = served(server, "colorectal")
    half = len(CONTENT["colorectal"][0]) // 2
    server.cuts, server.errors = [half], []
    monkeypatch.setattr("sirc.data.catalogue.download._RETRIES", 0)
    with pytest.raises(DownloadError, match=rf"after {half:,} of "):
        fetch_dataset(dataset, tmp_path)
    assert not dataset.is_in(tmp_path)
    fetch_dataset(dataset, tmp_path)
    assert [wanted for _, wanted in server.requests] == [None, f"bytes={half}-"]
    assert len(list((tmp_path / dataset.folder).rglob("*.tif"))) == 4


def test_a_wrong_checksum_leaves_nothing_at_its_place(server, tmp_path):
    dataset = served(server, "inaturalist", checksum="md5:" + "0" * 32)
    with pytest.raises(DownloadError, match=r"must have the MD5 checksum 0{32}; got"):
        fetch_dataset(dataset, tmp_path)
    assert not (tmp_path / "iNaturalist").exists()
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [".inaturalist.lock"]


def test_digests_of_what_came_are_kept_also_where_none_is_published(server, tmp_path):
    dataset = served(server, "openimage-o")
    archive, listed = dataset.files
    assert archive.checksum == ""
    digests = fetch_dataset(dataset, tmp_path)
    assert digests == {
        archive.url: f"sha256:{hashlib.sha256(CONTENT['openimage-o'][0]).hexdigest()}",
        listed.url: listed.checksum,
    }
    assert json.loads((tmp_path / ".downloads" / "openimage-o.json").read_text(encoding="utf-8")) == digests


def linked(kind):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry = tarfile.TarInfo("iNaturalist/images/a.jpg")
        entry.type, entry.linkname = kind, "../../../../secret"
        archive.addfile(entry)
    return out.getvalue()


def zip_with_link():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        entry = zipfile.ZipInfo("iNaturalist/images/a.jpg")
        entry.create_system, entry.external_attr = 3, 0o120777 << 16
        archive.writestr(entry, "../../../secret")
    return out.getvalue()


GOOD = {"iNaturalist/images/0.jpg": picture()}
EVIL = {
    "up": (tar({**GOOD, "../../escaped": b"x"}), "leads out of its folder"),
    "inside up": (tar({**GOOD, "iNaturalist/images/../../../escaped": b"x"}), "leads out of its folder"),
    "absolute": (tar({**GOOD, "/tmp/escaped": b"x"}), "leads out of its folder"),
    "zip up": (zipped({**GOOD, "../../escaped": b"x"}), "leads out of its folder"),
    "drive": (zipped({**GOOD, "C:/escaped": b"x"}), "leads out of its folder"),
    "symbolic link": (linked(tarfile.SYMTYPE), "is a link or a device"),
    "hard link": (linked(tarfile.LNKTYPE), "is a link or a device"),
    "device": (linked(tarfile.CHRTYPE), "is a link or a device"),
    "zip link": (zip_with_link(), "is a link"),
    "other content": (tar({"other/0.jpg": picture()}), "it has no 'iNaturalist/images'"),
    "no archive": (b"<html>moved</html>", "is not a complete archive"),
    "cut short": (tar(GOOD)[:200], r"is not a complete archive \([^\n]*[^:]\). Delete it"),
}


@pytest.mark.parametrize("kind", EVIL)
def test_an_archive_that_cannot_be_trusted_is_refused_whole(server, tmp_path, kind):
    content, why = EVIL[kind]
    root = tmp_path / "a" / "b" / "c"
    with pytest.raises(DownloadError, match=why):
        fetch_dataset(served(server, "inaturalist", [content]), root)
    assert not (root / "iNaturalist").exists()
    assert not list(tmp_path.rglob("escaped*"))
    assert not Path("/tmp/escaped").exists()


def test_an_unpacking_that_was_stopped_is_begun_anew(server, tmp_path):
    dataset = served(server, "inaturalist")
    left = tmp_path / ".downloads" / "inaturalist" / "unpacked" / "0" / "iNaturalist" / "images" / "half.jpg"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    fetch_dataset(dataset, tmp_path)
    assert sorted(file.suffix for file in (tmp_path / "iNaturalist" / "images").iterdir()) == [".jpg"] * 3
    assert not (tmp_path / "iNaturalist" / "images" / "half.jpg").exists()


class OnUnpacking(Progress):
    """Calls `action` whenever a file of an archive has been unpacked."""

    def __init__(self, action):
        self.action = action

    def task(self, name, total, *, done=0, unit="images"):
        task = Task(lambda steps, facts: self.action()) if unit == "files" else Task()
        return contextlib.nullcontext(task)


def test_a_second_call_leaves_the_first_one_alone_while_it_unpacks(server, tmp_path):
    pytest.importorskip("fcntl")
    dataset, refused = served(server, "inaturalist"), []

    def begin_another():
        with pytest.raises(DownloadError, match=r"another process is fetching .* into ") as caught:
            fetch_dataset(dataset, tmp_path)
        refused.append(caught.value)

    fetch_dataset(dataset, tmp_path, progress=OnUnpacking(begin_another))
    assert len(refused) == 3
    assert len(list((tmp_path / "iNaturalist" / "images").iterdir())) == 3


def test_a_complete_dataset_needs_no_disk_that_can_be_written_to(server, tmp_path, monkeypatch):
    dataset = served(server, "inaturalist")
    digests = fetch_dataset(dataset, tmp_path)
    monkeypatch.setattr(Path, "mkdir", lambda *args, **named: pytest.fail("a folder was made"))
    (tmp_path / ".downloads" / ".inaturalist.lock").unlink()
    assert fetch_dataset(dataset, tmp_path) == digests
    assert not (tmp_path / ".downloads" / ".inaturalist.lock").exists()


def test_what_has_come_takes_no_new_room(tmp_path, monkeypatch):
    file = public.RemoteFile("http://localhost/a.tar", "a", ("a",), size=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1400))
    with pytest.raises(DownloadError, match="must have room"):
        public._require_room(tmp_path, file, tmp_path / "a.tar")
    (tmp_path / "a.tar.part").write_bytes(bytes(600))
    public._require_room(tmp_path, file, tmp_path / "a.tar")
    (tmp_path / "a.tar.part").write_bytes(bytes(599))
    with pytest.raises(DownloadError, match="must have room"):
        public._require_room(tmp_path, file, tmp_path / "a.tar")


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path):
    (tmp_path / "o.tar").write_bytes(tar({"o/inner.zip": zipped({"in/x.txt": b"hi"})}, "w"))
    assert (unpack(tmp_path / "o.tar", ["o/inner.zip", "in"], tmp_path / "out") / "x.txt").read_bytes() == b"hi"


def with_entry(offset, value):
    """A zip whose file has this byte in its own header and in the list at the end, which starts two bytes later."""
    content = bytearray(zipped({"a/b": b"2"}))
    content[offset] = content[content.index(b"PK\x01\x02") + offset + 2] = value
    return bytes(content)


ODD = {
    "encrypted": (with_entry(6, 1), "is not unpacked: this Python cannot read it .*is encrypted"),
    "unknown compression": (with_entry(8, 99), "is not unpacked: this Python cannot read it"),
    "file, then folder": (zipped({"a": b"1", "a/b": b"2"}), "cannot be unpacked into '.*out/0/a'"),
    "file, then deep folder": (zipped({"a": b"1", "a/b/c": b"2"}), "cannot be unpacked into '.*out/0/a/b'"),
    "folder, then file": (zipped({"a/b": b"2", "a": b"1"}), "cannot be unpacked into '.*out/0/a'"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_archive_that_cannot_be_unpacked_says_why(tmp_path, kind):
    content, why = ODD[kind]
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(DownloadError, match=why):
        unpack(tmp_path / "x.zip", ["a"], tmp_path / "out")


def sparse(size):
    """A tar of a few blocks with a file of `size` zeros, in GNU's form for files with holes."""
    entry = tarfile.TarInfo("iNaturalist/images/0.jpg")
    entry.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[386:398] = header[398:410] = b"%011o\0" % 0  # one stretch of data, of no bytes
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


@pytest.mark.parametrize("content", [sparse(5_000_000), tar({"iNaturalist/images/0.jpg": bytes(5_000_000)})])
def test_an_archive_that_would_fill_the_disk_is_refused_and_removed(server, tmp_path, monkeypatch, content):
    free = 10**8 + 4_000_000
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(DownloadError, match=r"0.jpg' it takes more room than the disk has"):
        fetch_dataset(served(server, "inaturalist", [content]), tmp_path)
    assert not (tmp_path / ".downloads" / "inaturalist" / "unpacked").exists()
    free += 1_000_000
    fetch_dataset(served(server, "inaturalist", [content]), tmp_path)
    assert (tmp_path / "iNaturalist" / "images" / "0.jpg").stat().st_size == 5_000_000


def test_a_disk_that_fills_up_during_unpacking_is_told(server, tmp_path):
    def fill():
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match=r"cannot be unpacked into .*: No space left on device. Solve that"):
        fetch_dataset(served(server, "inaturalist"), tmp_path, progress=OnUnpacking(fill))


def test_a_compressed_file_is_an_archive_of_one(tmp_path):
    (tmp_path / "labels.gz").write_bytes(gzip.compress(b"1 2 3"))
    assert unpack(tmp_path / "labels.gz", ["labels"], tmp_path / "out").read_bytes() == b"1 2 3"


def test_a_disk_without_room_is_told_before_the_first_byte(server, tmp_path):
    dataset = served(server, "inaturalist", size=10**18)
    with pytest.raises(DownloadError, match=r"must have room for 2000000000.0 GB"):
        fetch_dataset(dataset, tmp_path)
    assert server.requests == []


def test_a_root_that_cannot_be_written_to_is_told_before_the_first_byte(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match=r"file' must be a writable folder; got: "):
        fetch_dataset(served(server, "inaturalist"), tmp_path / "file")
    assert server.requests == []


def test_what_needs_an_account_says_where_to_click(tmp_path):
    with pytest.raises(ValueError, match=r"must be fetched by hand(?s:.)*https://image-net.org/signup"):
        fetch_dataset("imagenet1k", tmp_path)
    text = public_dataset("imagenet1k").instructions(tmp_path)
    assert "ILSVRC2012_img_train.tar" in text
    assert text.splitlines()[-1].endswith(f"`sirc data check imagenet1k {tmp_path / 'imagenet'}`")
    assert not public_dataset("imagenet1k").is_in(tmp_path)


def test_a_dataset_put_there_by_hand_is_seen(tmp_path, monkeypatch):
    benchmark_folders.imagenet_bench(tmp_path)
    shrunk = [dataclasses.replace(one, classes=one.classes and 3) for one in benchmarks()]
    monkeypatch.setattr("sirc.data.catalogue.benchmarks.benchmarks", lambda: tuple(shrunk))
    assert public_dataset("imagenet200").is_in(tmp_path)


def test_an_unknown_name_gets_the_closest():
    with pytest.raises(ValueError, match=r"`name` must be one of textures, .*; got 'texture'.*textures"):
        public_dataset("texture")


def test_every_benchmark_with_files_can_be_got():
    assert {one.key for one in benchmarks()} - {known.name for known in public_datasets()} == {"noise"}
    for known in public_datasets():
        assert known.source.startswith("http") or known.name == "colonoscopy"
        assert known.use.startswith('dataset = "')
        assert bool(known.files) != bool(known.steps) or known.name == "colonoscopy"


# Independent of our catalogue: torchvision's own addresses and checksums.
def mirrored(kind):
    return {(kind.mirrors[0] + name, md5) for name, md5 in kind.resources}


TORCHVISION = {
    "textures": {(vision.DTD._URL, vision.DTD._MD5)},
    "cifar10": {(vision.CIFAR10.url, vision.CIFAR10.tgz_md5)},
    "cifar100": {(vision.CIFAR100.url, vision.CIFAR100.tgz_md5)},
    "svhn": {(url, md5) for url, _, md5 in (vision.SVHN.split_list[part] for part in ("train", "test"))},
    "mnist": mirrored(vision.MNIST),
    "fashion-mnist": mirrored(vision.FashionMNIST),
    "flowers102": {
        (vision.Flowers102._download_url_prefix + name, md5) for name, md5 in vision.Flowers102._file_dict.values()
    },
    "stl10": {(vision.STL10.url, vision.STL10.tgz_md5)},
    "food101": {(vision.Food101._URL, vision.Food101._MD5)},
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_addresses_and_checksums_are_torchvisions(name):
    ours = {(file.url, file.checksum.removeprefix("md5:")) for file in public_dataset(name).files}
    assert TORCHVISION[name] <= ours


@pytest.mark.parametrize(("name", "kind"), [("caltech101", vision.Caltech101), ("eurosat", vision.EuroSAT)])
def test_addresses_and_checksums_inside_torchvisions_functions_are_ours(name, kind):
    (file,) = public_dataset(name).files
    constants = kind.download.__code__.co_consts
    words = {word for one in constants for word in (one if isinstance(one, tuple) else (one,))}
    assert {file.url, file.checksum.removeprefix("md5:")} <= words


@pytest.mark.usefixtures("small")
def test_the_command_asks_shows_and_checks(server, tmp_path, command, monkeypatch):
    datasets = [served(server, "textures"), served(server, "openimage-o"), public_dataset("imagenet1k")]
    monkeypatch.setattr("sirc.data.catalogue.public.public_datasets", lambda: datasets)
    monkeypatch.setattr("sirc.data.public_datasets", lambda: datasets)
    code, out, _ = command("data", "get")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["name", "textures", "openimage-o", "imagenet1k"]
    code, out, err = command("data", "get", "textures", tmp_path)
    assert (code, out) == (1, "")
    assert "licence  for research" in err
    assert "nothing was fetched; `--yes`" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, err: False)
    assert command("data", "get", "textures", tmp_path)[0] == 1
    code, out, err = command("data", "get", "textures", tmp_path, "--yes")
    assert code == 0, err
    assert 'Textures is there; in a TOML: dataset = "textures"' in out
    assert f"Textures in '{tmp_path / 'dtd'}': ready" in out
    code, out, err = command("data", "get", " Textures ", tmp_path)
    assert (code, "was there already" in out) == (0, True)
    assert "no checksum is published" in command("data", "get", "openimage-o", tmp_path)[2]
    code, out, _ = command("data", "get", "imagenet1k", tmp_path)
    assert (code, "1. Make an account" in out) == (1, True)
    (tmp_path / "dtd" / "images" / "banded" / "banded_0002.jpg").unlink()
    code, out, err = command("data", "get", "textures", tmp_path)
    assert (code, "1 (banded/banded_0002.jpg) of 2 listed files are missing" in out) == (1, True)
    assert "move" in err


def test_the_command_refuses_what_it_does_not_know(command):
    code, _, err = command("data", "get", "texture", "x")
    assert (code, "textures" in err) == (2, True)
    assert command("data", "get", "textures")[0] == 2
