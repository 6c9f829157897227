"""The paper's formulas as plain NumPy float64 loops, and data to try them on; nothing of sirc is imported here."""

import numpy as np

COMBINATIONS = ("sirc", "additive", "bayes", "linear", "product", "both")
LOGIT_SCORES = ("msp", "doctor", "entropy", "max_logit", "energy")


def softmax(v):
    out = []
    for row in np.asarray(v, dtype=np.float64):
        e = np.exp(row - row.max())
        out.append(e / e.sum())
    return np.array(out)


def msp(v):
    return np.array([p.max() for p in softmax(v)])


def doctor(v):
    return np.array([np.sqrt(sum(x * x for x in p)) for p in softmax(v)])


def entropy(v):
    return np.array([sum(x * np.log(x) for x in p if x > 0) for p in softmax(v)])


def max_logit(v):
    return np.array([max(float(x) for x in row) for row in v])


def energy(v):
    v = np.asarray(v, dtype=np.float64)
    return np.array([row.max() + np.log(np.exp(row - row.max()).sum()) for row in v])


def l1(z):
    return np.array([sum(abs(float(x)) for x in row) for row in z])


def gradnorm(v, z):
    k = np.shape(v)[1]
    return np.array([sum(abs(x - 1 / k) for x in p) for p in softmax(v)]) * l1(z)


def log_gaps(row):
    """log(S1max − S1) of msp, doctor and entropy from one row of logits, with all the digits it takes."""
    import mpmath

    second, first = sorted(row)[-2:]
    with mpmath.workdps(50 + int(0.45 * (first - second))):
        v = [mpmath.mpf(float(x)) for x in row]
        total = mpmath.fsum(mpmath.exp(x) for x in v)
        pi = [mpmath.exp(x) / total for x in v]
        norm = mpmath.sqrt(mpmath.fsum(p * p for p in pi))
        h = -mpmath.fsum(p * mpmath.log(p) for p in pi)
        return {
            "msp": float(mpmath.log(1 - max(pi))),
            "doctor": float(mpmath.log(1 - norm)),
            "entropy": float(mpmath.log(h)),
        }


def principal_dimension(size):
    if size > 1500:
        return 1000
    if size > 512:
        return 512
    return size // 2


def fit_residual(z, weight, bias):
    """Origin u and the projector onto what the min(D, rank) leading eigenvectors of E[(z−u)(z−u)ᵀ] leave."""
    z = np.asarray(z, dtype=np.float64)
    size = z.shape[1]
    u = np.zeros(size) if bias is None else -np.linalg.pinv(weight) @ bias
    second = np.zeros((size, size))
    for row in z - u:
        second += np.outer(row, row)
    _, vectors = np.linalg.eigh(second / len(z))
    rank = np.linalg.matrix_rank(second, hermitian=True)
    dropped = vectors[:, ::-1][:, : min(principal_dimension(size), rank)]
    return u, np.eye(size) - dropped @ dropped.T


def residual(z, u, projector):
    return np.array([-np.linalg.norm(projector @ (np.asarray(row, dtype=np.float64) - u)) for row in z])


def fit_mahalanobis(z, labels, classes):
    z = np.asarray(z, dtype=np.float64)
    present = [k for k in range(classes) if np.any(labels == k)]
    means = {k: z[labels == k].mean(0) for k in present}
    within = np.zeros((z.shape[1], z.shape[1]))
    for row, label in zip(z, labels, strict=True):
        within += np.outer(row - means[label], row - means[label])
    return np.array([means[k] for k in present]), np.linalg.pinv(within / len(z), rcond=1e-10, hermitian=True)


def mahalanobis(z, means, precision):
    z = np.asarray(z, dtype=np.float64)
    return np.array([-min((row - m) @ precision @ (row - m) for m in means) for row in z])


def unit(z):
    z = np.asarray(z, dtype=np.float64)
    return np.array([row / (np.linalg.norm(row) or 1.0) for row in z])


def knn(z, bank, k=10, leave_out=None):
    """Minus the squared distance to the k-th neighbour; row i does not see the bank rows in leave_out(i)."""
    rows, bank = unit(z), unit(bank)
    out = []
    for i, row in enumerate(rows):
        distance = ((bank - row) ** 2).sum(1)
        if leave_out is not None:
            distance = distance[~leave_out(i)]
        out.append(-np.sort(distance)[k - 1])
    return np.array(out)


def sirc(log_gap, others, a, b):
    """−log(−C), C = −(S1max − S1) Π(1 + exp(−b[S2 − a]))."""
    total = -np.asarray(log_gap, dtype=np.float64)
    for s2, center, slope in zip(others, a, b, strict=True):
        total = total - np.logaddexp(0.0, slope * (center - np.asarray(s2, dtype=np.float64)))
    return total


def bayes(u, g, alpha, beta):
    """Minus the log of the expected cost of accepting, from the probability of an error and the density ratio."""
    out = []
    for error, ratio in zip(u, g, strict=True):
        w = (1 - alpha) * ratio / (alpha + (1 - alpha) * ratio)
        out.append(-np.log(beta * (1 - w) * error + (1 - beta) * w))
    return np.array(out)


def spread(values):
    """SIRC's a = μ − 3σ and b = 1/σ, population σ."""
    mu, sigma = np.mean(values), np.std(values)
    return mu - 3 * sigma, 1 / sigma


def typical(values):
    """The a and b of `bayes`: the median for μ, and for σ how far below it the quantile of a normal μ − σ lies."""
    low, middle = np.quantile(values, [0.15865525393145707, 0.5])
    return middle - 3 * (middle - low), 1 / (middle - low)


def least_aurr(u, g, alpha, beta, risk=0.0):
    """−log([(β−R)u + (1−α)(1−β−R)/α·g]/(1 − u)), no weight below 0, u alone where neither is left."""
    by_u, by_g = max(beta - risk, 0), max(1 - beta - risk, 0) * (1 - alpha) / alpha
    if not by_u and not by_g:
        by_u = 1.0
    return np.array([-np.log((by_u * x + by_g * y) / (1 - x)) for x, y in zip(u, g, strict=True)])


def aurr(order, u, g, alpha, beta):
    """AURR of rows in that order, of which each stands for 1 − u of ID✓, u of ID✗ and g of OOD input."""
    accepted = cost = right = total = 0.0
    for row in order:
        accepted += alpha + (1 - alpha) * g[row]
        cost += alpha * beta * u[row] + (1 - alpha) * (1 - beta) * g[row]
        total += (1 - u[row]) * cost / accepted
        right += 1 - u[row]
    return total / right


def aurr_stages(u, g, alpha, beta, stages=32):
    """Risks, levels and marks of the order of least AURR, row by row: in each stage the cheapest rows join."""
    left, risks, levels, marks, risk, right, cost, mass = list(range(len(u))), [], [], [], 0.0, 0.0, 0.0, 0.0
    for stage in range(1, stages + 1):
        if not left:
            break
        dear = -least_aurr(u, g, alpha, beta, risk)
        left.sort(key=lambda row: dear[row])
        before = -least_aurr(u, g, alpha, beta, risks[-1]) if risks else None
        risks.append(risk)
        joined = []
        while True:
            row = left.pop(0)
            joined.append(row)
            right += 1 - u[row]
            cost += alpha * beta * u[row] + (1 - alpha) * (1 - beta) * g[row]
            mass += alpha + (1 - alpha) * g[row]
            if not left or right >= stage / stages * (1 - u).sum() - 1e-12:
                break
        levels.append(dear[row])
        if marks:
            reaches = sorted(before[one] - levels[-2] + levels[-1] - dear[one] for one in joined)
            marks.append(marks[-1] + max(reaches[(len(reaches) - 1) // 2], 1e-9))
        else:
            marks.append(levels[0])
        risk = cost / mass
    return risks, levels, marks


def staged_aurr(u, g, alpha, beta, risks, levels, marks=None):
    """Minus the stage in which each row joins, the first whose level it does not exceed, or minus its mark there."""
    over = np.array([-least_aurr(u, g, alpha, beta, risk) - level for risk, level in zip(risks, levels, strict=True)])
    found = []
    for row in over.T:
        reached = np.flatnonzero(row <= 0)
        ends = np.arange(len(row)) if marks is None else marks
        if not len(reached):
            found.append(ends[-1] + row[-1])
        elif (stage := reached[0]) == 0:
            found.append(ends[0] + row[0])
        else:
            part = row[stage - 1] / (row[stage - 1] - row[stage])
            found.append(ends[stage - 1] + part * (ends[stage] - ends[stage - 1]))
    return -np.array(found)


def witnessed(u, z):
    """u^0.4·Π[(1−p) + p·min(exp(−z − ½), e³)] of rows, with the deviations z of each witness, (n, m)."""
    p = min(0.25, 1.2 / z.shape[1])
    found = []
    for x, row in zip(u, z, strict=True):
        value = x**0.4
        for deviation in row:
            value *= (1 - p) + p * min(np.exp(min(-deviation - 0.5, 700)), np.exp(3))
        found.append(value)
    return np.array(found)


def auroc(positive, negative):
    """The share of pairs in order, ties half."""
    positive, negative = np.asarray(positive), np.asarray(negative)
    above = (positive[:, None] > negative[None, :]).mean()
    return above + 0.5 * (positive[:, None] == negative[None, :]).mean()


def model(n, classes=6, size=10, seed=0, noise=1.0, bias=True):
    """A linear classifier and its data: logits, features, labels, weight, bias, all float64."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, size)) * 2
    scale = np.linspace(1.5, 0.3, size)
    weight = means / scale**2 * 0.5
    b = -0.5 * (means * weight).sum(1) if bias else None
    labels = rng.integers(0, classes, size=n)
    features = means[labels] + rng.normal(size=(n, size)) * scale * noise
    logits = features @ weight.T + (0 if b is None else b)
    return logits, features, labels, weight, b
