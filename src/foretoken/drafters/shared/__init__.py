"""What several drafters have in common; nobody else imports it."""
