"""What every other package rests on: settings, randomness, files, devices, provenance."""
