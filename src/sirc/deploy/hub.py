"""Guards on the Hugging Face Hub: pushed with a model card, fetched by address."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sirc._utils.checks import check_path, check_type
from sirc._utils.files import PathLike
from sirc._utils.imports import DISTRIBUTION, needing
from sirc._utils.text import as_markdown, first_line, shorten, without_links
from sirc.models import fingerprint

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from sirc.deploy.selective import SelectiveClassifier

GUARD_FILE = "guard.safetensors"
_GRAPH_FILE, _CARD, _OTHER_CARD = "model.onnx", "README.md", "GUARD.md"
_REPO = r"[\w.-]+/[\w.-]+"
_SIGNED = "Written by sirc; the next push writes it anew, unless this line is gone."  # cards on the Hub have it
_HEADER = """---
library_name: sirc
{task}tags:
- selective-classification
- out-of-distribution-detection
- uncertainty-estimation
---"""
_EXAMPLE = """```python
import sirc
guard = sirc.load_guard("hf://{repo_id}", {model})
label, confidence, accepted, logits = guard(images)
```"""
_LOG_IN = "Log in with `hf auth login`, or set `HF_TOKEN`"


def local_path(path: PathLike) -> Path:
    """The local path of a saved guard; one at `hf://owner/name` or `hf://owner/name@revision` is fetched first.

    Only the file `guard.safetensors` is fetched: data, no code. The Hub's cache keeps it for use offline.
    """
    text = check_path("path", path).as_posix()  # `Path` joins the two slashes into one
    if not text.startswith("hf:/"):
        return Path(path)
    match = re.fullmatch(rf"hf:/({_REPO})(?:@(\S+))?", text)
    if match is None:
        raise ValueError(
            f"a guard on the Hub must be `hf://owner/name` or `hf://owner/name@revision`; got {shorten(str(path))!r}"
        )
    repo_id, revision = match.groups()
    api = _api()
    with _in_words(repo_id, revision):
        return Path(api.hf_hub_download(repo_id, GUARD_FILE, revision=revision))


def push(
    guard: SelectiveClassifier, repo_id: str, *, onnx: PathLike | None, network: str | None, private: bool | None
) -> str:
    """Push a guard and its card in one commit; return the address of that commit."""
    check_type("repo_id", repo_id, str, "the name of a repository, `owner/name`")
    if not re.fullmatch(rf"{_REPO}|[\w.-]+", repo_id):
        raise ValueError(f"`repo_id` must be `owner/name`, or the name alone of one of yours; got {shorten(repo_id)!r}")
    check_type("network", network, str | None, "the network's name, as `sirc.load_guard` takes it")
    api = _api()
    from huggingface_hub import CommitOperationAdd

    with TemporaryDirectory() as folder:
        guard.save(Path(folder, GUARD_FILE))
        if onnx is not None:
            _check_graph(guard, onnx)
        with _in_words(repo_id):
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id  # now with its owner
            text = card(guard, repo_id, network=network, graph=onnx is not None)
            files: dict[str, str | bytes] = {GUARD_FILE: str(Path(folder, GUARD_FILE)), _card_name(api, repo_id): text}
            if onnx is not None:
                files[_GRAPH_FILE] = os.fspath(onnx)
            made = api.create_commit(
                repo_id,
                [CommitOperationAdd(name, content) for name, content in files.items()],
                commit_message=f"Push a guard with the score {guard.spec}",
            )
    return f"hf://{repo_id}@{made.oid}"


def card(guard: SelectiveClassifier, repo_id: str, *, network: str | None, graph: bool) -> bytes:
    """The card in Markdown: how to load the guard, what it does, what it promises and what it cannot promise."""
    # Class names in these lines may look like links.
    about = without_links(html.escape(str(guard), quote=False))
    done, accepts, promise, *remarks, cannot = about.splitlines()
    cannot = cannot.removeprefix("Cannot promise: ")
    wanted = "The network is not in the guard" if network else "`model` is the network that it was made for"
    exported = (
        f"`{_GRAPH_FILE}` has the network in it, and runs without its Python code: "
        f"`hf download {repo_id} {_GRAPH_FILE} --local-dir .`, then `sirc serve {_GRAPH_FILE}`."
    )
    classes = as_markdown(shorten(", ".join(guard.classes or ()), 1000))
    sections = [
        _HEADER.format(task="" if guard.preprocess is None else "pipeline_tag: image-classification\n"),
        f'# {repo_id.partition("/")[2]}: a classifier that may say "I don\'t know"',
        f"`{GUARD_FILE}` lets a trained classifier reject inputs that it may be wrong about, and inputs that belong to "
        "none of its classes (OOD).",
        "## Load it",
        _EXAMPLE.format(repo_id=repo_id, model="model" if network is None else repr(network)),
        f"This takes `pip install '{DISTRIBUTION}[hub]'`. {wanted}, and any other is refused: the fingerprint of its "
        f"weights is `{fingerprint(guard.model)}`. `guard.preprocess` says how images are prepared, if that is known.",
        exported if graph else "",
        "## What it does",
        f"{done} {accepts}",
        classes and f"The {len(guard.classes or ())} classes: {classes}.",
        "## What it promises",
        promise.removeprefix("Promise: "),
        *remarks,
        "## What it cannot promise",
        f"{cannot[:1].upper()}{cannot[1:]}",
        f"*{_SIGNED}*\n",
    ]
    return "\n\n".join(filter(None, sections)).encode()


def _check_graph(guard: SelectiveClassifier, path: PathLike) -> None:
    from sirc.deploy.onnx import OnnxGraph
    from sirc.deploy.saved import about

    exported, own = OnnxGraph(path).facts, about(guard)
    if any(exported.get(name) != own[name] for name in ("model", "spec", "threshold")):
        raise ValueError(
            f"`onnx` must be this guard as a graph; '{path}' has another model, score or threshold. Export it again: "
            "`guard.export_onnx(path, images)`"
        )


def _card_name(api: HfApi, repo_id: str) -> str:
    """The name of the card's file: README.md, unless someone else wrote one there, which stays."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        text = Path(api.hf_hub_download(repo_id, _CARD)).read_text(encoding="utf-8", errors="replace")
    except EntryNotFoundError as error:
        if isinstance(error, LocalEntryNotFoundError):  # the Hub did not answer
            raise
        return _CARD
    return _CARD if _SIGNED in text else _OTHER_CARD


def _api() -> HfApi:
    with needing("a guard on the Hub", "huggingface_hub", "hub"):
        from huggingface_hub import HfApi
    from sirc import __version__

    return HfApi(library_name="sirc", library_version=__version__)


@contextmanager
def _in_words(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn the Hub's errors into errors that say what to do."""
    from huggingface_hub import errors

    # The HTTP client differs between versions of huggingface_hub, and so do the errors of a lost connection.
    failures: tuple[type[BaseException], ...] = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"'{repo_id}' is open only to those whom its owner admits: ask for access on its page. {_LOG_IN}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        text = f"there is no model '{repo_id}' on the Hub, or it is private. Check the name. {_LOG_IN} if it is yours"
        raise FileNotFoundError(text) from error
    except errors.RevisionNotFoundError as error:
        text = f"'{repo_id}' must have the revision that is asked for, a branch, a tag or a commit; got {revision!r}"
        raise FileNotFoundError(f"{text}. `hf://{repo_id}` is the newest") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        text = f"the Hub cannot be reached, and there is no copy of '{repo_id}' from before"
        raise ConnectionError(f"{text}. Go online, or pass the path of a file") from error
    except errors.EntryNotFoundError as error:
        text = f"'{repo_id}' on the Hub must have a `{GUARD_FILE}`; it has none. Make one: `guard.push_to_hub(repo_id)`"
        raise FileNotFoundError(text) from error
    except failures as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        advice = _LOG_IN if status in (401, 403) else "Check the connection, or try again later"
        raise ConnectionError(f"the Hub did not take or give '{repo_id}': {first_line(error)} {advice}") from error
