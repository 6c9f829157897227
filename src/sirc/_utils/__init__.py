"""Helpers that know nothing of classifiers: arrays, checks, files, precision, hints, processes."""
