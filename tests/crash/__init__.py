"""The crash matrix: a run of the five mails, ended at every commit and publish of every process."""
