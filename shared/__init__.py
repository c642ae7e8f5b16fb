"""What brain, hands and outbox agree on; imports none of them."""
