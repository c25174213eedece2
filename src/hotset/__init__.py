"""hotset."""
