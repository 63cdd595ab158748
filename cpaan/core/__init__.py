"""Code that all other packages use: settings, randomness, files, devices, provenance."""
