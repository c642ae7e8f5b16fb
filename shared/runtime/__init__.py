"""What a process needs around its work: settings, logs and the embedded servers."""
