"""The training step on a GPU: compiled definitions, one CUDA graph, kernels for covariances."""
