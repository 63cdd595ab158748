"""Debian's Chromium without a window, driven by Selenium."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

# Root has no sandbox. The others keep Chromium from sending requests of its own.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def what_is_missing() -> str | None:
    """Return what this machine lacks to run a browser; None if it lacks nothing."""
    if absent := [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]:
        return f"{', '.join(absent)} (Debian: apt-get install chromium chromium-driver)"
    return None


class Browser:
    """A browser whose log and requests can be asked for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: object) -> object:
        """Return what a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def resize(self, width: int, height: int) -> None:
        """Give the page a size, as a screen of that size would; windows have a least width."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def prefer(self, scheme: str) -> None:
        """Let the system prefer "light" or "dark", and that nothing moves."""
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def messages(self) -> list[str]:
        """Return what the console has been told since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        log = self.driver.get_log("performance")
        entries = [json.loads(entry["message"])["message"] for entry in log]
        sent = [each for each in entries if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]


@contextmanager
def start_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own in a folder; at the end, nothing of it is left."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With the driver's path, Selenium looks for none and downloads none.
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
