"""Reports: `sirc.report.tables`, `.figures`, `.page`, and display names in `.names`."""

__all__ = []
