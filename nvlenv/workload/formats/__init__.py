"""Public job traces in their original formats, one file per family; `registry` finds the right one."""
