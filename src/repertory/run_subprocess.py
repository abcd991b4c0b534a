"""The process in which a study makes one run: `repertory`, which ends with the process that started it."""

from __future__ import annotations

import sys

from repertory import cli
from repertory.runtime import end_with


def main() -> int:
    """Arguments: the number of the process to end with, then those of the command line."""
    end_with(int(sys.argv.pop(1)))
    sys.argv[0] = "repertory"  # what the run's directory will say it was started with
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
