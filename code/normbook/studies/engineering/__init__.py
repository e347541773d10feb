"""What §11 sets up: fused kernels, statistics across devices, rooflines, norms side by side."""
