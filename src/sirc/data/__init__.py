"""Datasets of images: folders, file lists, torchvision's, the paper's benchmarks, and Noise, which needs no files."""
