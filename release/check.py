"""The release check: build wheel and sdist, check their contents, and try the wheel in a fresh environment per extra.

    python release/check.py [EXTRA …]

Without an argument it tries all extras; `core` is the wheel without one. It needs uv beside this Python, which
`make release` installs. The wheel and the sdist stay in `dist/`; the environments are made outside the checkout and
removed.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
SDIST_BYTES = 2_000_000
STEP_SECONDS = 900
FOR_DEVELOPERS = {"dev", "docs"}
PACKAGED = {".css", ".html", ".js", ".md", ".mplstyle", ".plotly", ".py", ".toml", ".typed", ".ttf", ".woff2"}
"""What the package may hold: code, pages, settings and fonts; no images, weights or arrays."""


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([UV, "build", "--quiet", "--out-dir", out, ROOT], check=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def faults(wheel: Path, sdist: Path) -> list[str]:
    """List what is wrong with the contents of the two files."""
    source = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src" / "sirc").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        prefix = sdist.name.removesuffix(".tar.gz")
        unpacked = {member.name.removeprefix(f"{prefix}/") for member in archive if member.isfile()}

    found = [f"the wheel lacks {name}" for name in sorted(source - packed)]
    found += [f"the wheel has {name}, which is no file of src" for name in sorted(packed - source)]
    found += [f"the wheel has {name}, of a kind that it should not have" for name in sorted(packed) if _odd(name)]
    found += [f"the sdist lacks src/{name}" for name in sorted(source) if f"src/{name}" not in unpacked]
    found += [f"the sdist has {name}, of a kind that it should not have" for name in sorted(unpacked) if _odd(name)]
    if sdist.stat().st_size > SDIST_BYTES:
        found.append(f"the sdist has {sdist.stat().st_size:,} bytes, more than {SDIST_BYTES:,}")
    wanted = ("Author", "Classifier", "Description-Content-Type", "Keywords", "License-Expression", "Summary")
    return found + [f"the metadata lack {field}" for field in wanted if not metadata_of(wheel)[field]]


def _odd(name: str) -> bool:
    file = Path(name)
    plain = {"py.typed", "LICENSE", "PKG-INFO", "CITATION.cff", ".gitignore"}
    return file.suffix not in PACKAGED and file.name not in plain


def metadata_of(wheel: Path) -> Message:
    """Read the metadata, which an index shows."""
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(about).decode())


@dataclass(frozen=True)
class Trial:
    """The outcome of trying an extra in an environment of its own."""

    extra: str
    done: str
    seconds: float
    megabytes: float
    failed: bool = False


def attempt(extra: str, wheel: Path, folder: Path) -> Trial:
    """Install the wheel with an extra in a new environment, and do what the extra is for."""
    started = time.monotonic()
    python = folder / "env" / "bin" / "python"
    work = folder / "work"
    work.mkdir()
    for file in (ROOT / "release" / "jobs.py", ROOT / "tests" / "support" / "fake_hub.py"):
        shutil.copy(file, folder)
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    stranger = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": str(folder)}
    wanted = str(wheel) if extra == "core" else f"{metadata_of(wheel)['Name']}[{extra}] @ {wheel.as_uri()}"
    steps = (
        ("uv venv", [UV, "venv", "--quiet", "--python", sys.executable, folder / "env"], None),
        ("uv pip install", [UV, "pip", "install", "--quiet", "--python", python, wanted], None),
        ("import sirc", [python, "-c", "import sirc, sys; sys.exit('site-packages' not in sirc.__file__)"], stranger),
        ("sirc --help", [python.with_name("sirc"), "--help"], stranger),
        (f"the job of `{extra}`", [python, folder / "jobs.py", extra], stranger),
    )
    done, failed = "", False
    for name, command, environment in steps:
        try:
            step = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS, check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = [text.decode() if isinstance(text, bytes) else text or "" for text in (error.stdout, error.stderr)]
            print(f"\n{extra}: {name} failed: {error}", *said, sep="\n", file=sys.stderr, flush=True)
            done, failed = f"FAILED: {name}", True
            break
        done = (step.stdout.splitlines() or [""])[-1]
    size = sum(file.stat().st_size for file in (folder / "env").rglob("*") if file.is_file() and not file.is_symlink())
    return Trial(extra, done, time.monotonic() - started, size / 1e6, failed)


def main(chosen: list[str]) -> int:
    """Print the table, and return 1 if anything is wrong."""
    wheel, sdist = build(ROOT / "dist")
    for file in (wheel, sdist):
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e6:.2f} MB")
    wrong = faults(wheel, sdist)
    print("\n".join(wrong) or "contents: as they should be", flush=True)
    known = ["core", *sorted({*metadata_of(wheel).get_all("Provides-Extra", [])} - FOR_DEVELOPERS)]
    if unknown := set(chosen) - set(known):
        print(f"extras must be among {', '.join(known)}; got {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2

    # Beside uv's cache, so that packages are linked and not copied.
    cache = Path(subprocess.run([UV, "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip())
    cache.mkdir(parents=True, exist_ok=True)
    row = "{:<12} {:<76} {:>8} {:>9}"
    print(row.format("extra", "what was done", "seconds", "MB"), flush=True)
    trials = []
    for extra in chosen or known:
        with tempfile.TemporaryDirectory(prefix="sirc-", dir=cache.parent) as folder:
            trial = attempt(extra, wheel, Path(folder))
        trials.append(trial)
        print(row.format(extra, trial.done, f"{trial.seconds:.0f}", f"{trial.megabytes:,.0f}"), flush=True)
    return int(bool(wrong) or any(trial.failed for trial in trials))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
