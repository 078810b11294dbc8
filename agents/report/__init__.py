"""The report: one self-contained HTML file with summary, tables, figures and an interactive replay."""
