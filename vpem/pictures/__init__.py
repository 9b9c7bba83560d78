"""Pictures of fitted models, and the page that has them all."""
