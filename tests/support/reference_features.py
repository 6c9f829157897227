"""The later feature-side scores as plain NumPy float64 loops over rows; nothing of sirc is imported here."""

import numpy as np

from support import reference


def values(data, rows):
    """The plain value of each row = (logits, features) by every score here, fitted on data, default options."""
    _, z, y, weight, bias = data
    logits, features = rows
    return {
        "mahalanobis_pp": mahalanobis_pp(features, z, y),
        "relative_mahalanobis": relative_mahalanobis(features, z, y),
        "react": react(features, weight, bias, np.percentile(np.asarray(z, dtype=np.float64), 90)),
        "scale": scale(logits, features, bias),
        "ash": ash(features, weight, bias),
        "nci": nci(logits, features, weight, np.mean(z, axis=0)),
        "fdbd": fdbd(logits, features, weight, np.mean(z, axis=0)),
        "cop": cop(features, *fit_cop(z)),
        "nnguide": nnguide(logits, features, z, weight, bias),
    }


def held_out(data):
    """The plain value of each row by every fitted score, default options, fitted on all rows but that one."""
    _, z, y, weight, bias = data
    classes, leading = int(max(y)) + 1, len(z[0]) - round(np.trace(fit_cop(z)[1]))
    rows = []
    for i in range(len(z)):
        rest = *(np.delete(x, i, 0) for x in data[:3]), weight, bias
        here = data[0][i : i + 1], z[i : i + 1]
        row = values(rest, here) | {
            "residual": reference.residual(here[1], *reference.fit_residual(rest[1], weight, bias)),
            "mahalanobis": reference.mahalanobis(here[1], *reference.fit_mahalanobis(*rest[1:3], classes)),
            "cop": cop(here[1], *fit_cop(rest[1], leading=leading)),
            "knn": reference.knn(here[1], rest[1]),
        }
        rows.append({name: value[0] for name, value in row.items()})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def delta_values(data, val, rows):
    """The plain value of each row by the scores that compare with right and wrong rows of `val`, default options."""
    return {
        "delta_mahalanobis": delta_mahalanobis(rows[1], data[1], data[2], *val[:3]),
        "delta_knn": delta_knn(rows[1], *val[:3]),
    }


def delta_mahalanobis(features, z, y, val_logits, val_z, val_y):
    """Squared distance to the nearest mean of wrong rows of a class, less that to the nearest of right rows."""
    _, precision = reference.fit_mahalanobis(z, y, int(max(y)) + 1)
    right = np.argmax(val_logits, axis=1) == val_y
    nearest = {}
    for group in (True, False):
        classes = sorted(set(val_y[right == group]))
        means = [np.mean(val_z[(right == group) & (val_y == k)], axis=0) for k in classes]
        nearest[group] = -reference.mahalanobis(features, means, precision)
    return nearest[False] - nearest[True]


def delta_knn(features, val_logits, val_z, val_y, k=25):
    """The mean log squared distance to the k nearest wrong rows, less that to the k nearest right ones."""
    right = np.argmax(val_logits, axis=1) == val_y
    return mean_log_distance(features, val_z[~right], k) - mean_log_distance(features, val_z[right], k)


def mean_log_distance(features, bank, k):
    """The mean log squared distance to the k nearest unit rows of a bank, kept from 0."""
    found = []
    for row in reference.unit(features):
        distance = sorted(((other - row) ** 2).sum() for other in reference.unit(bank))
        found.append(np.mean([np.log(d + 1e-6) for d in distance[:k]]))
    return np.array(found)


def mahalanobis_pp(features, z, y):
    means, precision = reference.fit_mahalanobis(reference.unit(z), y, int(max(y)) + 1)
    return reference.mahalanobis(reference.unit(features), means, precision)


def fit_background(z):
    z = np.asarray(z, dtype=np.float64)
    mean = z.mean(0)
    total = sum(np.outer(row - mean, row - mean) for row in z) / len(z)
    return mean, np.linalg.pinv(total, rcond=1e-10, hermitian=True)


def relative_mahalanobis(features, z, y):
    means, precision = reference.fit_mahalanobis(z, y, int(max(y)) + 1)
    mean, total = fit_background(z)
    background = [(row - mean) @ total @ (row - mean) for row in np.asarray(features, dtype=np.float64)]
    out = []
    for row, far in zip(np.asarray(features, dtype=np.float64), background, strict=True):
        out.append(-min((row - m) @ precision @ (row - m) - far for m in means))
    return np.array(out)


def logits_of(row, weight, bias):
    return np.array([w @ row + (0 if bias is None else bias[k]) for k, w in enumerate(weight)])


def react(features, weight, bias, clip):
    clipped = [[min(float(x), clip) for x in row] for row in features]
    return reference.energy([logits_of(np.array(row), weight, bias) for row in clipped])


def kept(row, percentile):
    """Which features of a row are as large as the last of those that the percentile keeps."""
    count = max(1, len(row) - round(len(row) * percentile / 100))
    least = sorted(row)[len(row) - count]
    return np.array([x >= least for x in row])


def ratio(row, percentile):
    before = sum(x for x in row if x > 0)
    after = sum(x for x, stays in zip(row, kept(row, percentile), strict=True) if stays and x > 0)
    return before / after if after > 0 else 1.0


def scale(logits, features, bias, percentile=85):
    out = []
    for v, z in zip(np.asarray(logits, dtype=np.float64), np.asarray(features, dtype=np.float64), strict=True):
        b = np.zeros(len(v)) if bias is None else bias
        out.append(np.exp(ratio(z, percentile)) * (v - b) + b)
    return reference.energy(out)


def ash(features, weight, bias, percentile=90):
    out = []
    for z in np.asarray(features, dtype=np.float64):
        shaped = np.where(kept(z, percentile), z, 0) * np.exp(ratio(z, percentile))
        out.append(logits_of(shaped, weight, bias))
    return reference.energy(out)


def nci(logits, features, weight, mean, scale=1e-4):
    out = []
    for v, z in zip(logits, np.asarray(features, dtype=np.float64), strict=True):
        away = z - mean
        length = np.sqrt(away @ away)
        along = weight[np.argmax(v)] @ away / length if length > 0 else 0.0
        out.append(along + scale * np.abs(z).sum())
    return np.array(out)


def fdbd(logits, features, weight, mean):
    out = []
    for v, z in zip(np.asarray(logits, dtype=np.float64), np.asarray(features, dtype=np.float64), strict=True):
        top = int(np.argmax(v))
        gaps = []
        for k in range(len(v)):
            apart = np.linalg.norm(weight[top] - weight[k])
            if apart > 0:
                gaps.append((v[top] - v[k]) / apart)
        out.append((np.mean(gaps) if gaps else 0.0) / np.linalg.norm(z - mean))
    return np.array(out)


def fit_cop(z, variance=0.99, leading=None):
    """The mean of unit features and the projector onto what their leading directions leave, so many or by variance."""
    rows = reference.unit(z)
    mean = rows.mean(0)
    _, spread, directions = np.linalg.svd(rows - mean)
    share = np.zeros(rows.shape[1])
    share[: len(spread)] = spread**2 / (spread**2).sum()
    if leading is None:
        leading = 1
        while share[:leading].sum() < variance and leading < len(share) - 1:
            leading += 1
    main = directions[: min(leading, np.count_nonzero(share > 1e-24))]
    return mean, np.eye(len(share)) - main.T @ main


def cop(features, mean, projector):
    return np.array([-np.linalg.norm(projector @ (row - mean)) for row in reference.unit(features)])


def nnguide(logits, features, bank, weight, bias, k=10, skip=0):
    energies = reference.energy([logits_of(row, weight, bias) for row in np.asarray(bank, dtype=np.float64)])
    rows = reference.unit(bank)
    out = []
    for own, z in zip(reference.energy(logits), reference.unit(features), strict=True):
        cosine = rows @ z
        searched = np.argsort(-cosine, kind="stable")[skip:]
        out.append(own * np.mean(np.sort(energies[searched] * cosine[searched])[::-1][:k]))
    return np.array(out)
