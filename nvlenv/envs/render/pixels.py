"""A canvas of pixels with rectangles, hatching and small capitals, for pictures without a drawing library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Canvas = NDArray[np.uint8]  # (H, W, 3)
Colour = tuple[int, int, int]

WHITE, PAPER, PANEL, GREY, INK = (255, 255, 255), (246, 246, 244), (218, 218, 214), (150, 150, 148), (40, 40, 44)
# Okabe and Ito's colours, which people with any kind of colour vision tell apart (jfly.uni-koeln.de/color, 2008).
PALETTE: tuple[Colour, ...] = (
    (86, 180, 233),  # sky blue
    (240, 228, 66),  # yellow
    (0, 158, 115),  # bluish green
    (0, 114, 178),  # blue
    (213, 94, 0),  # vermillion
    (204, 121, 167),  # reddish purple
    (230, 159, 0),  # orange
)

GLYPH_HEIGHT, GLYPH_ADVANCE = 5, 4
# Each glyph is five rows of three pixels; a row is one octal digit.
_GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25563", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55552",
    "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", "-": "00700", ".": "00002", ":": "02020", "/": "11244",
    "_": "00007", "+": "02720", " ": "00000",
}  # fmt: skip


def blank(height: int, width: int) -> Canvas:
    """A canvas (height, width, 3) of paper."""
    return np.full((height, width, 3), PAPER, np.uint8)


def rectangle(canvas: Canvas, y: int, x: int, height: int, width: int, colour: Colour) -> None:
    """Fill a rectangle; what lies beyond the canvas is cut off."""
    canvas[y : y + height, x : x + width] = colour


def hatch(canvas: Canvas, y: int, x: int, height: int, width: int, colour: Colour, gap: int) -> None:
    """Draw diagonal lines, `gap` pixels apart, over a rectangle."""
    part = canvas[y : y + height, x : x + width]
    rows, columns = np.indices(part.shape[:2])
    part[(rows + columns) % gap < max(1, gap // 4)] = colour


def text_width(text: str, zoom: int) -> int:
    """Pixels from the first to behind the last letter."""
    return max(0, len(text) * GLYPH_ADVANCE - 1) * zoom


def write(canvas: Canvas, y: int, x: int, text: str, zoom: int, colour: Colour = INK) -> None:
    """Write small capitals, `GLYPH_HEIGHT * zoom` pixels high; letters without a glyph become blanks."""
    for k, letter in enumerate(text.upper()):
        rows = [int(digit, 8) for digit in _GLYPHS.get(letter, "00000")]
        dots = np.array([[row >> 2 & 1, row >> 1 & 1, row & 1] for row in rows], np.bool_)
        dots = dots.repeat(zoom, axis=0).repeat(zoom, axis=1)
        left = x + k * GLYPH_ADVANCE * zoom
        part = canvas[y : y + dots.shape[0], left : left + dots.shape[1]]
        part[dots[: part.shape[0], : part.shape[1]]] = colour
