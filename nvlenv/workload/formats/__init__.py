"""Public job traces in their original formats, one file per source; `registry` finds the right one."""
