"""Helpers without any knowledge of classifiers: arrays, checks, files, precision, hints, processes."""
