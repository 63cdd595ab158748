"""GPU implementations of formulas of `cpaan.gan`, with fewer passes over memory."""
