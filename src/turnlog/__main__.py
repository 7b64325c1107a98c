"""``python -m turnlog``: the same as ``turnlog``."""

from turnlog.cli import main

if __name__ == "__main__":
    main()
