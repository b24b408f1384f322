"""The machine: processes, devices, memory, signals, files, progress, random numbers, and how commands fail."""
