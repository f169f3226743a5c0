"""Single measurements: costs, energy, memory, identity, likelihood, scores."""
