"""What the attacks stand on: the question, the counted model, the best answer, the nearest linearised boundary."""
