"""Explore images with a trained encoder: feature files, neighbors, near-duplicates, outliers and diverse subsets."""
