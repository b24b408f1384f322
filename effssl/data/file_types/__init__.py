"""Files that hold more than pictures: one module for each type of file."""
