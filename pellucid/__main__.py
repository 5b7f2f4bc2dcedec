"""`python -m pellucid ...` is `pellucid ...`."""

from pellucid.cli.main import main

if __name__ == "__main__":
    main()
