"""From a row of logits to a token."""
