"""Reports: import `sirc.report.tables`, `.figures`, `.page`, or the display names in `.names`."""

__all__ = []
