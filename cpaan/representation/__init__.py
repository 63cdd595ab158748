"""From images to features: backbones trained on base classes, and embeddings on top."""
