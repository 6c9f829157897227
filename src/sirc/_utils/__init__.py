"""Helpers that know nothing of classifiers: arrays, checks, files, text, precision, processes."""
