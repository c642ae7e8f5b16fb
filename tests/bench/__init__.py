"""What a turn costs, measured."""
