"""What drafters that copy search: earlier text, suffixes, a datastore."""
