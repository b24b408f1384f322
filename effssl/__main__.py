"""`python -m effssl` is `effssl`."""

from effssl.cli import main

if __name__ == "__main__":
    main()
