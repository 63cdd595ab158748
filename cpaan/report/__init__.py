"""From results to tables, claims, figures and the page."""
