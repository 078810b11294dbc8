"""What learns and what judges: training, evaluation, searches, reports and studies, one command each."""
