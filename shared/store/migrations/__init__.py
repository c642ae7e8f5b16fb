"""The schema's revisions, run by brainhands.shared.store.migrate."""
