"""The verbs of the command line, a file for each; none imports torch before it runs."""

import time

STARTED = time.monotonic()
"""About when the program was started: a time budget counts from here."""
