"""What every room stands on: errors, files, command lines, settings, compiled functions."""
