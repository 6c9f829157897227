"""Grammar of score specs: `msp`, `knn(k=20)`, `sirc(entropy, residual)`, `linear(msp, l1, c=0.1)`."""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

from torch import Tensor

from sirc._utils.text import closest, quoted, shorten
from sirc.scores import registry

Value = float | tuple[float, ...] | str


@dataclass(frozen=True)
class Combination:
    """A way to combine two or more specs."""

    title: str
    keywords: Mapping[str, Value | None] = field(default_factory=dict)
    """The parameters and their defaults; None for one that is fitted or must be given."""
    most: int | None = None
    """The largest number of specs."""
    bounded_first: bool = False
    """Whether it takes log(S1max − S1) of its first score, and a and b of the others, as `sirc` does."""
    compute: Callable[..., Tensor] | None = None
    """The formula, if it was registered with `combination`."""


COMBINATIONS = {
    "sirc": Combination("SIRC", {"a": None, "b": None, "budget": None}, bounded_first=True),
    "additive": Combination("Additive", {"kappa": 0.1, "a": None, "b": None}, bounded_first=True),
    "bayes": Combination("Bayes", {"alpha": 0.5, "beta": 0.5, "metric": "aurc"}, bounded_first=True),
    "linear": Combination("Linear", {"c": None}, most=2),
    "product": Combination("Product"),
    "both": Combination("Both"),
}
_BUILT_IN = tuple(COMBINATIONS)
registry.RESERVED.update(_BUILT_IN)
_WORDS = {"metric": ("aurc", "aurr")}
_RANGES = {
    "budget": (0.0, 100.0, "the points of AUROC of ID✗|ID✓ that S2 may cost, from 0 to 100"),
    "b": (math.ulp(0.0), math.inf, "positive: the slope against S2, 1/σ"),
    "kappa": (math.ulp(0.0), math.inf, "positive: the weight of S2's part"),
    "alpha": (math.ulp(0.0), 1.0, "the share of ID input, above 0 and at most 1"),
    "beta": (0.0, 1.0, "the cost of accepting ID✗, from 0 to 1"),
}
_DEEPEST, _LONGEST = 20, 2000
_NUMBER = re.compile(r"(?<![\w.])[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_OPERATOR = re.compile(r"[^\w\s,=()\[\]]|[)\]]\s*[(\[]|\b(not|lambda|if|for|await|and|or|in|is)\b")
_GRAMMAR = "A spec is a name (`msp`) or a combination such as `sirc(msp, residual)` or `linear(energy, l1, c=0.1)`"


def combination(
    *, title: str = "", most: int | None = None, bounded_first: bool = False
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register the decorated function as a combination under its own name.

    It receives the plain values of two or more specs, at most `most`. Its keyword-only arguments are numbers that a
    spec may set; one without a default must be set. With `bounded_first` it receives, by position, log(S1max − S1) of
    the first score and three lists: the values of the others, their a and their b. `fit` finds a and b as for `sirc`:
    a = μ − 3σ and b = 1/σ over ID training data.

    Tables, figures and the page call it `title`, by default its name with spaces for underscores.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = function.__name__
        if name in (*_BUILT_IN, "vim", "scod", *registry.names()):
            raise ValueError(f"`{name}` is a name of the grammar already; give the combination another")
        numbers: dict[str, Value | None] = {}
        for key, value in registry.keyword_defaults(function).items():
            required = value is inspect.Parameter.empty
            if key in ("a", "b") or not (required or isinstance(value, int | float)):
                raise ValueError(
                    f"`{key}` of combination `{name}` must be a number of its own, other than a and b; its default is "
                    f"{'missing' if required else quoted(value)}"
                )
            numbers[key] = None if required else float(value)
        registry.check_call(f"combination `{name}`", function, 4 if bounded_first else 2, numbers)
        fitted: dict[str, Value | None] = {"a": None, "b": None} if bounded_first else {}
        readable = title or registry.readable(name)
        COMBINATIONS[name] = Combination(readable, {**numbers, **fitted}, most, bounded_first, function)
        registry.RESERVED.add(name)
        _parse.cache_clear()
        return function

    return register


@dataclass(frozen=True)
class Spec:
    """A parsed spec. `str(spec)` is its canonical text, under which its parameters are stored."""

    name: str
    args: tuple[Spec, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    is_default: bool = False
    """Whether it was written as `scod`, whose S2 scores (witnesses) depend on the data."""
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Made only once, since each batch looks up parameters by it.
        parts = [] if self.is_default else [str(a) for a in self.args]
        parts += [f"{k}={v}" for k, v in self.given.items()]
        text = f"{self.called}({', '.join(parts)})" if parts else self.called
        object.__setattr__(self, "_text", "vim" if is_vim(self) else text)

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def is_leaf(self) -> bool:
        """Whether it is a single score rather than a combination."""
        return self.name not in COMBINATIONS

    @property
    def has_bounded_first(self) -> bool:
        """Whether it takes log(S1max − S1) of its first score, as `sirc`, `additive` and `bayes` do."""
        return not self.is_leaf and COMBINATIONS[self.name].bounded_first

    @property
    def finds_spread(self) -> bool:
        """Whether it learns the mean and the spread of its S2 scores from training data."""
        return self.has_bounded_first and not {"a", "b"} <= set(self.options)

    @property
    def tunes(self) -> bool:
        """Whether it requires labelled ID validation data."""
        return "budget" in self.options or self.name == "both"

    @property
    def given(self) -> Mapping[str, Value]:
        """The options that differ from the defaults; the default metric of `scod` is AURR."""
        if not self.is_default:
            return self.options
        others = {key: value for key, value in self.options.items() if key != "metric"}
        return others if self.options.get("metric") == "aurr" else {**others, "metric": "aurc"}

    @property
    def called(self) -> str:
        """The name in its text."""
        return "scod" if self.is_default else self.name

    def witnessed_by(self, others: Sequence[Spec]) -> Spec:
        """The same `scod`, with the same text, but other S2 scores."""
        return replace(self, args=(self.args[0], *others))

    def with_defaults(self, change: Callable[[Spec], Spec]) -> Spec:
        """The same spec with `change` applied to each `scod` in it."""
        if self.is_default:
            return change(self)
        return replace(self, args=tuple(arg.with_defaults(change) for arg in self.args)) if self.args else self

    def with_only(self, other: Spec) -> Spec:
        """This combination with a single S2."""
        return Spec(self.name, (self.args[0], other), self.options)

    def walk(self) -> Iterator[Spec]:
        """This spec and all specs inside it, innermost first."""
        for arg in self.args:
            yield from arg.walk()
        yield self

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """A keyword parameter as a tuple; None if it was not given."""
        value = self.options.get(key)
        assert not isinstance(value, str)
        return (value,) if isinstance(value, int | float) else value


def is_vim(spec: Spec) -> bool:
    """Whether it is `vim`, the linear combination whose c is fitted."""
    return spec.name == "linear" and "c" not in spec.options


VIM = Spec("linear", (Spec("energy"), Spec("residual")))
WITNESSES = (Spec("residual"), VIM, *map(Spec, ("mahalanobis", "mahalanobis_pp", "knn", "l1", "energy")))
"""The S2 scores of `scod`: those before the last that the data can fit; if there are none, the last."""
SCOD = Spec("bayes", (Spec("msp"), *WITNESSES[:-1]), {"metric": "aurr"}, is_default=True)


def known_names() -> tuple[str, ...]:
    """All names that a spec may use: scores, `vim`, combinations and `scod`.

    Example:
        >>> import sirc
        >>> sirc.known_names()[:3]
        ('msp', 'doctor', 'entropy')
        >>> {"residual", "vim", "sirc", "scod"} <= set(sirc.known_names())
        True
    """
    return (*registry.names(), "vim", *COMBINATIONS, "scod")


def parse(text: str) -> Spec:
    """Read a spec from its text; a `ValueError` says what is wrong with the text and how to write it."""
    if not isinstance(text, str):
        raise ValueError(f"a spec must be a string; got {type(text).__name__}. {_GRAMMAR}")
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Spec:
    # Check the depth first, as Python's limit depends on the caller's stack. Operators nest too.
    depth = max(accumulate((c in "([") - (c in ")]") for c in text), default=0)
    if depth > _DEEPEST or len(text) > _LONGEST or len(_OPERATOR.findall(_NUMBER.sub("", text))) > _DEEPEST:
        raise ValueError(
            f"specs nest at most {_DEEPEST} deep and have at most {_LONGEST} characters; got `{shorten(text)}`"
        )
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as error:
        raise ValueError(f"`{shorten(text)}` is not a score spec: {getattr(error, 'msg', error)}. {_GRAMMAR}") from None
    return _spec(tree, text)


def _spec(tree: ast.expr, text: str) -> Spec:
    if isinstance(tree, ast.Name):
        return _build(tree.id, (), {}, text)
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        raise ValueError(f"`{_source(tree, text)}` is not a score, in `{shorten(text)}`. {_GRAMMAR}")
    options: dict[str, Value] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in options:
            given = f"`{shorten(keyword.arg)}` is given twice" if keyword.arg else "`**` is not a score spec"
            raise ValueError(f"{given} in `{shorten(text)}`. {_GRAMMAR}")
        options[keyword.arg] = _value(keyword.value, keyword.arg, text)
    return _build(tree.func.id, tuple(_spec(arg, text) for arg in tree.args), options, text)


def _value(tree: ast.expr, key: str, text: str) -> Value:
    if key in _WORDS:
        if isinstance(tree, ast.Name) and tree.id in _WORDS[key]:
            return tree.id
        words = " or ".join(_WORDS[key])
        raise ValueError(f"`{key}` must be {words}; got `{_source(tree, text)}` in `{shorten(text)}`")
    if isinstance(tree, ast.Tuple | ast.List):
        numbers = tuple(_number(item, key, text) for item in tree.elts)
        return numbers[0] if len(numbers) == 1 else numbers  # `a=(1,)` and `a=1` are the same spec
    return _number(tree, key, text)


def _number(tree: ast.expr, key: str, text: str) -> float:
    sign = 1
    while isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        sign, tree = (-sign if isinstance(tree.op, ast.USub) else sign), tree.operand
    value = tree.value if isinstance(tree, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
        raise ValueError(f"`{shorten(key)}` must be a finite number; got `{_source(tree, text)}` in `{shorten(text)}`")
    return sign * float(value) + 0.0  # −0 becomes 0: equal specs have one text


def _source(tree: ast.expr, text: str) -> str:
    return shorten(ast.get_source_segment(text, tree) or "")


def _build(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    called = name
    if name == "vim" and not args:  # `vim(c=…)` and `linear(energy, residual, c=…)` are the same spec
        name, args = "linear", VIM.args
    if name == "scod" and not args:
        name, args, options = "bayes", SCOD.args, {"metric": "aurr"} | options
    if name not in known_names():
        raise ValueError(
            f"unknown score `{shorten(name)}` in `{shorten(text)}`.{closest(name, known_names())} Known: "
            f"{', '.join(known_names())}. One of your own is known once its module is imported (`--import MODULE`)"
        )
    if args and name not in COMBINATIONS:
        raise ValueError(
            f"`{name}` is a score of its own and takes no other specs; got `{shorten(text)}`. "
            f"Combinations are {', '.join(COMBINATIONS)}"
        )
    known: Mapping[str, object] = COMBINATIONS[name].keywords if name in COMBINATIONS else registry.get(name).options
    for key, value in options.items():
        if key not in known:
            takes = f"it takes {', '.join(f'{k}=' for k in known)}" if known else "it has no parameters"
            raise ValueError(f"`{called}` has no parameter `{shorten(key)}` (in `{shorten(text)}`): {takes}")
        if isinstance(value, tuple) and not (name in COMBINATIONS and key in ("a", "b")):
            raise ValueError(f"`{key}` of `{called}` must be one number; got {quoted(value)} in `{shorten(text)}`")
    if name not in COMBINATIONS:
        return _leaf(name, options, text)
    return _combination(SCOD if called == "scod" else Spec(name, args), options, text)


def _leaf(name: str, options: dict[str, Value], text: str) -> Spec:
    score, given = registry.get(name), {}
    for key, value in options.items():
        default = score.options[key]
        whole = isinstance(default, int)
        least, most = score.limits.get(key, (1, math.inf) if whole else (-math.inf, math.inf))
        assert isinstance(value, float)
        if not least <= value <= most or (whole and value != int(value)):
            limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise ValueError(
                f"`{key}` of `{name}` must be a {'whole ' if whole else ''}number {limits}; got {quoted(value)} in "
                f"`{shorten(text)}`"
            )
        # A tunable option stays even at its default: an option that is given is not tuned.
        if score.tune is not None or value != default:
            given[key] = type(default)(value)
    return Spec(name, (), given)


def _combination(bare: Spec, options: dict[str, Value], text: str) -> Spec:
    name, args, combination = bare.name, bare.args, COMBINATIONS[bare.name]
    if not 2 <= len(args) <= (combination.most or len(args)):
        count = "2" if combination.most == 2 else "at least 2"
        raise ValueError(f"`{name}` combines {count} specs; got {len(args)} in `{shorten(text)}`")
    given = {k: options[k] for k, v in combination.keywords.items() if options.get(k, v) != v}
    spec = replace(bare, options=given)
    if spec.has_bounded_first:
        _check_first(spec, text)
        _check_numbers(spec, text)
        _check_others(spec, text)
    elif name == "linear" and "c" not in options and args != VIM.args:
        raise ValueError(
            f"`linear` needs `c` in `{shorten(text)}`; only linear(energy, residual), which is `vim`, finds its own"
        )
    if combination.compute is not None:
        for key, default in combination.keywords.items():
            if default is None and key not in ("a", "b") and key not in options:
                raise ValueError(f"`{name}` needs `{key}`, a number, in `{shorten(text)}`")
    return spec


def _check_first(spec: Spec, text: str) -> None:
    first = spec.args[0]
    bounded = [name for name in registry.names() if registry.get(name).log_gap]
    if first.name not in bounded:
        raise ValueError(
            f"the first score of `{spec.name}` must be bounded, one of {', '.join(bounded)}; got "
            f"`{shorten(str(first))}` in `{shorten(text)}`. One of your own is if it has a `log_gap`"
        )
    score = registry.get(first.name)
    if spec.name == "bayes" and not {"logits", "softmax"}.issuperset(score.needs):
        raise ValueError(
            "the first score of `bayes` must be one of the logits alone: it is compared with what equal logits give; "
            f"`{first}` needs {', '.join(score.needs)}, in `{shorten(text)}`. Use it in `sirc`"
        )
    for option, value in first.options.items():
        least, most = score.limits.get(f"{option}_bounded", (-math.inf, math.inf))
        if isinstance(value, int | float) and not least <= value <= most:
            raise ValueError(
                f"`{option}` of `{first.name}` must be from {least:g} to {most:g} as the first score of `{spec.name}`, "
                f"where it is bounded; got {quoted(value)} in `{shorten(text)}`"
            )


def _check_numbers(spec: Spec, text: str) -> None:
    others = spec.args[1:]
    for key in ("a", "b"):
        given = spec.numbers(key)
        if given is not None and len(given) != len(others):
            raise ValueError(
                f"`{key}` of `{spec.name}` must give one number for each S2, {len(others)} here; got {len(given)} in "
                f"`{shorten(text)}`. Write several as `{key}=({', '.join('…' for _ in others)})`"
            )
    for key, (least, most, rule) in _RANGES.items():
        for value in spec.numbers(key) or ():
            if not least <= value <= most:
                raise ValueError(f"`{key}` of `{spec.called}` must be {rule}; got {quoted(value)} in `{shorten(text)}`")
    if spec.tunes and {"a", "b"} & set(spec.options):
        raise ValueError(f"`budget` of `sirc` finds a and b on validation data: leave them out; got `{shorten(text)}`")


def _check_others(spec: Spec, text: str) -> None:
    for outer in (part for other in spec.args[1:] for part in other.walk()):
        # μ and σ of a linear form follow from its terms; those of any other combination only from its values.
        inside = () if outer.is_leaf or outer.name == "linear" else outer.walk()
        for part in inside:
            if is_vim(part) or part.finds_spread or part.tunes:
                advice = {"linear": "Give its c= explicitly", **dict.fromkeys(("bayes", "both"), "Leave it out")}
                where = "" if part is outer else f" inside `{shorten(str(outer))}`"
                raise ValueError(
                    f"`{shorten(str(part))}`{where} would have to be fitted before this S2 could be, in "
                    f"`{shorten(text)}`. {advice.get(part.name, 'Give its a= and b= explicitly')}"
                )
