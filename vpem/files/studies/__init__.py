"""What parties agree on, know each other by, and allow: studies, keys, requests, policies, logs."""
