"""The schema's revisions, run by shared.store.migrate."""
