"""Features of a set of images by a frozen encoder, and nearest neighbors among them."""
