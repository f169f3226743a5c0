"""The decision of `auto`: what a pass costs, what is accepted, and which draft pays."""
