"""What several verification rules have in common; nobody else imports it."""
