"""`python -m sirc`, which `torchrun -m sirc` starts as well."""

from sirc.cli import main

main()
