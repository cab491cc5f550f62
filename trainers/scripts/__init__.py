"""The parts that the training scripts share: arguments, runs, the demo."""
