"""``python -m turnlog.cli``: the same as ``turnlog``."""

from . import main

if __name__ == "__main__":
    main()
