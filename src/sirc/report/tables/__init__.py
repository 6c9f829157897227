"""Tables of results, as in papers: `table` makes one, `save_tables` writes it as Markdown, LaTeX, HTML and CSV."""

from sirc.report.tables.table import Table, save_tables, table

__all__ = ["Table", "save_tables", "table"]
