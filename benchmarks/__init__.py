"""Speed, always as ratios inside one run. `make bench` on an otherwise idle machine."""
