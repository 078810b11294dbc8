def draw_ansi(sim): return ""
def draw_rgb(sim): return None
