"""What a trained encoder is good for: features of a folder, and what they tell about its images."""
