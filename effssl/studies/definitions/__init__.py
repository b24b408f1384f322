"""The studies, one module per family: a new file here with a dictionary `STUDIES` is all that a new study takes."""
