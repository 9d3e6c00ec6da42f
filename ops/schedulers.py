"""`tandem schedulers`: the policies that `--scheduler` knows, and their options."""

import argparse
import sys
from collections.abc import Sequence

from scheduler import registry


def main(arguments: Sequence[str]) -> int:
    """Print each policy with its options; 1 when one of them cannot be loaded."""
    argparse.ArgumentParser("tandem schedulers", description=__doc__).parse_args(arguments)
    status = 0
    for name, target in registry.known().items():
        print(f"{name}  ({target})")
        try:
            lines = registry.describe(name)
        except registry.PolicyError as error:
            print(f"  {error}", file=sys.stderr)
            status = 1
            continue
        for line in lines:
            print(f"  --option {line}")
    return status
