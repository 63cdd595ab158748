"""Pictures of results: each file draws one kind, from data frames, in one style."""
