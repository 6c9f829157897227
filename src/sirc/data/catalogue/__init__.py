"""The catalogue: the paper's benchmarks and other public datasets, and fetching them; `sirc.data` exports its names."""
