"""What people read: names of scores and metrics, tables, figures and the page."""

__all__ = []
