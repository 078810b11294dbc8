"""Pictures of a report as a browser shows it, for the README. Needs Chromium, its driver and selenium."""

from __future__ import annotations

import base64
import importlib.util
import io
import shutil
from pathlib import Path

from PIL import Image

from nvlenv.common.files import written_whole

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, HIGH, SCALE = 1360, 1200, 1.2  # CSS pixels, and device pixels for each of them
PARTS = {"top": "header", "replay": "#replay"}


def can_shoot() -> bool:
    """True if everything is there."""
    return bool(_browser() and shutil.which("chromedriver") and importlib.util.find_spec("selenium"))


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def shoot(page: Path, part: str, out: Path) -> None:
    """A PNG of a part of a report: "top" (the summary) or "replay"."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(_browser())
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        view = {"width": WIDE, "height": HIGH, "deviceScaleFactor": SCALE, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
        browser.get(page.resolve().as_uri())
        browser.execute_async_script(
            "const done = arguments[0];"
            "document.fonts.ready.then(() => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        box = browser.execute_script(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return {x: box.x, y: box.y + scrollY, width: box.width, height: box.height, scale: 1}",
            PARTS[part],
        )
        picture = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": box, "captureBeyondViewport": True})
        image = Image.open(io.BytesIO(base64.b64decode(picture["data"]))).convert("RGB")
        with written_whole(out) as file:  # a few colours only, so a palette holds them all and the file is small
            image.quantize(256, dither=Image.Dither.NONE).save(file, format="PNG", optimize=True)
    finally:
        browser.quit()
