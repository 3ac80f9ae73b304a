"""What people get wrong, in one sentence; and what became of the engine that they wait for."""
