"""The engines of the GPU bench: each names its ways, over an installed package."""
