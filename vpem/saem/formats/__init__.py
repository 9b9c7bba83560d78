"""Files of individuals, devices and fits."""
