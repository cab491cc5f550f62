"""Training texts: files and the Hub, checked, sampled, augmented."""
