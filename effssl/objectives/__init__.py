"""What is optimized: a weighted sum of terms that share one network."""
