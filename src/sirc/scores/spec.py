"""The grammar of score specs: `msp`, `knn(k=20)`, `sirc(entropy, residual)`, `linear(msp, l1, c=0.1)`."""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sirc.scores import registry

Value = float | tuple[float, ...] | str

# How many specs each combination takes (at least, at most) and its keyword parameters.
_COMBINATIONS: dict[str, tuple[int, int | None, tuple[str, ...]]] = {
    "sirc": (2, None, ("a", "b", "budget")),
    "additive": (2, None, ("kappa", "a", "b")),
    "bayes": (2, None, ("alpha", "beta", "metric")),
    "linear": (2, 2, ("c",)),
    "product": (2, None, ()),
}
# Those whose first score is taken by its distance from S1max, and all others by how typical they are of ID data.
_BOUNDED_FIRST = ("sirc", "additive", "bayes")
_DEFAULTS: dict[str, dict[str, Value]] = {
    "bayes": {"alpha": 0.5, "beta": 0.5, "metric": "aurc"},
    "additive": {"kappa": 0.1},
}
_WORDS = {"metric": ("aurc", "aurr")}
_DEEPEST = 20
_GRAMMAR = "A spec is a name (`msp`) or a combination such as `sirc(msp, residual)` or `linear(energy, l1, c=0.1)`"


@dataclass(frozen=True)
class Spec:
    """A parsed spec. `str(spec)` is its canonical text, under which its parameters are kept."""

    name: str
    args: tuple[Spec, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        if is_vim(self):
            return "vim"
        parts = [str(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.options.items()]
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def is_leaf(self) -> bool:
        """Whether it is a score of its own rather than a combination."""
        return self.name not in _COMBINATIONS

    @property
    def has_bounded_first(self) -> bool:
        """Whether it takes its first score by the distance from S1max: `sirc`, `additive`, `bayes`."""
        return self.name in _BOUNDED_FIRST

    @property
    def finds_spread(self) -> bool:
        """Whether mean and spread of its S2 scores are left to find on training data."""
        return self.has_bounded_first and not {"a", "b"} <= set(self.options)

    @property
    def tunes(self) -> bool:
        """Whether it cannot do without labelled ID validation data."""
        return "budget" in self.options

    def walk(self) -> Iterator[Spec]:
        """This spec and all inside it, each after what is inside it."""
        for arg in self.args:
            yield from arg.walk()
        yield self

    def default(self, key: str) -> float:
        """What a keyword parameter of a combination is where it is neither given nor fitted."""
        value = _DEFAULTS[self.name][key]
        assert isinstance(value, float)
        return value

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """A keyword parameter as a tuple, or None where it was not given."""
        value = self.options.get(key)
        if value is None or isinstance(value, tuple):
            return value
        assert not isinstance(value, str)
        return (value,)


VIM = Spec("linear", (Spec("energy"), Spec("residual")))
"""`vim` is this combination with its fitted c."""


def known_names() -> tuple[str, ...]:
    """All names a spec may use: scores, `vim`, and combinations."""
    return (*registry.names(), "vim", *_COMBINATIONS)


def parse(text: str) -> Spec:
    """Parse a spec; a `ValueError` says what is wrong with it and what would be right."""
    if not isinstance(text, str):
        raise ValueError(f"a spec must be a string; got {type(text).__name__}. {_GRAMMAR}")
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Spec:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"`{text}` is not a score spec: {getattr(error, 'msg', error)}. {_GRAMMAR}") from None
    try:
        return _spec(tree, text)
    except RecursionError:  # an expression so long that it cannot even be quoted back
        raise ValueError(f"`{text}` is not a score spec: it nests too deeply. {_GRAMMAR}") from None


def _spec(tree: ast.expr, text: str, depth: int = 0) -> Spec:
    if depth > _DEEPEST:
        raise ValueError(f"specs nest at most {_DEEPEST} deep; got more in `{text}`")
    if isinstance(tree, ast.Name):
        return _build(tree.id, (), {}, text)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        options: dict[str, Value] = {}
        for keyword in tree.keywords:
            if keyword.arg is None:
                raise ValueError(f"`**` has no meaning in `{text}`. {_GRAMMAR}")
            if keyword.arg in options:
                raise ValueError(f"`{keyword.arg}` is given twice in `{text}`")
            options[keyword.arg] = _value(keyword.value, keyword.arg, text)
        return _build(tree.func.id, tuple(_spec(a, text, depth + 1) for a in tree.args), options, text)
    raise ValueError(f"`{ast.unparse(tree)}` is not a score, in `{text}`. {_GRAMMAR}")


def _value(tree: ast.expr, key: str, text: str) -> Value:
    if key in _WORDS:
        if isinstance(tree, ast.Name) and tree.id in _WORDS[key]:
            return tree.id
        raise ValueError(f"`{key}` must be {' or '.join(_WORDS[key])}; got `{ast.unparse(tree)}` in `{text}`")
    if isinstance(tree, ast.Tuple | ast.List):
        return tuple(_number(item, key, text) for item in tree.elts)
    return _number(tree, key, text)


def _number(tree: ast.expr, key: str, text: str) -> float:
    sign = 1
    while isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        sign, tree = (-sign if isinstance(tree.op, ast.USub) else sign), tree.operand
    value = tree.value if isinstance(tree, ast.Constant) else None
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{key}` must be a finite number; got `{ast.unparse(tree)}` in `{text}`")
    return sign * number + 0.0  # −0 is 0: equal specs have one text


def _build(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    if name in _COMBINATIONS:
        return _combination(name, args, options, text)
    if name not in registry.names() and name != "vim":
        close = difflib.get_close_matches(name.lower(), known_names(), n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        raise ValueError(f"unknown score `{name}` in `{text}`.{hint} Known: {', '.join(known_names())}")
    if args:
        raise ValueError(
            f"`{name}` is a score of its own and takes no other specs; got `{text}`. "
            f"Combinations are {', '.join(_COMBINATIONS)}"
        )
    if name == "vim":
        # One combination, one c: `vim(c=…)` and `linear(energy, residual, c=…)` are the same spec.
        return _combination("linear", VIM.args, options, text)
    defaults = registry.get(name).options
    for key, value in options.items():
        if key not in defaults:
            takes = f"it takes {', '.join(defaults)}" if defaults else "it has no parameters"
            raise ValueError(f"`{name}` has no parameter `{key}` (in `{text}`): {takes}")
        if isinstance(value, tuple | str):
            raise ValueError(f"`{key}` of `{name}` must be one number; got {_text(value)} in `{text}`")
        _check_option(name, key, value, text)
    given = {key: type(defaults[key])(value) for key, value in options.items() if not isinstance(value, tuple | str)}
    # What could be tuned stays: asking for the default is asking not to tune.
    tuned = registry.get(name).tune is not None
    return Spec(name, (), {key: value for key, value in given.items() if tuned or value != defaults[key]})


def _check_option(name: str, key: str, value: float, text: str) -> None:
    score = registry.get(name)
    whole = isinstance(score.options[key], int)
    least, most = score.limits.get(key, (1, math.inf) if whole else (-math.inf, math.inf))
    if least <= value <= most and (not whole or value == int(value)):
        return
    rule = ("a whole number" if whole else "a number") + (
        f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
    )
    raise ValueError(f"`{key}` of `{name}` must be {rule}; got {_text(value)} in `{text}`")


def _combination(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    least, most, keys = _COMBINATIONS[name]
    if len(args) < least or (most is not None and len(args) > most):
        count = f"{least}" if most == least else f"at least {least}"
        raise ValueError(f"`{name}` combines {count} specs; got {len(args)} in `{text}`")
    for key in options:
        if key not in keys:
            takes = f"it takes {', '.join(f'{k}=' for k in keys)}" if keys else "it has none"
            raise ValueError(f"`{name}` has no parameter `{key}` (in `{text}`): {takes}")
    # A tuple of one is that number, so that both spellings are one spec.
    plain = {k: v[0] if isinstance(v, tuple) and len(v) == 1 else v for k, v in options.items()}
    defaults = _DEFAULTS.get(name, {})
    spec = Spec(name, args, {k: plain[k] for k in keys if k in plain and plain[k] != defaults.get(k)})
    for key in ("budget", "kappa", "alpha", "beta", "c"):
        if isinstance(plain.get(key), tuple):
            raise ValueError(f"`{key}` of `{name}` must be one number in `{text}`")
    if spec.has_bounded_first:
        _check_first(spec, text)
        _check_numbers(spec, text)
        _check_others(spec, text)
    elif name == "linear" and "c" not in options and args != VIM.args:
        raise ValueError(
            f"`linear` needs `c=` in `{text}`; only linear(energy, residual), which is `vim`, finds its own"
        )
    return spec


def _check_first(spec: Spec, text: str) -> None:
    first = spec.args[0]
    bounded = [name for name in registry.names() if registry.get(name).log_gap]
    if first.name not in bounded:
        raise ValueError(
            f"the first score of `{spec.name}` must be bounded, one of {', '.join(bounded)}; got `{first}` in `{text}`"
        )
    if spec.name == "bayes" and not {"logits", "softmax"}.issuperset(needs := registry.get(first.name).needs):
        raise ValueError(
            "the first score of `bayes` must be one of the logits alone: it is compared with what equal logits give; "
            f"`{first}` needs {', '.join(needs)}, in `{text}`. Use it in `sirc`"
        )
    for key, (least, most) in registry.get(first.name).limits.items():
        option = key.removesuffix("_bounded")
        value = first.options.get(option)
        if option != key and isinstance(value, int | float) and not least <= value <= most:
            raise ValueError(
                f"`{option}` of `{first.name}` must be from {least:g} to {most:g} as the first score of `{spec.name}`, "
                f"where it is bounded; got {_text(value)} in `{text}`"
            )


def _check_numbers(spec: Spec, text: str) -> None:
    others = spec.args[1:]
    for key in ("a", "b"):
        given = spec.numbers(key)
        if given is not None and len(given) != len(others):
            raise ValueError(
                f"`{key}` of `{spec.name}` must give one number for each S2, {len(others)} here; got {len(given)} in "
                f"`{text}`. Write several as `{key}=({', '.join('…' for _ in others)})`"
            )
    if any(b <= 0 for b in spec.numbers("b") or ()):
        raise ValueError(f"`b` of `{spec.name}` must be positive: it is the slope against S2, 1/σ; got `{text}`")
    for key, least, most, rule in (
        ("budget", 0.0, 100.0, "the points of AUROC of ID✗|ID✓ that S2 may cost, from 0 to 100"),
        ("kappa", math.ulp(0.0), math.inf, "positive: the weight of S2's part"),
        ("alpha", math.ulp(0.0), 1.0, "the share of ID input, above 0 and at most 1"),
        ("beta", 0.0, 1.0, "the cost of accepting ID✗, from 0 to 1"),
    ):
        for value in spec.numbers(key) or ():
            if not least <= value <= most:
                raise ValueError(f"`{key}` of `{spec.name}` must be {rule}; got {_text(value)} in `{text}`")
    if spec.tunes and {"a", "b"} & set(spec.options):
        raise ValueError(f"`budget` of `sirc` finds a and b on validation data: leave them out; got `{text}`")


def _check_others(spec: Spec, text: str) -> None:
    for other in spec.args[1:]:
        for outer in other.walk():
            # μ and σ of a linear form follow from those of its terms; of anything else, only from its values.
            inside = outer.walk() if outer.has_bounded_first or outer.name == "product" else ()
            fitted = [part for part in inside if is_vim(part) or part.finds_spread]
            if fitted:
                way = "Leave it out" if fitted[0].name == "bayes" else "Give its a= and b= explicitly"
                where = "" if fitted[0] is outer else f" inside `{outer}`"
                raise ValueError(
                    f"`{fitted[0]}`{where} would have to be fitted before this S2 could be, in `{text}`. "
                    f"{'Give its c= explicitly' if is_vim(fitted[0]) else way}"
                )


def is_vim(spec: Spec) -> bool:
    """Whether it is the linear combination that finds its own c."""
    return spec.name == "linear" and "c" not in spec.options


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return f"({', '.join(_text(v) for v in value)}{',' if len(value) == 1 else ''})"
    return repr(value)
