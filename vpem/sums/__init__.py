"""How it is summed: exactly at a server, or by consensus among neighbours."""
