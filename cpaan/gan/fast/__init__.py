"""The formulas of `cpaan.gan`, computed on a GPU in fewer passes."""
