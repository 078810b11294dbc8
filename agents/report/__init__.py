"""The report: one self-contained HTML file with summary, tables, figures and an interactive replay.

python -m agents.report RESULTS --out report.html
"""
