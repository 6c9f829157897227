"""Tools of the studies: they measure finished runs and write the findings; run them from the repository root."""
