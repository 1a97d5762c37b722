"""What a batch looks like to an objective, in numbers and pictures."""
