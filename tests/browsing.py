"""A real browser: one for all tests, for two of them do not go together in one process."""

import os
import shutil

import pytest

from tests.waiting import PATIENCE

ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-quic",
)  # fmt: skip


def miss(reason):
    """Without a browser these tests cannot tell anything: fine on a small machine, not where it matters."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        miss("there is no Chromium on this machine (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        miss("the package playwright is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Watch:
    """An open page, a file or the address of a server of ours, with everything that must not happen on it."""

    def __init__(self, browser, path, **options):
        self.own = path if isinstance(path, str) else path.resolve().as_uri()
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.page = self.context.new_page()
        self.requests, self.complaints, self.dialogs = [], [], []
        # Everything but the file itself, or what the server has, is refused as well as counted.
        self.context.route("**/*", self._judge)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(self.own)
        self.page.wait_for_selector("html[data-ready=true]", timeout=1000 * PATIENCE)

    def _judge(self, route):
        url = route.request.url
        if url == self.own or (self.own.startswith("http://") and url.startswith(self.own.partition("#")[0])):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


@pytest.fixture
def watch(browser):
    watches = []

    def start(path, **options):
        watches.append(Watch(browser, path, **options))
        return watches[-1]

    yield start
    for each in watches:
        each.context.close()
