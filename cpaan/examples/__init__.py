"""Examples in percent format: run them as scripts, or open them as notebooks."""
