"""One turn in Harmony: the script of what is to be said, the transcript of what was."""
