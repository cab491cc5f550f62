"""Pictures of the documents."""
