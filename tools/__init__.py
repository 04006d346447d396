"""Programs that maintain the checkout: the environment, and the part of the documentation that is generated."""
