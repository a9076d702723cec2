"""Random models, attacks and arguments, seeded; and what must hold for every row that comes back."""
