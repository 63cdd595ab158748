"""Headless Chromium of Debian, controlled by Selenium."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

# Root cannot use the sandbox. The other flags prevent Chromium's own requests.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def what_is_missing() -> str | None:
    """Return the programs that are missing to run a browser, or None."""
    if absent := [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]:
        return f"{', '.join(absent)} (Debian: apt-get install chromium chromium-driver)"
    return None


class Browser:
    """A browser with access to its console log and its requests."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: object) -> object:
        """Run a script in the page and return its result."""
        return self.driver.execute_script(script, *arguments)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the screen; a window could not be as narrow."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def prefer(self, scheme: str) -> None:
        """Set the preferred colour scheme, "light" or "dark", and reduced motion."""
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def messages(self) -> list[str]:
        """Return the console messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the URLs of requests since the last call."""
        log = self.driver.get_log("performance")
        entries = [json.loads(entry["message"])["message"] for entry in log]
        sent = [entry for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        return [entry["params"]["request"]["url"] for entry in sent]


@contextmanager
def start_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with a new profile in a folder, and quit it at the end."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With the path of the driver, Selenium does not search for it or download it.
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
