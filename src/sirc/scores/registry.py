"""Registry of scores: `@score` makes a function a score, whose options are its keyword-only arguments.

To add one, write such a function in a file of `scores/formulas/`, or in a module of your own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from torch import Tensor

from sirc._utils.text import quoted

if TYPE_CHECKING:
    from sirc.scores.moments import Evidence

Option = int | float
HeldOut: TypeAlias = Callable[..., Tensor]
"""A score of training rows, from its inputs and the labels."""
_F = TypeVar("_F", bound=Callable[..., Tensor])

_INPUTS = ("logits", "features", "softmax")
_EVIDENCE = ("mean", "second", "by_class", "unit", "unit_by_class", "bank", "sample")
RESERVED = {"vim", "scod"}  # names of the grammar; `spec` adds the combinations


@dataclass(frozen=True, kw_only=True)
class Score:
    """A registered score. `compute` returns the plain confidence of each row; higher means accept."""

    name: str
    compute: Callable[..., Tensor]
    needs: tuple[str, ...]
    """Inputs or names of other scores, passed to `compute` by position."""
    options: Mapping[str, Option]
    """Options that a spec may set, with their defaults: `knn(k=20)`."""
    parameters: tuple[str, ...]
    """Fitted parameters, which `solve` must return; anything else it returns is for `held_out`."""
    title: str
    """The name for people, in plain text."""
    short: str
    """The name inside a combination."""
    latex: str = ""
    """Replaces `title` and `short` in LaTeX; empty if it is enough to escape them."""
    html: str = ""
    """The same in HTML."""
    family: str = "other"
    """Scores of one family share a colour in figures."""
    solve: Callable[..., dict[str, Tensor]] | None = None
    evidence: frozenset[str] = frozenset()
    """What `solve` reads of the training data. `mean`, `second` (second moments) and `by_class` (sums of each class)
    are in `evidence.moments`; `unit` (second moments) and `unit_by_class`, of unit features, in `evidence.unit`;
    `bank` (rows to search) and `sample` (rows for other uses) in `evidence.bank`."""
    head: bool = False
    val: bool = False
    """Whether `solve` reads labelled ID validation rows, `evidence.val`."""
    log_gap: Callable[..., Tensor] | None = None
    """log(S1max − S1) from the same inputs, for a bounded score that may be the S1 of `sirc`."""
    resolution: Callable[[Evidence], float] | None = None
    """The smallest spread on training data that is more than rounding error."""
    tune: Callable[[Tensor, Tensor], dict[str, Option]] | None = None
    """Chooses options on labelled ID validation rows, from (n, K) logits and (n,) labels."""
    confidence_kind: Literal["log_gap", "plain"] = "log_gap"
    """What a scorer returns for a score with a `log_gap`: minus the `log_gap`, or the plain value."""
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and largest value of an option; `<option>_bounded` has those for the S1 of `sirc`."""
    exclude_self: Callable[[dict[str, Option]], dict[str, Option]] | None = None
    """Returns the options with which a row of the bank does not find itself."""
    least_rows: Callable[..., int] | None = None
    """Returns how many rows the bank must have, given the options."""
    held_out: Callable[..., HeldOut] | None = None
    """Takes the evidence, all that `solve` returned and the options; returns a function that scores each training row
    as if `solve` had not seen it. That function takes what `compute` takes by position, then the labels if `evidence`
    counts classes, else None. Without it, out-of-sample statistics come from leaving out folds."""
    unsuited_for: str = ""
    """The networks that the score does not suit, with the reason."""


_SCORES: dict[str, Score] = {}


def score(
    *, needs: str | tuple[str, ...], title: str = "", short: str = "", evidence: str | Iterable[str] = (), **fields: Any
) -> Callable[[_F], _F]:
    """Register the decorated function as a score under its own name.

    `needs` names what the function receives by position: `"logits"` (n, K), `"features"` (n, L), `"softmax"`
    (the `Softmax` summary of the one pass over the logits), or another score's name (its values).
    Keyword-only arguments with a default are options of the spec; those without are parameters that `solve` finds
    from the training data. `tune` chooses options on labelled validation rows if `fit` has some; `limits` bounds
    them. A score with a `log_gap`, log(S1max − S1), may be the first of `sirc`. The other fields are those of `Score`.
    Values must be finite: if they could overflow, return their logarithm, which ranks rows alike.

    Tables, figures and the page call the score `title` (by default its name with spaces for underscores), or `short`
    inside a combination, and draw it in the colour of its `family`.

    Example:
        >>> import sirc, torch
        >>> @sirc.score(needs="logits", title="Lowest logit")
        ... def lowest_logit(logits):
        ...     return -logits.amin(-1)
        >>> sirc.Scorer("lowest_logit")(sirc.Outputs(torch.tensor([[4.0, -1, 0]])))["lowest_logit"]
        tensor([1.], dtype=torch.float64)
    """

    def register(function: _F) -> _F:
        name = function.__name__
        defaults = keyword_defaults(function)
        new = Score(
            name=name,
            compute=function,
            needs=(needs,) if isinstance(needs, str) else needs,
            options={key: value for key, value in defaults.items() if value is not inspect.Parameter.empty},
            parameters=tuple(key for key, value in defaults.items() if value is inspect.Parameter.empty),
            title=title or readable(name),
            short=short or title or readable(name),
            evidence=frozenset((evidence,) if isinstance(evidence, str) else evidence),
            **fields,
        )
        _check(new)
        _SCORES[name] = new
        return function

    return register


def keyword_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function, with their defaults."""
    arguments = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in arguments if p.kind is inspect.Parameter.KEYWORD_ONLY}


def readable(name: str) -> str:
    """The default title of a score or a combination."""
    return name[:1].upper() + name[1:].replace("_", " ")


def _check(new: Score) -> None:
    name = new.name
    if not name.isidentifier():
        raise ValueError(f"a score needs a name that a spec can hold; got {quoted(name)}. Define it with `def`")
    if name in RESERVED:
        raise ValueError(f"`{name}` is a name of the grammar; give the score another")
    if name in _SCORES and _SCORES[name].compute.__module__ != new.compute.__module__:
        raise ValueError(
            f"a score named `{name}` is registered already, by {_SCORES[name].compute.__module__}; give yours another "
            "name"
        )
    for what, given, allowed in (
        ("needs", new.needs, (*_INPUTS, *_SCORES)),
        ("evidence", sorted(new.evidence), _EVIDENCE),
        ("limits", [key.removesuffix("_bounded") for key in new.limits], tuple(new.options)),
    ):
        if unknown := [item for item in given if item not in allowed]:
            known = ", ".join(allowed) or "its options, and it has none"
            raise ValueError(f"`{what}` of score `{name}` must be among {known}; got {quoted(unknown[0])}")
    if new.parameters and new.solve is None:
        raise ValueError(
            f"score `{name}` must have a `solve`, which finds {', '.join(f'`{key}`' for key in new.parameters)}: "
            "keyword-only arguments without a default. Give them one to make them options"
        )
    if new.solve is not None and not new.parameters:
        raise ValueError(
            f"score `{name}` has a `solve`, so it must take the fitted parameters after a `*`, without a default: "
            f"`def {name}({new.needs[0]}, *, mean)`. Leave `solve` out if nothing is fitted"
        )
    check_call(f"score `{name}`", new.compute, len(new.needs), {*new.options, *new.parameters})
    options, nothing = set(new.options), set[str]()
    for what, function, count, named in (
        ("solve", new.solve, 1, options),
        ("log_gap", new.log_gap, len(new.needs), {*options, *new.parameters}),
        ("tune", new.tune, 2, nothing),
        ("resolution", new.resolution, 1, nothing),
        ("exclude_self", new.exclude_self, 1, nothing),
        ("least_rows", new.least_rows, 0, options),
        ("held_out", new.held_out, 2, options),
    ):
        if function is not None:
            check_call(f"`{what}` of score `{name}`", function, count, named)
    if "bank" in new.evidence and new.exclude_self is None:
        raise ValueError(
            f"score `{name}` searches the bank and needs `exclude_self`: the options with which a row of the bank "
            "does not find itself"
        )


def check_call(what: str, function: Callable[..., object], given: int, named: Iterable[str]) -> None:
    """Require a function that takes `given` arguments by position and those in `named` by keyword."""
    if not callable(function):
        raise ValueError(f"{what} must be a function; got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have none
        return
    try:
        signature.bind(*range(given), **dict.fromkeys(named))
    except TypeError as error:
        call = ", ".join([*(f"x{number}" for number in range(1, given + 1)), *(f"{key}=…" for key in sorted(named))])
        raise ValueError(f"{what} is called as ({call}) and takes {signature}: {error}. Change its arguments") from None


def get(name: str) -> Score:
    """The registered score of that name; `KeyError` if there is none."""
    return _SCORES[name]


def names() -> tuple[str, ...]:
    """The names of all registered scores, in order of registration."""
    return tuple(_SCORES)


def closure(name: str) -> list[str]:
    """All scores that a score needs, each after those that it needs itself, and the score at the end."""
    order: dict[str, None] = {}
    for need in get(name).needs:
        if need not in _INPUTS:
            order |= dict.fromkeys(closure(need))
    return [*order, name]
