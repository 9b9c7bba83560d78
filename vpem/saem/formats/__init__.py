"""Files of individuals, devices and fits."""

FIT = "vpem-saem"
INDIVIDUALS = "vpem-individuals"
"""What files say that they are, for those who read these only if they are."""
