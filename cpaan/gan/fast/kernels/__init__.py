"""Triton kernels that fuse several PyTorch operations into one pass.

Sums over blocks of rows have a fixed order, so equal inputs give bitwise equal results.
"""
