"""The models that come with foretoken: a folder for each, next to this file."""
