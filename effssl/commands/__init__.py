"""The verbs of the command line, a file for each; nothing here imports torch until a verb really runs."""
