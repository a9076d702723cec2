"""What the attacks share: the question, the counted model, the best answer, the nearest linearised boundary."""
