from .answer import hand_over_answer as hand_over_answer
from .mirror import main as main
from .trackio import show_dashboard as show_dashboard
