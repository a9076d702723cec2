"""Who may ask, and how much they may send."""

import io
import json
import random
from urllib.parse import urlsplit

import pytest
from PIL import Image

from deepfool.live.safety import Door, Guard
from tests.live.conftest import TAB, about_sample, run_async


def names(server):
    return urlsplit(server.url).netloc


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", ""])
def test_other_names_lead_nowhere(lenet, host):
    status, _, body = lenet.request("GET", "/api/about", headers={"Host": host})
    assert status in (400, 421)
    assert b"lenet" not in body


def test_other_pages_are_refused(lenet):
    sent = json.dumps(about_sample())
    for headers in (
        {**TAB, "Origin": "http://evil.example"},
        {**TAB, "Origin": "null"},
        {**TAB, "Sec-Fetch-Site": "cross-site"},
        {"Origin": f"http://{names(lenet)}"},  # a form can send this much, but no header of its own
    ):
        assert lenet.request("POST", "/api/ask", sent, headers)[0] == 403
    own = {**TAB, "Origin": f"http://{names(lenet)}", "Sec-Fetch-Site": "same-origin"}
    assert lenet.request("POST", "/api/ask", sent, own)[0] == 200


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/about", "/static/nothing", "/api/samples?label=x"])
def test_every_answer_keeps_the_page_to_itself(lenet, path):
    _, headers, _ = lenet.request("GET", path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["..%2fapp.py", "../app.py", "%2e%2e/app.py", "/etc/passwd", "app.py", "README.md", ""]
)
def test_no_path_of_a_client_is_opened(lenet, name):
    status, _, body = lenet.request("GET", f"/static/{name}")
    assert status in (307, 404)
    assert b"import" not in body


def test_bodies_are_limited(lenet):
    status, _, body = lenet.request("POST", "/api/ask", b"[" * 300_000, TAB)
    assert (status, b"too large" in body) == (400, True)
    status, _, body = lenet.request("POST", "/api/picture", b"", {**TAB, "Content-Length": "99000000"})
    assert (status, b"too large" in body) == (400, True)


def picture_file(image, kind="PNG"):
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def test_pictures_are_limited_and_decoded_by_the_formats_meant(lenet):
    def send(body):
        status, _, answer = lenet.request("POST", "/api/picture", body, TAB)
        return status, json.loads(answer).get("message", "")

    assert send(picture_file(Image.new("L", (40, 60))))[0] == 200
    assert send(picture_file(Image.new("RGB", (40, 60)), "JPEG"))[0] == 200
    huge = picture_file(Image.new("1", (10_000, 10_000)))
    assert len(huge) < 100_000
    status, message = send(huge)
    assert (status, "10000 x 10000 pixels, at most 40 million" in message) == (400, True)
    whole = picture_file(Image.effect_noise((64, 64), 50))
    for broken in (
        whole[: len(whole) // 2],
        b"",
        b"not an image",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        random.Random(1).randbytes(999),
    ):
        status, message = send(broken)
        assert status == 400
        assert message.endswith(".")
        assert "Traceback" not in message
    for kind in ("TIFF", "PPM"):  # other readers of Pillow are not for strangers
        assert send(picture_file(Image.new("RGB", (4, 4)), kind))[0] == 400


def visit(app, path="/", query=b"", **headers):
    """The status and headers of a request to an ASGI application."""
    answered = []

    async def send(message):
        answered.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": query, "http_version": "1.1",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    run_async(app(scope, receive, send))
    return answered[0]["status"], {name.decode(): value.decode() for name, value in answered[0]["headers"]}


async def let_in(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


def test_a_token_opens_what_others_can_reach():
    guard = Guard(let_in, Door("0.0.0.0", 8765, "a-token"))
    assert visit(guard, host="10.0.0.7:8765")[0] == 403
    assert visit(guard, query=b"token=another", host="10.0.0.7:8765")[0] == 403
    assert visit(guard, host="10.0.0.7:8765", cookie="deepfool_live=another")[0] == 403
    status, headers = visit(guard, query=b"token=a-token", host="10.0.0.7:8765")
    assert (status, headers["location"]) == (303, "/")
    assert "HttpOnly" in headers["set-cookie"]
    assert "samesite=strict" in headers["set-cookie"].lower()
    kept = headers["set-cookie"].partition(";")[0]
    assert visit(guard, host="10.0.0.7:8765", cookie=kept)[0] == 200
    assert visit(guard, host="10.0.0.7:8765", cookie=kept, origin="http://evil.example")[0] == 403


def test_the_address_says_the_token_only_where_it_is_needed():
    assert Door("127.0.0.1", 80).url == "http://127.0.0.1:80/"
    assert Door("::1", 8765).url == "http://[::1]:8765/"
    assert Door("0.0.0.0", 8765, "t").url == "http://0.0.0.0:8765/?token=t"
