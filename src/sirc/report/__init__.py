"""Reports for people: import `sirc.report.tables`, `.figures`, `.page`, or the titles in `.names`."""

__all__ = []
