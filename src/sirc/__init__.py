"""Selective classification with out-of-distribution data."""

__version__ = "0.1.0"
