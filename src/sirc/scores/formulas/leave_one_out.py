"""Leave-one-out scores of training rows in closed form: each as if the fit had not seen the row.

Without one row, a matrix that is a sum over N rows loses one term. What follows from its inverse or its eigenvectors
then changes by a few inner products: no second decomposition is needed. With few rows this takes float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from sirc.scores.blocks import by_rows
from sirc.scores.moments import Moments

PSEUDO_INVERSE_CUTOFF = 1e-10
"""Eigenvalues of a covariance, relative to the largest, that count as 0."""
_FEW = 20  # rows for each feature: with fewer, all products are float64
_HARD = 0.1  # a row with a smaller `left` needs more digits than float32 has


@dataclass(frozen=True)
class _Removal:
    """How squared lengths |e|² under Σ⁺ change when a row at d from its mean is left out, in whitened coordinates.

    They become |e|² + α(e·d)² + β(e·d)(e·a), a = λmax Λ⁻¹d, times (N−1)/N. α and β are those of the inverse of
    S − kddᵀ, k = n/(n−1), or of its pseudo-inverse if no other row has a part in some direction.
    """

    d: Tensor
    a: Tensor
    alpha: Tensor
    beta: Tensor
    left: Tensor
    """1 − k dᵀS⁺d: the share of the scatter in the row's direction that other rows have."""

    @classmethod
    def of(cls, d: Tensor, k: Tensor, rows: int, inverse: Tensor) -> _Removal:
        """`inverse` are λmax/λ of Σ along the whitened coordinates."""
        a = d * inverse
        square, b, aa = (_dot(x, y) for x, y in ((d, d), (d, a), (a, a)))
        left = 1 - k * square / rows
        # The eigenvalue of the direction becomes about λmax·left·N/(k·b); below the cutoff it counts as 0.
        gone = left * rows <= PSEUDO_INVERSE_CUTOFF * k * b
        safe = torch.where(gone, b, 1.0)
        alpha = torch.where(gone, aa / safe.square(), k / (rows * torch.where(gone, 1.0, left)))
        return cls(d, a, alpha, torch.where(gone, -2 / safe, 0.0), left)

    def squared_length(self, e: Tensor) -> Tensor:
        along = _dot(e, self.d)
        return (_dot(e, e) + self.alpha * along.square() + self.beta * along * _dot(e, self.a)).clamp_min(0)


def held_out_mahalanobis(
    moments: Moments, parameters: dict[str, Tensor], scaled: Callable[[Tensor], Tensor] = lambda z: z
) -> Callable[[Tensor, Tensor], Tensor]:
    """The `mahalanobis` score of training rows, `scaled`, from its parameters: minus the distance to the nearest class.

    A class whose only row is left out does not count.
    """
    center, whitener, means = (parameters[name] for name in ("center", "whitener", "means"))
    cast = _caster(center, whitener, means, _relative_inverse(whitener))
    count = moments.class_count
    place = (count > 0).cumsum(0) - 1
    rows = moments.count

    def nearest(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        center, whitener, means, inverse = cast(features.dtype)
        x = (scaled(features) - center) @ whitener
        own, n = place[labels], count[labels]
        k = n / (n - 1).clamp_min(1)
        removal = _Removal.of(x - means[own], k, rows, inverse)
        at_own = torch.where(n > 1, removal.squared_length(k[:, None] * removal.d), torch.inf)
        norm = means.square().sum(-1)

        def pick(x: Tensor, d: Tensor, a: Tensor, own: Tensor, *columns: Tensor) -> Tensor:
            at_own, alpha, beta = (column[:, None].to(x.dtype) for column in columns)
            table = torch.addmm(norm, x, means.T, alpha=-2).add_(_dot(x, x)[:, None])
            along = _products(x, d, means)
            table.addcmul_(along.square(), alpha)
            if bool(beta.any()):
                table.add_(along.mul_(_products(x, a, means)).mul_(beta))
            return table.scatter_(1, own[:, None], at_own).argmin(-1)

        columns = (own, at_own, removal.alpha, removal.beta)
        chosen = by_rows(pick, x, removal.d, removal.a, *columns, product=len(means))
        elsewhere = removal.squared_length(x.sub_(means[chosen]))
        return torch.where(chosen == own, at_own, elsewhere) * ((1 - rows) / rows), removal.left

    return _precise(nearest, rows, whitener.shape[1])


def background_distances(moments: Moments, center: Tensor, whitener: Tensor) -> Callable[[Tensor], Tensor]:
    """The squared distance of training rows to the mean of all rows, under their covariance."""
    rows, cast = moments.count, _caster(center, whitener, _relative_inverse(whitener))

    def distance(features: Tensor) -> tuple[Tensor, Tensor]:
        center, whitener, inverse = cast(features.dtype)
        k = inverse.new_tensor(rows / (rows - 1), dtype=torch.float64)
        removal = _Removal.of((features - center) @ whitener, k, rows, inverse)
        return removal.squared_length(k * removal.d) * ((rows - 1) / rows), removal.left

    return _precise(distance, rows, len(center))


def squared_part_outside(
    values: Tensor, vectors: Tensor, leading: int, rows: int, offset: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """‖y − Py‖² of the vectors y of a sum M = Σ yyᵀ, where P projects on the leading eigenvectors of M − yyᵀ.

    `offset` turns features into y. M/rows has the eigenvalues λ, ascending, and the eigenvectors V. With c = Vᵀy and
    g(w) = Σ cᵢ²/(λᵢ − w), the resolvent of M − yyᵀ gives h = g/(1 − g), and the part outside is −1/2πi ∮ h dw about its
    small eigenvalues. Let x be the largest λ that is not leading. By interlacing, the circle |w| = x parts them from
    the leading ones for every y. On it h is smooth in log tan(arg w/2), so that the trapezoid rule converges
    exponentially. If x is only rounding error, all rows lie in the leading directions, and y has a part outside only if
    no other row has a part in its direction.
    """
    noise = values[-1] * len(values) * torch.finfo(values.dtype).eps
    x = values[max(0, len(values) - leading - 1)]
    if not bool(x > noise):
        kept = values > noise
        sole = partial(_sole_part, vectors=vectors[:, kept], values=values[kept] * rows, noise=100 * rows * noise)
        return lambda features: sole(offset(features.double()))
    # Nearer to x than the lowest node, eigenvalues of M − yyᵀ belong to directions in which y has almost no part.
    low, high, step = -math.log(1e9 * rows), 11.0, 0.3
    s = torch.arange(low, high, step, dtype=values.dtype, device=values.device)
    weight = step / (math.pi * s.cosh())
    weight[[0, -1]] *= 1 + 1 / math.expm1(step)  # beyond the ends, the integrand falls as a geometric series
    it = torch.complex(torch.zeros_like(s), s.exp())
    from_x = 2 * it / (1 - it)
    resolvent = 1 / (((values - x) / x)[:, None] - from_x)
    table = torch.cat((resolvent.real, resolvent.imag), 1)
    cast = _caster(vectors)

    def part(features: Tensor) -> Tensor:
        y = offset(features)  # the working type is enough, as no term is larger than c²/x
        square = (y @ cast(y.dtype)[0]).double().square_().div_(rows * x)
        g = torch.complex(*(square @ table).chunk(2, 1))
        return ((g / (g - 1) * (1 + from_x)).real @ weight).clamp_min_(0) * (rows * x)

    return part


def _sole_part(y: Tensor, *, vectors: Tensor, values: Tensor, noise: Tensor) -> Tensor:
    """‖y − Py‖², where P projects on the range of M − yyᵀ, and M has these eigenvalues above rounding."""
    p = y @ vectors / values.sqrt()
    h, pp = p.square().sum(-1), (p.square() / values).sum(-1)
    sole = 1 - h <= noise * pp  # the eigenvalue of the direction becomes about (1 − h)/pp
    return torch.where(sole & (pp > 0), h.square() / torch.where(pp > 0, pp, 1.0), 0.0)


def _precise(formula: Callable[..., tuple[Tensor, Tensor]], rows: int, width: int) -> Callable[..., Tensor]:
    """The values of a formula: in float64 if there are few training rows, and for rows with a small `left`."""

    def values(features: Tensor, *columns: Tensor) -> Tensor:
        if rows < _FEW * width:
            return formula(features.double(), *columns)[0]
        scores, left = formula(features, *columns)
        hard = (left < _HARD).nonzero()[:, 0]
        return scores.index_copy(0, hard, formula(features[hard].double(), *(x[hard] for x in columns))[0])

    return values


def _caster(*parameters: Tensor) -> Callable[[torch.dtype], list[Tensor]]:
    """A function that returns the parameters in a working type, converted only once."""
    return cache(lambda dtype: [x.to(dtype) for x in parameters])


def _relative_inverse(whitener: Tensor) -> Tensor:
    """λmax/λ along each whitened coordinate."""
    inverse = whitener.square().sum(0)
    return inverse / inverse.min()


def _products(x: Tensor, d: Tensor, means: Tensor) -> Tensor:
    """(x − m)·d for all means, (n, K)."""
    return (d @ means.T).neg_().add_(_dot(x, d)[:, None])


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, dtype=torch.float64)
