"""What is summed: the contribution of each agent to the one distributed sum."""
