"""Tables, charts and pages of finished runs."""
