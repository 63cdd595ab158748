"""The paper's method: episodes, networks, objectives and the training loop."""
