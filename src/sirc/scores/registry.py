"""Registry of scores: a decorated function is a score, and its signature says what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from sirc.scores.moments import Evidence

Option = int | float
Solve = Callable[..., dict[str, Tensor]]
Tune = Callable[[Tensor, Tensor], dict[str, Option]]
ConfidenceKind = Literal["log_gap", "plain"]
_F = TypeVar("_F", bound=Callable[..., Tensor])

_INPUTS = ("logits", "features", "softmax")
_EVIDENCE = ("mean", "second", "by_class", "unit", "unit_by_class", "bank", "sample")
_RESERVED = ("sirc", "additive", "bayes", "linear", "product", "vim")


@dataclass(frozen=True)
class Score:
    """One registered score. `compute` returns the plain confidence of each row; higher means accept."""

    name: str
    compute: Callable[..., Tensor]
    needs: tuple[str, ...]
    """Inputs or names of other scores, passed to `compute` by position."""
    options: Mapping[str, Option]
    """Options that a spec may set, with their defaults: `knn(k=20)`."""
    parameters: tuple[str, ...]
    """Fitted parameters, which `solve` must provide."""
    title: str
    """The name for people, in plain text."""
    short: str
    """The name inside a combination."""
    latex: str
    """Both names in LaTeX; empty where escaping the plain ones is enough. Likewise `html`."""
    html: str
    family: str
    """Scores of one family share a colour in figures."""
    solve: Solve | None = None
    evidence: frozenset[str] = frozenset()
    """The parts of the training data that `solve` reads: mean, second moments, per-class sums, these also of the unit
    features, a bank of rows that each row is compared with, or a sample of rows."""
    head: bool = False
    log_gap: Callable[..., Tensor] | None = None
    """log(S1max − S1) from the same inputs, for a bounded score that may be SIRC's S1."""
    resolution: Callable[[Evidence], float] | None = None
    """The smallest spread on training data that is more than rounding noise."""
    tune: Tune | None = None
    """Chooses options on labelled ID validation rows, from (n, K) logits and (n,) labels."""
    confidence_kind: ConfidenceKind = "log_gap"
    """What a scorer returns for a score with a `log_gap`: minus the `log_gap`, or the plain value."""
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and largest value of an option; of `<option>_bounded`, where the score is the S1 of `sirc`."""
    exclude_self: Callable[[dict[str, Option]], dict[str, Option]] | None = None
    """Changes the options so that a row of the bank does not find itself."""
    unsuited_for: str = ""
    """The networks that the score is not meant for, and why."""

    @property
    def summary(self) -> str:
        """The first line of the score's docstring."""
        return (inspect.getdoc(self.compute) or "").partition("\n")[0]


_SCORES: dict[str, Score] = {}


def score(
    *,
    needs: str | tuple[str, ...],
    title: str = "",
    short: str = "",
    latex: str = "",
    html: str = "",
    family: str = "other",
    solve: Solve | None = None,
    evidence: tuple[str, ...] = (),
    head: bool = False,
    log_gap: Callable[..., Tensor] | None = None,
    resolution: Callable[[Evidence], float] | None = None,
    tune: Tune | None = None,
    confidence_kind: ConfidenceKind = "log_gap",
    limits: Mapping[str, tuple[float, float]] | None = None,
    exclude_self: Callable[[dict[str, Option]], dict[str, Option]] | None = None,
    unsuited_for: str = "",
) -> Callable[[_F], _F]:
    """Register a function as the score of its own name.

    `needs` names what the function receives by position: `"logits"` (n, K), `"features"` (n, L), `"softmax"`
    (the `Softmax` summary of the one pass over the logits), or another score's name (its values).
    Keyword-only arguments with a default are options of the spec; those without are parameters that `solve` finds
    from the training data. `tune` chooses options on labelled validation rows if `fit` has some; `limits` bounds
    them. A score with a `log_gap`, log(S1max − S1), may be the first of `sirc`.

    Tables, figures and the page call the score `title` (by default its name with spaces for underscores), `short`
    inside a combination, and draw it in the colour of its `family`.
    """

    def register(function: _F) -> _F:
        name = function.__name__
        needed = (needs,) if isinstance(needs, str) else needs
        keywords = [
            p for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        parameters = tuple(p.name for p in keywords if p.default is p.empty)
        options = {p.name: p.default for p in keywords if p.default is not p.empty}
        if name in _RESERVED:
            raise ValueError(f"`{name}` is a combination of the grammar; give the score another name")
        if name in _SCORES and _SCORES[name].compute.__module__ != function.__module__:
            raise ValueError(f"a score named `{name}` is registered already, by {_SCORES[name].compute.__module__}")
        if unknown := [n for n in needed if n not in _INPUTS and n not in _SCORES]:
            raise ValueError(
                f"`needs` of score `{name}` must name {', '.join(_INPUTS)} or an earlier score; got {unknown}"
            )
        if unknown := sorted(set(evidence) - set(_EVIDENCE)):
            raise ValueError(f"`evidence` of score `{name}` must be among {', '.join(_EVIDENCE)}; got {unknown}")
        if bool(parameters) != (solve is not None):
            raise ValueError(
                f"score `{name}` has parameters {list(parameters)} and {'a' if solve else 'no'} `solve`: "
                "keyword-only arguments without a default are found by `solve`, and it needs at least one"
            )
        if unknown := sorted(key for key in limits or {} if key.removesuffix("_bounded") not in options):
            raise ValueError(f"`limits` of score `{name}` must be for its options {sorted(options)}; got {unknown}")
        if "bank" in evidence and exclude_self is None:
            raise ValueError(
                f"score `{name}` searches the bank and needs `exclude_self`: the options with which a row of the bank "
                "does not find itself"
            )
        readable = title or name[:1].upper() + name[1:].replace("_", " ")
        _SCORES[name] = Score(
            name=name,
            compute=function,
            needs=needed,
            options=options,
            parameters=parameters,
            title=readable,
            short=short or readable,
            latex=latex,
            html=html,
            family=family,
            solve=solve,
            evidence=frozenset(evidence),
            head=head,
            log_gap=log_gap,
            resolution=resolution,
            tune=tune,
            confidence_kind=confidence_kind,
            limits=limits or {},
            exclude_self=exclude_self,
            unsuited_for=unsuited_for,
        )
        return function

    return register


def get(name: str) -> Score:
    """The registered score of that name; `KeyError` if there is none."""
    return _SCORES[name]


def names() -> tuple[str, ...]:
    """The names of all registered scores, in order of registration."""
    return tuple(_SCORES)


def closure(leaf_names: list[str]) -> list[str]:
    """These scores and all that they need, each after what it needs."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        for needed in get(name).needs:
            if needed not in _INPUTS:
                visit(needed)
        order[name] = None

    for name in leaf_names:
        visit(name)
    return list(order)
