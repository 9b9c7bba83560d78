"""Who is where, and what is sent between them."""
