"""One module per evaluation protocol; `effssl.evaluation.protocol` says what it holds."""
