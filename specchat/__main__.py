"""`specchat` and `python -m specchat`."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from specchat.cli.main import main as run
    except KeyboardInterrupt:
        return 130

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
