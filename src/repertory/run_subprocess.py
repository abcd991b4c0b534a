"""The command line in a subprocess of a study: `repertory`, which ends with the process that started it."""

from __future__ import annotations

import sys

from repertory import cli
from repertory.runtime import end_with


def main() -> int:
    """Arguments: the parent's process id, then those of the command line."""
    end_with(int(sys.argv.pop(1)))
    sys.argv[0] = "repertory"  # the command that the run's config.json will show
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
