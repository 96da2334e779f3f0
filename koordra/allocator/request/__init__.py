"""What a claim asks for: requests resolved with classes and koordra's parameters, what is refused outright,
the shipped classes."""
